"""The schedule of full garbage collections: every quarter of an hour, not when the interpreter decides.

With 100,000 queued replicas a full collection takes a third of a second and blocks everything else. Young objects are
collected as usual.
"""

from __future__ import annotations

import asyncio
import gc

EVERY_S = 900.0
_YOUNG, _MIDDLE, _NEVER = 5_000, 20, 1_000_000_000


def pause_full_collections() -> None:
    """Exclude all present objects from collections until ``run_full_collections`` runs one."""
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
    gc.freeze()


async def run_full_collections() -> None:
    """Run full collections periodically, for ever."""
    while True:
        await asyncio.sleep(EVERY_S)
        gc.unfreeze()
        gc.collect()
        gc.freeze()
