"""The only client of Ray in the pool: ``python -m gpupool.fabric.ray.bridge``, on the head.

On a standby head it waits. Every second it lists the machines, and it keeps a socket for each in its folder, which
``directory`` reads. It makes no decisions and has no state. Ray ends it when its raylet is lost, and the supervisor
starts it again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.fabric.ray.environment import NAMESPACE, NODE_LABEL, Secrets, load, log_event, ray_variables, set_variables
from gpupool.fabric.ray.head_selection import HeadLead, read_refused
from gpupool.fabric.ray.remote_node import RemoteNode
from gpupool.unix_sockets import listen

SOCKET_SUFFIX = ".sock"
LOOK_EVERY_S = 1.0
BLIND_S = 120.0  # exit after this time without a list of machines: a new process may succeed
FORGET_AFTER_S = 60.0  # a restarted machine returns with its name within this time
_HEAD_PAUSE_S = 0.5

Listed = dict[str, str]  # node names by the ids of Ray


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """The options of the bridge."""

    gcs: tuple[str, int]
    folder: Path
    secrets: Secrets
    temp: Path
    own: str  # the node of this machine needs no relay
    lead: Path | None = None  # file in which the control plane writes its lead; None: no other head


class Outlet:
    """The socket of one node; connections are forwarded to its agent by the newest relay that answers."""

    def __init__(self, folder: Path, node: str) -> None:
        self.machines: dict[str, RemoteNode] = {}
        self.listed_at = time.monotonic()
        self._node = node
        self._path = folder / f"{node}{SOCKET_SUFFIX}"
        self._server: asyncio.Server | None = None

    async def show(self, ray_ids: set[str]) -> None:
        """Update the listed machines; open the socket once a relay answers. Raises OSError."""
        for gone in self.machines.keys() - ray_ids:
            await self.machines.pop(gone).close()
        for new in ray_ids - self.machines.keys():
            self.machines[new] = RemoteNode(new, self._node)
        if ray_ids:
            self.listed_at = time.monotonic()
        if self._server is None and any(machine.ready for machine in self.machines.values()):
            self._server = await asyncio.start_unix_server(self._serve, sock=listen(self._path))

    async def close(self) -> None:
        """Close the socket and the connections of the node."""
        self._path.unlink(missing_ok=True)
        if self._server is not None:
            self._server.close()
        for machine in self.machines.values():
            await machine.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = [machine for machine in self.machines.values() if machine.ready]
        try:
            if ready:
                await ready[-1].serve(reader, writer)
        finally:
            writer.close()


class Bridge:
    """Forwards connections to all nodes except this machine's."""

    def __init__(self, options: BridgeOptions) -> None:
        self._options = options
        self._outlets: dict[str, Outlet] = {}
        self._refused: frozenset[str] = frozenset()

    async def run(self, stop: asyncio.Event, term: int) -> bool:
        """Run until stopped (True), or until another head leads or Ray lists no machines for too long (False)."""
        seen_at = time.monotonic()
        while not stop.is_set():
            if _led_elsewhere(self._options.lead, term):
                log_event("another head leads")
                return False
            try:
                async with asyncio.timeout(BLIND_S):
                    listed = await asyncio.to_thread(list_machines)
            except Exception as error:  # noqa: BLE001 - Ray raises many errors while its GCS is down
                log_event("machines not listed", error=repr(error)[:200])
            else:
                seen_at = time.monotonic()
                await self._show(listed)
            if time.monotonic() - seen_at > BLIND_S:
                return False
            await _sleep(LOOK_EVERY_S, stop)
        return True

    async def _show(self, listed: Listed) -> None:
        ids: dict[str, set[str]] = {name: set() for name in self._outlets}
        refused = read_refused(self._options.secrets.folder)
        for name in sorted((refused & set(listed.values())) - self._refused):
            log_event("node refused", node=name, why="it was removed from the pool; it may join again with a new token")
        self._refused = refused
        for ray_id, name in listed.items():
            if name != self._options.own and name not in refused:
                ids.setdefault(name, set()).add(ray_id)
        for name in refused & self._outlets.keys():
            await self._outlets.pop(name).close()
            ids.pop(name, None)
        for name, ray_ids in ids.items():
            outlet = self._outlets.setdefault(name, Outlet(self._options.folder, name))
            await outlet.show(ray_ids)
            if time.monotonic() - outlet.listed_at > FORGET_AFTER_S:
                await self._outlets.pop(name).close()


def list_machines() -> Listed:
    """Return the machines that are alive in Ray and labelled as a node."""
    alive = (node for node in load("ray").nodes() if node["Alive"])
    named = ((str(node["NodeID"]), str(node["Labels"].get(NODE_LABEL, ""))) for node in alive)
    return {ray_id: name for ray_id, name in named if name and "/" not in name and name[0] != "."}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bridge until SIGTERM: 0; 1 if it lost the cluster. Ray may end the process at any time."""
    options = _parse(argv)
    set_variables(ray_variables(options.secrets, options.temp))
    options.folder.mkdir(mode=0o700, exist_ok=True)
    for left in options.folder.glob(f"*{SOCKET_SUFFIX}"):
        left.unlink(missing_ok=True)
    return asyncio.run(_run(options))


def _parse(argv: Sequence[str] | None) -> BridgeOptions:
    parser = argparse.ArgumentParser(prog="gpupool-bridge", description="Between a pool's control plane and Ray.")
    parser.add_argument("--gcs", metavar="HOST:PORT", required=True)
    parser.add_argument("--nodes", type=Path, required=True, help="folder for one socket for each node")
    parser.add_argument("--secrets", type=Path, required=True)
    parser.add_argument("--temp", type=Path, required=True)
    parser.add_argument("--own", required=True, help="the node of this machine")
    parser.add_argument("--lead-file", type=Path, help="file in which the control plane reports whether it leads")
    options = parser.parse_args(argv)
    host, _, port = options.gcs.rpartition(":")
    gcs, secrets = (host.strip("[]"), int(port)), Secrets(options.secrets)
    return BridgeOptions(gcs, options.nodes, secrets, options.temp, options.own, options.lead_file)


async def _run(options: BridgeOptions) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    while (term := _leads(options.lead)) is None or not await _listens(options.gcs):
        await _sleep(_HEAD_PAUSE_S, stop)
        if stop.is_set():
            return 0
    await asyncio.to_thread(_connect, options.gcs)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)  # Ray has replaced the handlers
    log_event("connected", gcs=list(options.gcs), pid=os.getpid())
    return 0 if await Bridge(options).run(stop, term) else 1


def _connect(gcs: tuple[str, int]) -> None:
    host, port = gcs
    load("ray").init(
        address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        namespace=NAMESPACE,
        log_to_driver=False,
        configure_logging=False,
        logging_level=logging.ERROR,
        _node_ip_address=host,
    )


def _leads(path: Path | None) -> int | None:
    """Return the term in which this machine's control plane leads, from its file; None if it does not."""
    if path is None:
        return 0
    lead = HeadLead.read(path)
    return lead.term if lead is not None and lead.leads else None


def _led_elsewhere(path: Path | None, term: int) -> bool:
    """Return True if another head leads since ``term``; a mere restart of the control plane does not count."""
    lead = HeadLead.read(path) if path else None
    return lead is not None and not lead.leads and lead.term > term


async def _listens(address: tuple[str, int]) -> bool:
    try:
        async with asyncio.timeout(5.0):
            _, writer = await asyncio.open_connection(*address)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait((waiting,), timeout=seconds)
    waiting.cancel()


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # Ray's threads must not block the exit; relays stay
