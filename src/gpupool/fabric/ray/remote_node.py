"""One machine of the Ray cluster: its relay, and the connections through it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections import deque
from typing import Any, Protocol

from gpupool.fabric.ray.environment import NAMESPACE, load, log_event
from gpupool.fabric.ray.relay import PIECE, PROTOCOL, Relay
from gpupool.services.socket_stream import SocketStream

AT_ONCE = 8  # calls on their way in each direction
OPEN_WAIT_S = 10.0


class RemoteCall(Protocol):
    """A method of a remote actor: ``remote`` sends the call and returns an awaitable."""

    def remote(self, *args: Any) -> Any:
        """Send the call."""


class RelayHandle(Protocol):
    """The methods of ``relay.Relay`` that a tunnel uses."""

    open: RemoteCall
    send: RemoteCall
    receive: RemoteCall
    close: RemoteCall


class AgentRefused(Exception):  # noqa: N818 - an answer, not an error
    """The remote agent cannot be reached."""


class Tunnel:
    """Copies bytes both ways until one side disconnects; data read from it is still delivered."""

    def __init__(self, relay: RelayHandle, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = secrets.token_hex(12)
        self._relay = relay
        self._reader = reader
        self._writer = writer

    async def run(self) -> None:
        """Run until the end. Raises ``AgentRefused``, and errors of calls to a lost relay."""
        async with asyncio.timeout(OPEN_WAIT_S):
            why = await self._relay.open.remote(self.name)
        if why:
            raise AgentRefused(why)
        with contextlib.closing(await SocketStream.take_over(self._reader, self._writer)) as near:
            await self._carry(near)

    async def _carry(self, near: SocketStream) -> None:
        there = asyncio.create_task(self._carry_there(near))
        back = asyncio.create_task(self._carry_back(near))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            if back.done() or not there.result():
                await back  # the agent disconnected: deliver the data that is still in flight
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            with contextlib.suppress(Exception):
                self._relay.close.remote(self.name)

    async def _carry_there(self, near: SocketStream) -> bool:
        """Copy to the agent; return True if this end disconnected, False if the agent did."""
        on_their_way: deque[Any] = deque()
        for number in itertools.count():
            data = await near.read(PIECE)
            if not data:
                break
            on_their_way.append(self._relay.send.remote(self.name, number, data))
            if len(on_their_way) >= AT_ONCE and not await on_their_way.popleft():
                return False
        return all([await call for call in on_their_way])

    async def _carry_back(self, near: SocketStream) -> None:
        numbers = itertools.count()
        on_their_way = deque(self._relay.receive.remote(self.name, next(numbers)) for _ in range(AT_ONCE))
        while data := await on_their_way.popleft():
            on_their_way.append(self._relay.receive.remote(self.name, next(numbers)))
            with contextlib.suppress(OSError):  # its last data is still read
                await near.write(data)


BEAT_EVERY_S = 2.0
SILENT_S = 10.0  # a relay without an answer for this long is lost, with its connections
CREATE_WAIT_S = 60.0
RELAY_NAME = "relay-{}"
_CALLS = 10_000  # at once in one relay: each connection has a few waiting reads


class RemoteNode:
    """A raylet of the cluster, by its id; a restarted machine has a new one."""

    def __init__(self, ray_id: str, node: str) -> None:
        self.ray_id = ray_id
        self.node = node
        self.ready = False
        self._relay: Any = None
        self._tunnels: dict[str, asyncio.Task[None]] = {}
        self._watching = asyncio.create_task(self._watch(), name=f"relay of {node}")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection to the agent until one side disconnects, or the relay is lost."""
        tunnel = Tunnel(self._relay, reader, writer)
        task = asyncio.create_task(tunnel.run())
        self._tunnels[tunnel.name] = task
        try:
            await task
        except AgentRefused as refusal:
            log_event("agent refused", node=self.node, why=str(refusal))
        except asyncio.CancelledError:
            task.cancel()
        except Exception as error:  # noqa: BLE001 - Ray raises many errors for a lost relay
            log_event("connection lost", node=self.node, error=repr(error)[:200])
        finally:
            del self._tunnels[tunnel.name]

    async def close(self) -> None:
        """Close all connections."""
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await self._give_up("it left the cluster")

    async def _watch(self) -> None:
        while True:
            try:
                await self._beat_for_ever()
            except Exception as error:  # noqa: BLE001 - retried as long as the machine is listed
                await self._give_up(repr(error)[:300])
            await asyncio.sleep(BEAT_EVERY_S)

    async def _beat_for_ever(self) -> None:
        if self._relay is None:
            self._relay = await asyncio.to_thread(make_relay, self.ray_id)
        async with asyncio.timeout(CREATE_WAIT_S):
            answer = await self._relay.beat.remote([])
        if answer["protocol"] != PROTOCOL:
            await asyncio.to_thread(end_relay, self._relay)
            raise AgentRefused(f"its relay speaks protocol {answer['protocol']}, not {PROTOCOL}")
        self.ready = True
        log_event("relay answers", node=self.node, ray_id=self.ray_id[:8])
        while True:
            async with asyncio.timeout(SILENT_S):
                await self._relay.beat.remote(list(self._tunnels))
            await asyncio.sleep(BEAT_EVERY_S)

    async def _give_up(self, why: str) -> None:
        if self.ready:
            log_event("relay lost", node=self.node, ray_id=self.ray_id[:8], why=why)
        self.ready, self._relay = False, None
        tasks = list(self._tunnels.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def make_relay(ray_id: str) -> Any:
    """Return the relay of a machine, existing or new."""
    options: dict[str, Any] = {
        "name": RELAY_NAME.format(ray_id),
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "num_cpus": 0,
        "max_concurrency": _CALLS,
        "label_selector": {"ray.io/node-id": ray_id},
    }
    return load("ray").remote(Relay).options(**options).remote()


def end_relay(relay: Any) -> None:
    """Kill a relay, so that the next one is new."""
    with contextlib.suppress(Exception):
        load("ray").kill(relay, no_restart=True)
