"""PyTorch's CUDA build, of about 3 GB, in the environment that scripts/test-frameworks makes."""

from __future__ import annotations

import json
import os

import pytest
from cuda_toolkit import PROGRAMS
from e2e_pool import RealPool

from cuda_clients import EACH_SIZE, Size, Table, check_memory

PYTHON = os.environ.get("GPUPOOL_FRAMEWORKS_PYTHON", "")
if not PYTHON:
    pytest.skip("scripts/test-frameworks was not asked for", allow_module_level=True)


@pytest.mark.needs("native")
@EACH_SIZE
@pytest.mark.parametrize("allocator", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_torch_runs(pool: RealPool, table: Table, allocator: str, size: Size) -> None:
    environment = pool.env | {"PYTORCH_ALLOC_CONF": allocator}
    done = pool("run", *size.words, "--", PYTHON, str(PROGRAMS / "torch_client.py"), timeout=110, env=environment)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == 1
    assert found["same_size"]
    assert found["copied"]
    assert found["timed"]
    assert found["graph"]
    check_memory(found, size, "plain", "OutOfMemoryError")
    table.add("PyTorch, its three allocators", found["version"], "copies, events, a CUDA graph, memory until refused")
