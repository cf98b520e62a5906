"""A leader that is cut off from the database but lives: programs that it reaches end before their second attempt."""

from __future__ import annotations

from pathlib import Path

import pytest
from databases import PostgresServer
from machines_harness import eventually
from ticks import TICK, attempts, overlap_s
from two_control_planes import Pair, Weather, two_control_planes

FENCE_S = 5
BUSY_S = 120.0  # a busy machine may take so long
SESSIONS = (
    "SELECT string_agg(concat_ws(' ', pid, application_name, state, wait_event, state_change, query), chr(10))"
    " FROM pg_stat_activity WHERE datname = current_database()"
)

pytestmark = pytest.mark.timeout(300)  # it only bounds a failing test, and machines may be busy


def begin_jobs(pair: Pair, *nodes: str) -> dict[str, Path]:
    """Start one batch job on each node; return the files in which their attempts tick."""
    pair.a.ask("PATCH", "policy", {"node_lost_after_s": FENCE_S, "min_runtime_s": 0})
    files = {f"on-{node}": pair.root / f"on-{node}" for node in nodes}
    for name, path in files.items():
        path.touch(0o666)
        path.chmod(0o666)
        pair.a.submit(name, TICK.format(path), grace="1s", restart="on-failure")
        assert pair.a.becomes(name, "running")
    assert {pair.a.node_of(name) for name in files} == set(nodes)
    assert all(eventually(lambda path=path: 1 in attempts(path)) for path in files.values())
    return files


def runs_again(pair: Pair, name: str, path: Path) -> bool:
    """Wait until the new leader has started the second attempt, and give the first one a second to show itself."""

    def ticks() -> bool:
        first, last = attempts(path).get(2, (0.0, 0.0))
        return last - first >= 1.0

    return eventually(lambda: pair.b.replica(name)["attempt"] == 2 and ticks(), BUSY_S)


@pytest.mark.parametrize("fault", ["silent", "reset", "thawed"])
def test_leader_without_database_has_no_contact_to_nodes(server: PostgresServer, fault: str) -> None:
    """The old leader still reaches its own node (n1) and another one (n2), which the new leader does not reach.

    ``silent``: as when a cable is pulled. ``reset``: the server ends the session at once, so the other leads sooner.
    ``thawed``: its process is frozen as well, until the other leads.
    """
    with two_control_planes(server, ["1xT4", "1xT4", "2xT4"]) as pair:
        pair.a.submit("fills-n3", "sleep 1000", gpus={"count": 2})  # so that the jobs start on the other nodes
        assert pair.a.becomes("fills-n3", "running")
        files = begin_jobs(pair, "n1", "n2")
        pair.b.cut("n1", "n2")
        pair.a.cut("n3")
        pair.a.database.set(Weather.CUT if fault == "reset" else Weather.FROZEN)
        if fault == "thawed":
            pair.a.freeze()
        assert eventually(pair.b.leads, BUSY_S), pair.b.log() + pair.sql(SESSIONS)
        pair.a.thaw()
        pair.b.ask("POST", "workloads/fills-n3/stop", {"force": True})
        for name, path in files.items():
            assert runs_again(pair, name, path), pair.b.log()
            assert pair.b.node_of(name) == "n3"
        assert {name: overlap_s(path) < 0 for name, path in files.items()} == dict.fromkeys(files, True)
        pair.b.heal()
        pair.a.heal()
        assert eventually(lambda: all(node.programs() == [] for name, node in pair.nodes.items() if name != "n3"))
        assert {name: overlap_s(path) < 0 for name, path in files.items()} == dict.fromkeys(files, True)
