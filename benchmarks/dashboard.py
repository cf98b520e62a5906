"""Load times of pages in a large pool with a year of history, and the cost of open browsers for the scheduler.

`python benchmarks/dashboard.py [--store PATH] [--leases 400000] [--browsers 50] [--looks 20]`: a control plane over the
store of `_year.py` (written when PATH does not exist), 64 nodes that run nothing. Measured in the same run:

- each page: the whole HTML by HTTP, cold (first request after the start) and warm, and first paint in Chromium. Other
  load on the machine lengthens these times, so there is also the CPU time of the control plane's loop, and of the
  page's own thread in the browser up to first paint;
- each chart's lines, cold and warm;
- a submission, from the request to its answer and to its start, with no browser open and with 50 that listen to `/live`
  and fetch their page again when it says so, as the pages' script does.

Prints tables and writes results/dashboard.json.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import _year
from _common import Api, cpu_s, machine, rss_mib, spread, table, write_result

GOAL_PAINT_MS = 200.0
GOAL_RATIO = 1.5
PAGES = (
    *("/", "/queue", "/workloads", "/leases", "/projects", "/projects/project-01", "/bookings", "/users", "/nodes"),
    *("/nodes/node-01", "/nodes/node-01/gpus/0", "/analytics", "/analytics?range=30d", "/analytics?range=1y"),
    *("/reports", "/reports?period=year", "/settings", "/audit", "/submit"),
)
CHARTS = tuple(
    f"/ui/series/pool/{what}range={name}"
    for name in ("1h", "24h", "7d", "30d", "1y")
    for what in ("gpus?", "gpus?by=project&", "waiting?", "queue?", "free?")
)
WATCHED = ("/", "/queue", "/workloads", "/nodes", "/analytics")  # the pages of the open browsers, in turn
CHROMIUM = "/usr/bin/chromium"
CHROMIUM_ARGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
SETTLE_S = 8.0
PAUSE_MS = 500  # between two page loads: the charts of a page are drawn after its first paint
REST_S, AT_REST = 120, 0.1  # maximum wait for rest in s, and the part of a processor that counts as rest


@dataclass(frozen=True, slots=True)
class Running:
    """A control plane over a year."""

    pid: int
    socket: Path
    port: int
    token: str

    def api(self) -> Api:
        """Return a connection of the owner."""
        return Api(self.socket)


@contextmanager
def control_plane(store: Path, profile: Path | None = None) -> Iterator[Running]:
    """Start a control plane, and stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="gpb-"))
    port = free_port()
    script = str(Path(__file__).parent / "_year_pool.py")
    command = [sys.executable, script, str(store), str(folder / "api.sock"), str(port)]
    command += ["--profile", str(profile)] if profile else []
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        said = next((line for line in process.stdout if line.startswith('{"token"')), "")
        if not said:
            raise RuntimeError((folder / "log").read_text()[-2000:])
        yield Running(process.pid, folder / "api.sock", port, json.loads(said)["token"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Web:
    """Asks for pages over HTTP, on one connection."""

    def __init__(self, running: Running) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", running.port, timeout=120)
        self._headers = {"Authorization": f"Bearer {running.token}"}

    def look(self, path: str) -> tuple[float, int]:
        """Return the seconds until the whole answer, and its bytes."""
        begun = time.perf_counter()
        self._http.request("GET", path, headers=self._headers)
        answer = self._http.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:300]!r}")
        return time.perf_counter() - begun, len(body)


def over_http(running: Running, paths: Sequence[str], looks: int) -> dict[str, Any]:
    """Measure each address: the first request, and ``looks`` more, in ms."""
    web = Web(running)
    found: dict[str, Any] = {}
    for path in paths:
        cold, size = web.look(path)
        warm, spent = [], []
        for _ in range(looks):
            before = loop_cpu_s(running.pid)
            warm.append(web.look(path)[0])
            spent.append(loop_cpu_s(running.pid) - before)
        found[path] = {"cold_ms": round(cold * 1000, 1), "kib": round(size / 1024), "warm_ms": spread(warm, 1000, 1)}
        found[path]["loop_cpu_ms"] = spread(spent, 1000, 1)
    return found


def loop_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process's main thread."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def let_come_to_rest(running: Running) -> None:
    """Wait for the end of computations for earlier measurements (charts of a year). Raises ``TimeoutError``."""
    for _ in range(REST_S):
        before = cpu_s(running.pid)
        time.sleep(1.0)
        if cpu_s(running.pid) - before < AT_REST:
            return
    raise TimeoutError(f"the control plane is still busy after {REST_S} s")


def painted(running: Running, paths: Sequence[str], looks: int) -> dict[str, dict[str, Any]]:
    """Measure the first contentful paint of each page in Chromium, with the dashboard's files in its cache, in ms.

    ``cpu_ms`` is the CPU time of the page's main thread up to then.
    """
    from playwright.sync_api import sync_playwright

    found: dict[str, dict[str, Any]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_ARGS))
        headers = {"authorization": f"Bearer {running.token}"}
        context = browser.new_context(base_url=f"http://127.0.0.1:{running.port}", extra_http_headers=headers)
        page = context.new_page()
        tools = context.new_cdp_session(page)
        tools.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto("/")
        for path in paths:
            seen = [first_paint(page, tools, path) for _ in range(looks)]
            found[path] = spread([ms for ms, _ in seen], digits=1) | {
                "cpu_ms": spread([ms for _, ms in seen], digits=1)
            }
        browser.close()
    return found


def first_paint(page: Any, tools: Any, path: str) -> tuple[float, float]:
    """Return the time from the start of the navigation, as the browser reports it, and its CPU time, in ms."""
    page.goto(path, wait_until="commit")
    painted_ms = float(
        page.evaluate(
            """() => new Promise(done => new PerformanceObserver(list => {
                const entry = list.getEntriesByName('first-contentful-paint')[0];
                if (entry) done(entry.startTime);
            }).observe({type: 'paint', buffered: true}))"""
        )
    )
    spent = task_ms(tools)
    page.wait_for_load_state("load")
    page.wait_for_timeout(PAUSE_MS)
    return painted_ms, spent


def task_ms(tools: Any) -> float:
    """Return the CPU time of the main thread's tasks since the current page was started, in ms."""
    metrics = {one["name"]: one["value"] for one in tools.send("Performance.getMetrics")["metrics"]}
    return 1000.0 * float(metrics["TaskDuration"])


class Browsers:
    """Simulated browsers: each listens for updates, and fetches its page again after one."""

    def __init__(self, running: Running, count: int) -> None:
        self._running = running
        self._count = count
        self.looks: list[float] = []
        self.told = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Run all of them until requested to stop."""
        tasks = [asyncio.create_task(self._one(WATCHED[n % len(WATCHED)])) for n in range(self._count)]
        await stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, path: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._running.port)
        auth = f"Host: 127.0.0.1\r\nAuthorization: Bearer {self._running.token}\r\n"
        writer.write(f"GET /live HTTP/1.1\r\n{auth}Accept: text/event-stream\r\n\r\n".encode())
        pages = await asyncio.open_connection("127.0.0.1", self._running.port)
        tag = await self._fetch(pages, path, auth, "")
        while line := await reader.readline():
            if line.startswith(b"event: changed"):
                self.told += 1
                tag = await self._fetch(pages, path, auth, tag)

    async def _fetch(
        self, pages: tuple[asyncio.StreamReader, asyncio.StreamWriter], path: str, auth: str, tag: str
    ) -> str:
        """Request the page like the script and return its tag."""
        reader, writer = pages
        known = f"If-None-Match: {tag}\r\n" if tag else ""
        begun = time.perf_counter()
        writer.write(f"GET {path} HTTP/1.1\r\n{auth}X-Live: 1\r\n{known}\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        await reader.readexactly(int(fields.get("content-length", 0)))
        self.looks.append(time.perf_counter() - begun)
        return fields.get("etag", tag)


def submissions(running: Running, count: int) -> dict[str, Any]:
    """Measure slices that fit, one after another: to the answer and to the start; then stop them."""
    api = running.api()
    body = {"kind": "training", "command": ["true"], "workdir": "/", "env": {}, "gpus": {"fraction": 0.02}}
    answers, starts = [], []
    for _ in range(count):
        begun = time.perf_counter()
        made = api.ask("POST", "/v1/workloads", body)
        answers.append(time.perf_counter() - begun)
        found = api.ask("GET", f"/v1/workloads/{made['id']}/wait?for=started&timeout_s=5")
        starts += [time.perf_counter() - begun] if found["state"] == "running" else []
        api.ask("POST", f"/v1/workloads/{made['id']}/stop", {"force": True})
        time.sleep(0.05)
    return {"answered_ms": spread(answers, 1000, 1), "started_ms": spread(starts or [0.0], 1000, 1)}


def with_browsers(running: Running, count: int, submitted: int) -> dict[str, Any]:
    """Measure the same while browsers are open, and the CPU time of the control plane."""

    async def both() -> tuple[dict[str, Any], Browsers]:
        browsers, stop = Browsers(running, count), asyncio.Event()
        open_ = asyncio.create_task(browsers.run(stop))
        await asyncio.sleep(SETTLE_S)
        found = await asyncio.to_thread(measured, running, submitted)
        stop.set()
        await open_
        return found, browsers

    found, browsers = asyncio.run(both())
    looks = {
        "refetches": len(browsers.looks),
        "told": browsers.told,
        "refetch_ms": spread(browsers.looks or [0.0], 1000, 1),
    }
    return {"browsers": count, **found, **looks}


def measured(running: Running, submitted: int) -> dict[str, Any]:
    """Measure submissions and the load of the control plane."""
    before, begun = cpu_s(running.pid), time.perf_counter()
    found = submissions(running, submitted)
    busy = (cpu_s(running.pid) - before) / (time.perf_counter() - begun)
    return {**found, "control_plane_percent": round(100 * busy, 1)}


def ratio(without: dict[str, Any], loaded: dict[str, Any]) -> dict[str, float]:
    """Return the ratio with browsers to without, of medians and 99th percentiles."""
    return {
        f"{what}_{part}": round(loaded[what][part] / max(without[what][part], 0.1), 2)
        for what in ("answered_ms", "started_ms")
        for part in ("p50", "p99")
    }


def paint(result: dict[str, Any], path: str) -> tuple[float, float, float]:
    """Return the first paint of a page: median, 99th percentile, and the median CPU time."""
    found = result["first_paint_ms"][path]
    return found["p50"], found["p99"], found["cpu_ms"]["p50"]


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    pages = result["pages"]
    rows = [
        (path, one["kib"], one["cold_ms"], one["warm_ms"]["p50"], one["warm_ms"]["p99"],
         one["loop_cpu_ms"]["p50"], *paint(result, path))
        for path, one in pages.items()
    ]  # fmt: skip
    print(table(("page", "KiB", "cold ms", "warm p50", "p99", "CPU", "first paint p50", "p99", "browser CPU"), rows))
    rows = [(path, one["kib"], one["cold_ms"], one["warm_ms"]["p50"]) for path, one in result["charts"].items()]
    print(table(("chart", "KiB", "cold ms", "warm p50"), rows))
    columns = [result["alone"], result["watched"]]
    rows = [
        (f"{what} {part}", *(one[what][part] for one in columns), result["ratio"][f"{what}_{part}"])
        for what in ("answered_ms", "started_ms")
        for part in ("p50", "p99")
    ]
    rows.append(("control plane, % of a core", *(one["control_plane_percent"] for one in columns), ""))
    print(table(("a submission", "no browser", f"{result['watched']['browsers']} browsers", "ratio"), rows))


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--leases", type=int, default=400_000)
    parser.add_argument("--live", type=int, default=1000)
    parser.add_argument("--queued", type=int, default=3000)
    parser.add_argument("--browsers", type=int, default=50)
    parser.add_argument("--looks", type=int, default=20)
    parser.add_argument("--submissions", type=int, default=100)
    parser.add_argument("--profile", type=Path, help="profile the control plane into this file")
    options = parser.parse_args()
    store = options.store or Path(tempfile.mkdtemp(prefix="gpb-")) / "pool.db"
    written: dict[str, Any] = {}
    if not store.exists():
        sizes = {"leases": options.leases, "live": options.live, "queued": options.queued}
        written = _year.make(store, **sizes, minute_hours=24)
        print(written)
    with control_plane(store, options.profile) as running:
        time.sleep(SETTLE_S)
        result: dict[str, Any] = {"what": "dashboard", **machine(), "store": written}
        result["pages"] = over_http(running, PAGES, options.looks)
        result["charts"] = over_http(running, CHARTS, 3)
        let_come_to_rest(running)
        result["first_paint_ms"] = painted(running, PAGES, max(3, options.looks // 2))
        let_come_to_rest(running)
        result["alone"] = measured(running, options.submissions)
        result["watched"] = with_browsers(running, options.browsers, options.submissions)
        result["ratio"] = ratio(result["alone"], result["watched"])
        result["control_plane_mib"] = round(rss_mib(running.pid))
    result["goals"] = {"first_paint_ms": GOAL_PAINT_MS, "ratio": GOAL_RATIO}
    show(result)
    write_result("dashboard", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
