"""Both directions of a socket are independent of each other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import pytest

from gpupool.services.socket_stream import SocketStream


def within_seconds(story: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await story

    asyncio.run(limited())


def test_data_is_read_after_a_failed_write() -> None:
    async def story() -> None:
        ours, theirs = socket.socketpair()
        stream = SocketStream(ours)
        await stream.write(b"never read")
        theirs.sendall(b"last words")
        theirs.close()  # with unread data: the kernel reports a reset
        with pytest.raises(OSError, match="Broken pipe"):
            await stream.write(b"more")
        assert await stream.read(4) == b"last"
        assert await stream.read(100) == b" words"
        assert await stream.read(100) == b""
        stream.close()

    within_seconds(story())


def test_connection_of_streams_is_taken_over_with_its_data() -> None:
    async def story() -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        theirs.sendall(b"line\nrest")
        assert await reader.readline() == b"line\n"
        writer.write(bytes(1 << 20))  # more than the kernel takes at once

        async def far() -> bytes:
            loop, got = asyncio.get_running_loop(), b""
            theirs.settimeout(0)
            while len(got) < (1 << 20) + 3:
                got += await loop.sock_recv(theirs, 1 << 20)
            return got

        receiving = asyncio.create_task(far())
        stream = await SocketStream.take_over(reader, writer)
        await stream.write(b"end")
        assert (await receiving)[-3:] == b"end"
        assert await stream.read(100) == b"rest"
        theirs.send(b"later")
        assert await stream.read(100) == b"later"
        stream.end_writing()
        assert theirs.recv(10) == b""
        theirs.close()
        assert await stream.read(100) == b""
        stream.close()

    within_seconds(story())


def test_close_ends_pending_calls() -> None:
    async def story() -> None:
        ours, theirs = socket.socketpair()
        stream = SocketStream(ours)
        reading = asyncio.create_task(stream.read(100))
        writing = asyncio.create_task(stream.write(bytes(8 << 20)))
        await asyncio.sleep(0.05)
        assert not reading.done()
        assert not writing.done()
        stream.close()
        assert await reading == b""
        with pytest.raises(OSError, match="Broken pipe"):
            await writing
        assert ours.fileno() == -1
        assert await stream.read(100) == b""
        with pytest.raises(BrokenPipeError):
            await stream.write(b"x")
        theirs.close()

    within_seconds(story())
