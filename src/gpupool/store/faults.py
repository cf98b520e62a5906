"""What SQLite, PostgreSQL and SQLAlchemy say, in the pool's words."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy.exc import DBAPIError, StatementError

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store.address import PostgresAddress

_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_UNWRITABLE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
}
# What a unique index refused: SQLite names its columns, PostgreSQL the index.
_LIVE_NAME = ("workloads.project, workloads.name", "uq_workloads_live_name")
_UNRELEASED = ("leases.workload, leases.replica_index", "uq_leases_unreleased")
_REQUEST_ID = ("workloads.request_id", "uq_workloads_request_id")
# Of PostgreSQL's SQLSTATEs (its manual, appendix A): the class is in the first two characters.
_CONSTRAINT, _DATA = "23", "22"
_AWAY = {"08", "57"}  # no connection; ended by an administrator, starting up or going down
_NO_ROOM = {"53", "58"}  # out of resources, errors of the system it runs on
_NO_RIGHTS = {"28", "3D", "42501"}
_LOCKED = "55P03"
_READ_ONLY = "25006"
_AGAIN = {"40001", "40P01"}  # could not be serialised; a deadlock
_SQLSTATE_CLASS = 2


def translate(error: Exception, database: Path | PostgresAddress) -> GpupoolError:
    """The pool's error for anything a transaction raised; programming errors become ``INTERNAL``."""
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
    if any(name in text for name in _LIVE_NAME):
        return name_taken()
    if any(name in text for name in _UNRELEASED):
        return stale("A replica already holds a lease that is not released.")
    if any(name in text for name in _REQUEST_ID):
        return GpupoolError(
            ErrorCode.REQUEST_SEEN, "The same request has been carried out already.", "Look up what it made."
        )
    return stale(f"The change does not fit what is stored ({text}).")


def may_try_again(error: Exception) -> bool:
    """Whether PostgreSQL took a transaction back only because of others."""
    orig = error.orig if isinstance(error, StatementError) else error
    return _is_postgres(orig) and _sqlstate(orig) in _AGAIN


def _is_postgres(orig: object) -> bool:
    return type(orig).__module__.partition(".")[0] == "psycopg"  # which is imported only where it is used


def _sqlstate(orig: object) -> str:
    return getattr(orig, "sqlstate", None) or ""


def _of_postgres(orig: object, database: PostgresAddress) -> GpupoolError:
    state, said = _sqlstate(orig), str(orig).strip().partition("\n")[0][:300].rstrip(".")  # then come guesses
    kind = state[:_SQLSTATE_CLASS]
    if kind == _CONSTRAINT:
        return refused(said)
    if kind == _DATA or type(orig).__name__ == "DataError":
        return _no_value(said)
    if kind in _NO_ROOM or state in {_LOCKED, _READ_ONLY}:
        return GpupoolError(
            ErrorCode.DATABASE_UNWRITABLE,
            f"The database {database} cannot be written ({said}).",
            "Nothing was lost, and work goes on by itself once it can be; its server's log says more.",
        )
    if {state, kind} & _NO_RIGHTS or (not state and "password" in said):
        return unreachable(database, said, "Give the pool's role its password and its rights: docs/database.md.")
    if kind in _AWAY or type(orig).__name__ in {"OperationalError", "ConnectionTimeout"}:
        return unreachable(database, said)
    return GpupoolError(ErrorCode.INTERNAL, f"The database failed ({said}).", "Report this as a bug.")


def unreachable(database: PostgresAddress, said: str, hint: str = "") -> GpupoolError:
    """The error of a server that cannot be reached, or that does not let the pool in."""
    return GpupoolError(
        ErrorCode.DATABASE_UNREACHABLE,
        f"The database {database} does not answer ({said}).",
        hint or "Running work goes on. Start the server or mend the way to it; the pool goes on by itself then.",
    )


def foreign(database: object, why: str) -> GpupoolError:
    """The error of a database or file that is not gpupool's."""
    return GpupoolError(
        ErrorCode.DATABASE_FOREIGN,
        f"{database} is not a database of gpupool's ({why}).",
        "Give gpupool a database of its own; docs/database.md says how.",
    )


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
