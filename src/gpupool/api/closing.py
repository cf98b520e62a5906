"""Letting go of what waits when the server is about to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unless_closing(waiting: Coroutine[Any, Any, T], closing: asyncio.Event, *, otherwise: T) -> T:
    """What ``waiting`` gives, or ``otherwise`` as soon as the server is about to stop.

    A client that waits then gets an honest present state and asks again, the next control plane.
    """
    work = asyncio.create_task(waiting)
    close = asyncio.create_task(closing.wait())
    try:
        await asyncio.wait({work, close}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else otherwise
    finally:
        close.cancel()
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
