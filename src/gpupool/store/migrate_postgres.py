"""Bringing a PostgreSQL database to the present schema, in one transaction that only one control plane can be in."""

from __future__ import annotations

from sqlalchemy import Connection, text

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store import faults, postgres
from gpupool.store.address import PostgresAddress
from gpupool.store.migrate import HEAD, REVISIONS, create_if_empty, migrate_to, newer

OLDEST_SERVER = 14
ENCODING = "UTF8"
_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(1735423344, 0)")


def prepare(address: PostgresAddress) -> None:
    """Make sure that a database has the present schema.

    Raises ``GpupoolError``: DATABASE_FOREIGN, DATABASE_NEWER, DATABASE_UNREACHABLE, UNSUPPORTED (the server is too
    old, or the database is not of UTF-8).
    """
    engine = postgres.make_engine(address)
    try:
        postgres.run(engine, address, lambda conn: _prepare(conn, address))
    finally:
        engine.dispose()


def _prepare(conn: Connection, address: PostgresAddress) -> None:
    _check_server(conn, address)
    conn.execute(_ONE_AT_A_TIME)
    revision = create_if_empty(conn)
    if revision is None:
        raise faults.foreign(address, "it has other tables")
    if revision not in REVISIONS:
        raise newer(address, revision)
    if revision != HEAD:
        migrate_to(conn, HEAD)


def _check_server(conn: Connection, address: PostgresAddress) -> None:
    version, encoding = conn.exec_driver_sql(
        "SELECT current_setting('server_version_num')::int, current_setting('server_encoding')"
    ).one()
    if version // 10_000 < OLDEST_SERVER:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"The database {address} is of PostgreSQL {version // 10_000}.",
            f"Use PostgreSQL {OLDEST_SERVER} or newer.",
        )
    if encoding != ENCODING:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"The database {address} is encoded in {encoding}.",
            "Make one of UTF-8: createdb --encoding=UTF8 --template=template0 gpupool",
        )
