"""A program that takes more GPU memory than its slice: messages to its owner, and their times."""

from __future__ import annotations

import sys

import pytest
from e2e_pool import RealPool

from gpupool.node.host.native import Product, missing

# Attached to the share library like everybody, and calls the driver by its path, round the library: 4 GiB.
BESIDE_THE_LIBRARY = """
import ctypes, sys, time
from cuda.bindings import driver as d
d.cuInit(0)
d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])[1])
real = ctypes.CDLL(sys.argv[1])
for _ in range(64):
    assert real.cuMemAlloc_v2(ctypes.byref(ctypes.c_ulonglong()), ctypes.c_size_t(64 << 20)) == 0
time.sleep(600)
"""


@pytest.mark.skipif(missing() is not None, reason="the native parts are not built")
def test_owner_is_warned_and_gets_reason_at_the_end(pool: RealPool) -> None:
    command = (sys.executable, "-c", BESIDE_THE_LIBRARY, str(Product.FAKE_CUDA.path))
    pool("submit", "greedy", "-p", "0.1", "--restart", "never", "--", *command)
    assert pool.becomes("greedy", "failed")
    told = pool.json("describe", "greedy")
    warning, end = told["replicas"][0]["notes"][-2:]
    assert "more than the 1.6 GiB of its slice" in warning
    assert warning.endswith("If this continues, the newest such process is stopped.")
    assert "was asked to stop" in end
    assert told["reason"]["message"] == end
    reasons = [event["reason"] for event in pool.json("events", "greedy")["events"]]
    assert reasons.index("NODE_WARNING") < reasons.index("EXITED")
    text = pool.text("describe", "greedy")
    assert f"note: {warning}" in text
    assert end.removesuffix(".") in next(line for line in text.splitlines() if line.startswith("Ended: "))
