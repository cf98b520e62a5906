"""Clients of CUDA run on a whole GPU and in a slice, see a device of that size, and report their own error beyond it.

The GPU is emulated; the clients are not: libcudart 12 and 13, a program compiled by nvcc, CuPy and numba-cuda.
"""

from __future__ import annotations

import json

import pytest
from cuda_toolkit import PROGRAMS, PYTHON, Toolkit, version
from e2e_pool import RealPool

from cuda_clients import EACH_SIZE, Size, Table, check_memory, check_suspension, run

pytestmark = pytest.mark.needs("cuda-clients", "native")


@EACH_SIZE
@pytest.mark.parametrize("static", [True, False], ids=["static", "shared"])
@pytest.mark.parametrize("version", [12, 13])
def test_program_of_the_runtime_runs(
    pool: RealPool, toolkit: Toolkit, table: Table, version: int, static: bool, size: Size
) -> None:
    found = run(pool, size, toolkit.build_runtime_client(version, static=static))
    major, minor = divmod(found["runtime"] // 10, 100)
    assert major == version
    assert found["devices"] == 1
    assert found["wrong"] == found["wrong_after_graph"] == 0
    assert found["timed"]
    check_memory(found, size, "plain", "cudaErrorMemoryAllocation")
    check_memory(found, size, "pool", "cudaErrorMemoryAllocation")
    assert found["child"] == 7, "a forked child gets an error"
    assert found["after_reset"]
    what = "a kernel, copies, streams, events, a CUDA graph, memory until refused (plain, from a pool), fork, reset"
    table.add(f"libcudart, {'static' if static else 'shared'}, CUDA {major}", f"{major}.{minor}", what)


@EACH_SIZE
def test_program_compiled_by_nvcc_runs(pool: RealPool, toolkit: Toolkit, table: Table, size: Size) -> None:
    assert run(pool, size, toolkit.build_with_nvcc("vector_add.cu")) == {"total_mib": size.total_mib, "wrong": 0}
    table.add("a program compiled by nvcc", version("nvidia-cuda-nvcc"), "a kernel by `<<<>>>`, copies")


@EACH_SIZE
def test_cupy_runs(pool: RealPool, table: Table, size: Size) -> None:
    found = run(pool, size, PYTHON, PROGRAMS / "cupy_client.py")
    assert found["devices"] == 1
    assert found["wrong"] == found["wrong_after_graph"] == 0
    assert found["timed"]
    check_memory(found, size, "plain", "OutOfMemoryError")
    check_memory(found, size, "pool", "CUDARuntimeError")
    what = (
        "a kernel compiled by NVRTC, copies, streams, events, a CUDA graph, memory until refused (plain, from a pool)"
    )
    table.add("CuPy", version("cupy-cuda13x"), what)


def test_cupy_keeps_what_is_in_gpu_memory_while_it_is_suspended(pool: RealPool) -> None:
    check_suspension(pool, PYTHON, "cupy")


@EACH_SIZE
def test_numba_runs_and_says_that_kernels_do_not_compute(pool: RealPool, table: Table, size: Size) -> None:
    done = pool("run", *size.words, "--", str(PYTHON), str(PROGRAMS / "numba_client.py"), timeout=110)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == 1
    assert found["copied"]
    assert found["timed"]
    check_memory(found, size, "plain", "CUDA_ERROR_OUT_OF_MEMORY")
    assert done.stderr.count(b"this GPU is emulated: its kernels take time but compute nothing") == 1
    table.add("numba-cuda", version("numba-cuda"), "copies, streams, events, memory until refused")
