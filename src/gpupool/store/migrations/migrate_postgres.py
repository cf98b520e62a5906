"""Creation and migration of a PostgreSQL schema, in one transaction that excludes other control planes."""

from __future__ import annotations

from sqlalchemy import Connection, text

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.store.backends import errors, postgres
from gpupool.store.backends.address import PostgresAddress
from gpupool.store.migrations.migrate import HEAD, REVISIONS, create_if_empty, migrate_to, newer

OLDEST_SERVER = 14
ENCODING = "UTF8"
_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(1735423344, 0)")


def prepare(address: PostgresAddress, pool_id: str | None = None) -> None:
    """Make sure that a database has the present schema; an empty one gets ``pool_id`` (None: a new id).

    Raises ``GpupoolError``: DATABASE_FOREIGN, DATABASE_NEWER, DATABASE_UNREACHABLE, UNSUPPORTED (old server, or a
    database that is not encoded in UTF-8).
    """
    engine = postgres.make_engine(address)
    try:
        postgres.run(engine, address, lambda conn: _prepare(conn, address, pool_id))
    finally:
        engine.dispose()


def _prepare(conn: Connection, address: PostgresAddress, pool_id: str | None) -> None:
    _check_server(conn, address)
    conn.execute(_ONE_AT_A_TIME)
    revision = create_if_empty(conn, pool_id)
    if revision is None:
        raise errors.foreign(address, "it has other tables")
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
            f"The database {address} runs on PostgreSQL {version // 10_000}.",
            f"Use PostgreSQL {OLDEST_SERVER} or newer.",
        )
    if encoding != ENCODING:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"The database {address} is encoded in {encoding}.",
            "Create one in UTF-8: createdb --encoding=UTF8 --template=template0 gpupool",
        )
