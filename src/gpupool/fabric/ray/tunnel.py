"""One connection at the head, carried to the agent of another machine by numbered calls of its relay."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections import deque
from typing import Any, Protocol

from gpupool.fabric.ray.relay import PIECE

AT_ONCE = 8  # calls on their way in each direction
OPEN_WAIT_S = 10.0


class Call(Protocol):
    """A method of a far actor: ``remote`` sends it and gives something that can be awaited."""

    def remote(self, *args: Any) -> Any:
        """Send it."""


class FarRelay(Protocol):
    """What a tunnel needs of a handle of ``relay.Relay``."""

    open: Call
    send: Call
    receive: Call
    close: Call


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The far agent cannot be connected to."""


class Tunnel:
    """Carries bytes both ways until one side hangs up; what was read from it is still delivered."""

    def __init__(self, relay: FarRelay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = secrets.token_hex(12)
        self._relay = relay
        self._reader = reader
        self._writer = writer

    async def run(self) -> None:
        """Until the end. Raises ``Refused``, and whatever a call of a lost relay raises."""
        why = await asyncio.wait_for(self._relay.open.remote(self.name), OPEN_WAIT_S)
        if why:
            raise Refused(why)
        there = asyncio.create_task(self._carry_there())
        back = asyncio.create_task(self._carry_back())
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            if back.done() or not there.result():
                await back  # the far end hung up: what it said before that is still on its way
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            with contextlib.suppress(Exception):
                self._relay.close.remote(self.name)

    async def _carry_there(self) -> bool:
        """True when this end hung up, False when the far one did."""
        on_their_way: deque[Any] = deque()
        for number in itertools.count():
            data = await self._reader.read(PIECE)
            if not data:
                break
            on_their_way.append(self._relay.send.remote(self.name, number, data))
            if len(on_their_way) >= AT_ONCE and not await on_their_way.popleft():
                return False
        return all([await call for call in on_their_way])

    async def _carry_back(self) -> None:
        numbers = itertools.count()
        on_their_way = deque(self._relay.receive.remote(self.name, next(numbers)) for _ in range(AT_ONCE))
        while data := await on_their_way.popleft():
            on_their_way.append(self._relay.receive.remote(self.name, next(numbers)))
            self._writer.write(data)
            await self._writer.drain()
