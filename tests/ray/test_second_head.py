"""A cluster with two heads, of which the leading one is lost with its machine: real Rays, a real PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_pool import PATIENCE_S, alive, eventually
from ray_machines import Job, Machine, Outsider, TwoHeads, two_heads

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def heads(needed: None) -> Iterator[TwoHeads]:
    """Yield two heads and two nodes, each in a network namespace, and a database that all of them reach."""
    with two_heads(TwoHeads, 2) as made:
        yield made


def nodes_as_heads(asked: Machine) -> dict[str, tuple[str, str | None]]:
    return {node["name"]: (node["state"], node["head"]) for node in asked.json("nodes")["nodes"]}


def test_head_needs_a_head_token(heads: TwoHeads) -> None:
    stranger = Machine(heads.head.folder.parent / "n9", "1xT4", "n9", heads.wire)
    refused = stranger(*stranger.join_words(heads.head, heads.head.token()), "--as-head", ok=False)
    assert refused.returncode != 0
    assert b"FORBIDDEN" in refused.stderr
    assert b"join-token create --head" in refused.stderr
    assert "n9" not in nodes_as_heads(heads.head)
    listed = heads.head.json("join-token", "list")["join_tokens"]
    assert sorted(token["for_head"] for token in listed) == [False, False, True]


def test_leader_and_standby_are_shown(heads: TwoHeads) -> None:
    expected = {"head": ("up", "leads"), "h2": ("up", "waits"), "n1": ("up", None), "n2": ("up", None)}
    assert eventually(lambda: nodes_as_heads(heads.head) == expected)
    assert "gcs_server" in str(heads.head.processes())
    assert "gcs_server" not in str(heads.other.processes())
    for force in ((), ("--force",)):
        assert b"leads its pool" in heads.head("leave", *force, ok=False).stderr


ASK = """
import asyncio, sys
from pathlib import Path
from gpupool.daemon.cluster.peer_heads import HeadsOfFolder
from gpupool.domain.errors import GpupoolError
try:
    print("needed", asyncio.run(HeadsOfFolder(Path(sys.argv[1])).needed(sys.argv[2])))
except GpupoolError as error:
    print(error.code)
"""


def answer_to(asks: Machine, head: str) -> str:
    """Return a head's answer to a machine that asks with its own secret for the needed folders."""
    command = ["ip", "netns", "exec", asks.space, sys.executable, "-c", ASK, str(asks.state / "cluster"), head]
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=PATIENCE_S)
    return done.stdout.strip()


def test_files_are_sent_to_heads_only(heads: TwoHeads) -> None:
    node = heads.nodes[0]
    assert answer_to(heads.other, "head") == "needed []"
    assert eventually(lambda: answer_to(heads.head, "h2") == "NOT_LEADING")
    assert answer_to(node, "head") == "FORBIDDEN"
    assert eventually(lambda: answer_to(node, "h2") == "FORBIDDEN")  # it reads now and then which machines there are


def send_folders(heads: TwoHeads, sender: Outsider) -> None:
    """Work that waits for a node: its folder is on both heads, or on the first alone, or soon on none."""
    sender.submit_folder("sent-before", "n1", "1")
    assert eventually(lambda: heads.head.trees() == heads.other.trees() != set())
    before = heads.other.trees()
    heads.other.cut_off_from(heads.head)
    sender.submit_folder("sent-late", "n2", "1")
    sender.submit_folder("sent-and-lost", "n2", "1")
    assert heads.other.trees() == before
    assert len(heads.head.trees() - before) == 2


def reason_of(head: Machine, name: str) -> tuple[str, str]:
    found = head.json("why", name)
    return found["code"], found["sentence"]


SAYS_AND_HEARS = "for i in $(seq 30); do echo $i; sleep 0.1; done; read line; echo got $line; seq 31 60; exit 6"
KEEPS_A_CLIENT = """
import sys, gpupool
with gpupool.Client() as client:
    print(client.pool().nodes, flush=True)
    sys.stdin.readline()
    print(client.wait(client.submit(["true"], gpus=0).id).view.state, flush=True)
"""


class User:
    """A user on another machine who logged in once, follows a program and a log, and keeps a Client open."""

    def __init__(self, heads: TwoHeads, folder: Path) -> None:
        self.machine = Outsider(folder, heads.wire)
        self.machine.login(heads.head)
        self.run = self.machine.begin("run", "-g", "0", "--filter", "node=n2", "--", "sh", "-c", SAYS_AND_HEARS)
        self.log = self.machine.begin("logs", "-f", "outlives-n1")
        self.client = self.machine.begin_program(sys.executable, "-c", KEEPS_A_CLIENT)
        assert self.run.stdout is not None
        assert self.client.stdout is not None
        self.said = self.run.stdout.readline()
        assert self.client.stdout.readline() == b"4\n"

    def heads(self) -> dict[str, bool]:
        """Return the heads that the login has learned, and the one that was used last."""
        (pool,) = json.loads(self.machine("login", "--json"))["pools"]
        return {head["name"]: head["last"] for head in pool["heads"]}

    def submits(self) -> None:
        """Submit one more job while no head leads."""
        self.late = self.machine.begin("submit", "late", "-g", "0", "--", "true")

    def goes_on(self) -> None:
        """Check that all jobs are complete without a new login."""
        _, err = self.late.communicate(timeout=PATIENCE_S * 2)
        assert self.late.returncode == 0, err.decode()
        assert self.heads() == {"head": False, "h2": True}
        out, err = self.client.communicate(b"\n", timeout=PATIENCE_S * 2)
        assert out == b"succeeded\n", err.decode()
        out, err = self.run.communicate(b"this\n", timeout=PATIENCE_S * 4)
        sys.stderr.write(err.decode())
        assert self.run.returncode == 6
        said = [*map(str, range(1, 31)), "got this", *map(str, range(31, 61))]
        assert (self.said + out).decode().split("\n") == [*said, ""]

    def read_the_log(self, job: Job) -> None:
        """Check that the followed output equals the stored log."""
        out, err = self.log.communicate(timeout=PATIENCE_S * 2)
        assert out.decode().splitlines() == job.output(), err.decode()


def test_standby_takes_over_from_lost_leader(
    heads: TwoHeads, tmp_path: Path, record_property: pytest.FixtureRequest
) -> None:
    first, second = heads.head, heads.other
    jobs = [Job(heads, f"outlives-{node.name}", node) for node in heads.nodes]
    user = User(heads, tmp_path / "outside")
    assert set(user.heads()) == {"head", "h2"}
    send_folders(heads, user.machine)
    first.die()
    began = time.monotonic()
    heads.swap()
    user.submits()
    assert eventually(lambda: second("nodes", ok=False).returncode == 0, PATIENCE_S * 2)
    leads_s = time.monotonic() - began
    others = {"h2": ("up", "leads"), "n1": ("up", None), "n2": ("up", None)}
    assert eventually(lambda: others.items() <= nodes_as_heads(second).items(), PATIENCE_S * 4)
    up_s = time.monotonic() - began
    sys.stderr.write(f"leads after {leads_s:.1f} s, all up after {up_s:.1f} s\n")
    record_property("leads_s", leads_s)  # type: ignore[operator]
    record_property("up_s", up_s)  # type: ignore[operator]
    assert all(job.runs() for job in jobs)
    user.goes_on()
    for node in heads.nodes:
        second("submit", f"new-{node.name}", "-g", "0.5", "--filter", f"node={node.name}", "--", "true")
        assert second.becomes(f"new-{node.name}", "succeeded")
    for name in ("sent-late", "sent-and-lost"):
        assert eventually(lambda n=name: "head may have it but cannot be reached" in reason_of(second, n)[1])
        code, said = reason_of(second, name)
        assert code == "FOLDER"
        assert "waits for its folder" in said
    for job in jobs:
        job.ends_well()
    assert second.becomes("sent-before", "succeeded")
    assert second("logs", "sent-before").stdout == b"in the folder of sent-before\n"
    assert second.state_of("sent-late") == "queued"  # although its node has room by now
    user.read_the_log(jobs[0])


def test_old_leader_returns_as_standby(heads: TwoHeads) -> None:
    back = heads.other
    for path in (back.state / "files").glob("u-*/blobs/*/*"):
        if path.read_bytes() == b"in the folder of sent-and-lost\n":
            path.unlink()
    heads.wire.plug(back.space)
    heads.head.reach(back)
    back("up", "--background")
    assert eventually(lambda: nodes_as_heads(heads.head).get("head") == ("up", "waits"), PATIENCE_S * 4)
    assert "gcs_server" not in str(back.processes())
    assert b"NOT_LEADING" in back("ps", ok=False).stderr
    heads.head("submit", "on-the-first", "-n", "1", "--filter", "node=head", "--", "true")
    assert heads.head.becomes("on-the-first", "succeeded")
    assert heads.head.becomes("sent-late", "succeeded")
    assert heads.head("logs", "sent-late").stdout == b"in the folder of sent-late\n"
    assert heads.head.becomes("sent-and-lost", "failed")
    replica = heads.head.json("describe", "sent-and-lost")["replicas"][0]
    assert (replica["reason"], replica["attempt"]) == ("START_FAILED", 0)
    assert "files are not on the leader" in replica["message"]


def test_forced_leave_ends_programs_of_the_machine(heads: TwoHeads) -> None:
    node, head = heads.nodes[1], heads.head
    ends = Job(heads, "ends-with-it", node, "--no-preemptible")
    head("submit", "goes-on", "-g", "0", "--filter", "node=n2", "--restart", "on-failure", "--", "sleep", "1000")
    assert head.becomes("goes-on", "running")
    (program,) = ends.starts
    node("leave", "--force")
    assert not alive(program)
    assert set(nodes_as_heads(head)) == {"head", "h2", "n1"}
    assert head.becomes("ends-with-it", "failed")
    replica = head.json("describe", "ends-with-it")["replicas"][0]
    assert (replica["reason"], replica["message"]) == ("NODE_LOST", "n2 left the pool")
    assert head.becomes("goes-on", "queued")  # it may run on another node, but requests this one
    head("stop", "goes-on")


def test_standby_can_leave(heads: TwoHeads) -> None:
    heads.other("leave")
    assert set(nodes_as_heads(heads.head)) == {"h2", "n1"}
    assert eventually(lambda: set(heads.head.heads()) == {"h2"})
    assert not (heads.other.state / "cluster").exists()
    assert eventually(lambda: b"only head" in heads.head("leave", "--force", ok=False).stderr)
