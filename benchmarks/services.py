"""The gateway's cost: requests per second, latency and memory, next to a direct connection and to nginx as a proxy.

`python benchmarks/services.py [--rounds 5] [--seconds 3] [--streams 2000]`: a replica under uvicorn, a gateway and
nginx (one worker, kept connections) on this machine, and wrk as the load, in turn. Ratios are medians over the rounds,
so that a load that comes and goes counts for all three. Processor time per request hardly depends on other load. Needs
wrk and nginx (Debian: wrk, nginx-light). Prints tables and writes results/services.json.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _common import cpu_s, machine, rss_mib, table, until, write_result
from gpupool.domain.protocol.gateway_table import Route, RouteAccess, RouteReplica, Table, encode

GOAL_LOST_PERCENT = 15.0
GOAL_ADDED_MS = 0.3
GOAL_STREAMS_MIB = 150.0
PATHS = {"plain": "no framework", "json": "FastAPI"}
_NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream replica {{ server 127.0.0.1:{replica}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://replica; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


class Way:
    """One way to the replica: its URL without a path, and the process in between."""

    def __init__(self, name: str, url: str, pid: int | None) -> None:
        self.name = name
        self.url = url
        self.pid = pid

    def load(self, path: str, connections: int, seconds: float) -> dict[str, float]:
        """Return requests per second, the median latency in ms, and processor time in µs per request."""
        before = cpu_s(self.pid) if self.pid else 0.0
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency"]
        text = subprocess.run([*command, f"{self.url}/{path}"], capture_output=True, text=True, check=True).stdout
        used = (cpu_s(self.pid) if self.pid else 0.0) - before
        if "Non-2xx" in text or "Socket errors" in text:
            raise RuntimeError(text)
        value, unit = re.findall(r"50%\s+([\d.]+)(us|ms|s)", text)[0]
        requests = int(re.findall(r"(\d+) requests in", text)[0])
        rate = float(re.findall(r"Requests/sec:\s+([\d.]+)", text)[0])
        return {"rate": rate, "p50_ms": float(value) * _UNITS[unit], "cpu_us": used * 1e6 / max(1, requests)}


def started(stack: ExitStack, command: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start a process that ends with the benchmark."""
    process = subprocess.Popen(command, text=True, **options)

    def end() -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    stack.callback(end)
    return process


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def answers(port: int) -> bool:
    """Return whether something listens on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def start_ways(stack: ExitStack, folder: Path) -> list[Way]:
    """Start the replica, the gateway and nginx."""
    program = Path(__file__).with_name("_service_replica.py")
    replica = started(stack, [sys.executable, str(program)], stdout=subprocess.PIPE)
    assert replica.stdout is not None
    port = int(replica.stdout.readline())
    proxy, gateway = free_port(), free_port()
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, replica=port, port=proxy))
    nginx = started(stack, ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")])
    folders = ["--state-dir", str(folder), "--run-dir", str(folder)]
    log = stack.enter_context((folder / "gateway.log").open("w"))
    process = started(
        stack, [sys.executable, "-m", "gpupool.gateway.main", *folders, "--port", str(gateway)], stderr=log
    )
    control = stack.enter_context(socket.socket(socket.AF_UNIX))
    until(lambda: (folder / "gateway.sock").exists() and answers(gateway) and answers(proxy), 30)
    control.connect(str(folder / "gateway.sock"))
    route = Route("p", "s", RouteAccess.PUBLIC, replicas=(RouteReplica("r", f"127.0.0.1:{port}"),))
    control.sendall(encode(Table(1, (route,))))
    return [
        Way("direct", f"http://127.0.0.1:{port}", None),
        Way("gateway", f"http://127.0.0.1:{gateway}/s/p/s", process.pid),
        Way("nginx", f"http://127.0.0.1:{proxy}", worker_of(nginx.pid)),
    ]


def worker_of(pid: int) -> int:
    """Return nginx's worker process."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    until(lambda: bool(path.read_text().split()), 10)
    return int(path.read_text().split()[0])


def measure(ways: list[Way], path: str, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return medians for each way; direct ones are the base of the ratios."""
    found: dict[str, dict[str, list[float]]] = {way.name: {} for way in ways}
    for _ in range(rounds):
        base: dict[int, dict[str, float]] = {}
        for way in ways:
            for connections in (1, 16):
                result = way.load(path, connections, seconds)
                base.setdefault(connections, result)
                values = found[way.name]
                values.setdefault(f"rate_{connections}", []).append(result["rate"])
                values.setdefault(f"p50_ms_{connections}", []).append(result["p50_ms"])
                values.setdefault(f"added_ms_{connections}", []).append(result["p50_ms"] - base[connections]["p50_ms"])
                values.setdefault(f"ratio_{connections}", []).append(result["rate"] / base[connections]["rate"])
                values.setdefault(f"cpu_us_{connections}", []).append(result["cpu_us"])
    return {name: {key: round(median(each), 4) for key, each in values.items()} for name, values in found.items()}


def hold_streams(way: Way, count: int) -> float:
    """Open streams through a way, and return the memory in MiB of its process when all of them have begun."""
    assert way.pid is not None
    _, _, address = way.url.partition("//")
    host, _, path = address.partition("/")
    name, _, port = host.partition(":")
    request = f"GET /{path}/stream HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".replace("//", "/").encode()
    begun = 0
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection((name, int(port)), 30))
            sock.sendall(request)
            selector.register(sock, selectors.EVENT_READ)
        deadline = time.monotonic() + 120
        while begun < count and time.monotonic() < deadline:
            for key, _ in selector.select(1):
                chosen = key.fileobj
                assert isinstance(chosen, socket.socket)
                if b"data: 0" in chosen.recv(4096):
                    begun += 1
                    selector.unregister(chosen)
        if begun < count:
            raise RuntimeError(f"only {begun} of {count} streams have begun")
        return rss_mib(way.pid)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--streams", type=int, default=2000)
    options = parser.parse_args()
    missing = [name for name in ("wrk", "nginx") if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"{' and '.join(missing)} missing: install wrk and nginx (Debian: wrk, nginx-light)")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpupool-services-")))
        folder.chmod(0o755)  # nginx's worker has another user if this one is root
        ways = start_ways(stack, folder)
        idle_mib = rss_mib(ways[1].pid or 0)
        measured = {path: measure(ways, path, options.rounds, options.seconds) for path in PATHS}
        streams_mib = {way.name: round(hold_streams(way, options.streams), 1) for way in ways[1:]}
    for path, results in measured.items():
        print(f"\n/{path}: uvicorn with {PATHS[path]}; medians of {options.rounds} rounds")
        header = [
            "way",
            "requests/s (16)",
            "of direct (16)",
            "p50 ms (1)",
            "added ms (1)",
            "added ms (16)",
            "CPU µs (16)",
        ]
        keys = ["rate_16", "ratio_16", "p50_ms_1", "added_ms_1", "added_ms_16", "cpu_us_16"]
        print(table(header, [[name, *[f"{values[key]:.2f}" for key in keys]] for name, values in results.items()]))
    print(f"\nmemory with {options.streams} open streams, MiB: {streams_mib} (the gateway without: {idle_mib:.1f})")
    print(f"goals: at most {GOAL_LOST_PERCENT:g} % lost at 16 connections, {GOAL_ADDED_MS} ms added at p50,", end=" ")
    print(f"{GOAL_STREAMS_MIB:g} MiB")
    write_result(
        "services",
        {
            "machine": machine() | {"load": os.getloadavg()},
            "command": " ".join(sys.argv),
            "goals": {"lost_percent": GOAL_LOST_PERCENT, "added_ms": GOAL_ADDED_MS, "streams_mib": GOAL_STREAMS_MIB},
            "measured": measured,
            "streams": {"count": options.streams, "mib": streams_mib, "gateway_idle_mib": round(idle_mib, 1)},
        },
    )


if __name__ == "__main__":
    main()
