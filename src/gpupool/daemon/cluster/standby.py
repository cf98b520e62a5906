"""A standby control plane: it waits until it leads, and then checks that it still does."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog
from fastapi import FastAPI

from gpupool.api.app import create_waiting_app
from gpupool.daemon.cluster.heads import ANY_ADDRESS, identity, node_name, store_heads, write_lead
from gpupool.daemon.cluster.leader import ElectionState, Leading
from gpupool.daemon.cluster.peer_heads import HeadsOfFolder
from gpupool.daemon.cluster.readiness import CHECK_EVERY_S, check
from gpupool.daemon.config import MachineRole, PoolConfig
from gpupool.daemon.folders import FILES_DIR
from gpupool.daemon.machine import secrets_dir
from gpupool.daemon.pool_identity import read_identity
from gpupool.daemon.process.gateway_switch import want_gateway
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.heads import Head
from gpupool.domain.protocol.fencing import Leadership
from gpupool.fabric.ray.head_selection import note_removal
from gpupool.services.cluster.membership import ClusterMembers, check_member
from gpupool.services.files.serve import HeadFiles
from gpupool.services.files.sync import FolderSync
from gpupool.services.ports.files import Folder
from gpupool.store.backends.address import PostgresAddress
from gpupool.store.backends.postgres import PostgresDatabase
from gpupool.store.blobs import StoredBlobs

GATEWAY_GRACE_S = 60.0  # of a former leader: after it the routing table is outdated
FIRST_CHECK_S = 0.3  # most control planes lead at once: until then the wait is not reported
log = structlog.get_logger("gpupool.waiting")


class ElectedLeadership:
    """The standing of this control plane, for the event loop. ``broken`` gets the reason why it must not continue."""

    def __init__(self, config: PoolConfig, address: PostgresAddress) -> None:
        loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._address = address
        self._config = config
        self._node = node = node_name(config)
        self._faults: list[str] | None = None  # why this head could not take over; None: not checked yet
        known = read_identity(config.state_dir).pool_id
        self._leading = Leading(
            address, _own_name(), _advertised(config), lambda: identity(config, node), lambda: self._call(loop), known
        )
        self._database: PostgresDatabase | None = None
        self._broken: asyncio.Future[None] | None = None

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._follow)

    async def wait(self, serve: Callable[[FastAPI, asyncio.Event], Awaitable[None]], stop: asyncio.Event) -> bool:
        """Wait until this control plane leads, refusing requests meanwhile; return False if it is stopped before.

        Raises ``GpupoolError`` if it can never lead: the database is foreign, or of a newer release.
        """
        self._leading.start()
        done = asyncio.Event()
        waiting = asyncio.create_task(self._wait(stop, done))
        await asyncio.wait({waiting}, timeout=FIRST_CHECK_S)
        if not waiting.done():
            await self._serve_waiting(serve, done)
        return await waiting

    async def _serve_waiting(
        self, serve: Callable[[FastAPI, asyncio.Event], Awaitable[None]], done: asyncio.Event
    ) -> None:
        """Refuse requests; as a head also replicate folders, and serve them to other heads."""
        if self._config.role is not MachineRole.HEAD:
            await serve(create_waiting_app(lambda: self._leading.refusal, starting=self._is_starting), done)
            return
        blobs = StoredBlobs(Path(self._config.state_dir) / FILES_DIR)
        heads = HeadsOfFolder(secrets_dir(self._config))
        copying = asyncio.gather(
            FolderSync(blobs, heads, time.monotonic, asyncio.sleep).run(),
            self._check_readiness(),
            self._stop_gateway(),
            return_exceptions=True,
        )
        try:
            files = HeadFiles(blobs, self._membership, self._needed)
            app = create_waiting_app(
                lambda: self._leading.refusal, files, self._heads_for, lambda: self._faults, self._is_starting
            )
            await serve(app, done)
        finally:
            copying.cancel()
            await asyncio.gather(copying, return_exceptions=True)

    def _is_starting(self) -> bool:
        return self._leading.starting

    async def _check_readiness(self) -> None:
        """Check every few seconds whether this head could take over, and record the result, for ever."""
        while True:
            removed = self._leading.refusal.code is ErrorCode.NODE_REMOVED
            found = [self._leading.refusal.message] if removed else await asyncio.to_thread(self._check)
            if found != self._faults:
                log.warning("this head cannot take over" if found else "this head can take over", why=found)
            self._faults = found
            await asyncio.sleep(CHECK_EVERY_S)

    async def _stop_gateway(self) -> None:
        """Stop the gateway of a former leader, whose table would name ports that others use by now."""
        await asyncio.sleep(GATEWAY_GRACE_S)
        try:
            want_gateway(self._config.state_dir, wanted=False)
        except OSError as error:
            log.warning("the gateway cannot be ended", why=str(error))

    def _check(self) -> list[str]:
        try:
            return check(self._config, self._node)
        except Exception as error:  # a failed check must not end the process, and counts as a fault
            log.exception("readiness not checked")
            return [f"The check of its readiness failed: {error!r}."[:300]]

    async def _membership(self) -> ClusterMembers:
        if not self._leading.members:  # the database has not been read yet
            raise self._leading.refusal
        return ClusterMembers(self._leading.members, self._leading.removed)

    async def _heads_for(self, node: str, secret: str) -> tuple[Head, ...]:
        """Return all heads to a machine of the cluster: a standby knows them, too."""
        check_member(node, secret, *await self._membership())
        return self._leading.heads

    def _needed(self) -> Sequence[Folder]:
        raise self._leading.refusal

    async def _wait(self, stop: asyncio.Event, done: asyncio.Event) -> bool:
        stopped = asyncio.create_task(stop.wait())
        try:
            while self._leading.standing is ElectionState.WAITING and not stop.is_set():
                moved = asyncio.create_task(self._moved.wait())
                await asyncio.wait({moved, stopped}, return_when=asyncio.FIRST_COMPLETED)
                moved.cancel()
                self._moved.clear()
        finally:
            stopped.cancel()
            done.set()
        if self._leading.standing is ElectionState.ENDED:
            raise self._leading.refusal
        return not stop.is_set()

    @property
    def lead(self) -> Leadership:
        """Return this control plane's right to command nodes."""
        return self._leading

    def database(self) -> PostgresDatabase:
        """Return the database for writes under this control plane's term."""
        loop = asyncio.get_running_loop()

        def in_doubt() -> None:
            loop.call_soon_threadsafe(self._break, _in_doubt())

        self._database = PostgresDatabase(self._address, self._leading.term, in_doubt)
        return self._database

    def guard(self, broken: asyncio.Future[None]) -> None:
        """Suspend the database while disconnected, and set ``broken`` when this process must end."""
        self._broken = broken
        self._follow()

    def _follow(self) -> None:
        self._moved.set()
        if self._config.role is MachineRole.HEAD:
            self._report_lead()
        if self._database is None or self._broken is None:
            return
        if self._leading.standing is ElectionState.ENDED:
            self._break(self._leading.refusal)
        cut_off = self._leading.standing is not ElectionState.LEADING
        self._database.suspend(self._leading.refusal if cut_off else None)

    def _report_lead(self) -> None:
        """Tell this machine's Ray who leads; nothing changes while the leader is only disconnected."""
        leading = self._leading
        try:
            if leading.standing is ElectionState.LEADING and leading.term is not None:
                write_lead(self._config, leading.term, leads=True)
            elif leading.standing is not ElectionState.SUSPENDED and leading.present is not None:
                write_lead(self._config, leading.present.term, leads=False)
                store_heads(self._config, leading.heads, leading.removed, leading.members)
            if leading.refusal.code is ErrorCode.NODE_REMOVED:
                note_removal(secrets_dir(self._config), leading.refusal)
        except OSError as error:
            log.warning("ray not told who leads", error=str(error))

    def _break(self, error: GpupoolError) -> None:
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def close(self) -> None:
        """Release the right to lead."""
        await asyncio.to_thread(self._leading.close)


def _own_name() -> str:
    return f"{os.uname().nodename} (pid {os.getpid()})"


def _advertised(config: PoolConfig) -> str:
    """Return the address for clients of other machines; empty if there is none."""
    if config.listen is None:
        return ""
    host, _, port = config.listen.rpartition(":")
    own = config.cluster_address or os.uname().nodename
    own = f"[{own}]" if ":" in own else own
    return f"{own}:{port}" if host.strip("[]") in ANY_ADDRESS else config.listen


def _in_doubt() -> GpupoolError:
    return GpupoolError(
        ErrorCode.DATABASE_UNREACHABLE,
        "The connection to the database was lost during a write; the data is read again.",
        "Wait a moment and check whether your request was carried out.",
    )
