"""A conversation with an agent that is given up ends, also when the agent's answer comes at the same moment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gpupool.domain.protocol.fencing import SoleLeadership
from gpupool.fabric.local import link, termination
from gpupool.fabric.local.link import LocalFiles, LocalLink
from gpupool.services.clock import SteadyClock


class HastyReader:
    """Answers a question, and gives up the asking task in the moment of the answer."""

    def __init__(self, asking: asyncio.Task[None]) -> None:
        self._asking = asking

    async def readline(self) -> bytes:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        answer.add_done_callback(lambda _answer: self._asking.cancel())
        loop.call_soon(answer.set_result, b'{"id": 0, "result": []}\n')
        return await answer


class Conversation:
    """Stands in for the connection to an agent; says whether it was closed."""

    def __init__(self) -> None:
        self.open = False

    @contextlib.asynccontextmanager
    async def connect(self, _socket: Path) -> AsyncIterator[tuple[HastyReader, Conversation]]:
        asking = asyncio.current_task()
        assert asking is not None
        self.open = True
        try:
            yield HastyReader(asking), self
        finally:
            self.open = False

    def write(self, data: bytes) -> None:
        """Send nothing."""

    async def drain(self) -> None:
        """Send nothing."""


async def stream(_conversation: Conversation) -> None:
    await LocalLink("n1", Path("/none"), SoleLeadership(), SteadyClock())._stream("attach")


async def files(conversation: Conversation) -> None:
    async with contextlib.AsyncExitStack() as stack:
        reader, writer = await stack.enter_async_context(conversation.connect(Path("/none")))
        of_node = LocalFiles("n1", reader, writer, stack, SoleLeadership())  # type: ignore[arg-type]
        await of_node._ask("blob_missing")


async def end_programs(_conversation: Conversation) -> None:
    await termination.end_programs(Path("/none"))


@pytest.mark.parametrize("ask", [stream, files, end_programs])
def test_answer_does_not_hide_cancellation(
    ask: Callable[[Conversation], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = Conversation()
    monkeypatch.setattr(link, "connection", conversation.connect)
    monkeypatch.setattr(termination, "connection", conversation.connect)

    async def story() -> None:
        async def asking() -> None:
            await ask(conversation)

        task = asyncio.create_task(asking())
        await asyncio.wait({task}, timeout=10)
        assert task.cancelled()
        assert not conversation.open

    asyncio.run(story())
