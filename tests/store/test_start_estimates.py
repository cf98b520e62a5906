"""Start estimates: stored once per workload, in order, and deleted after a time."""

from __future__ import annotations

from dataclasses import replace

from store_values import run_async, wid

from gpupool.services.ports.store import StartEstimate
from gpupool.store import SqlStore, open_store


def made(n: int, actual_s: float | None = None) -> StartEstimate:
    return StartEstimate(wid(n), "default", 1000.0 + n, 60.0, actual_s)


def test_estimates_are_replaced_listed_and_deleted(target: str) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.estimates.save([made(1), made(2), made(3)])
        await store.estimates.save([replace(made(2), actual_s=90.0)])
        assert await store.estimates.newest(10, settled=False) == [made(3), made(1)]
        assert await store.estimates.newest(10, settled=True) == [made(2, 90.0)]
        assert await store.estimates.newest(1, settled=False) == [made(3)]
        await store.estimates.drop([wid(3)])
        assert await store.estimates.newest(10, settled=False) == [made(1)]
        await store.estimates.save([made(n, 1.0) for n in range(10, 20)])
        assert await store.estimates.forget(before=1002.0, most=100) == 1
        assert await store.estimates.forget(before=0.0, most=4) == 7
        assert [e.workload for e in await store.estimates.newest(99, settled=True)] == [
            wid(n) for n in (19, 18, 17, 16)
        ]

    async def opened() -> None:
        store = await open_store(target)
        try:
            await scenario(store)
        finally:
            await store.close()

    run_async(opened())
