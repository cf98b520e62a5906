"""Letting go of what waits when nobody is there for the answer, or the server is about to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

T = TypeVar("T")


async def unless_over(waiting: Coroutine[Any, Any, T], request: Request, closing: asyncio.Event, *, otherwise: T) -> T:
    """What ``waiting`` gives, or ``otherwise`` as soon as the client hangs up or the server is about to stop.

    A client that waits then gets an honest present state and asks again, the next control plane. ``waiting`` is
    cancelled, so that a client that is gone does not count as waiting any more. The request's body must be read.
    """
    work = asyncio.create_task(waiting)
    ends = [asyncio.create_task(closing.wait()), asyncio.create_task(_hang_up(request))]
    try:
        await asyncio.wait({work, *ends}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else otherwise
    finally:
        for task in (work, *ends):
            task.cancel()
        await asyncio.gather(work, *ends, return_exceptions=True)


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
