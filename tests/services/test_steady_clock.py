"""A changed wall clock does not move deadlines of the running pool."""

from __future__ import annotations

import time

import pytest

from gpupool.services.clock import SteadyClock


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_changed_clock_moves_no_deadline(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    wall = time.time
    clock = SteadyClock()
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: wall() + jump_s)
    assert 0 <= clock.now() - before < 60


def test_new_control_plane_uses_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 86400)
    assert abs(SteadyClock().now() - wall() - 86400) < 60
