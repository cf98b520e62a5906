"""The fake driver: its names, many threads, and deaths at any instruction."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest
from fake_cuda_harness import Pool, counters
from native_harness import GIB, PROGRAMS, FakeGpu, build_native, compile_program

pytest.importorskip("cuda.bindings")

STORM_S = 3.0


@pytest.fixture
def pool(native_out: Path, fake_gpus: Path) -> Pool:
    return Pool(native_out / "fake", fake_gpus)


def stress_program(out: Path, folder: Path, *flags: str) -> Path:
    return compile_program(
        PROGRAMS / "fake_stress.c", folder, f"-I{out}", *flags, f"-L{out / 'fake'}", "-l:libcuda.so.1"
    )


def test_names_versions_and_flags_select_the_right_exports(pool: Pool) -> None:
    """Compare (result, export, status): 1 is an unknown name, 2 is a version before its time."""
    assert pool.run("addresses") == [
        [0, "cuMemAlloc_v2", 0],
        [0, "cuMemAlloc", 0],
        [0, "cuCtxCreate_v2", 0],
        [0, "cuCtxCreate_v4", 0],
        [0, "cuLaunchKernel", 0],
        [0, "cuLaunchKernel_ptsz", 0],
        [0, "cuLaunchKernel", 0],
        [0, "cuMemcpyHtoD_v2_ptds", 0],
        [0, "cuGetProcAddress_v2", 0],
        [0, None, 2],
        [0, None, 1],
        [1, None, -1],
    ]


def test_every_name_exists_and_unsimulated_ones_are_unsupported(pool: Pool) -> None:
    assert pool.run("unsupported") == [801, []]


def test_threads_can_use_the_driver_concurrently(fake_gpus: Path, tmp_path: Path) -> None:
    """Under the thread sanitizer, which ends the program with a status other than 0 where threads race."""
    out = build_native("thread")
    program = stress_program(out, tmp_path, "-fsanitize=thread")
    ran = subprocess.run(
        [program, "4", "30"],
        env=Pool(out / "fake", fake_gpus).environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "0\n"), ran.stderr[-4000:]


def test_killed_processes_leave_nothing(pool: Pool, native_out: Path, tmp_path: Path) -> None:
    """Processes that do everything the driver can are killed at random; the GPU works on and ends up empty."""
    program = [stress_program(native_out, tmp_path), "2", "0"]
    dice = random.Random(1)
    alive: list[subprocess.Popen[bytes]] = []
    until, kills = time.monotonic() + STORM_S, 0
    while time.monotonic() < until:
        alive += [subprocess.Popen(program, env=pool.environment()) for _ in range(3 - len(alive))]
        time.sleep(dice.uniform(0.001, 0.03))
        assert all(process.poll() is None for process in alive)
        victim = alive.pop(dice.randrange(len(alive)))
        victim.kill()
        victim.wait()
        kills += 1
    for process in alive:
        process.kill()
        process.wait()
    waited, free = pool.run("wait_for_free", 16 * GIB - FakeGpu().context_bytes)
    assert kills > 20
    assert free == 16 * GIB - FakeGpu().context_bytes
    assert waited < 5
    assert not any(one.live or one.memory_bytes for one in counters(pool).values())
