"""Translation of errors of SQLite, PostgreSQL and SQLAlchemy to errors of the pool."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy.exc import DBAPIError, StatementError

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store.backends.address import PostgresAddress

_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_UNWRITABLE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
}
# How a violated unique index is reported: SQLite names its columns, PostgreSQL the index.
_LIVE_NAME = ("workloads.project, workloads.name", "uq_workloads_live_name")
_UNRELEASED = ("leases.workload, leases.replica_index", "uq_leases_unreleased")
_REQUEST_ID = ("workloads.request_id", "uq_workloads_request_id")
# SQLSTATEs of PostgreSQL (manual, appendix A): the class is in the first two characters.
_CONSTRAINT, _DATA = "23", "22"
_UNREACHABLE = {"08", "57"}  # no connection; ended by an administrator, starting up or shutting down
_NO_ROOM = {"53", "58"}  # out of resources, system error
_NO_RIGHTS = {"28", "3D", "42501"}
_LOCKED = "55P03"
_READ_ONLY = "25006"
_RETRYABLE = {"40001", "40P01"}  # serialization failure; deadlock
_SQLSTATE_CLASS = 2


def translate(error: Exception, database: Path | PostgresAddress) -> GpupoolError:
    """Return the pool's error for any exception of a transaction; programming errors become ``INTERNAL``."""
    if isinstance(error, GpupoolError):
        return error
    orig = error.orig if isinstance(error, StatementError) else error
    if isinstance(database, PostgresAddress) and _is_postgres(orig):
        return _of_postgres(orig, database)
    if isinstance(database, PostgresAddress):
        return _unexpected(orig)
    if isinstance(orig, sqlite3.IntegrityError):
        return refused(str(orig))
    if isinstance(orig, sqlite3.Error):
        return _failed(orig, database)
    return _unexpected(orig)


def _unexpected(orig: object) -> GpupoolError:
    if isinstance(orig, UnicodeError | OverflowError):
        return _no_value(orig)
    return GpupoolError(ErrorCode.INTERNAL, f"The database refused a statement: {orig}.", "Report this as a bug.")


def _no_value(why: object) -> GpupoolError:
    return GpupoolError(
        ErrorCode.INVALID_REQUEST,
        f"A value cannot be stored: {why}.",
        "Use valid Unicode text and numbers of at most 64 bits.",
    )


def stale(what: str) -> GpupoolError:
    """Return the error of a write that no longer matches the stored state."""
    return GpupoolError(ErrorCode.STALE_WRITE, what, "Read the present state and decide again.")


def name_taken(name: str | None = None, project: str = "") -> GpupoolError:
    """Return the error of a second live workload with one name in one project."""
    return GpupoolError(
        ErrorCode.NAME_TAKEN,
        f"'{name}' is the name of a live workload in project '{project}'."
        if name
        else "One of these names belongs to a live workload of its project.",
        "Choose another name, stop that workload, or wait until it has ended.",
    )


def corrupt(database: Path, detail: str) -> GpupoolError:
    """Return the error of a damaged or foreign file; it names the newest backup copy."""
    copies = backups(database)
    remedy = f"'gpupool restore {copies[-1]}'" if copies else "'gpupool restore FILE' with a backup"
    return GpupoolError(
        ErrorCode.DATABASE_CORRUPT,
        f"The database {database} is damaged, or is not a database of gpupool ({detail}).",
        f"Stop the pool and put a backup in its place: {remedy}. Without one, move {database} and its -wal and -shm"
        " files away: 'gpupool up' makes a new database and adopts the jobs that run; queued jobs, projects, users and"
        " history are lost.",
    )


def backups(database: Path) -> list[Path]:
    """Return the copies that upgrades made of this database, oldest first."""
    return sorted(database.parent.glob(f"{database.name}.backup-*"), key=lambda path: path.name.rpartition("-")[2])


def is_driver_error(error: Exception) -> bool:
    """Return whether the error comes from the driver or SQLAlchemy, not from a bug in the store's Python code."""
    return isinstance(error, StatementError | DBAPIError | sqlite3.Error | UnicodeError | OverflowError)


def refused(text: str) -> GpupoolError:
    """Return the error of a violated constraint, from the driver's message."""
    if any(name in text for name in _LIVE_NAME):
        return name_taken()
    if any(name in text for name in _UNRELEASED):
        return stale("A replica already holds a lease that is not released.")
    if any(name in text for name in _REQUEST_ID):
        return GpupoolError(ErrorCode.REQUEST_SEEN, "The same request was already processed.", "Look up its result.")
    return stale(f"The change conflicts with the stored state ({text}).")


def is_retryable(error: Exception) -> bool:
    """Return whether PostgreSQL rolled a transaction back only because of concurrent ones."""
    orig = error.orig if isinstance(error, StatementError) else error
    return _is_postgres(orig) and _sqlstate(orig) in _RETRYABLE


def _is_postgres(orig: object) -> bool:
    return type(orig).__module__.partition(".")[0] == "psycopg"  # imported only where it is used


def _sqlstate(orig: object) -> str:
    return getattr(orig, "sqlstate", None) or ""


def _of_postgres(orig: object, database: PostgresAddress) -> GpupoolError:
    state, said = _sqlstate(orig), str(orig).strip().partition("\n")[0][:300].rstrip(".")  # later lines are guesses
    kind = state[:_SQLSTATE_CLASS]
    if kind == _CONSTRAINT:
        return refused(said)
    if kind == _DATA or type(orig).__name__ == "DataError":
        return _no_value(said)
    if kind in _NO_ROOM or state in {_LOCKED, _READ_ONLY}:
        return GpupoolError(
            ErrorCode.DATABASE_UNWRITABLE,
            f"The database {database} cannot be written ({said}).",
            "Nothing was lost; the pool continues when it is writable again. See the log of the database server.",
        )
    if {state, kind} & _NO_RIGHTS or (not state and "password" in said):
        return unreachable(database, said, "Set the password and the permissions of the pool's role: docs/database.md.")
    if kind in _UNREACHABLE or type(orig).__name__ in {"OperationalError", "ConnectionTimeout"}:
        return unreachable(database, said)
    return GpupoolError(ErrorCode.INTERNAL, f"The database failed ({said}).", "Report this as a bug.")


def unreachable(database: PostgresAddress, said: str, hint: str = "") -> GpupoolError:
    """Return the error of a server that cannot be reached, or that refuses the pool's login."""
    return GpupoolError(
        ErrorCode.DATABASE_UNREACHABLE,
        f"The database {database} does not respond ({said}).",
        hint or "Running work continues. Start the server or repair the connection; the pool then continues by itself.",
    )


def foreign(database: object, why: str) -> GpupoolError:
    """Return the error of a database or file that does not belong to gpupool."""
    return GpupoolError(
        ErrorCode.DATABASE_FOREIGN,
        f"{database} is not a database of gpupool ({why}).",
        "Use a separate database for gpupool; see docs/database.md.",
    )


def _failed(error: sqlite3.Error, database: Path) -> GpupoolError:
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if primary in _CORRUPT:
        return corrupt(database, str(error))
    if primary in _BUSY:
        hint = f"Find the process that locks it: `fuser {database}`. Nothing was written."
        return GpupoolError(ErrorCode.DATABASE_UNWRITABLE, f"The database {database} is locked.", hint)
    if primary in _UNWRITABLE:
        return GpupoolError(
            ErrorCode.DATABASE_UNWRITABLE,
            f"The database {database} cannot be written ({error}).",
            f"Free space on the disk of {database.parent} and check its permissions; nothing was lost. Work continues"
            " when there is space.",
        )
    return GpupoolError(ErrorCode.INTERNAL, f"The database failed ({error}).", "Report this as a bug.")
