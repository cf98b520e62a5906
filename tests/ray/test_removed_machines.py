"""Machines that return after their removal from a cluster: they run nothing, and a head never leads."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import PostgresServer
from e2e_pool import PATIENCE_S, alive, eventually
from ray_machines import Job, Machine, TwoHeads, two_heads
from test_second_head import nodes_as_heads

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]
LEAD_WAIT_S = 25  # another head leads after 16 s at most: ten of them until PostgreSQL ends the silent session


class Removed(TwoHeads):
    """Two heads and two nodes; ``database_name`` is what SQL is asked of."""

    server: PostgresServer
    database_name: str

    def remove(self, machine: Machine) -> None:
        """Lose a machine, and have an administrator remove it for good."""
        assert self.becomes(machine.name, "down")
        self.head("node", "lost", machine.name)
        self.head("node", "remove", machine.name)

    def term(self) -> int:
        return int(self.server.sql("SELECT term FROM leadership", self.database_name))

    def names(self, table: str, column: str) -> list[str]:
        return self.server.sql(f"SELECT {column} FROM {table} ORDER BY 1", self.database_name).split()


def password_file(folder: Path) -> Path:
    """Create the file that an administrator copies from head to head; this server asks for no password."""
    path = folder / "database-password"
    path.write_text("a-secret\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def heads(needed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Removed]:
    def lead(made: Removed, server: PostgresServer) -> None:
        url = server.empty()
        made.server, made.database_name = server, url.rpartition("/")[2]
        made.lead(url, "--database-password-file", str(password_file(tmp_path_factory.mktemp("password"))))

    with two_heads(Removed, 2, lead) as made:
        yield made


def test_returning_removed_node_ends_programs_and_stays_out(heads: Removed) -> None:
    node = heads.nodes[1]
    job = Job(heads, "left-behind", node)
    (program,) = job.starts
    heads.wire.pull(node.space)
    heads.remove(node)
    assert heads.names("members", "node") == ["h2", "head", "n1"]
    assert heads.names("removed_members", "node") == ["n2"]
    assert alive(program)
    heads.wire.plug(node.space)
    assert eventually(lambda: not alive(program), PATIENCE_S * 4)
    assert eventually(lambda: "n2 was removed from the pool by root" in node.log("ray"), PATIENCE_S * 4)
    assert "n2" not in nodes_as_heads(heads.head)
    status = node("status", ok=False)
    assert status.returncode == 1
    assert b"join again with a new token" in status.stderr
    node("down")
    refused = node("up", "--background", ok=False)
    assert b"NODE_REMOVED" in refused.stderr
    token = heads.head.token()
    assert node.begin_join(heads.head, token).wait(PATIENCE_S * 4) == 0
    assert eventually(lambda: nodes_as_heads(heads.head).get("n2") == ("up", None))
    heads.head("stop", "left-behind")


def test_returning_removed_head_does_not_become_leader(heads: Removed) -> None:
    first, second = heads.head, heads.other
    job = Job(heads, "goes-on", heads.nodes[0])
    second.die()
    heads.remove(second)
    assert heads.names("heads", "name") == ["head"]
    heads.wire.plug(second.space)
    second("up", "--background")
    assert eventually(lambda: b"NODE_REMOVED" in second("ps", ok=False).stderr)
    assert eventually(lambda: "h2 was removed from the pool by root" in second.log("ray"), PATIENCE_S * 4)
    assert "h2" not in nodes_as_heads(first)
    assert eventually(lambda: all(set(node.heads()) == {"head"} for node in heads.nodes))
    term = heads.term()
    first.die()
    assert not eventually(lambda: heads.term() > term or heads.names("heads", "name") != ["head"], LEAD_WAIT_S)
    assert b"NODE_REMOVED" in second("ps", ok=False).stderr
    heads.wire.plug(first.space)
    first("up", "--background")
    expected = {"head": ("up", None), "n1": ("up", None), "n2": ("up", None)}
    assert eventually(lambda: nodes_as_heads(first) == expected, PATIENCE_S * 4)
    assert heads.term() > term
    job.ends_well()


def test_removed_head_can_rejoin_and_lead_with_new_token(heads: Removed) -> None:
    first, second = heads.head, heads.other
    second("down")
    printed = first("join-token", "create", "--head").stderr.decode().splitlines()
    (line,) = (line for line in printed if line.startswith("  "))
    assert " --database-password-file /" in line
    command = ["ip", "netns", "exec", second.space, "sh", "-c", line]  # exactly as printed
    done = subprocess.run(command, env=second.env, cwd=second.work, check=False, timeout=PATIENCE_S * 4)
    assert done.returncode == 0
    assert eventually(lambda: nodes_as_heads(first).get("h2") == ("up", "waits"))
    assert eventually(lambda: all(set(machine.heads()) == {"head", "h2"} for machine in heads.machines), PATIENCE_S * 2)
    first("down")
    heads.swap()
    expected = {"h2": ("up", "leads"), "n1": ("up", None), "n2": ("up", None)}
    assert eventually(lambda: expected.items() <= nodes_as_heads(second).items(), PATIENCE_S * 4)
