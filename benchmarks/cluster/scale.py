"""A pool of many simulated machines: 200 nodes of 8 GPUs that implement the agent's protocol and run no programs.

`python benchmarks/cluster/scale.py [--nodes 200] [--gpus 8xT4] [--seconds 20]`: the time until all nodes are up, the
control plane's CPU and memory use when idle and when every GPU is allocated, the time to fill the pool, the number of
jobs per second, and the time to detect the loss and return of half of the nodes. The control
plane, its socket, database and protocol are real. Prints a table and writes results/cluster_scale.json.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).parent.parent))

from _common import Api, cpu_s, machine, rss_mib, table, until, write_result
from gpupool.daemon.config import OFF, PoolConfig, PoolKind, save_config
from gpupool.daemon.folders import prepare_folders

HERE = Path(__file__).parent
PROCESSES = 2  # that the nodes are spread over
PATIENCE_S = 300.0


class Cluster:
    """The control plane and the processes in which the nodes are."""

    def __init__(self, nodes: int, gpus: str, ending: str) -> None:
        self.nodes, self.gpus, self.ending = nodes, gpus, ending
        self.folder = Path(tempfile.mkdtemp(prefix="gpb-"))
        self.sockets = self.folder / "nodes"
        self.sockets.mkdir()
        self.state, self.run_dir = self.folder / "state", self.folder / "run"
        self.stand_ins: list[subprocess.Popen[str]] = []
        self.control_plane: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        kind = PoolKind.SYSTEM if os.geteuid() == 0 else PoolKind.USER
        config = PoolConfig(str(self.state), str(self.run_dir), kind, node_name="head", dashboard=OFF)
        prepare_folders(config)
        save_config(config)
        for part in range(PROCESSES):
            self.stand_ins.append(self.begin(part))
        return self

    def begin(self, part: int) -> subprocess.Popen[str]:
        """One process of nodes, once they listen."""
        each = self.nodes // PROCESSES
        words = (str(self.sockets), str(part * each), str(each), self.gpus, self.ending)
        process = subprocess.Popen(
            (sys.executable, str(HERE / "_stand_ins.py"), *words), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def start_control_plane(self) -> float:
        """Return the seconds until every node is in use."""
        began = time.monotonic()
        words = (sys.executable, str(HERE / "_pool.py"), str(self.sockets), "--state-dir", str(self.state))
        with (self.folder / "log").open("wb") as log:
            self.control_plane = subprocess.Popen(words, stderr=log)
        if not until(lambda: self.up() == self.nodes, PATIENCE_S, 0.1):
            raise RuntimeError(f"only {self.up()} of {self.nodes} nodes are up")
        return time.monotonic() - began

    def up(self) -> int:
        """Return the number of nodes in use."""
        try:
            return int(self.api().ask("GET", "/v1/pool")["nodes_up"])
        except (OSError, RuntimeError):
            return 0

    def api(self) -> Api:
        """Return a connection."""
        return Api(self.run_dir / "api.sock", 120.0)

    def load(self, seconds: float) -> dict[str, float]:
        """Measure the use of the control plane in the next seconds: percent of a CPU, and MiB."""
        assert self.control_plane is not None
        pid = self.control_plane.pid
        before, began = cpu_s(pid), time.monotonic()
        time.sleep(seconds)
        percent = (cpu_s(pid) - before) / (time.monotonic() - began) * 100
        return {"cpu_percent": round(percent, 1), "rss_mib": round(rss_mib(pid), 1)}

    def cpu_s(self) -> float:
        """Return the CPU seconds of the control plane so far."""
        assert self.control_plane is not None
        return cpu_s(self.control_plane.pid)

    def __exit__(self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        for process in (*self.stand_ins, self.control_plane):
            if process is not None:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def submit(api: Api, count: int) -> str:
    """Submit one workload with a number of parallel one-GPU runs."""
    body = {"command": ["true"], "env": {}, "workdir": "/", "gpus": {"count": 1}, "kind": "training"}
    made = api.ask("POST", "/v1/workloads", body | {"completions": count, "parallelism": count})
    return str(made["id"])


def counted(api: Api, workload: str, state: str) -> int:
    """Return the number of its replicas in a state."""
    return int(api.ask("GET", f"/v1/workloads/{workload}?replicas_from=1000000")["counts"].get(state, 0))


def held(options: argparse.Namespace) -> dict[str, Any]:
    """Measure programs that never end."""
    with Cluster(options.nodes, options.gpus, "lives") as cluster:
        result: dict[str, Any] = {"all_up_s": round(cluster.start_control_plane(), 2)}
        result["all_up_cpu_s"] = round(cluster.cpu_s(), 2)
        time.sleep(5)
        result["at_rest"] = cluster.load(options.seconds)
        api = cluster.api()
        began, used_s = time.monotonic(), cluster.cpu_s()
        gpus = int(api.ask("GET", "/v1/pool")["gpus"])
        workload = submit(api, gpus)
        if not until(lambda: counted(api, workload, "running") == gpus, PATIENCE_S, 0.1):
            raise RuntimeError("not all started")
        result |= {"gpus": gpus, "filled_s": round(time.monotonic() - began, 2)}
        result["filled_cpu_s"] = round(cluster.cpu_s() - used_s, 2)
        time.sleep(5)
        result["full"] = cluster.load(options.seconds)
        began = time.monotonic()
        cluster.stand_ins[0].kill()
        cluster.stand_ins[0].wait()
        until(lambda: cluster.up() <= cluster.nodes // 2, PATIENCE_S, 0.02)
        result["half_missed_s"] = round(time.monotonic() - began, 2)
        still = counted(api, workload, "running")
        result["kept_their_leases"] = still == gpus
        return result


def through(options: argparse.Namespace) -> dict[str, Any]:
    """Measure programs that end at once."""
    with Cluster(options.nodes, options.gpus, "ends") as cluster:
        cluster.start_control_plane()
        api, began, used_s = cluster.api(), time.monotonic(), cluster.cpu_s()
        workload = submit(api, options.jobs)
        if not until(lambda: counted(api, workload, "succeeded") == options.jobs, PATIENCE_S, 0.1):
            raise RuntimeError("not all ended")
        took_s = time.monotonic() - began
        each_ms = (cluster.cpu_s() - used_s) / options.jobs * 1000
        return {"jobs": options.jobs, "jobs_per_s": round(options.jobs / took_s, 1), "cpu_ms_each": round(each_ms, 2)}


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--gpus", default="8xT4")
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "nodes": options.nodes}
    result |= held(options)
    result["through"] = through(options)
    rest, full, done = result["at_rest"], result["full"], result["through"]
    rows = [
        ("all nodes in use after", f"{result['all_up_s']} s", f"{result['all_up_cpu_s']} s"),
        ("nothing runs", f"{rest['rss_mib']} MiB", f"{rest['cpu_percent']} %"),
        (f"{result['gpus']} jobs started in", f"{result['filled_s']} s", f"{result['filled_cpu_s']} s"),
        ("every GPU held", f"{full['rss_mib']} MiB", f"{full['cpu_percent']} %"),
        ("half of the nodes killed, missed after", f"{result['half_missed_s']} s", ""),
        ("their leases stayed", result["kept_their_leases"], ""),
        ("jobs through it", f"{done['jobs_per_s']} a second", f"{done['cpu_ms_each']} ms each"),
    ]
    print(table(("measurement", f"{options.nodes} nodes of {options.gpus}", "CPU time"), rows))
    write_result("cluster_scale", result)


if __name__ == "__main__":
    main()
