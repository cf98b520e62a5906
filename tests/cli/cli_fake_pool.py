"""A small pool on a real unix socket, with shepherds that run real programs and speak the real frames."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpupool.domain.protocol import frames

NOW = 1_700_000_000.0
WAIT_LIMIT_S = 20.0

Json = dict[str, Any]


class Shepherd:
    """Starts the program when a client says HELLO, and ends with it."""

    def __init__(self, path: Path, body: Json, on_end: Callable[[int], None]) -> None:
        self.path = path
        self.body = body
        self.signals: list[int] = []
        self.sizes: list[tuple[int, int]] = []
        self.hello: Json = {}
        self.vanish = threading.Event()
        self.detached = threading.Event()
        self.process: subprocess.Popen[bytes] | None = None
        self._on_end = on_end
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            try:
                with connection:
                    self._attached(connection)
            finally:
                if not self.detached.is_set():
                    self._kill()

    def _attached(self, connection: socket.socket) -> None:  # noqa: C901, PLR0912 - one loop, as the real one
        master, slave = pty.openpty() if self.body.get("tty") else (-1, -1)
        buffer = bytearray()
        outputs: dict[int, int] = {}
        while True:
            watched = [connection, *outputs]
            ready = select.select(watched, [], [], 0.02)[0]
            if self.vanish.is_set():
                return
            if connection in ready:
                data = connection.recv(65536)
                if not data:
                    return
                buffer += data
            for kind, payload in frames.decode(buffer):
                if kind == frames.HELLO:
                    self.hello = json.loads(payload)
                    outputs = self._start(connection, master, slave)
                elif kind == frames.DETACH:
                    self.detached.set()
                    return
                elif kind == frames.STDIN_EOF:
                    self._close_stdin(master)
                else:
                    self._take(kind, payload, master)
            for fd in [fd for fd in ready if isinstance(fd, int)]:
                data = _read(fd)
                if data:
                    connection.sendall(frames.encode(outputs[fd], data))
                else:
                    del outputs[fd]
            if self.process and self.process.poll() is not None and not self._readable(outputs):
                self._end(connection)
                return

    def _readable(self, outputs: dict[int, int]) -> bool:
        return bool(outputs and select.select(list(outputs), [], [], 0)[0])

    def _start(self, connection: socket.socket, master: int, slave: int) -> dict[int, int]:
        body = self.body
        pipe = subprocess.PIPE
        streams: Json = {"stdin": slave, "stdout": slave, "stderr": slave} if slave >= 0 else {}
        streams = streams or {"stdin": pipe, "stdout": pipe, "stderr": pipe}
        if slave >= 0:
            _set_size(slave, self.hello["rows"], self.hello["columns"])
        try:
            self.process = subprocess.Popen(
                body["command"],
                cwd=body["workdir"],
                env=body["env"],
                start_new_session=True,
                preexec_fn=_take_terminal if slave >= 0 else None,  # noqa: PLW1509 - one ioctl, no locks
                **streams,
            )
        except OSError as error:
            status = 127 if isinstance(error, FileNotFoundError) else 126
            message = f"{body['command'][0]}: {error.strerror}"
            self._finish(connection, {"reason": "start_failed", "message": message, "status": status})
            return {}
        connection.sendall(frames.encode(frames.STARTED, json.dumps({"pid": self.process.pid}).encode()))
        if slave >= 0:
            os.close(slave)
            return {master: frames.STDOUT}
        assert self.process.stdout
        assert self.process.stderr
        return {self.process.stdout.fileno(): frames.STDOUT, self.process.stderr.fileno(): frames.STDERR}

    def _take(self, kind: int, payload: bytes, master: int) -> None:
        assert self.process
        if kind == frames.STDIN:
            target = self.process.stdin.fileno() if self.process.stdin else master
            with contextlib.suppress(OSError):
                while payload:
                    payload = payload[os.write(target, payload) :]
        elif kind == frames.SIGNAL:
            self.signals.append(payload[0])
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, payload[0])
        elif kind == frames.RESIZE:
            self.sizes.append(frames.unpack_size(payload))
            if master >= 0:
                _set_size(master, *self.sizes[-1])
                os.killpg(self.process.pid, signal.SIGWINCH)

    def _close_stdin(self, master: int) -> None:
        if self.process and self.process.stdin:
            self.process.stdin.close()
        elif master >= 0:
            os.write(master, b"\x04")

    def _end(self, connection: socket.socket) -> None:
        assert self.process
        code = self.process.returncode
        report = {"reason": "exited", "message": "", "status": code if code >= 0 else 128 - code}
        self._finish(connection, report)

    def _finish(self, connection: socket.socket, report: Json) -> None:
        self._on_end(report["status"])
        with contextlib.suppress(OSError):
            connection.sendall(frames.encode(frames.EXIT, json.dumps(report).encode()))

    def _kill(self) -> None:
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def close(self) -> None:
        self._kill()
        self._listener.close()


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""


def _set_size(fd: int, rows: int, columns: int) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class FakePool:
    """Answers what the tests put into ``answers`` (by path), and knows how to run workloads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.api_socket = folder / "run" / "api.sock"
        self.api_socket.parent.mkdir(parents=True, exist_ok=True)
        self.requests: list[tuple[str, str, Any]] = []
        self.targets: list[str] = []
        self.answers: dict[str, Any] = {}
        self.workloads: dict[str, Json] = {}
        self.shepherds: dict[str, Shepherd] = {}
        self.queue_all = False
        self.why: Json = why_view()
        self.refuse: Json | None = None
        self._changed = threading.Condition()
        self._server: _Server | None = None
        self.up()

    def up(self) -> None:
        """Listen; again after ``down``."""
        with contextlib.suppress(FileNotFoundError):
            self.api_socket.unlink()
        self._server = _Server(str(self.api_socket), self)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """Stop listening, as a control plane that is restarted."""
        assert self._server
        self._server.shutdown()
        self._server.server_close()

    def close(self) -> None:
        self.down()
        for shepherd in self.shepherds.values():
            shepherd.close()

    @property
    def env(self) -> dict[str, str]:
        """Return the environment of a command that uses this pool."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "GPUPOOL_STATE_DIR": str(self.folder),
            "PYTHONPATH": "",
        }

    def submitted(self) -> Json:
        """Return the body of the last submission."""
        return next(
            body for method, path, body in reversed(self.requests) if (method, path) == ("POST", "/v1/workloads")
        )

    def start(self, workload: str) -> None:
        """Take a workload out of the queue."""
        with self._changed:
            detail = self.workloads[workload]
            path = self.folder / f"a{len(self.shepherds)}.sock"
            self.shepherds[workload] = Shepherd(path, detail["_body"], lambda status: self._end(workload, status))
            detail["state"] = "running"
            detail["replicas"][0].update(state="running", attach_path=str(path))
            self._changed.notify_all()

    def finish(self, workload: str, status: int | None, code: str, message: str) -> None:
        """End a workload from outside."""
        with self._changed:
            ending = {
                "code": code,
                "sentence": message.removesuffix("."),
                "decided_by": "pool",
                "user": "",
                "remedy": "",
            }
            self.workloads[workload].update(state="failed", exit_status=status, ending=ending)
            self.workloads[workload]["replicas"][0].update(reason=code, message=message, attach_path="")
            self._changed.notify_all()

    def _end(self, workload: str, status: int) -> None:
        with self._changed:
            detail = self.workloads[workload]
            detail.update(state="failed" if status else "succeeded", exit_status=status)
            detail["replicas"][0].update(reason="EXITED", attach_path="")
            self._changed.notify_all()

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        url = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        self.requests.append((method, url.path, body))
        self.targets.append(target)
        if self.refuse is not None and url.path != "/v1/health":
            return int(self.refuse.get("status", 422)), {"error": self.refuse}
        known = self.answers.get(f"{method} {target}", self.answers.get(f"{method} {url.path}"))
        if known is not None:
            return known if isinstance(known, tuple) else (200, known)
        if (method, url.path) == ("POST", "/v1/workloads"):
            return self._submit(body, query)
        if (method, url.path) == ("GET", "/v1/workloads"):
            return 200, {"workloads": self._listed(query), "next_cursor": None}
        parts = url.path.split("/")
        if url.path.startswith("/v1/workloads/") and parts[3] in self.workloads:
            return self._on_workload(parts[3], parts[4] if len(parts) > 4 else "", query)
        return 404, {"error": {"code": "NOT_FOUND", "message": f"There is no {url.path}.", "hint": ""}}

    def _submit(self, body: Json, query: dict[str, str]) -> tuple[int, Any]:
        for workload, detail in self.workloads.items():
            if detail["_body"]["request_id"] == body["request_id"]:
                return 200, self._seen(workload)
        workload = f"w{len(self.workloads):010d}"
        self.workloads[workload] = detail_view(workload, body)
        if not self.queue_all:
            self.start(workload)
        if "wait" in query:
            self._await(workload, query)
        return 201, self._seen(workload)

    def _listed(self, query: dict[str, str]) -> list[Json]:
        """Return the workloads of the listing, newest first, with the filters that the commands use."""
        found = [self._seen(workload) for workload in reversed(self.workloads)]
        return [row for row in found if all(row[key] == query.get(key, row[key]) for key in ("kind", "state"))]

    def _on_workload(self, workload: str, verb: str, query: dict[str, str]) -> tuple[int, Any]:
        if verb == "wait":
            self._await(workload, query)
        elif verb == "why":
            return 200, self.why
        elif verb == "stop":
            self.finish(workload, None, "STOPPED_BY_USER", "stopped")
            kind = self.workloads[workload]["kind"]
            self.workloads[workload].update(
                state="stopped", stop_reason="RELEASED" if kind == "lease" else "STOPPED_BY_USER"
            )
        return 200, self._seen(workload)

    def _await(self, workload: str, query: dict[str, str]) -> None:
        detail = self.workloads[workload]
        deadline = time.monotonic() + min(float(query.get("timeout_s", 25)), WAIT_LIMIT_S)
        final = {"succeeded", "failed", "stopped"}
        wanted = final if query.get("for") == "finished" else final | {"running"}
        with self._changed:
            while detail["state"] not in wanted and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def _seen(self, workload: str) -> Json:
        return {key: value for key, value in self.workloads[workload].items() if not key.startswith("_")}


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: str, pool: FakePool) -> None:
        self.pool = pool
        super().__init__(path, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect: tests do that on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class has it so
        """Write no log."""

    def _do(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        status, body = self.server.pool.answer(self.command, self.path, json.loads(raw) if raw else None)
        known = isinstance(body, bytes)
        payload = body if known else json.dumps(body).encode() if body is not None else b""
        self.send_response(status)
        self.send_header("Content-Type", self.headers.get("Accept", "") if known else "application/json")
        self.send_header("Content-Length", str(len(payload)))
        if self.path.startswith("/v1/workloads?wait=") and status < 300 and body["sharing"] != "advisory":
            self.send_header("Gpupool-Attach", body["replicas"][0]["attach_path"])
        self.end_headers()
        self.wfile.write(payload)
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do  # noqa: N815 - the base class wants these names


def why_view(**changes: Any) -> Json:
    return {
        "state": "queued",
        "code": "NO_CAPACITY",
        "sentence": "It needs 0.50 GPU on a Tesla T4; 0.30 is free.",
        "position": 3,
        "ahead_in_project": 2,
        "ahead_total": 2,
        "numbers": {"needed_permille": 500, "free_permille": 300},
        "would_help": ["Ask for 0.30 or less."],
        "estimate_s": 240.0,
        "estimate_basis": "the median of 12 earlier runs",
    } | changes


def workload_view(workload: str, **changes: Any) -> Json:
    return {
        "id": workload,
        "name": "train-1",
        "kind": "run",
        "project": "default",
        "user": "ann",
        "state": "running",
        "priority": 0,
        "preemptible": False,
        "gpus": {"count": 1, "permille": 500, "memory_mib": None, "models": [], "labels": {}},
        "created_at": NOW,
        "started_at": NOW + 5,
        "finished_at": None,
        "expires_at": None,
        "completions": 1,
        "parallelism": 1,
        "counts": {
            "pending": 0,
            "starting": 0,
            "running": 1,
            "stopping": 0,
            "succeeded": 0,
            "failed": 0,
            "stopped": 0,
        },
        "command": ["python3", "train.py", "--name", "two words"],
        "workdir": "/home/ann",
        "labels": {},
        "on": None,
        "reason": None,
        "exit_status": None,
        "node": "gpu1",
        "gpu_uuids": ["GPU-1"],
        "suspended": False,
        "stop_reason": None,
        "cpus": None,
        "memory_mib": None,
        "max_time_s": None,
        "idle_timeout_s": None,
        "wait_s": None,
    } | changes


def replica_view(index: int = 0, **changes: Any) -> Json:
    return {
        "index": index,
        "state": "pending",
        "attempt": 1,
        "key": f"w0000000000.{index}.1",
        "node": "gpu1",
        "exit_status": None,
        "reason": "STARTED",
        "message": "",
        "failures": 0,
        "interruptions": 0,
        "queued_at": NOW,
        "not_before": 0.0,
        "started_at": None,
        "finished_at": None,
        "parameters": {},
        "gpus": [{"uuid": "GPU-1", "index": 0, "permille": 500, "memory_mib": 8192}],
        "attach_path": "",
        "pid": None,
        "notes": [],
        "last_active_at": None,
    } | changes


def detail_view(workload: str, body: Json | None = None, **changes: Any) -> Json:
    name = (body or {}).get("name") or "train-1"
    return {
        **workload_view(workload, name=name, state="queued", started_at=None, kind=(body or {}).get("kind", "run")),
        "replicas": [replica_view()],
        "leases": [],
        "env": None,
        "uid": 1000,
        "retry": {"policy": "never", "backoff_limit": 0},
        "limits": {
            "wait_s": None,
            "max_time_s": None,
            "idle_timeout_s": None,
            "grace_s": 10.0,
            "cpus": None,
            "memory_mib": None,
            "log_limit_mib": 64,
        },
        "after": [],
        "sharing": "slice",
        "guarantees": "Memory is counted, compute is shared.",
        "_body": body,
    } | changes


COMMAND = (str(Path(sys.executable).with_name("gpupool")),)  # the native program, where it could be built
