"""What was foretold of starts: kept once per workload, in order, and not for ever."""

from __future__ import annotations

from dataclasses import replace

from store_values import run_async, wid

from gpupool.services.ports import StartEstimate
from gpupool.store import SqlStore, open_store


def made(n: int, actual_s: float | None = None) -> StartEstimate:
    return StartEstimate(wid(n), "default", 1000.0 + n, 60.0, actual_s)


def test_estimates_are_replaced_listed_and_forgotten(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.save_estimates([made(1), made(2), made(3)])
        await store.save_estimates([replace(made(2), actual_s=90.0)])
        assert await store.newest_estimates(10, settled=False) == [made(3), made(1)]
        assert await store.newest_estimates(10, settled=True) == [made(2, 90.0)]
        assert await store.newest_estimates(1, settled=False) == [made(3)]
        await store.drop_estimates([wid(3)])
        assert await store.newest_estimates(10, settled=False) == [made(1)]
        await store.save_estimates([made(n, 1.0) for n in range(10, 20)])
        assert await store.forget_estimates(before=1002.0, most=100) == 1
        assert await store.forget_estimates(before=0.0, most=4) == 7
        assert [e.workload for e in await store.newest_estimates(99, settled=True)] == [
            wid(n) for n in (19, 18, 17, 16)
        ]

    async def opened() -> None:
        store = await open_store(target)
        try:
            await scenario(store)
        finally:
            await store.close()

    run_async(opened())
