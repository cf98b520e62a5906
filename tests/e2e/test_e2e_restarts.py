"""Jobs outlive every process of the pool; old, corrupt and full state is handled or said."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest
from e2e_pool import PATIENCE_S, RealPool, alive, eventually, folder_for_pool, fresh_pool


def steady(pool: RealPool, name: str) -> int:
    """Start a job that counts until a gate opens; return its pid."""
    gate, mark = pool.work / f"{name}-gate", pool.work / f"{name}-pid"
    script = f"echo $$ > {mark}; echo begun; while ! test -e {gate}; do sleep 0.05; done; echo ended; exit 0"
    pool("submit", name, "-g", "0.5", "--", "sh", "-c", script)
    assert eventually(lambda: mark.exists() and mark.read_text().strip())
    return int(mark.read_text())


def finish(pool: RealPool, name: str, pid: int) -> None:
    assert alive(pid), "the very same process"
    (pool.work / f"{name}-gate").touch()
    pool("wait", name)
    assert pool.text("logs", name) == "begun\nended\n"
    with pool.client as client:
        assert [r.attempt for r in client.detail(name).replicas] == [1]


def test_job_continues_while_pool_is_down(own_pool: RealPool) -> None:
    pid = steady(own_pool, "night")
    own_pool.down()
    assert alive(pid)
    own_pool.up()
    assert own_pool.becomes("night", "running")
    assert own_pool.free_permille() == [500]
    finish(own_pool, "night", pid)


def test_job_that_ends_while_pool_is_down_keeps_end_and_output(own_pool: RealPool) -> None:
    pid = steady(own_pool, "quiet")
    own_pool.down()
    (own_pool.work / "quiet-gate").touch()
    assert eventually(lambda: not alive(pid))
    own_pool.up()
    assert own_pool.becomes("quiet", "succeeded")
    assert own_pool.text("logs", "quiet") == "begun\nended\n"
    assert own_pool.all_free()


def test_kill_of_any_pool_process_disturbs_no_job(own_pool: RealPool) -> None:
    pid = steady(own_pool, "steady")
    script = "echo begun; read x; echo heard $x"
    client = own_pool.begin("run", "-q", "-p", "0.1", "--", "sh", "-c", script)
    assert client.stdout is not None
    assert client.stdin is not None
    assert client.stdout.readline() == b"begun\n"
    for name in ("control-plane", "agent"):
        own_pool.kill_child(name)
        assert own_pool.becomes("steady", "running")
        assert own_pool.free_permille() == [400]
    client.stdin.write(b"words\n")
    client.stdin.close()
    assert client.stdout.read() == b"heard words\n"
    assert client.wait(PATIENCE_S) == 0
    finish(own_pool, "steady", pid)


def test_next_up_replaces_killed_supervisor(own_pool: RealPool) -> None:
    pid = steady(own_pool, "orphan")
    state = json.loads((own_pool.run / "state.json").read_text())
    os.kill(state["pid"], signal.SIGKILL)
    assert eventually(lambda: not alive(state["pid"]))
    assert eventually(lambda: own_pool.up(ok=False).returncode == 0)
    assert own_pool.becomes("orphan", "running")
    finish(own_pool, "orphan", pid)


def test_second_pool_on_a_state_folder_is_refused(own_pool: RealPool) -> None:
    second = own_pool.up(ok=False)
    assert second.returncode != 0
    assert b"POOL_ALREADY_RUNNING" in second.stderr
    own_pool("run", "-p", "0.1", "--", "true")


def test_up_reports_corrupt_database() -> None:
    with fresh_pool("1xT4") as pool:
        pool("run", "-p", "0.1", "--", "true")
        pool.down()
        for name in ("pool.db-wal", "pool.db-shm"):
            (pool.state / name).unlink(missing_ok=True)
        database = pool.state / "pool.db"
        good = database.read_bytes()
        database.write_bytes(b"this is no database" * 1000)
        failed = pool.up(ok=False)
        assert failed.returncode != 0
        assert b"DATABASE_CORRUPT" in failed.stderr
        assert b"pool.db" in failed.stderr
        database.write_bytes(good)
        pool.up()


def test_older_database_is_upgraded_after_a_copy() -> None:
    from sqlalchemy import Engine

    from gpupool.store.backends import sqlite
    from gpupool.store.migrations.migrate import migrate_to

    with fresh_pool("1xT4", started=False) as pool:
        pool.state.mkdir(mode=0o700)
        database = pool.state / "pool.db"
        engine: Engine = sqlite.make_engine(database, foreign_keys=False)
        sqlite.run(engine, database, lambda conn: migrate_to(conn, "0001"))
        engine.dispose()
        with sqlite3.connect(database) as connection:
            connection.execute("insert or replace into meta values ('pool_id', 'old')")
        pool.up()
        assert list(pool.state.glob("pool.db.backup-0001-*"))
        assert pool.text("run", "-q", "-p", "0.1", "--", "echo", "fine") == "fine\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_full_disk_stops_output_and_new_work_but_not_the_pool() -> None:
    with folder_for_pool() as folder:
        pool = RealPool(folder, "1xT4")
        pool.state.mkdir(mode=0o700)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(pool.state)], check=False).returncode:
            pytest.skip("this place allows no mounts")
        try:
            pool.up()
            mark = pool.work / "survived"
            script = f"yes | head -c 60000000; echo > {mark}; exit 0"
            pool("submit", "flood", "-g", "0.1", "--", "sh", "-c", script)
            assert eventually(mark.exists), "the program does not notice"
            assert pool.becomes("flood", "succeeded"), "output leaves room to write that it has ended"
            assert pool.all_free()

            def refused() -> bool:
                fill_up(pool.state / "filler")  # again and again: what ends meanwhile leaves room
                return b"DATABASE_UNWRITABLE" in pool("submit", "-g", "0.1", "--", "true", ok=False).stderr

            assert eventually(refused)
            assert "flood" in pool.text("ps", "-a"), "looking works"
            subprocess.run(["mount", "-o", "remount,size=96m", str(pool.state)], check=True)
            pool("submit", "later", "-g", "0.1", "--", "true")
            assert pool.becomes("later", "succeeded")
            assert pool.all_free()
        finally:
            pool("down", "--stop-jobs", ok=False)
            pool.down()
            subprocess.run(["umount", "-l", str(pool.state)], check=False)


def fill_up(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError:
            return


def test_run_starts_missing_pool_and_reports_it() -> None:
    with fresh_pool("1xT4", started=False) as pool:
        done = pool("run", "-p", "0.1", "--", "echo", "hello")
        assert done.stdout == b"hello\n"
        assert b"emulated" in done.stderr or shutil.which("nvidia-smi") is not None
        assert b"pool" in done.stderr
        assert b"pool" not in pool("run", "-q", "-p", "0.1", "--", "true").stderr


def test_many_first_runs_at_once_start_one_pool() -> None:
    with fresh_pool("1xT4", started=False) as pool:
        clients = [pool.begin("run", "-q", "-p", "0.1", "--", "echo", "x") for _ in range(4)]
        said = [client.communicate(timeout=90) for client in clients]
        assert [output for output, _ in said] == [b"x\n"] * 4, said


def test_deleted_run_folder_is_created_again(own_pool: RealPool) -> None:
    pid = steady(own_pool, "steady")
    supervisor = json.loads((own_pool.run / "state.json").read_text())["pid"]
    shutil.rmtree(own_pool.run)
    assert eventually(lambda: own_pool("ps", ok=False).returncode == 0)
    assert eventually((own_pool.run / "state.json").exists)
    assert json.loads((own_pool.run / "state.json").read_text())["pid"] == supervisor, "nobody had to start it again"
    assert eventually(lambda: own_pool("logs", "steady", ok=False).returncode == 0)
    assert own_pool.becomes("steady", "running")
    assert own_pool.free_permille() == [500]
    own_pool("run", "-p", "0.5", "--", "true")
    finish(own_pool, "steady", pid)
    second = steady(own_pool, "second")
    (own_pool.run / "api.sock").unlink()
    assert eventually(lambda: own_pool("stop", "second", ok=False).returncode == 0)
    assert eventually(lambda: not alive(second))
