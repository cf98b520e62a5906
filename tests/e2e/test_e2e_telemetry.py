"""Measured GPU use equals the use that programs report, and survives a kill of the control plane."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from e2e_pool import RealPool, eventually, fresh_pool

from requires import require

KERNEL_S = 0.05
MIN_KERNELS = 120
# One sample may stand for up to five seconds whose samples are missing (the control plane is killed; the machine is
# busy). The programs run long enough that this is a small part of their use.
MAX_DIFFERENCE = 0.3
# Busy half of the time until it is asked to stop, and idle for two seconds before it ends.
WORK = """
import sys, time
from pathlib import Path
from cuda.bindings import driver as d
def ok(answer):
    assert answer[0] == 0, answer
    return answer[1] if len(answer) > 1 else None
ok(d.cuInit(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0))))))
spin = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(b"any\\0")), b"spin_50ms"))
count = 0
while count < int(sys.argv[2]) or not Path(sys.argv[1]).exists():
    begin = time.monotonic()
    ok(d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
    ok(d.cuCtxSynchronize())
    count += 1
    time.sleep(max(0.0, begin + 0.1 - time.monotonic()))
time.sleep(2.5)
print(count)
"""


@pytest.fixture
def watched() -> Iterator[RealPool]:
    """Yield two emulated GPUs with the driver that simulates them."""
    pytest.importorskip("cuda.bindings")
    require("native")
    with fresh_pool("2xT4") as made:
        yield made


def ask(pool: RealPool, path: str, **params: Any) -> Any:
    transport = httpx2.HTTPTransport(uds=str(pool.run / "api.sock"))
    with httpx2.Client(transport=transport, base_url="http://pool") as http:
        answer = http.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()


def seen_now(pool: RealPool) -> dict[str, Any]:
    """Return the programs of the latest sample, by the id of their workload."""
    rows = [row for node in ask(pool, "/v1/telemetry")["nodes"] for row in node["replicas"]]
    return {row["key"].partition(".")[0]: row for row in rows}


def ids(pool: RealPool, *names: str) -> list[str]:
    with pool.client as client:
        return [client.get(name).id for name in names]


def test_use_of_programs_is_measured_and_stored(watched: RealPool) -> None:
    pool, stop = watched, watched.work / "stop"
    (pool.work / "work.py").write_text(WORK)
    for name, part in (("part", "0.3"), ("whole", "1")):
        pool("submit", name, "-g", part, "--", sys.executable, "work.py", str(stop), str(MIN_KERNELS))
    part, whole = ids(pool, "part", "whole")

    now: dict[str, Any] = {}

    def both_compute() -> bool:
        now.update(seen_now(pool))
        return all(now.get(one, {}).get("gpu_percent") for one in (part, whole)) and bool(now[part]["shared_percent"])

    def both_gpus_compute() -> bool:
        return sum(gpu["utilisation_percent"] > 0 for gpu in ask(pool, "/v1/telemetry")["nodes"][0]["gpus"]) == 2

    assert eventually(both_compute)
    assert now[part]["gpu_memory_mib"] > 0
    assert now[whole]["shared_percent"] is None, "a whole GPU needs no arbiter"
    assert eventually(both_gpus_compute)
    pool.kill_child("control-plane")
    assert eventually(both_compute)
    stop.touch()
    for name in ("part", "whole"):
        assert pool.becomes(name, "succeeded")
    said = {one: KERNEL_S * int(pool.text("logs", name)) for one, name in ((part, "part"), (whole, "whole"))}
    series = ask(pool, f"/v1/workloads/{whole}/telemetry")
    assert series["step_s"] == 1, "samples of the last ten minutes, also from before the kill"
    drawn = sum(value or 0.0 for value in series["values"]["gpu_percent"]) / 100
    assert drawn == pytest.approx(said[whole], rel=MAX_DIFFERENCE)
    pool.down()
    check_rows(pool, said)


def check_rows(pool: RealPool, said: dict[str, float]) -> None:
    """Compare GPU seconds in the store, of minutes and of hours, with those of the programs' work."""
    with sqlite3.connect(f"file:{pool.state / 'pool.db'}?mode=ro", uri=True) as database:
        sums = "sum(busy_s), sum(idle_s), sum(samples)"
        for step in (60, 3600):
            rows = database.execute(f"select workload, {sums} from replica_use where step_s = {step} group by workload")
            found = {workload: sums for workload, *sums in rows}
            for workload, wanted in said.items():
                busy_s, idle_s, seconds = found[workload]
                assert busy_s == pytest.approx(wanted, rel=MAX_DIFFERENCE)
                assert 1 <= idle_s <= seconds - busy_s
        (on_cards,) = database.execute("select sum(busy_s) from gpu_use where step_s = 3600").fetchone()
    assert on_cards == pytest.approx(sum(said.values()), rel=MAX_DIFFERENCE)
