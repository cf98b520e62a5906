"""Can the pool use its PostgreSQL database: whether it answers, is the pool's, and keeps what it is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpupool.daemon.config import PoolConfig, read_config
from gpupool.daemon.doctor_checks import DoctorContext, Finding, NamedCheck, fine, problem, warning
from gpupool.domain.errors import GpupoolError

_SETTINGS = (
    "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), current_setting('fsync')"
)
_TABLES = (
    "SELECT count(*), count(*) FILTER (WHERE tablename = 'alembic_version')"
    " FROM pg_tables WHERE schemaname = current_schema()"
)
_REVISION = "SELECT version_num FROM alembic_version"


def server(context: DoctorContext) -> Iterator[Finding]:
    """Nothing for a pool that keeps a file of its own."""
    config = None if context.closed else _config(context)
    if config is None or config.database is None:
        return
    try:
        import psycopg
    except ImportError:
        yield problem("database", "PostgreSQL cannot be used: psycopg is missing.", "pip install 'gpupool[postgres]'")
        return
    try:
        yield from _look(config)
    except GpupoolError as error:
        yield problem("database", error.message, error.hint)
    except psycopg.Error as error:
        yield problem("database", f"The database refused a look: {error}.", "See docs/database.md.")


def _config(context: DoctorContext) -> PoolConfig | None:
    try:
        stored = read_config(str(context.state_dir))
        return PoolConfig.from_dict(stored) if stored else None
    except (GpupoolError, TypeError, ValueError):
        return None  # told by the check of the options


def _look(config: PoolConfig) -> Iterator[Finding]:
    import psycopg

    from gpupool.store import faults, postgres

    address = config.database_address()
    if address is None:
        return
    try:
        raw = postgres.connect(address)
    except psycopg.Error as error:
        raise faults.translate(error, address) from error
    with raw:
        yield fine("database", f"{address} answers.")
        yield _settings(*_row(raw, _SETTINGS))
        yield _schema(raw, str(address))


def _row(raw: Any, statement: str) -> tuple[Any, ...]:
    found: tuple[Any, ...] = raw.execute(statement).fetchone() or ()
    return found


def _settings(version: int, encoding: str, fsync: str) -> Finding:
    from gpupool.store.migrate_postgres import ENCODING, OLDEST_SERVER

    said = f"PostgreSQL {version // 10_000}, {encoding}"
    if version // 10_000 < OLDEST_SERVER or encoding != ENCODING:
        return problem("database-server", f"{said}.", f"Use {OLDEST_SERVER} or newer and a database of {ENCODING}.")
    if fsync == "off":
        return warning("database-server", f"{said}, with fsync off: a power loss loses the pool.", "Set fsync = on.")
    return fine("database-server", f"{said}, fsync on.")


def _schema(raw: Any, address: str) -> Finding:
    from gpupool.store.migrate import HEAD, REVISIONS

    tables, ours = _row(raw, _TABLES)
    if not ours:
        if not tables:
            return fine("schema", f"{address} is empty: 'gpupool up' makes its tables.")
        return problem("schema", f"{address} has other tables.", "Give the pool a database of its own.")
    revision = str((_row(raw, _REVISION) or ("",))[0])
    if revision == HEAD:
        return fine("schema", f"{address} has the current version ({revision}).")
    if revision in REVISIONS:
        return warning("schema", f"{address} has an older version ({revision}).", "'gpupool up' upgrades it.")
    return problem(
        "schema", f"{address} has version '{revision[:40]}', which is not known here.", "Install a newer gpupool."
    )


CHECKS: list[NamedCheck] = [("database", server)]
