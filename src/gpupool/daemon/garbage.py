"""When the garbage collector walks over everything: every quarter of an hour, not whenever it sees fit.

With 100,000 replicas in the queue such a walk takes a third of a second, in which nothing else is done. Young objects
are collected as ever.
"""

from __future__ import annotations

import asyncio
import gc

EVERY_S = 900.0
_YOUNG, _MIDDLE, _NEVER = 5_000, 20, 1_000_000_000


def walk_seldom() -> None:
    """What is here now stays, and is not walked over again before ``walk_in_time`` does."""
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
    gc.freeze()


async def walk_in_time() -> None:
    """Collect what is left of old objects, for ever."""
    while True:
        await asyncio.sleep(EVERY_S)
        gc.unfreeze()
        gc.collect()
        gc.freeze()
