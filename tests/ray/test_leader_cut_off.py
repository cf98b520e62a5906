"""A cluster whose leading head loses its cable but lives: its own work ends before the other head starts it again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_pool import PATIENCE_S, eventually
from ray_machines import TwoHeads, two_heads

sys.path.insert(0, str(Path(__file__).parent.parent / "machines"))

from ticks import TICK, attempts, overlap_s

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def heads(needed: None) -> Iterator[TwoHeads]:
    """Yield two heads and a node, each in a network namespace, and a database that all of them reach."""
    with two_heads(TwoHeads, 1) as made:
        yield made


def test_work_of_disconnected_leader_runs_once(heads: TwoHeads) -> None:
    first, second = heads.head, heads.other
    first("policy", "set", "--node-lost-after", "20s")
    ticks = first.work / "ticks"
    ticks.touch()
    ticks.chmod(0o666)
    first("submit", "fills-h2", "-g", "1", "--filter", "node=h2", "--restart", "never", "--", "sleep", "1000")
    assert first.becomes("fills-h2", "running")
    words = ("-g", "1", "--model", "A100", "--restart", "on-failure", "--", "sh", "-c", TICK.format(ticks))
    first("submit", "ticks", *words)
    assert eventually(lambda: 1 in attempts(ticks))
    assert first.json("describe", "ticks")["replicas"][0]["node"] == "head"
    heads.wire.pull(first.space)
    heads.swap()
    assert eventually(lambda: second("nodes", ok=False).returncode == 0, PATIENCE_S * 2)
    second("stop", "fills-h2")

    def runs_again() -> bool:
        began, last = attempts(ticks).get(2, (0.0, 0.0))
        return last - began > 1.0

    assert eventually(runs_again, PATIENCE_S * 4)
    assert second.json("describe", "ticks")["replicas"][0]["node"] == "h2"
    assert overlap_s(ticks) < 0
    heads.wire.plug(first.space)
    assert eventually(lambda: heads.state_of("head") == "up", PATIENCE_S * 4)
    assert overlap_s(ticks) < 0
    assert sorted(attempts(ticks)) == [1, 2]
