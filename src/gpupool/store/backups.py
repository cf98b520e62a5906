"""Scheduled backups on disk: each copy is verified and durable before it gets its name."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from gpupool.domain.backup import BackupFile, BackupState, made_at
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store import database_copy
from gpupool.store.backends import sqlite
from gpupool.store.backends.database import Database
from gpupool.store.migrations import migrate

FOLDER_MODE = 0o700
_WRITABLE_BY_OTHERS = 0o022
_UNFINISHED = re.compile(r"\.pool-\d{8}T\d{6}Z\.db\.new|\.\.pool-\d{8}T\d{6}Z\.db\.new\.part(-journal|-wal|-shm)?")


class SqlBackups:
    """Scheduled backups of a database; the methods are those of ``BackupStore``."""

    def __init__(self, database: Database, pool_id: str) -> None:
        self._database = database
        self._pool_id = pool_id

    async def prepare(self, folder: Path) -> None:
        """Create the folder (mode 0700) if it is missing. Raises INVALID_REQUEST if copies would not be safe there."""
        await asyncio.to_thread(_prepare, folder)

    async def write(self, folder: Path, name: str) -> int:
        """Write a copy and verify it before it gets its name; returns its size in bytes."""
        await self.prepare(folder)
        await asyncio.to_thread(_delete_unfinished, folder)
        unfinished, target = folder / f".{name}.new", folder / name
        try:
            await self._database.read(lambda conn: database_copy.write_copy(conn, unfinished))
            return await asyncio.to_thread(self._finish, unfinished, target)
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def _finish(self, unfinished: Path, target: Path) -> int:
        copy = database_copy.inspect_copy(unfinished)
        if copy.pool_id != self._pool_id or copy.revision != migrate.HEAD:
            raise GpupoolError(
                ErrorCode.DATABASE_CORRUPT,
                f"The new copy for {target} is of pool {copy.pool_id[:8]} and schema {copy.revision}, not of this one.",
                "Check the disk of that folder; the next copy is made at the next interval.",
            )
        try:
            size = unfinished.stat().st_size
            unfinished.replace(target)
            sqlite.sync_folder(target.parent)
        except OSError as error:
            raise sqlite.no_backup(target, error) from error
        return size

    async def files(self, folder: Path) -> Sequence[BackupFile]:
        """Return the scheduled copies in the folder, newest first; none if there is no such folder."""
        return await asyncio.to_thread(list_files, folder, self._pool_id)

    async def delete(self, folder: Path, names: Iterable[str]) -> None:
        """Delete scheduled copies. Raises DATABASE_UNWRITABLE."""
        await asyncio.to_thread(_delete, folder, list(names))


def list_files(folder: Path, pool_id: str) -> Sequence[BackupFile]:
    """Return the scheduled copies in a folder, newest first.

    Only the head, the pool and the schema of each are read: all of it was verified when it was written.
    """
    found = []
    try:
        for path in folder.iterdir():
            at = made_at(path.name)
            with suppress(FileNotFoundError):  # deleted meanwhile
                if at is not None:
                    found.append(BackupFile(path.name, at, path.lstat().st_size, _state(path, pool_id)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unusable(folder, error.strerror or str(error)) from error
    return sorted(found, key=lambda file: file.made_at, reverse=True)


def _state(path: Path, pool_id: str) -> BackupState:
    try:
        own = database_copy.inspect_copy(path, verify=False).pool_id == pool_id
    except GpupoolError as error:
        other = error.code is ErrorCode.DATABASE_NEWER
        return BackupState.FOREIGN if other else BackupState.DAMAGED
    return BackupState.OK if own else BackupState.FOREIGN


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid not in {os.geteuid(), 0} or found.st_mode & _WRITABLE_BY_OTHERS:
            raise _unusable(folder, "it belongs to another user, or other users can write into it")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unusable(folder, error.strerror or str(error)) from error


def _delete_unfinished(folder: Path) -> None:
    """Delete unfinished copies of a killed pool; no other process writes copies into this folder."""
    try:
        for path in folder.iterdir():
            if _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise _unusable(folder, error.strerror or str(error)) from error


def _delete(folder: Path, names: Sequence[str]) -> None:
    try:
        for name in names:
            if made_at(name) is not None:
                (folder / name).unlink(missing_ok=True)
        if names:
            sqlite.sync_folder(folder)
    except OSError as error:
        raise GpupoolError(
            ErrorCode.DATABASE_UNWRITABLE,
            f"Old backup copies in {folder} cannot be deleted ({error.strerror}).",
            "Delete them by hand, or choose another folder: gpupool backup --to DIR",
        ) from error


def _unusable(folder: Path, why: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.INVALID_REQUEST,
        f"Backup copies cannot be written into {folder} ({why}).",
        "Choose a folder of the pool's account that only it can write: gpupool backup --to DIR",
    )
