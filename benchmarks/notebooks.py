"""Kernels on slices compared with plain kernels of the same Jupyter, in one run.

`python benchmarks/notebooks.py [--rounds 20]` alternates the kinds, so that other load affects all equally: kernels on
slices and plain kernels, both over unix sockets, and kernels on slices through the tunnel that kernels of other nodes
use. It measures the time until a kernel is ready, a restart until it is ready, and the round trip of an execution.
Then a Jupyter Server with ten kernels on slices is killed: the time until the next server answers with all of them,
compared with the start of a server that finds none. Prints a table and writes results/notebooks.json. The GPUs are
emulated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from jupyter_client.manager import AsyncKernelManager

from _common import Pool, machine, spread, table, until, write_result
from gpupool.jupyter import kernel_spec

READY_GOAL, RESTART_GOAL, TRIP_GOAL, RETURN_GOAL_S = 1.1, 1.1, 1.05, 5.0
SLICE, TUNNEL, PLAIN = "bench-slice", "bench-tunnel", "python3"
TRIPS = 50
LIMIT_S = 60.0
KERNELS = 10
TOKEN = "benchmark"


async def ready(manager: AsyncKernelManager) -> Any:
    """Return a connected client when the kernel answers."""
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=LIMIT_S)
    return client


async def one_kernel(name: str) -> dict[str, list[float]]:
    """Start, use, restart and stop one kernel; return the seconds of each."""
    manager = AsyncKernelManager(kernel_name=name, transport="ipc")
    begun = time.perf_counter()
    await manager.start_kernel()
    client = await ready(manager)
    times = {"ready": [time.perf_counter() - begun], "execute": [], "restart": []}
    for _ in range(TRIPS):
        begun = time.perf_counter()
        await client.execute_interactive("1 + 1", timeout=LIMIT_S, output_hook=lambda _: None)
        times["execute"].append(time.perf_counter() - begun)
    client.stop_channels()
    begun = time.perf_counter()
    await manager.restart_kernel()
    client = await ready(manager)
    times["restart"].append(time.perf_counter() - begun)
    client.stop_channels()
    await manager.shutdown_kernel(now=True)
    return times


def compare(rounds: int) -> dict[str, Any]:
    """Measure the kinds alternately."""
    kinds = (SLICE, PLAIN, TUNNEL)
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    for index in range(rounds + 1):
        for name in kinds[::-1] if index % 2 else kinds:
            times = asyncio.run(one_kernel(name))
            for step, values in times.items() if index else ():  # the first round warms up
                found[name].setdefault(step, []).extend(values)
    return {
        step: {
            "slice_ms": spread(found[SLICE][step], 1000),
            "plain_ms": spread(found[PLAIN][step], 1000),
            "tunnel_ms": spread(found[TUNNEL][step], 1000),
            "ratio_p50": _ratio(found[SLICE][step], found[PLAIN][step]),
            "tunnel_ratio_p50": _ratio(found[TUNNEL][step], found[PLAIN][step]),
        }
        for step in ("ready", "execute", "restart")
    }


def _ratio(times: list[float], baseline: list[float]) -> float:
    return round(float(spread(times, 1, 9)["p50"]) / float(spread(baseline, 1, 9)["p50"]), 3)


class Server:
    """A Jupyter Server of a folder, on a port that the system has chosen before."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/api"
        options = [f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={TOKEN}", f"--port={port}"]
        command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", *options]
        with (folder.parent / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def ask(self, path: str, body: object = None) -> Any:
        """Return the answer. Raises ``OSError`` while there is none."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=LIMIT_S) as answer:
            return json.load(answer)

    def has(self, count: int) -> bool:
        """Return whether the server answers with this number of kernels."""
        try:
            return len(self.ask("/kernels")) == count
        except OSError:
            return False

    def end(self) -> None:
        """Kill the server."""
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start_s(folder: Path, kernels: int) -> tuple[Server, float]:
    """Start a server; return it and the seconds until it answers with this number of kernels."""
    begun = time.perf_counter()
    server = Server(folder, free_port())
    if not until(lambda: server.has(kernels), LIMIT_S):
        server.end()
        raise RuntimeError(f"no server with {kernels} kernels after {LIMIT_S:g} s: {folder.parent}/server.log")
    return server, time.perf_counter() - begun


def returning(folder: Path, rounds: int) -> dict[str, Any]:
    """Kill a server with kernels and start the next, alternating with a server of an empty folder."""
    empty = folder / "empty"
    used = folder / "used"
    empty.mkdir()
    used.mkdir()
    server, _ = start_s(used, 0)
    for _ in range(KERNELS):
        server.ask("/kernels", {"name": SLICE})
    alone, adopting = [], []
    for _ in range(rounds):
        server.end()
        server, seconds = start_s(used, KERNELS)
        adopting.append(seconds)
        other, seconds = start_s(empty, 0)
        alone.append(seconds)
        other.end()
    server.end()
    return {"kernels": KERNELS, "with_kernels_s": spread(adopting), "without_s": spread(alone)}


def measure(rounds: int) -> dict[str, Any]:
    """Measure everything in a pool of its own."""
    with Pool("1xT4") as pool:
        os.environ.update(pool.env)
        for name in ("DATA", "RUNTIME", "CONFIG"):
            os.environ[f"JUPYTER_{name}_DIR"] = str(pool.folder / name.lower())
        os.environ["IPYTHONDIR"] = str(pool.folder / "ipython")
        program, request = kernel_spec.find_program("python"), {"gpus": {"fraction": 0.02}}
        kernel_spec.add(SLICE, SLICE, program, request)
        tunnelled = kernel_spec.add(TUNNEL, TUNNEL, program, request).folder / "kernel.json"
        content = json.loads(tunnelled.read_text())
        content["metadata"]["kernel_provisioner"]["config"]["transport"] = "tunnel"
        tunnelled.write_text(json.dumps(content))
        compared = compare(rounds)
        return {"emulated": True, **compared, "return": returning(pool.folder, max(3, rounds // 4))}


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    rows = [
        (
            {"ready": "start until ready", "execute": "execute round trip", "restart": "restart until ready"}[step],
            f"{result[step]['slice_ms']['p50']:.1f} ms",
            f"{result[step]['plain_ms']['p50']:.1f} ms",
            f"{result[step]['ratio_p50']:.2f}",
            f"{goal:g}",
            f"{result[step]['tunnel_ms']['p50']:.1f} ms",
            f"{result[step]['tunnel_ratio_p50']:.2f}",
        )
        for step, goal in (("ready", READY_GOAL), ("execute", TRIP_GOAL), ("restart", RESTART_GOAL))
    ]
    back = result["return"]
    rows.append(
        (
            f"killed server: {back['kernels']} kernels are back",
            f"{back['with_kernels_s']['max']:.2f} s (longest)",
            f"{back['without_s']['max']:.2f} s (no kernels)",
            f"{back['with_kernels_s']['max'] / back['without_s']['max']:.2f}",
            f"{RETURN_GOAL_S:g} s",
            "",
            "",
        )
    )
    print(table(("medians; emulated GPU", "on a slice", "plain kernel", "ratio", "goal", "tunnelled", "ratio"), rows))


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    result = {"what": "notebooks", **machine(), **measure(options.rounds)}
    show(result)
    write_result("notebooks", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
