"""One machine as Ray knows it: its relay, whether that answers, and the connections through it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from gpupool.fabric.ray.relay import PROTOCOL, Relay
from gpupool.fabric.ray.surroundings import NAMESPACE, load, say
from gpupool.fabric.ray.tunnel import Refused, Tunnel

BEAT_EVERY_S = 2.0
SILENT_S = 10.0  # a relay that does not answer for so long is given up, and its connections with it
CREATE_WAIT_S = 60.0
RELAY_NAME = "relay-{}"
_CALLS = 10_000  # at once in one relay: each connection has a few waiting reads


class FarMachine:
    """A raylet of the cluster, by its id; a machine that was started again has a new one."""

    def __init__(self, ray_id: str, node: str) -> None:
        self.ray_id = ray_id
        self.node = node
        self.ready = False
        self._relay: Any = None
        self._tunnels: dict[str, asyncio.Task[None]] = {}
        self._watching = asyncio.create_task(self._watch(), name=f"relay of {node}")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Join a connection with the agent there until one of them hangs up, or the relay is lost."""
        tunnel = Tunnel(self._relay, reader, writer)
        task = asyncio.create_task(tunnel.run())
        self._tunnels[tunnel.name] = task
        try:
            await task
        except Refused as refusal:
            say("agent refused", node=self.node, why=str(refusal))
        except asyncio.CancelledError:
            task.cancel()
        except Exception as error:  # noqa: BLE001 - whatever Ray raises of a relay that is lost
            say("connection lost", node=self.node, error=repr(error)[:200])
        finally:
            del self._tunnels[tunnel.name]

    async def close(self) -> None:
        """Give it up."""
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await self._give_up("it left the cluster")

    async def _watch(self) -> None:
        while True:
            try:
                await self._beat_for_ever()
            except Exception as error:  # noqa: BLE001 - likewise; it is tried again as long as the machine is listed
                await self._give_up(repr(error)[:300])
            await asyncio.sleep(BEAT_EVERY_S)

    async def _beat_for_ever(self) -> None:
        if self._relay is None:
            self._relay = await asyncio.to_thread(make_relay, self.ray_id)
        answer = await asyncio.wait_for(self._relay.beat.remote([]), CREATE_WAIT_S)
        if answer["protocol"] != PROTOCOL:
            await asyncio.to_thread(end_relay, self._relay)
            raise Refused(f"its relay speaks protocol {answer['protocol']}, not {PROTOCOL}")
        self.ready = True
        say("relay answers", node=self.node, ray_id=self.ray_id[:8])
        while True:
            await asyncio.wait_for(self._relay.beat.remote(list(self._tunnels)), SILENT_S)
            await asyncio.sleep(BEAT_EVERY_S)

    async def _give_up(self, why: str) -> None:
        if self.ready:
            say("relay lost", node=self.node, ray_id=self.ray_id[:8], why=why)
        self.ready, self._relay = False, None
        tasks = list(self._tunnels.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def make_relay(ray_id: str) -> Any:
    """The relay of a machine: the one that is there, or a new one."""
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
    """Have another one made next time."""
    with contextlib.suppress(Exception):
        load("ray").kill(relay, no_restart=True)
