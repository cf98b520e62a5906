"""Scheduled backups: make copies of the database by a schedule, and delete old ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from gpupool.domain import backup
from gpupool.domain.backup import BackupFile, BackupSchedule
from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.people.access import Actor, Role
from gpupool.domain.units import format_duration
from gpupool.domain.work.lifecycle import POOL
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.engine import Engine

CHECK_INTERVAL_S = 5.0

log = structlog.get_logger("gpupool.backups")


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The schedule, the folder in use, and the result so far; ``error`` is that of the last try (empty: none)."""

    schedule: BackupSchedule
    folder: str
    newest: float | None
    error: str
    files: Sequence[BackupFile]


@dataclass(frozen=True, slots=True)
class BackupHealth:
    """The interval of the schedule, the time of the newest good copy (None: there is none), and the last result."""

    every_s: float
    newest: float | None
    failed: bool


class BackupService:
    """Runs on the control plane that leads. The copies are on that machine, unless their folder is shared."""

    def __init__(self, engine: Engine, permissions: Permissions, state_dir: str) -> None:
        self._engine = engine
        self._permissions = permissions
        self._state_dir = state_dir
        self._schedule = BackupSchedule()
        self._newest: float | None = None  # time of the newest good copy
        self._failed_at: float | None = None
        self._error = ""
        self._known = False  # True if the folder was read since the schedule was loaded or changed
        self._working = asyncio.Lock()

    @property
    def newest(self) -> float | None:
        """Return the time of the newest good copy; None without one, or without a schedule."""
        return self._newest if self._schedule.every_s is not None else None

    @property
    def health(self) -> BackupHealth | None:
        """Return the state of the backups for the metrics; None without a schedule."""
        every_s = self._schedule.every_s
        return None if every_s is None else BackupHealth(every_s, self._newest, bool(self._error))

    def warnings(self) -> list[str]:
        """Return sentences about copies that are missing or too old, for ``gpupool status``."""
        if self._schedule.every_s is None:
            return []
        if self._error:
            return [f"the last scheduled backup failed: {self._error}"]
        now = self._engine.ports.clock.now()
        if self._known and self._newest is not None and backup.is_late(self._schedule, self._newest, now):
            return [f"the newest scheduled backup is {format_duration(now - self._newest)} old"]
        return []

    async def report(self, actor: Actor) -> BackupReport:
        """Return the schedule and the copies. For administrators. Raises FORBIDDEN, INVALID_REQUEST."""
        self._permissions.need_role(actor, Role.ADMIN)
        files = await self._engine.ports.store.backups.files(self._folder)
        return BackupReport(self._schedule, str(self._folder), self.newest, self._error, files)

    @property
    def schedule(self) -> BackupSchedule:
        """Return the schedule in force."""
        return self._schedule

    async def change(self, actor: Actor, changes: dict[str, Any]) -> BackupSchedule:
        """Change fields of the schedule at once, for administrators. Raises FORBIDDEN, INVALID_REQUEST."""
        self._permissions.need_role(actor, Role.ADMIN)
        schedule = replace(self._schedule, **changes)
        store = self._engine.ports.store.backups
        if schedule.every_s is not None:
            await store.prepare(Path(schedule.folder_in(self._state_dir)))
        what = ", ".join(f"{name} {value}" for name, value in sorted(changes.items()))
        event = self._engine.change_event(actor.user, what, "backups")

        async def write() -> None:
            await self._engine.ports.store.documents.save("backups", json.dumps(schedule.to_dict()), event)
            self._schedule = schedule

        await self._engine.run_exclusive(write)
        self._known, self._failed_at, self._error = False, None, ""
        return schedule

    async def load(self) -> None:
        """Read the schedule from the store; if it cannot be parsed, log that and make no backups."""
        text = await self._engine.ports.store.documents.load("backups")
        try:
            if text is not None:
                self._schedule = decode(BackupSchedule, json.loads(text))
        except (ValueError, TypeError, AttributeError, GpupoolError):
            log.exception("the schedule of backups cannot be read")

    async def run(self) -> None:
        """Make copies by the schedule, for ever."""
        while True:
            await self.look()
            await self._engine.ports.sleep(CHECK_INTERVAL_S)

    async def look(self) -> bool:
        """Make a copy if the schedule asks for one now, and delete old ones; return True if a copy was made."""
        async with self._working:
            if self._schedule.every_s is None:
                return False
            now = self._engine.ports.clock.now()
            try:
                if not self._known:
                    self._newest = backup.newest_good(await self._engine.ports.store.backups.files(self._folder), now)
                    self._known = True
                if not backup.is_due(self._schedule, self._newest, self._failed_at, now):
                    return False
                await self._make(now)
            except GpupoolError as error:
                await self._fail(now, error)
                return False
            except Exception as error:  # a failed backup must not stop the pool
                log.exception("backup failed")
                sentence = f"The backup failed ({type(error).__name__})."
                await self._fail(now, GpupoolError(ErrorCode.INTERNAL, sentence, "See the log of the control plane."))
                return False
            return True

    @property
    def _folder(self) -> Path:
        return Path(self._schedule.folder_in(self._state_dir))

    async def _make(self, now: float) -> None:
        folder, store = self._folder, self._engine.ports.store.backups
        name = backup.file_name(now)
        size = await store.write(folder, name)
        self._newest, self._failed_at, self._error = now, None, ""
        log.info("backup made", file=str(folder / name), bytes=size)
        too_many = backup.to_delete(self._schedule, await store.files(folder), now)
        await store.delete(folder, too_many)
        if too_many:
            log.info("old backups deleted", files=too_many)

    async def _fail(self, now: float, error: GpupoolError) -> None:
        """Report a failure; the event is written once, not for each retry."""
        log.warning("backup failed", code=error.code, message=error.message)
        known, self._failed_at, self._error = self._error, now, error.message
        if known:
            return
        event = Event(now, POOL, Reason.BACKUP_FAILED, f"{error.message} {error.hint}".strip(), target="backups")
        try:
            await self._engine.transact(lambda draft: draft.note(event))
        except GpupoolError as unwritten:
            log.warning("could not write the event of a failed backup", code=unwritten.code)
