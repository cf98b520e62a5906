"""A start whose database is slow to create its tables: the pool is starting, and not a standby."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import PostgresServer
from e2e_pool import PATIENCE_S, RealPool

from free_ports import free_port
from gpupool.daemon.process.ready import TURN_TIMEOUT_S

# The timeout only bounds a failing test: machines may be busy.
pytestmark = pytest.mark.timeout(600)
TABLE_S = 0.4  # that the server takes to create a table
SLOW_TABLES = f"""
CREATE FUNCTION pause() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep({TABLE_S}); END';
CREATE EVENT TRIGGER pause ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION pause()
"""


@pytest.fixture
def pool(server: PostgresServer) -> Iterator[RealPool]:
    """Yield a pool on a database without tables."""
    server.sql("CREATE DATABASE slow")
    with tempfile.TemporaryDirectory(prefix="gp-slow-") as name:
        made = RealPool(Path(name), "1xT4")
        made.state.mkdir(mode=0o700)
        options = {"database": server.url("slow"), "dashboard": f"127.0.0.1:{free_port()}"}
        (made.state / "config.json").write_text(json.dumps(options))
        try:
            yield made
        finally:
            made("down", "--stop-jobs", ok=False)


def test_up_returns_when_the_tables_exist_and_the_pool_leads(server: PostgresServer, pool: RealPool) -> None:
    server.sql(SLOW_TABLES, "slow")
    started = pool("up", "--background", "--emulate", pool.emulate, timeout=PATIENCE_S * 4)
    tables = int(server.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", "slow"))
    assert tables * TABLE_S > 2 * TURN_TIMEOUT_S, "creating them took longer than a standby is waited for"
    assert b"This control plane is starting" not in started.stderr + started.stdout
    assert pool.json("ps")["workloads"] == []
