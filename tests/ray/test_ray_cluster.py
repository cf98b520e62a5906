"""A cluster of machines with real Ray: joining, isolation, and faults that it survives.

One pool for the whole module; the tests come in the order in which they are written.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_pool import alive, eventually
from ray_machines import Cluster, Job, Machine, ancestors_of, environment_of

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]


def leased(machines: Cluster) -> dict[str, int]:
    """Return the leased part of each GPU, by node."""
    views = machines.head.json("nodes")["nodes"]
    return {view["name"]: sum(gpu["allocated_permille"] for gpu in view["gpus"]) for view in views}


@pytest.fixture(autouse=True)
def ended_jobs(machines: Cluster) -> Iterator[None]:
    """End the jobs that a failed test leaves running: they would hold the GPU during all later tests."""
    yield
    for starts in machines.head.work.glob("*/starts"):
        (starts.parent / "stop").touch()
    assert eventually(lambda: not any(leased(machines).values()))


def test_machines_join_and_run_work(machines: Cluster) -> None:
    assert {machines.state_of(node.name) for node in machines.nodes} == {"up"}
    for node in machines.nodes:
        where = ("--filter", f"node={node.name}")
        done = machines.head("run", *where, "--", "sh", "-c", "cat; exit 3", stdin=b"hello\n", ok=False)
        assert (done.returncode, done.stdout) == (3, b"hello\n")


def test_programs_are_isolated_from_ray(machines: Cluster) -> None:
    node = machines.nodes[0]
    job = Job(machines, "apart", node)
    assert not [name for name in environment_of(job.starts[0]) if "RAY" in name.upper()]
    assert not [line for line in ancestors_of(job.starts[0]) if "ray" in line and "gpupool.fabric" in line]
    token = (node.state / "cluster" / "ray.token").read_text()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert token.encode() not in process.read_bytes()
        except OSError:
            continue
    job.ends_well()


def test_keys_tokens_and_sockets_are_private(machines: Cluster) -> None:
    for machine in (machines.head, *machines.nodes):
        secrets = machine.state / "cluster"
        assert secrets.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {0o600}
    for socket in (machines.head.run / "nodes").iterdir():
        assert socket.stat().st_mode & 0o777 == 0o600
    temporary = next(words for words in ancestors_of(machines.head.pids()["ray"])[0].split() if words.endswith("/t"))
    assert Path(temporary).parent.stat().st_mode & 0o777 == 0o700


ASK = """
import socket, ssl, sys
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.set_alpn_protocols(["h2"])
if sys.argv[3:]:
    context.load_cert_chain(*sys.argv[3:])
try:
    with context.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)) as secure:
        print(len(secure.recv(1)))
except OSError:
    print(0)
"""


def test_ports_need_a_certificate_of_the_pool(machines: Cluster) -> None:
    node = machines.nodes[0]
    own = [str(node.state / "cluster" / name) for name in ("node.pem", "node.key")]

    def heard(machine: Machine, port: int, *certificate: str) -> bytes:
        asker = node if machine is machines.head else machines.head
        asking = ["ip", "netns", "exec", asker.space, sys.executable, "-c", ASK, machine.address, str(port)]
        return subprocess.run([*asking, *certificate], capture_output=True, check=True, timeout=100).stdout.strip()

    for machine, port in ((machines.head, 8650), (machines.head, 8651), (machines.nodes[0], 8651)):
        assert heard(machine, port) == b"0"
        assert heard(machine, port, *own) == b"1"


def test_ports_are_those_of_the_documentation(machines: Cluster) -> None:
    documented = {8443, 8650, 8651, 8652, *range(8660, 8680)}
    for machine in (machines.head, *machines.nodes):
        listed = subprocess.run(
            ["ip", "netns", "exec", machine.space, "ss", "-Htln"], capture_output=True, text=True, check=True
        )
        ports = {int(line.split()[3].rpartition(":")[2]) for line in listed.stdout.splitlines()}
        assert 8651 in ports
        assert ports <= documented


def test_used_join_token_is_refused(machines: Cluster) -> None:
    tokens = machines.head.json("join-token", "list")["join_tokens"]
    assert [token["uses_left"] for token in tokens] == [0]
    assert "secret_sha256" not in tokens[0]


def test_job_survives_relay_raylet_bridge_and_gcs(machines: Cluster) -> None:
    node, head = machines.nodes[0], machines.head
    job = Job(machines, "outlives-connections", node)
    node.kill_ray("ray::Relay")
    os.kill(head.pids()["bridge"], signal.SIGKILL)
    head.kill_ray("gcs/gcs_server")
    node.kill_ray("raylet/raylet")
    still_held(machines, job)


def test_job_survives_restart_of_ray_on_the_head(machines: Cluster) -> None:
    job = Job(machines, "outlives-head", machines.nodes[0])
    os.kill(machines.head.pids()["ray"], signal.SIGKILL)
    still_held(machines, job)


def still_held(machines: Cluster, job: Job) -> None:
    """Check that the job runs, keeps its GPU, and that its end is reported after the connection returns."""
    assert job.runs()
    assert leased(machines)[job.node.name] == 500
    job.ends_well()
    assert set(leased(machines).values()) == {0}
    assert machines.becomes(job.node.name, "up")


def test_disconnected_node_is_noticed_and_nothing_is_lost(machines: Cluster) -> None:
    node = machines.nodes[0]
    job = Job(machines, "cut-off", node)
    machines.wire.pull(node.space)
    assert machines.becomes(node.name, "down")
    assert job.runs()
    assert leased(machines)[node.name] == 500
    (job.folder / "stop").touch()
    assert eventually(lambda: not alive(job.starts[0]))
    machines.wire.plug(node.space)
    assert machines.becomes(node.name, "up")
    job.ends_well()


def test_node_upgrade_does_not_end_its_job(machines: Cluster) -> None:
    node = machines.nodes[0]
    job = Job(machines, "upgraded", node)
    node("down")
    assert machines.becomes(node.name, "down")
    assert job.runs()
    node("up", "--background")
    assert machines.becomes(node.name, "up")
    job.ends_well()


def test_machine_with_work_cannot_leave(machines: Cluster) -> None:
    node = machines.nodes[0]
    job = Job(machines, "stays", node, "--no-preemptible")
    refused = node("leave", ok=False)
    assert refused.returncode != 0
    assert b"WRONG_STATE" in refused.stderr
    assert job.runs()
    job.ends_well()
    node("leave")
    assert machines.state_of(node.name) == "gone"
    assert not (node.state / "cluster").exists()
