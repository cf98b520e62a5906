"""The nvidia-smi of emulated GPUs, in programs of a pool."""

from __future__ import annotations

import re
import shutil

import pytest
from e2e_pool import RealPool

HOLDER = """
import ctypes, os, subprocess, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert not cuda.cuInit(0)
assert not cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
assert not cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(512 << 20))
print(os.getpid(), flush=True)
sys.exit(subprocess.run(["nvidia-smi", *sys.argv[1:]]).returncode)
"""


def smi(pool: RealPool, *words: str, size: tuple[str, ...] = ("-m", "2048"), status: int = 0) -> str:
    done = pool("run", "-q", *size, "--", "nvidia-smi", *words, ok=False)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout.decode()


def test_slice_has_its_size(pool: RealPool) -> None:
    assert smi(pool, "--query-gpu=name,memory.total", "--format=csv") == (
        "name, memory.total [MiB]\nTesla T4 (emulated), 2048 MiB\n"
    )
    assert smi(pool, "--query-gpu=memory.total", "--format=csv,noheader,nounits", size=("-p", "0.25")) == "4096\n"
    total, used, free = smi(
        pool, "--query-gpu", "memory.total,memory.used,memory.free", "--format=csv,nounits,noheader"
    ).split(", ")
    assert int(total) == int(used) + int(free) == 2048


def test_list_and_table_say_that_gpus_are_emulated(pool: RealPool) -> None:
    (line,) = smi(pool, "-L").splitlines()
    assert line.startswith("GPU 0: Tesla T4 (emulated) (UUID: GPU-EMULATED-")
    table = smi(pool)
    assert "NVIDIA-SMI (emulated)" in table
    assert "0MiB / 2048MiB" in table
    assert "No running processes found" in table
    assert re.search(r"\|   0  Tesla T4 \(emulated\) .* Off \| +0 \|", table), "the count of ECC errors"
    assert {len(line) for line in table.splitlines() if line.startswith(("|", "+"))} == {91}


def test_whole_gpu(pool: RealPool) -> None:
    query = ("--query-gpu=index,memory.total,utilization.gpu,power.draw", "--format=csv,noheader")
    index, memory, utilization, power = smi(pool, *query, size=("-g", "1")).splitlines()[0].split(", ")
    assert (index, memory, utilization) == ("0", "16384 MiB", "0 %")
    assert power.endswith(" W")


def test_processes_of_the_slice(pool: RealPool) -> None:
    (pool.work / "holder.py").write_text(HOLDER)
    query = ["--query-compute-apps=pid,process_name,used_memory,gpu_name", "--format=csv,noheader,nounits"]
    own, row = pool.text("run", "-q", "-m", "2048", "--", "python3", "holder.py", *query).splitlines()
    pid, name, used, gpu = row.split(", ")
    assert (pid, gpu) == (own, "Tesla T4 (emulated)")
    assert "python" in name
    assert int(used) >= 512


@pytest.mark.parametrize(
    ("words", "message", "status"),
    [
        (("--query-gpu=nonsense", "--format=csv"), 'Field "nonsense" is not a valid field to query.', 2),
        (("--query-gpu=name",), "No format is given", 2),
        (("--bogus",), "Option --bogus is not recognized", 2),
        (("-i", "7"), "No devices were found", 6),
    ],
)
def test_errors(pool: RealPool, words: tuple[str, ...], message: str, status: int) -> None:
    assert message in smi(pool, *words, status=status)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has NVIDIA's program")
def test_programs_without_gpu_do_not_have_it(pool: RealPool) -> None:
    smi(pool, "-L", size=("-n", "0"), status=127)
