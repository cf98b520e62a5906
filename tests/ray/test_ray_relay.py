"""The relay and the tunnel without Ray: calls that overtake each other, ends that hang up."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpupool.fabric.machines import directory as directory_module
from gpupool.fabric.machines.directory import BridgeDirectory
from gpupool.fabric.ray import bridge as bridge_module
from gpupool.fabric.ray import relay as relay_module
from gpupool.fabric.ray.relay import AGENT_SOCKET_VARIABLE, PIECE, Relay
from gpupool.fabric.ray.remote_node import AgentRefused, Tunnel


class Hurried:
    """Methods of a relay as calls that arrive late and in any order, as an actor's may."""

    def __init__(self, method: Callable[..., Awaitable[Any]], chance: random.Random) -> None:
        self._method = method
        self._chance = chance

    def remote(self, *args: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self._late(args))

    async def _late(self, args: tuple[Any, ...]) -> Any:
        for _ in range(self._chance.randrange(6)):
            await asyncio.sleep(0)
        return await self._method(*args)


class FarAway:
    def __init__(self, relay: Relay, seed: int) -> None:
        chance = random.Random(seed)
        for name in ("open", "send", "receive", "close"):
            setattr(self, name, Hurried(getattr(relay, name), chance))


@contextlib.asynccontextmanager
async def agent(path: Path, serve: Callable[..., Awaitable[None]]) -> AsyncIterator[None]:
    server = await asyncio.start_unix_server(serve, path)
    async with server:
        yield


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Relay:
    monkeypatch.setenv(AGENT_SOCKET_VARIABLE, str(tmp_path / "agent.sock"))
    return Relay()


@contextlib.asynccontextmanager
async def outlet(relay: Relay, path: Path, seed: int = 0) -> AsyncIterator[list[Tunnel]]:
    """Listen at a path on a socket that leads through tunnels to the relay's agent."""
    tunnels: list[Tunnel] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tunnel = Tunnel(FarAway(relay, seed), reader, writer)  # type: ignore[arg-type]
        tunnels.append(tunnel)
        with contextlib.suppress(AgentRefused):
            await tunnel.run()
        writer.close()

    async with agent(path, serve):
        yield tunnels


@pytest.mark.parametrize("seed", range(3))
def test_bytes_arrive_in_order_despite_failed_calls(relay: Relay, tmp_path: Path, seed: int) -> None:
    said = random.Random(seed).randbytes(9 * PIECE + 17)

    async def scene() -> bytes:
        async with agent(tmp_path / "agent.sock", echo), outlet(relay, tmp_path / "near.sock", seed):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "near.sock")
            writing = asyncio.create_task(_say(writer, said))
            heard = await reader.readexactly(len(said))
            await writing
            writer.close()
            return heard

    assert asyncio.run(scene()) == said


async def _say(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


def test_last_bytes_before_disconnect_arrive(relay: Relay, tmp_path: Path) -> None:
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * (3 * PIECE))
        writer.close()

    async def scene() -> int:
        async with agent(tmp_path / "agent.sock", talk), outlet(relay, tmp_path / "near.sock"):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "near.sock")
            heard = len(await reader.read())
            writer.close()
            return heard

    assert asyncio.run(scene()) == 3 * PIECE


def test_disconnect_is_noticed_at_the_other_end(relay: Relay, tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard = await reader.read()
        assert heard == b"last words"
        gone.set()
        writer.close()

    async def scene() -> int:
        async with agent(tmp_path / "agent.sock", listen), outlet(relay, tmp_path / "near.sock"):
            _, writer = await asyncio.open_unix_connection(tmp_path / "near.sock")
            writer.write(b"last words")
            writer.close()
            await asyncio.wait_for(gone.wait(), 60)
            while (await relay.beat([]))["open"]:  # noqa: ASYNC110 - a relay tells nobody
                await asyncio.sleep(0)
            return int((await relay.beat([]))["open"])

    assert asyncio.run(scene()) == 0


def test_connection_to_missing_agent_ends_at_once(relay: Relay, tmp_path: Path) -> None:
    async def scene() -> bytes:
        async with outlet(relay, tmp_path / "near.sock"):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "near.sock")
            heard = await reader.read()
            writer.close()
            return heard

    assert asyncio.run(scene()) == b""


def test_connections_of_dead_bridge_are_closed(relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "_SWEEP_S", 0.01)
    now = 0.0
    monkeypatch.setattr(relay_module, "time", SimpleNamespace(monotonic=lambda: now))

    async def scene() -> int:
        nonlocal now
        async with agent(tmp_path / "agent.sock", echo):
            assert await relay.open("used") == ""
            assert await relay.open("deserted") == ""
            reading = asyncio.create_task(relay.receive("deserted", 0))
            while (await relay.beat(["used"]))["open"] == 2:
                now += relay_module.DESERTED_AFTER_S / 3
                await asyncio.sleep(0.01)
            assert await asyncio.wait_for(reading, 60) == b""
            assert await relay.send("deserted", 0, b"x") is False
            return int((await relay.beat(["used"]))["open"])

    assert asyncio.run(scene()) == 1


def test_node_appears_with_its_socket_and_stays_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "LOOK_EVERY_S", 0.01)
    (tmp_path / "gpu2.sock").touch()
    (tmp_path / ".gpu3.sock.tmp").touch()

    async def scene() -> list[tuple[str, Path | None]]:
        places = BridgeDirectory(tmp_path).places()
        first = await anext(places)
        (tmp_path / "gpu2.sock").unlink()  # the bridge is started again
        (tmp_path / "gpu1.sock").touch()
        second = await anext(places)
        await places.aclose()  # type: ignore[attr-defined]
        return [(place.node, place.socket) for place in (first, second)]

    assert asyncio.run(scene()) == [("gpu2", tmp_path / "gpu2.sock"), ("gpu1", tmp_path / "gpu1.sock")]


def test_bridge_lists_running_identified_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeRay:
        @staticmethod
        def nodes() -> list[dict[str, Any]]:
            rows = (("a", True, "gpu1"), ("b", False, "gpu2"), ("c", True, ""), ("d", True, "../x"), ("e", True, ".x"))
            return [{"NodeID": i, "Alive": alive, "Labels": {"gpupool-node": name}} for i, alive, name in rows]

    monkeypatch.setattr(bridge_module, "load", lambda _name: FakeRay)
    assert bridge_module.list_machines() == {"a": "gpu1"}
