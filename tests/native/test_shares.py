"""Real processes under the share library get their shares of simulated GPUs from the real arbiter.

All scenarios of a run have GPUs of their own and are measured at the same time, in a window in which the machine itself
got to run; where none comes, in all the time of waiting for one. What fails is measured once more, by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from lease_folder import POLICY_CAP
from shares_model import Measured, Program, Scenario, measure

WINDOW_S = 10.0
PATIENCE_S = 30.0
POINTS = 2.0
TINY, MIDDLE, LONG, MIXED = "queue 200", "queue 5000", "queue 30000", "queue 200 5000 200 30000"
GRAPH = "graph 100 200 300 400"

PAIRS = (
    Scenario("10:90 of one kind", (Program(TINY, 100), Program(TINY, 900))),
    Scenario("25:75 of long and short kernels", (Program(LONG, 250), Program(TINY, 750))),
    Scenario("50:50 of graphs and kernels", (Program(GRAPH, 500), Program(MIDDLE, 500))),
    Scenario("three", (Program(MIXED, 200), Program("sync 1000", 300), Program(GRAPH, 500))),
)
MANY = (Scenario("ten", tuple(Program(f"queue {us}", 100) for us in (200, 500, 5000, 8000, 300) * 2)),)
ALONE = (
    Scenario("a cap, alone", (Program(MIDDLE, 300, POLICY_CAP),)),
    Scenario("alone", (Program(MIDDLE, 100),)),
    Scenario("next to a saturating one", (Program("burst 5000 50000 500", 500), Program(MIDDLE, 500))),
)


@pytest.fixture
def measured(native_out: Path, tmp_path: Path) -> Callable[[tuple[Scenario, ...]], list[Measured]]:
    """Return a function that measures scenarios, and those that were unfair once more."""
    assert (native_out / "fake/libcuda.so.1").exists()

    def both(scenarios: tuple[Scenario, ...]) -> list[Measured]:
        found = measure(native_out, tmp_path / "all", scenarios, WINDOW_S, patience_s=PATIENCE_S)
        unfair = [one.scenario for one in found if not is_fair(one)]
        again = measure(native_out, tmp_path / "again", unfair, WINDOW_S, patience_s=PATIENCE_S) if unfair else []
        return [one for one in found if is_fair(one)] + again

    return both


def is_fair(of: Measured) -> bool:
    """Check that each tenant got its share."""
    return all(abs(got - due) <= POINTS for got, due in zip(of.shares, of.scenario.due, strict=True))


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("scenarios", [PAIRS, MANY], ids=["pairs", "many"])
def test_shares_are_kept(
    measured: Callable[[tuple[Scenario, ...]], list[Measured]], scenarios: tuple[Scenario, ...]
) -> None:
    for one in measured(scenarios):
        assert is_fair(one), f"{one.scenario.name}: {one.shares} instead of {one.scenario.due}"
        assert one.ungated == 0
        assert one.utilisation > 80 * (1 - one.stalled_s / one.seconds)


@pytest.mark.alone
@pytest.mark.slow
def test_caps_idle_gpus_and_response_times(native_out: Path, tmp_path: Path) -> None:
    capped, alone, contended = measure(native_out, tmp_path, ALONE, WINDOW_S, patience_s=PATIENCE_S)
    assert 25 < capped.utilisation < 32
    assert alone.utilisation > 90
    assert alone.grants == [1]
    responses = sorted(contended.responses_us[0])
    assert len(responses) > 50
    assert responses[len(responses) // 2] < 25_000
