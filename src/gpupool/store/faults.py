"""What SQLite and SQLAlchemy say, in the pool's words."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy.exc import DBAPIError, StatementError

from gpupool.domain.errors import ErrorCode, GpupoolError

_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_UNWRITABLE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
}
# How SQLite names what a unique index refused: by its columns.
_LIVE_NAME = "workloads.project, workloads.name"
_UNRELEASED = "leases.workload, leases.replica_index"
_REQUEST_ID = "workloads.request_id"


def translate(error: Exception, database: Path) -> GpupoolError:
    """The pool's error for anything a transaction raised; programming errors become ``INTERNAL``."""
    if isinstance(error, GpupoolError):
        return error
    orig = error.orig if isinstance(error, StatementError) else error
    if isinstance(orig, sqlite3.IntegrityError):
        return refused(str(orig))
    if isinstance(orig, sqlite3.Error):
        return _failed(orig, database)
    if isinstance(orig, UnicodeError | OverflowError):
        return GpupoolError(
            ErrorCode.INVALID_REQUEST,
            f"A value cannot be stored: {orig}.",
            "Use valid Unicode text and numbers of at most 64 bits.",
        )
    return GpupoolError(ErrorCode.INTERNAL, f"The database refused a statement: {orig}.", "Report this as a bug.")


def stale(what: str) -> GpupoolError:
    """The error of a write that no longer fits what is stored."""
    return GpupoolError(ErrorCode.STALE_WRITE, what, "Read the present state and decide again.")


def name_taken(name: str | None = None, project: str = "") -> GpupoolError:
    """The error of a second live workload with one name in one project."""
    return GpupoolError(
        ErrorCode.NAME_TAKEN,
        f"'{name}' is the name of a live workload in project '{project}'."
        if name
        else "One of these names belongs to a live workload of its project.",
        "Choose another name, or wait until that one has ended or stop it.",
    )


def corrupt(database: Path, detail: str) -> GpupoolError:
    """The error of a file that is damaged or no database of the pool; names the newest backup copy."""
    copies = backups(database)
    remedy = f"put the backup copy {copies[-1]} in its place" if copies else "restore it from a backup of yours"
    return GpupoolError(
        ErrorCode.DATABASE_CORRUPT,
        f"The database {database} is damaged or not one of gpupool's ({detail}).",
        f"Stop the pool, move {database} and its -wal and -shm files away and {remedy}, or begin anew without it.",
    )


def backups(database: Path) -> list[Path]:
    """The copies that upgrades made of this database, oldest first."""
    return sorted(database.parent.glob(f"{database.name}.backup-*"), key=lambda path: path.name.rpartition("-")[2])


def is_driver_error(error: Exception) -> bool:
    """Whether ``translate`` knows more of it than a bug in the store's own Python would deserve."""
    return isinstance(error, StatementError | DBAPIError | sqlite3.Error | UnicodeError | OverflowError)


def refused(text: str) -> GpupoolError:
    """The error of a constraint that held, from the driver's sentence."""
    if _LIVE_NAME in text:
        return name_taken()
    if _UNRELEASED in text:
        return stale("A replica already holds a lease that is not released.")
    if _REQUEST_ID in text:
        return GpupoolError(
            ErrorCode.REQUEST_SEEN, "The same request has been carried out already.", "Look up what it made."
        )
    return stale(f"The change does not fit what is stored ({text}).")


def _failed(error: sqlite3.Error, database: Path) -> GpupoolError:
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if primary in _CORRUPT:
        return corrupt(database, str(error))
    if primary in _BUSY:
        hint = f"Find who holds it with `fuser {database}`; nothing was written."
        return GpupoolError(ErrorCode.DATABASE_UNWRITABLE, f"The database {database} is locked.", hint)
    if primary in _UNWRITABLE:
        return GpupoolError(
            ErrorCode.DATABASE_UNWRITABLE,
            f"The database {database} cannot be written ({error}).",
            f"Make room on the disk of {database.parent} and check its permissions; nothing was lost, and work goes on"
            " by itself once there is space.",
        )
    return GpupoolError(ErrorCode.INTERNAL, f"The database failed ({error}).", "Report this as a bug.")
