"""An idle pool costs little: it reads nothing and writes nothing while nothing can have changed."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
from pool_world import World

from gpupool.store.backends.sqlite import SqliteDatabase


def test_idle_pool_uses_neither_transactions_nor_the_database(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    callers: list[str] = []

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            callers.append("".join(traceback.format_stack(limit=6)))
            return function(*args, **kwargs)

        return noted

    async def story() -> None:
        for _ in range(3):  # what runs once after a start
            await world.pass_time(6)
        monkeypatch.setattr(world.now.engine, "transact_slow", note(world.now.engine.transact_slow))
        for name in ("read", "write"):
            monkeypatch.setattr(SqliteDatabase, name, note(getattr(SqliteDatabase, name)))
        for _ in range(20):
            await world.pass_time(1.1)
        assert not callers, callers[0]

    world.do(story())
