"""Findings of ``gpupool doctor`` about a pool's PostgreSQL database."""

from __future__ import annotations

import json
from pathlib import Path

from databases import PostgresServer

from gpupool.daemon.doctor.check import Finding, Severity
from gpupool.daemon.doctor.database import server as look
from gpupool.daemon.doctor.run import DoctorContext


def findings(folder: Path, **options: object) -> dict[str, Finding]:
    state, run = folder / "state", folder / "run"
    state.mkdir(exist_ok=True)
    (state / "config.json").write_text(json.dumps({"state_dir": str(state), "run_dir": str(run), **options}))
    return {finding.check: finding for finding in look(DoctorContext(state, run))}


def test_doctor_is_silent_about_sqlite_pool(tmp_path: Path) -> None:
    assert findings(tmp_path) == {}


def test_each_fault_has_advice(tmp_path: Path, server: PostgresServer) -> None:
    fresh, empty, newer, theirs = server.fresh(), server.empty(), server.fresh(), server.empty()
    server.sql("UPDATE alembic_version SET version_num = '9999'", newer.rpartition("/")[2])
    server.sql("CREATE TABLE somebody_elses (x int)", theirs.rpartition("/")[2])
    levels = {url: findings(tmp_path, database=url)["schema"].level for url in (fresh, empty, newer, theirs)}
    assert levels == {fresh: Severity.OK, empty: Severity.OK, newer: Severity.PROBLEM, theirs: Severity.PROBLEM}
    assert findings(tmp_path, database=fresh)["database-server"].level is Severity.WARNING


def test_unreachable_or_refusing_server_is_a_problem(tmp_path: Path, server: PostgresServer) -> None:
    (password := tmp_path / "password").write_text("x\n")
    password.chmod(0o644)
    for options in (
        {"database": "postgresql://gpupool@127.0.0.1:1/pool"},
        {"database": server.url("no_such_database")},
        {"database": server.fresh(), "database_password_file": str(password)},
    ):
        (found,) = findings(tmp_path, **options).values()
        assert (found.level, bool(found.remedy)) == (Severity.PROBLEM, True)
