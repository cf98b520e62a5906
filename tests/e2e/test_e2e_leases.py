"""S2: hold GPUs, use them, give them back."""

from __future__ import annotations

import json

from e2e_pool import RealPool, eventually, fresh_pool


def test_hold_use_and_release(pool: RealPool) -> None:
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


def test_a_lease_with_a_file_of_its_own(pool: RealPool) -> None:
    for name in ("a", "b"):
        pool("request_gpus", "-p", "0.25", "-f", str(pool.work / name), "--name", f"lease-{name}")
    assert pool.text("client", "-f", str(pool.work / "a"), "--", "echo", "a") == "a\n"
    assert pool.text("client", "--lease", "lease-b", "--", "echo", "b") == "b\n"
    pool("release_gpus", "-f", str(pool.work / "a"))
    assert pool.state_of("lease-b") == "running"


def test_a_release_ends_the_programs_on_it(pool: RealPool) -> None:
    pool("request_gpus", "-p", "0.5", "--name", "held")
    client = pool.begin("client", "--lease", "held", "--", "sh", "-c", "echo on; exec sleep 1000")
    assert client.stdout is not None
    assert client.stdout.readline() == b"on\n"
    pool("release_gpus", "held")
    assert client.wait(30) != 0
    assert pool.all_free()


def test_a_lease_expires_unless_it_is_extended(pool: RealPool) -> None:
    pool("request_gpus", "-p", "0.1", "--lifetime", "2s", "--name", "short")
    pool("request_gpus", "-p", "0.1", "--lifetime", "2s", "--name", "longer")
    pool("extend", "10m", "longer")
    assert pool.becomes("short", "stopped")
    assert pool.state_of("longer") == "running"
    assert "EXPIRED" in pool.text("events", "short")


def test_an_idle_holder_is_warned_then_released(pool: RealPool) -> None:
    pool("request_gpus", "-p", "0.1", "--idle-timeout", "4s", "--name", "idle")
    assert pool.becomes("idle", "stopped")
    seen = [event["reason"] for event in pool.json("events", "idle")["events"]]
    assert "IDLE_WARNING" in seen
    assert "IDLE_LIMIT" in seen


def test_fifty_leases_on_one_gpu_and_the_next_waits_and_says_why() -> None:
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


def test_the_python_client_holds_and_runs(pool: RealPool) -> None:
    with pool.client as client, client.request_gpus(fraction=0.5, timeout=60) as lease:
        assert lease.run(["sh", "-c", "echo hello"], timeout=60).output() == "hello\n"
        assert sorted(pool.free_permille()) == [500, 1000]
    assert pool.all_free()
