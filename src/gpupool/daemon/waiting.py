"""A control plane that waits until it leads, and from then on looks whether it still does."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog
from fastapi import FastAPI

from gpupool.api.waiting import create_waiting_app
from gpupool.daemon.cluster import secrets_dir
from gpupool.daemon.config import PoolConfig, Role
from gpupool.daemon.folders import FILES_DIR
from gpupool.daemon.heads import ANY_ADDRESS, learn_heads, say_lead
from gpupool.daemon.leader import Leading, Standing
from gpupool.daemon.other_heads import HeadsOfFolder
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.heads import MemberKey
from gpupool.services.files.copies import Copies
from gpupool.services.files.ports import Folder
from gpupool.services.files.serving import HeadFiles
from gpupool.store.address import PostgresAddress
from gpupool.store.blobs import KeptBlobs
from gpupool.store.postgres import PostgresDatabase

FIRST_LOOK_S = 0.3  # most control planes lead at once: until then nobody is told that this one waits
log = structlog.get_logger("gpupool.waiting")


class Leadership:
    """The standing of this control plane, for the event loop. ``broken`` gets why it must not go on."""

    def __init__(self, config: PoolConfig, address: PostgresAddress) -> None:
        loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._address = address
        self._config = config
        self._leading = Leading(address, _who(), _advertised(config), lambda: self._call(loop))
        self._database: PostgresDatabase | None = None
        self._broken: asyncio.Future[None] | None = None

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._follow)

    async def wait(self, serve: Callable[[FastAPI, asyncio.Event], Awaitable[None]], stop: asyncio.Event) -> bool:
        """Wait until this control plane leads, refusing requests meanwhile; False when told to stop before.

        Raises ``GpupoolError`` when it can never lead: the database is foreign, or of a newer release.
        """
        self._leading.start()
        done = asyncio.Event()
        waiting = asyncio.create_task(self._wait(stop, done))
        await asyncio.wait({waiting}, timeout=FIRST_LOOK_S)
        if not waiting.done():
            await self._serve_waiting(serve, done)
        return await waiting

    async def _serve_waiting(
        self, serve: Callable[[FastAPI, asyncio.Event], Awaitable[None]], done: asyncio.Event
    ) -> None:
        """Refuse requests; as a head keep copies of folders meanwhile, and give other heads what is here."""
        if self._config.role is not Role.HEAD:
            await serve(create_waiting_app(lambda: self._leading.refusal), done)
            return
        blobs = KeptBlobs(Path(self._config.state_dir) / FILES_DIR)
        heads = HeadsOfFolder(secrets_dir(self._config))
        copying = asyncio.create_task(Copies(blobs, heads, time.monotonic, asyncio.sleep).run())
        try:
            files = HeadFiles(blobs, self._members, self._needed)
            await serve(create_waiting_app(lambda: self._leading.refusal, files), done)
        finally:
            copying.cancel()
            await asyncio.gather(copying, return_exceptions=True)

    async def _members(self) -> Sequence[MemberKey]:
        if not self._leading.members:  # the database has not been read yet
            raise self._leading.refusal
        return self._leading.members

    def _needed(self) -> Sequence[Folder]:
        raise self._leading.refusal

    async def _wait(self, stop: asyncio.Event, done: asyncio.Event) -> bool:
        stopped = asyncio.create_task(stop.wait())
        try:
            while self._leading.standing is Standing.WAITING and not stop.is_set():
                moved = asyncio.create_task(self._moved.wait())
                await asyncio.wait({moved, stopped}, return_when=asyncio.FIRST_COMPLETED)
                moved.cancel()
                self._moved.clear()
        finally:
            stopped.cancel()
            done.set()
        if self._leading.standing is Standing.ENDED:
            raise self._leading.refusal
        return not stop.is_set()

    @property
    def term(self) -> int | None:
        """The number of this control plane's lead."""
        return self._leading.term

    def database(self) -> PostgresDatabase:
        """The database, to be written under the term of this control plane."""
        self._database = PostgresDatabase(self._address, self._leading.term)
        return self._database

    def guard(self, broken: asyncio.Future[None]) -> None:
        """From now on hold the database while cut off, and say so when this process must not go on."""
        loop = asyncio.get_running_loop()
        self._broken = broken

        def in_doubt() -> None:
            loop.call_soon_threadsafe(self._break, _in_doubt())

        if self._database is not None:
            self._database.in_doubt = in_doubt
        self._follow()

    def _follow(self) -> None:
        self._moved.set()
        if self._config.role is Role.HEAD:
            self._tell()
        if self._database is None or self._broken is None:
            return
        if self._leading.standing is Standing.ENDED:
            self._break(self._leading.refusal)
        cut_off = self._leading.standing is not Standing.LEADING
        self._database.suspend(self._leading.refusal if cut_off else None)

    def _tell(self) -> None:
        """Tell this machine's Ray who leads; one that is only cut off goes on as it was."""
        leading = self._leading
        try:
            if leading.standing is Standing.LEADING and leading.term is not None:
                say_lead(self._config, leading.term, leads=True)
            elif leading.standing is not Standing.SUSPENDED and leading.present is not None:
                say_lead(self._config, leading.present.term, leads=False)
                learn_heads(self._config, leading.heads)
        except OSError as error:
            log.warning("ray not told who leads", error=str(error))

    def _break(self, error: GpupoolError) -> None:
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def close(self) -> None:
        """Give the right to lead back."""
        await asyncio.to_thread(self._leading.close)


def _who() -> str:
    return f"{os.uname().nodename} (pid {os.getpid()})"


def _advertised(config: PoolConfig) -> str:
    """Where clients of other machines find it; empty when they do not."""
    if config.listen is None:
        return ""
    host, _, port = config.listen.rpartition(":")
    own = config.cluster_address or os.uname().nodename
    own = f"[{own}]" if ":" in own else own
    return f"{own}:{port}" if host.strip("[]") in ANY_ADDRESS else config.listen


def _in_doubt() -> GpupoolError:
    return GpupoolError(
        ErrorCode.DATABASE_UNREACHABLE,
        "The database was lost while something was being written; it is read anew.",
        "Wait a moment and look whether what you asked for was done.",
    )
