"""S2: hold GPUs, use them, give them back."""

from __future__ import annotations

import json

from e2e_pool import PATIENCE_S, RealPool, alive, eventually, fresh_pool


def test_lease_is_held_used_and_released(pool: RealPool) -> None:
    path = pool.text("request_gpus", "-n", "1", "-m", "2048").strip().splitlines()[-1]
    assert json.loads(open(path, encoding="utf-8").read())  # noqa: PTH123, SIM115
    assert sorted(pool.free_permille()) == [875, 1000]
    assert pool.text("client", "--", "echo", "one") == "one\n"
    assert pool("client", "--", "sh", "-c", "exit 5", ok=False).returncode == 5
    assert pool("client", "--", "cat", stdin=b"\0\1\2").stdout == b"\0\1\2"
    at_once = [pool.begin("client", "--", "sh", "-c", f"sleep 0.3; echo {i}") for i in range(3)]
    outputs = sorted(client.communicate(timeout=60)[0] for client in at_once)
    assert outputs == [b"0\n", b"1\n", b"2\n"]
    assert sorted(pool.free_permille()) == [875, 1000]
    assert "T4" in pool.text("list_gpus")
    pool("release_gpus")
    assert pool.all_free()
    assert pool("client", "--", "true", ok=False).returncode == 125


def test_background_programs_of_a_lease_run_on_if_its_holder_wants_that(pool: RealPool) -> None:
    pool("request_gpus", "-p", "0.25", "--name", "held")
    started = (
        "nohup setsid sh -c 'echo $$ > NAME.pid; while ! test -e NAME.gate; do sleep 0.1; done; echo done > NAME.end' "
    )
    started += "> /dev/null 2>&1 & until test -s NAME.pid; do sleep 0.05; done"
    for name, options in (("kept", ("--linger", "1h")), ("other", ())):
        pool("client", "--lease", "held", *options, "--", "sh", "-c", started.replace("NAME", name))
    other = int((pool.work / "other.pid").read_text())
    assert eventually(lambda: not alive(other)), "without the option it ends with its program"
    assert alive(int((pool.work / "kept.pid").read_text()))
    (pool.work / "kept.gate").touch()
    assert eventually((pool.work / "kept.end").exists)
    pool("exec", "--linger", "1h", "held", "--", "sh", "-c", started.replace("NAME", "last"))
    last = int((pool.work / "last.pid").read_text())
    assert alive(last)
    pool("release_gpus")
    assert eventually(lambda: not alive(last)), "everything ends with the lease"


def test_lease_with_own_file(pool: RealPool) -> None:
    for name in ("a", "b"):
        pool("request_gpus", "-p", "0.25", "-f", str(pool.work / name), "--name", f"lease-{name}")
    assert pool.text("client", "-f", str(pool.work / "a"), "--", "echo", "a") == "a\n"
    assert pool.text("client", "--lease", "lease-b", "--", "echo", "b") == "b\n"
    pool("release_gpus", "-f", str(pool.work / "a"))
    assert pool.state_of("lease-b") == "running"


def test_release_of_one_lease_keeps_the_other(pool: RealPool) -> None:
    pool("request_gpus", "-p", "0.5", "--name", "older")
    pool("request_gpus", "-p", "0.25", "--name", "newer")
    assert b"newer is released" in pool("release_gpus").stderr
    assert pool.text("client", "--", "printenv", "GPUPOOL_GPU_SHARE").strip() == "0.50"
    assert b"older is released" in pool("release_gpus").stderr
    assert pool.all_free()
    refused = pool("release_gpus", ok=False)
    assert refused.returncode == 125
    assert b"You have no lease" in refused.stderr


def test_expired_lease_does_not_hide_active_lease(pool: RealPool) -> None:
    pool("request_gpus", "-p", "0.5", "--name", "held", "--lifetime", "2h")
    pool("request_gpus", "-p", "0.25", "--name", "short-lived", "--lifetime", "3s")
    assert pool.becomes("short-lived", "stopped")
    used = pool("client", "--", "printenv", "GPUPOOL_GPU_SHARE")
    assert used.stdout.strip() == b"0.50"
    assert b"using held" in used.stderr
    pool("extend", "3h")
    ended = pool("release_gpus", "short-lived")
    assert b"short-lived had already ended" in ended.stderr
    assert b"is released" not in ended.stderr
    assert pool.state_of("held") == "running"


def test_lease_of_another_pool_is_not_used(pool: RealPool) -> None:
    pool("request_gpus", "-p", "0.25", "--name", "here")
    with fresh_pool("1xT4") as other:
        other.env["HOME"] = pool.env["HOME"]  # both pools share the user's lease files
        other("request_gpus", "-p", "0.1", "--name", "there")
        assert pool.text("client", "--", "printenv", "GPUPOOL_GPU_SHARE").strip() == "0.25"
        assert other.text("client", "--", "printenv", "GPUPOOL_GPU_SHARE").strip() == "0.10"


def test_release_ends_programs_on_the_lease(pool: RealPool) -> None:
    pool("request_gpus", "-p", "0.5", "--name", "held")
    client = pool.begin("client", "--lease", "held", "--", "sh", "-c", "echo on; exec sleep 1000")
    assert client.stdout is not None
    assert client.stdout.readline() == b"on\n"
    pool("release_gpus", "held")
    assert client.wait(PATIENCE_S) != 0
    assert pool.all_free()


def test_lease_expires_unless_extended(pool: RealPool) -> None:
    pool("request_gpus", "-p", "0.1", "--lifetime", "10s", "--name", "longer")
    pool("extend", "10m", "longer")
    pool("request_gpus", "-p", "0.1", "--lifetime", "10s", "--name", "short")  # ends later than the other would have
    assert pool.becomes("short", "stopped")
    assert pool.state_of("longer") == "running"
    assert "EXPIRED" in pool.text("events", "short")


def test_idle_lease_is_warned_then_released(pool: RealPool) -> None:
    pool("request_gpus", "-p", "0.1", "--idle-timeout", "4s", "--name", "idle")
    assert pool.becomes("idle", "stopped")
    seen = [event["reason"] for event in pool.json("events", "idle")["events"]]
    assert "IDLE_WARNING" in seen
    assert "IDLE_LIMIT" in seen


def test_fifty_leases_fit_on_one_gpu_and_next_one_waits_with_reason() -> None:
    with fresh_pool("1xT4") as pool, pool.client as client:
        leases = [client.request_gpus(fraction=0.02, timeout=60) for _ in range(50)]
        assert pool.free_permille() == [0]
        waiting = pool.begin("request_gpus", "-p", "0.02", "--name", "late")
        assert eventually(lambda: any(job.name == "late" for job in client.list()))
        assert pool.state_of("late") == "queued"
        why = pool.text("why", "late")
        assert "0.02" in why
        leases[11].release()
        assert waiting.wait(60) == 0
        assert pool.state_of("late") == "running"


def test_python_client_holds_lease_and_runs_programs(pool: RealPool) -> None:
    with pool.client as client, client.request_gpus(fraction=0.5, timeout=60) as lease:
        assert lease.run(["sh", "-c", "echo hello"], timeout=60).output() == "hello\n"
        assert sorted(pool.free_permille()) == [500, 1000]
    assert pool.all_free()
