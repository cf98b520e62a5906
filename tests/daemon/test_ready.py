"""Waiting for the node of a new pool whose control plane answers slowly, by a simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from gpupool.client.discovery import Location
from gpupool.daemon.process import ready
from gpupool.daemon.process.progress import StartWatch

STARTING = {"status": "waiting", "starting": True}
LEADING = {"status": "ok"}
WITH_NODE = {"nodes_up": 1}
ANSWER_S = 2 * ready.NODE_TIMEOUT_S  # of a busy control plane


class Clock:
    """Simulated monotonic time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SteadyWatch:
    def steady(self) -> bool:
        return True


@pytest.fixture
def await_node(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], dict[str, Any]]:
    """Wait for the node of a pool that leads after a time, and answers each request slowly until then."""
    clock = Clock()

    def wait(leads_after_s: float) -> dict[str, Any]:
        def answer(_location: Location, _path: str) -> dict[str, Any]:
            if clock.now >= leads_after_s:
                return WITH_NODE
            clock.sleep(ANSWER_S)
            return {}

        monkeypatch.setattr(ready, "time", clock)
        monkeypatch.setattr(ready, "health", lambda _: LEADING if clock.now >= leads_after_s else STARTING)
        monkeypatch.setattr(ready, "_quietly", answer)
        return ready._await_node(cast("Location", None), cast("StartWatch", SteadyWatch()))

    return wait


def test_slow_answers_of_a_starting_pool_do_not_use_up_the_time_of_its_node(
    await_node: Callable[[float], dict[str, Any]],
) -> None:
    assert await_node(3 * ANSWER_S) == WITH_NODE


def test_start_returns_without_a_node_when_the_pool_does_not_lead_in_time(
    await_node: Callable[[float], dict[str, Any]],
) -> None:
    assert await_node(10 * ready.LEAD_TIMEOUT_S) != WITH_NODE
