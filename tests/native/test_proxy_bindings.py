"""NVIDIA's own Python client of the driver works through the share library, on the fake driver."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
from lease_folder import LeaseFolder
from native_harness import FakeGpu


def run(source: str, environment: dict[str, str]) -> str:
    program = "from cuda.bindings import driver as cu\n" + textwrap.dedent(source)
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("per_thread", ["0", "1"], ids=["legacy default stream", "default stream of each thread"])
def test_client_sees_device_and_copies_bytes(
    per_thread: str, lease: LeaseFolder, leased_environment: Callable[[LeaseFolder], dict[str, str]]
) -> None:
    said = run(
        """
        def done(result):
            assert result[0] == cu.CUresult.CUDA_SUCCESS, result[0]
            return result[1] if len(result) == 2 else result[1:]
        done(cu.cuInit(0))
        device = done(cu.cuDeviceGet(0))
        print(done(cu.cuDeviceGetUuid(device)).bytes.hex())
        done(cu.cuCtxSetCurrent(done(cu.cuDevicePrimaryCtxRetain(device))))
        block = done(cu.cuMemAlloc(1 << 20))
        sent, got = b"through the proxy" * 1000, bytearray(17000)
        done(cu.cuMemcpyHtoD(block, sent, len(sent)))
        done(cu.cuMemcpyDtoH(got, block, len(sent)))
        print(bytes(got) == sent)
        done(cu.cuMemFree(block))
        """,
        leased_environment(lease) | {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": per_thread},
    )
    assert said.split() == [FakeGpu().uuid_bytes.hex(), "True"]
    assert len(lease.owners()) == 1
    assert lease.tenant("unhooked_count") == 0
