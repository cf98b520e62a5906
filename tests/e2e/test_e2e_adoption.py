"""A pool whose database is new, older, or another pool's takes over the jobs that run, or refuses to start."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from e2e_pool import RealPool, alive, eventually, fresh_pool

from gpupool.store.migrations.migrate import prepare

COUNT = "echo $$ > {mark}; echo begun; while ! test -e {gate}; do sleep 0.05; done; echo ended; exit 7"


def start_job(pool: RealPool, name: str, *words: str) -> int:
    """Submit a job that runs until a gate opens, and return its pid."""
    gate, mark = pool.work / f"{name}-gate", pool.work / f"{name}-pid"
    pool(
        "submit",
        name,
        "--restart",
        "never",
        *(words or ("-g", "0.5")),
        "--",
        "sh",
        "-c",
        COUNT.format(mark=mark, gate=gate),
    )
    assert eventually(lambda: mark.exists() and mark.read_text().strip())
    assert pool.becomes(name, "running")
    return int(mark.read_text())


def open_gate(pool: RealPool, name: str) -> None:
    (pool.work / f"{name}-gate").touch()


def kill_pool(pool: RealPool) -> None:
    """Kill -9 every process of the pool but the shepherds and their jobs."""
    state = json.loads((pool.run / "state.json").read_text())
    os.kill(state["pid"], signal.SIGSTOP)  # so that it starts nothing again
    for pid in [child["pid"] for child in state["children"]] + [state["pid"]]:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not any(map(alive, [child["pid"] for child in state["children"]] + [state["pid"]])))


def empty(database: Path) -> None:
    database.write_bytes(b"")


def remove(database: Path) -> None:
    for name in ("pool.db", "pool.db-wal", "pool.db-shm"):
        database.with_name(name).unlink(missing_ok=True)


def put_other_pool(database: Path) -> None:
    """Replace the database of this pool by that of another one."""
    remove(database)
    prepare(database)


def reasons(pool: RealPool, name: str) -> list[str]:
    return [event["reason"] for event in pool.json("events", name)["events"]]


@pytest.mark.parametrize("lose", [empty, remove])
def test_job_survives_loss_of_database(own_pool: RealPool, lose: object) -> None:
    pid = start_job(own_pool, "night")
    before = own_pool.json("describe", "night")
    kill_pool(own_pool)
    lose(own_pool.state / "pool.db")  # type: ignore[operator]
    own_pool.up()
    assert eventually(lambda: own_pool("describe", "night", ok=False).returncode == 0)
    assert own_pool.becomes("night", "running")
    assert alive(pid), "the very same process"
    after = own_pool.json("describe", "night")
    assert {k: after[k] for k in ("id", "name", "user", "project", "kind", "command")} == {
        k: before[k] for k in ("id", "name", "user", "project", "kind", "command")
    }
    assert "ADOPTED" in reasons(own_pool, "night")
    assert own_pool.free_permille() == [500], "its part of the GPU counts as taken"
    assert eventually(lambda: own_pool.text("logs", "night") == "begun\n")
    assert own_pool.text("exec", "night", "--", "sh", "-c", "echo beside") == "beside\n"
    second = start_job(own_pool, "second")
    assert own_pool.free_permille() == [0]
    open_gate(own_pool, "night")
    assert own_pool("wait", "night", ok=False).returncode == 7
    assert own_pool.text("logs", "night") == "begun\nended\n"
    assert alive(second)
    own_pool("stop", "second")
    assert own_pool.all_free()


def test_copy_older_than_a_job_does_not_end_it(own_pool: RealPool) -> None:
    old = start_job(own_pool, "old", "-g", "0.2")
    over = start_job(own_pool, "over", "-g", "0.2")
    own_pool("submit", "queued", "--restart", "never", "-g", "1", "--", "sh", "-c", "exit 3")
    own_pool("backup", str(own_pool.work / "copy.db"))
    new = start_job(own_pool, "new", "-g", "0.2")
    own_pool("stop", "over", "--force")
    assert eventually(lambda: not alive(over))
    kill_pool(own_pool)
    own_pool("restore", str(own_pool.work / "copy.db"))
    own_pool.up()
    assert eventually(lambda: own_pool("describe", "new", ok=False).returncode == 0)
    assert own_pool.becomes("new", "running")
    assert own_pool.becomes("old", "running")
    assert alive(old)
    assert alive(new)
    assert "ADOPTED" in reasons(own_pool, "new")
    assert "ADOPTED" not in reasons(own_pool, "old")
    for name in ("old", "new"):
        open_gate(own_pool, name)
        assert own_pool("wait", name, ok=False).returncode == 7
    assert own_pool.becomes("queued", "failed")


def test_job_that_ended_before_adoption_keeps_its_end(own_pool: RealPool) -> None:
    pid = start_job(own_pool, "brief")
    kill_pool(own_pool)
    open_gate(own_pool, "brief")
    assert eventually(lambda: not alive(pid))
    empty(own_pool.state / "pool.db")
    own_pool.up()
    assert eventually(lambda: own_pool("describe", "brief", ok=False).returncode == 0)
    assert own_pool("wait", "brief", ok=False).returncode == 7
    assert own_pool.text("logs", "brief") == "begun\nended\n"
    assert own_pool.all_free()


def test_gangs_leases_and_waiting_clients_survive_loss_of_database() -> None:
    with fresh_pool("3xT4") as pool:
        gang = f"echo $$ >> {pool.work}/gang; while ! test -e {pool.work}/gang-gate; do sleep 0.05; done"
        pool("submit", "gang", "--workers", "2", "-g", "1", "--", "sh", "-c", gang)
        assert eventually(lambda: (pool.work / "gang").exists() and len((pool.work / "gang").read_text().split()) == 2)
        assert pool.becomes("gang", "running")
        client = pool.begin("run", "-q", "-p", "0.5", "--", "sh", "-c", "echo begun; read word; echo $word; exit 5")
        assert client.stdout is not None
        assert client.stdout.readline() == b"begun\n"
        pool("request_gpus", "-p", "0.3", "--name", "held")
        held = pool.begin("client", "--lease", "held", "--", "sh", "-c", "echo begun; read word; exit 6")
        assert held.stdout is not None
        assert held.stdout.readline() == b"begun\n"
        kill_pool(pool)
        empty(pool.state / "pool.db")
        pool.up()
        assert eventually(lambda: sorted(pool.free_permille()) == [0, 0, 200])
        assert eventually(
            lambda: [row["state"] for row in pool.json("describe", "gang")["replicas"]] == ["running", "running"]
        )
        for waiting, status in ((client, 5), (held, 6)):
            waiting.communicate(b"word\n", timeout=60)
            assert waiting.returncode == status
        (pool.work / "gang-gate").touch()
        assert pool("wait", "gang", ok=False).returncode == 0
        pool("release_gpus", "held")
        assert pool.all_free()


def test_database_of_another_pool_is_refused_until_confirmed(own_pool: RealPool) -> None:
    pid = start_job(own_pool, "mine", "-g", "0.3")
    kill_pool(own_pool)
    put_other_pool(own_pool.state / "pool.db")
    refused = own_pool.up(ok=False)
    assert refused.returncode != 0
    said = refused.stderr.decode()
    for word in ("DATABASE_OTHER_POOL", "mine", "--adopt-jobs", "--abandon-jobs"):
        assert word in said, said
    assert alive(pid)
    own_pool.up("--adopt-jobs")
    assert eventually(lambda: own_pool("describe", "mine", ok=False).returncode == 0)
    assert own_pool.becomes("mine", "running")
    assert own_pool.free_permille() == [700]
    open_gate(own_pool, "mine")
    assert own_pool("wait", "mine", ok=False).returncode == 7


def test_jobs_of_another_pool_are_ended_on_request(own_pool: RealPool) -> None:
    pid = start_job(own_pool, "mine", "-g", "0.3")
    kill_pool(own_pool)
    put_other_pool(own_pool.state / "pool.db")
    assert own_pool.up("--adopt-jobs", "--abandon-jobs", ok=False).returncode != 0
    assert own_pool.up(ok=False).returncode != 0
    assert alive(pid)
    own_pool.up("--abandon-jobs")
    assert eventually(lambda: not alive(pid))
    assert own_pool.free_permille() == [1000]
    own_pool("run", "-p", "1", "--", "true")
