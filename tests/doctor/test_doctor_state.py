import asyncio
import os
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from fake_nvml import FakeCard, FakeNvml

from gpupool.daemon.doctor import run, state
from gpupool.daemon.doctor.check import fine
from gpupool.daemon.doctor.run import DoctorContext, Finding, Severity, exit_status, run_checks
from gpupool.daemon.doctor.state import (
    databases,
    known_revisions,
    options,
    other_pools,
    process_files,
    replicas,
    sockets,
)
from gpupool.node.host.locks import take as take_lock
from gpupool.store.sql_store import open_store


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def levels(findings: object) -> dict[str, Severity]:
    return {finding.check: finding.level for finding in findings}  # type: ignore[attr-defined]


def test_unreadable_options_are_a_problem(context: DoctorContext) -> None:
    assert levels(options(context)) == {"options": Severity.OK}
    (context.state_dir / "config.json").write_text("{}")
    assert levels(options(context)) == {"options": Severity.OK}
    (context.state_dir / "config.json").write_text("{")
    assert levels(options(context)) == {"options": Severity.PROBLEM}


def test_only_unserved_sockets_are_stale(context: DoctorContext) -> None:
    with ExitStack() as stack:
        live = stack.enter_context(socket.socket(socket.AF_UNIX))
        live.bind(str(context.run_dir / "api.sock"))
        live.listen()
        notify = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        notify.bind(str(context.run_dir / "notify.sock"))
        (context.run_dir / "plain.sock").touch()
        assert levels(sockets(context)) == {"stale-sockets": Severity.OK}
    (found,) = sockets(context)
    assert (found.level, "api.sock" in found.sentence) == (Severity.WARNING, True)
    assert "plain" not in found.sentence


def test_job_sockets_are_never_connected(context: DoctorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    attach = context.run_dir / "attach"
    attach.mkdir()
    with socket.socket(socket.AF_UNIX) as job:
        monkeypatch.chdir(attach)  # the whole path may be longer than a socket's may be
        job.bind("w0000000001.0.0.sock")
        job.listen()
        job.settimeout(0.05)
        assert levels(sockets(context)) == {"stale-sockets": Severity.OK}
        with pytest.raises(TimeoutError):
            job.accept()


def test_files_of_dead_processes_are_reported(context: DoctorContext, dead_pid: int) -> None:
    mine = os.getpid()
    for name in (f"exit.json.tmp{mine}", f"api.sock.{mine}", f".config.json.{mine}", "pool.db-wal", "log.1"):
        (context.run_dir / name).touch()
    (context.state_dir / "own.pid").write_text(f"{mine}\n")
    assert levels(process_files(context)) == {"leftovers": Severity.OK}
    for name in (f"exit.json.tmp{dead_pid}", f"api.sock.{dead_pid}", f".config.json.{dead_pid}"):
        (context.run_dir / name).touch()
    (context.state_dir / "old.pid").write_text(f"{dead_pid}\n")
    found = {finding.check: finding for finding in process_files(context)}
    assert levels(found.values()) == {"stale-pids": Severity.WARNING, "leftovers": Severity.WARNING}
    assert found["leftovers"].sentence.startswith("3 temporary files ")
    assert "old.pid" in found["stale-pids"].sentence


def test_leftovers_in_the_folders_of_jobs_are_found(context: DoctorContext, dead_pid: int) -> None:
    folder = context.node_state.replicas / "w0000000001.0.0"
    folder.mkdir(parents=True)
    (folder / f"exit.json.tmp{dead_pid}").touch()
    assert levels(process_files(context)) == {"leftovers": Severity.WARNING}


def test_job_without_end_and_shepherd_is_reported(context: DoctorContext) -> None:
    keys = ("w0000000001.0.0", "w0000000002.0.0", "w0000000003.0.0")
    ended, kept, lost = (context.node_state.replicas / key for key in keys)
    for folder in (ended, kept, lost):
        folder.mkdir(parents=True)
    (ended / "exit.json").write_text("{}")
    lock = take_lock(kept / "lock")
    assert lock is not None
    (found,) = replicas(context)
    assert (found.level, found.sentence) == (Severity.WARNING, "1 job without a shepherd process: w0000000003.0.0.")
    assert "gpupool up" in found.remedy
    agent = take_lock(context.node_state.lock)
    assert agent is not None
    assert "agent runs" in next(iter(replicas(context))).remedy
    lost.rmdir()
    assert levels(replicas(context)) == {"jobs": Severity.OK}
    os.close(lock)
    os.close(agent)


@pytest.fixture
def database(context: DoctorContext) -> Path:
    """Create a real database of the pool, which nothing uses."""

    async def make() -> None:
        store = await open_store(context.state_dir / "pool.db")
        await store.close()

    asyncio.run(make())
    return context.state_dir / "pool.db"


def test_idle_database_passes_unchanged(context: DoctorContext, database: Path) -> None:
    before = sorted(path.name for path in context.state_dir.iterdir())
    content = database.read_bytes()
    assert levels(databases(context)) == {"database": Severity.OK, "schema": Severity.OK}
    assert sorted(path.name for path in context.state_dir.iterdir()) == before
    assert database.read_bytes() == content


def test_database_in_use_is_read_concurrently(context: DoctorContext, database: Path) -> None:
    with closing(sqlite3.connect(database)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE extra (x)")
        writer.execute("BEGIN IMMEDIATE")
        assert database.with_name("pool.db-wal").exists()
        assert levels(databases(context)) == {"database": Severity.OK, "schema": Severity.OK}


def test_missing_database_passes(context: DoctorContext) -> None:
    assert levels(databases(context)) == {"database": Severity.OK}


def test_invalid_database_file_is_a_problem(context: DoctorContext) -> None:
    (context.state_dir / "pool.db").write_bytes(b"not a database at all" * 100)
    assert levels(databases(context)) == {"database": Severity.PROBLEM}


def test_damaged_database_is_a_problem(context: DoctorContext, database: Path) -> None:
    content = bytearray(database.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    for page in range(2, len(content) // size):
        content[page * size : page * size + 200] = b"\xff" * 200
    database.write_bytes(content)
    assert levels(databases(context))["database"] is Severity.PROBLEM


@pytest.mark.parametrize(
    ("statement", "level"),
    [
        ("UPDATE alembic_version SET version_num = '0001'", Severity.WARNING),
        ("UPDATE alembic_version SET version_num = '9999'", Severity.PROBLEM),
        ("DROP TABLE alembic_version", Severity.PROBLEM),
    ],
)
def test_other_schema_version_is_reported(
    context: DoctorContext, database: Path, statement: str, level: Severity
) -> None:
    with closing(sqlite3.connect(database)) as editor:
        editor.execute(statement)
        editor.commit()
    assert levels(databases(context)) == {"database": Severity.OK, "schema": level}


def test_unchecked_large_database_is_a_warning(
    context: DoctorContext, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_DATABASE_TIME_S", -1.0)
    monkeypatch.setattr(state, "_STEPS_BETWEEN_CHECKS", 1)
    assert levels(databases(context)) == {"database": Severity.WARNING, "schema": Severity.OK}


def test_newest_known_revision_exists() -> None:
    known, newest = known_revisions()
    assert "0001" in known
    assert len(newest) == 1
    assert newest <= known


HEADER = "Num       RefCount Protocol Flags    Type St Inode Path\n"


def listening(*paths: str, flags: str = "00010000") -> str:
    return HEADER + "".join(f"0000: 00000002 00000000 {flags} 0001 01 123 {path}\n" for path in paths)


@pytest.mark.parametrize(
    ("table", "others"),
    [
        (HEADER, 0),
        (listening("/run/gpupool/api.sock"), 1),
        (listening("/home/a/.local/state/gpupool/run/api.sock.77", "/home/a/.local/state/gpupool/run/agent.sock"), 1),
        (listening("/srv/x/api.sock", "/srv/x/agent.sock", "/run/gpupool/agent.sock"), 2),
        (listening("/run/docker/api.sock", "/tmp/agent.sock"), 0),
        (listening("/run/gpupool/api.sock", flags="00000000"), 0),
        (listening("@/run/gpupool/api.sock"), 0),
    ],
)
def test_other_pools_are_found_by_their_sockets(context: DoctorContext, table: str, others: int) -> None:
    (context.root / "proc/net").mkdir()
    (context.root / "proc/net/unix").write_text(table)
    nvml = FakeNvml(FakeCard("GPU-a"))
    (real,) = other_pools(replace(context, nvml=nvml))
    (emulated,) = other_pools(replace(context, nvml=nvml, emulate=True))
    (without,) = other_pools(replace(context, nvml=FakeNvml(init_fails=12)))
    wanted = (Severity.PROBLEM, Severity.WARNING, Severity.WARNING) if others else (Severity.OK,) * 3
    assert (real.level, emulated.level, without.level) == wanted
    assert real.sentence.startswith(f"{others} other pool") == bool(others)


def test_pool_does_not_report_itself(context: DoctorContext, tmp_path: Path) -> None:
    here = replace(context, run_dir=tmp_path / "gpupool")
    here.run_dir.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(here.run_dir / "api.sock"))
        server.listen()
        # What the kernel shows of this socket alone: other pools may run on the machine of the tests.
        lines = [line for line in Path("/proc/net/unix").read_text().splitlines() if str(here.run_dir) in line]
    assert len(lines) == 1
    (context.root / "proc/net").mkdir()
    (context.root / "proc/net/unix").write_text(HEADER + lines[0] + "\n")
    assert levels(other_pools(here)) == {"other-pools": Severity.OK}
    assert levels(other_pools(replace(context, emulate=True))) == {"other-pools": Severity.WARNING}


def test_failed_check_is_a_warning_and_others_continue(context: DoctorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(context: DoctorContext) -> list[Finding]:
        raise ZeroDivisionError(str(context.listen))

    monkeypatch.setattr(run, "CHECKS", [("broken", broken), ("sound", lambda _: [fine("sound", "Well.")])])
    found = run_checks(context)
    assert levels(found) == {"broken": Severity.WARNING, "sound": Severity.OK}
    assert "ZeroDivisionError" in found[0].sentence


@pytest.mark.parametrize(("level", "status"), [(Severity.OK, 0), (Severity.WARNING, 0), (Severity.PROBLEM, 1)])
def test_only_problems_fail_the_doctor(level: Severity, status: int) -> None:
    assert exit_status([fine("a", "Well."), Finding("b", level, "Says.", "Do.")]) == status


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a folder that other users can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_closed_system_pool_is_reported_without_details(open_folder: Path) -> None:
    closed = open_folder / "state"
    (closed / "run").mkdir(parents=True)
    closed.chmod(0o700)
    context = DoctorContext(closed, closed / "run", emulate=True, root=open_folder)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - in another process
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            found = run_checks(context)
            os.write(write, "\n".join(f"{f.level} {f.check} {f.sentence}" for f in found).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        text = answers.read()
    os.waitpid(child, 0)
    assert f"warning folders {context.state_dir} belongs to root's pool." in text
    assert "problem" not in text
    assert "This check failed" not in text
    assert not {"options", "jobs", "database", "leftovers"} & {line.split()[1] for line in text.splitlines()}


def test_all_checks_give_full_sentences_and_advice(tmp_path: Path) -> None:
    found = run_checks(DoctorContext(tmp_path / "state", tmp_path / "run", emulate=True, listen="127.0.0.1:1"))
    assert len({finding.check for finding in found}) >= 15
    for finding in found:
        assert "This check failed" not in finding.sentence
        assert finding.sentence.endswith(".")
        assert bool(finding.remedy) == (finding.level is not Severity.OK)
        assert set(finding.to_dict()) == {"check", "level", "sentence", "remedy"}
