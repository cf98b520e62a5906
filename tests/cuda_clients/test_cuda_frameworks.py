"""CUDA builds of PyTorch and JAX, of about 3 GB each, cuBLAS and NCCL; scripts/test-frameworks installs them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cuda_toolkit import PROGRAMS
from e2e_pool import RealPool, fresh_pool

from cuda_clients import EACH_SIZE, Size, Table, check_filled, check_memory, check_suspension, run
from gpupool import verify

TORCH, JAX = (os.environ.get(name, "") for name in ("GPUPOOL_TORCH_PYTHON", "GPUPOOL_JAX_PYTHON"))
needs_torch = pytest.mark.skipif(not TORCH, reason="scripts/test-frameworks installs PyTorch")
needs_jax = pytest.mark.skipif(not JAX, reason="scripts/test-frameworks installs JAX and cuBLAS")
pytestmark = pytest.mark.needs("native")


@needs_torch
@EACH_SIZE
@pytest.mark.parametrize("allocator", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_torch_runs(pool: RealPool, table: Table, allocator: str, size: Size) -> None:
    environment = pool.env | {"PYTORCH_ALLOC_CONF": allocator}
    done = pool("run", *size.words, "--", TORCH, str(PROGRAMS / "torch_client.py"), timeout=110, env=environment)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == 1
    assert found["same_size"]
    assert found["copied"]
    assert found["timed"]
    assert found["graph"]
    check_memory(found, size, "plain", "OutOfMemoryError")
    table.add("PyTorch, its three allocators", found["version"], "copies, events, a CUDA graph, memory until refused")


@needs_torch
def test_torch_keeps_what_is_in_gpu_memory_while_it_is_suspended(pool: RealPool) -> None:
    check_suspension(pool, TORCH, "torch")


@needs_jax
@EACH_SIZE
@pytest.mark.parametrize("allocator", ["default", "platform", "cuda_async"])
def test_jax_runs(pool: RealPool, table: Table, allocator: str, size: Size) -> None:
    found = run(pool, size, JAX, PROGRAMS / "jax_client.py", allocator)
    assert "emulated" in found["kind"]
    assert found["copied"]
    assert found["matmul"] == [200, 200]
    if allocator != "cuda_async":  # which reports no limit
        assert found["total_mib"] == size.total_mib
    check_filled(found, size, "plain", "RESOURCE_EXHAUSTED")
    table.add("JAX, its three allocators", found["version"], "copies, a product by cuBLAS, memory until refused")


@needs_jax
@EACH_SIZE
def test_cublas_runs(pool: RealPool, table: Table, size: Size) -> None:
    found = run(pool, size, JAX, PROGRAMS / "cublas_client.py")
    assert set(found["statuses"]) == {0}
    check_memory(found, size, "plain", "cudaErrorMemoryAllocation")
    table.add("cuBLAS", found["version"], "SAXPY, SGEMM, memory until refused")


def nccl_check(pool: RealPool, *words: str) -> dict[str, Any]:
    """Return what `verify` says of the NCCL that PyTorch depends on, on GPUs requested by these words."""
    program = str(Path(verify.__file__).with_name("__main__.py"))
    done = pool("run", *words, "--", TORCH, program, "--level", "2", "--json", timeout=110)
    (check,) = [check for check in json.loads(done.stdout.splitlines()[-1])["checks"] if check["name"] == "nccl"]
    return dict(check)


@needs_torch
@EACH_SIZE
def test_nccl_runs_with_one_rank(pool: RealPool, table: Table, size: Size) -> None:
    check = nccl_check(pool, *size.words)
    version, _, rest = check["note"].removeprefix("version ").partition(";")
    assert (check["outcome"], rest) == ("ok", " one GPU sends nothing")
    table.add("NCCL", version, "an all-reduce of one rank; two ranks connect")


@needs_torch
def test_nccl_connects_two_ranks_whose_kernels_are_not_computed() -> None:
    with fresh_pool("2xT4") as pool:
        check = nccl_check(pool, "-g", "2")
    assert check["outcome"] == "skipped", check
    assert check["note"].startswith("an emulated GPU does not compute the kernels of NCCL; version 2.")
    assert check["values"] == {"ranks": 2.0}
