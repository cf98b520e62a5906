"""A real agent in its own process, and its two kinds of peers: a control plane and attached clients."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from gpupool.domain import ids
from gpupool.domain.decode import decode
from gpupool.domain.protocol import frames
from gpupool.domain.protocol.log_records import LogBatch
from gpupool.domain.work.program.supervision import ExitReport, ProcessPhase, ProcessSpec, ProcessStatus, Stdio
from gpupool.node.host import process_tree
from gpupool.node.host.paths import StateFolder

PATIENCE_S = 60.0
PATH = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
AS_ROOT = os.geteuid() == 0
_epochs = itertools.count(1)
T = TypeVar("T")


def eventually(look: Callable[[], T], what: str = "") -> T:
    """Return the first true value of ``look``; fail after a while."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if value := look():
            return value
        time.sleep(0.01)
    raise AssertionError(f"never happened: {what or look}")


def new_key(index: int = 0, attempt: int = 1) -> str:
    return ids.attempt_key(ids.workload_id(secrets.randbits(ids.ID_BITS)), index, attempt)


def spec(*argv: str, **changes: Any) -> ProcessSpec:
    """Return the spec of a program; a single text with a space is a shell command."""
    if len(argv) == 1 and " " in argv[0]:
        argv = ("sh", "-c", argv[0])
    defaults: dict[str, Any] = {"env": {"PATH": PATH}, "cwd": "/tmp", "grace_s": 5.0, "emulated": True}
    merged = {"key": new_key(), "epoch": next(_epochs), "argv": argv, **defaults, **changes}
    return ProcessSpec(**merged)


class RefusedError(Exception):
    """The agent answered with an error."""

    def __init__(self, error: dict[str, str]) -> None:
        super().__init__(error["message"])
        self.code = error["code"]


class Caller:
    """A control plane: one connection, one request at a time."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(path))
        self.file = self.sock.makefile("rwb")
        self.events: list[ProcessStatus] = []
        self.term: int | None = None  # the leader on whose behalf it asks
        self._ids = itertools.count(1)

    def ask(self, method: str, **params: Any) -> Any:
        return self.ask_together((method, params))[0]

    def ask_together(self, *requests: tuple[str, dict[str, Any]]) -> list[Any]:
        """Send all requests at once; return their answers in this order."""
        as_leader = {} if self.term is None else {"term": self.term}
        numbers = [next(self._ids) for _ in requests]
        for number, (method, params) in zip(numbers, requests, strict=True):
            request = {"id": number, "method": method, "params": params, **as_leader}
            self.file.write(json.dumps(request).encode() + b"\n")
        self.file.flush()
        answers: dict[int, Any] = {}
        while not answers.keys() >= set(numbers):
            message = self.next_message()
            if "error" in message:
                raise RefusedError(message["error"])
            if (number := message.get("id")) is not None:
                raw = message.get("raw")
                answers[number] = message["result"] if raw is None else (message["result"], self.file.read(raw))
        return [answers[number] for number in numbers]

    def next_message(self) -> dict[str, Any]:
        line = self.file.readline()
        if not line:
            raise ConnectionError("the agent closed the connection")
        message: dict[str, Any] = json.loads(line)
        if message.get("event") == "status":
            self.events.append(decode(ProcessStatus, message["status"]))
        return message

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()
        self.sock.close()


class Attached:
    """A client of a shepherd."""

    def __init__(self, path: str, **hello: Any) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(path)
        self.out = bytearray()
        self.err = bytearray()
        self.notes: list[str] = []
        self.pid: int | None = None
        self.input_heard: int | None = None
        self.exit: dict[str, Any] | None = None
        self._buffer = bytearray()
        if hello.pop("say_hello", True):
            self.send(frames.HELLO, json.dumps({"version": 1, "stdin": True, **hello}).encode())

    def send(self, kind: int, payload: bytes = b"") -> None:
        self.sock.sendall(frames.encode(kind, payload))

    def pump(self) -> bool:
        """Read what arrives; return False at the end."""
        data = self.sock.recv(1 << 18)
        self._buffer += data
        for kind, payload in frames.decode(self._buffer):
            if kind == frames.STDOUT:
                self.out += payload
            elif kind == frames.STDERR:
                self.err += payload
            elif kind == frames.NOTE:
                self.notes.append(payload.decode())
            elif kind == frames.STARTED:
                self.pid, self.input_heard = json.loads(payload)["pid"], json.loads(payload).get("stdin")
            elif kind == frames.EXIT:
                self.exit = json.loads(payload)
        return bool(data)

    def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            assert self.pump(), f"hung up early; so far {bytes(self.out[-500:])!r}"

    def finish(self) -> dict[str, Any]:
        while self.pump():
            pass
        assert self.exit is not None, "no EXIT frame"
        return self.exit

    def close(self) -> None:
        self.sock.close()


class Node:
    """An agent that can be killed and started again on the same folders."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="gpn"))
        self.root.chmod(0o755)
        self.state = StateFolder(self.root / "state")
        self.run = self.root / "run"
        self.process: subprocess.Popen[bytes] | None = None
        self.caller: Caller | None = None

    def command(self) -> list[str]:
        places = ["--state", str(self.state.path), "--run", str(self.run)]
        main = [sys.executable, "-I", "-X", "utf8", "-m", "gpupool.node.agent_main"]
        return [*main, *places, "--name", "n1", "--emulate", "1xT4", "--shared"]

    def up(self) -> Node:
        with (self.root / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(self.command(), stderr=log, stdin=subprocess.DEVNULL)
        self.caller = eventually(self._try_call, "agent answers")
        return self

    def _try_call(self) -> Caller | None:
        assert self.process is not None
        assert self.process.poll() is None, (self.root / "agent.log").read_text()
        with contextlib.suppress(OSError):
            caller = Caller(self.run / "agent.sock")
            caller.ask("list")  # a helper that a killed agent was just starting may still have its socket
            return caller
        return None

    def down(self, signum: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.caller is not None:
            self.caller.close()
        self.process.send_signal(signum)
        return self.process.wait(PATIENCE_S)

    @property
    def spawner_pid(self) -> int:
        assert self.process is not None
        table = process_tree.scan()
        mine = [p.pid for p in table.values() if p.ppid == self.process.pid]
        return next(pid for pid in mine if b"gpupool.node.spawner" in Path(f"/proc/{pid}/cmdline").read_bytes())

    def ask(self, method: str, **params: Any) -> Any:
        assert self.caller is not None
        return self.caller.ask(method, **params)

    def start(self, wanted: ProcessSpec) -> ProcessStatus:
        return decode(ProcessStatus, self.ask("start", spec=wanted.to_dict()))

    def status(self, key: str) -> ProcessStatus | None:
        found = [s for s in self.ask("list") if s["key"] == key]
        return decode(ProcessStatus, found[0]) if found else None

    def running(self, key: str) -> ProcessStatus:
        def look() -> ProcessStatus | None:
            status = self.status(key)
            assert status is None or status.exit is None, status
            return status if status is not None and status.phase is ProcessPhase.RUNNING else None

        return eventually(look, f"{key} runs")

    def ended(self, key: str) -> ExitReport:
        def look() -> ExitReport | None:
            status = self.status(key)
            return None if status is None else status.exit

        report = eventually(look, f"{key} ends")
        assert self.living(key) == set(), "EXITED was reported while a process lived"
        return report

    def run_to_end(self, wanted: ProcessSpec) -> ExitReport:
        self.start(wanted)
        return self.ended(wanted.key)

    def living(self, key: str) -> set[int]:
        table = process_tree.scan()
        return process_tree.alive(process_tree.marked(key, table), table)

    def shepherd(self, key: str) -> int:
        path = self.state.replica(key).shepherd
        record = eventually(lambda: path.exists() and json.loads(path.read_bytes()), "shepherd's record")
        return int(record["pid"])

    def log(self, key: str, stream: str | None = None) -> bytes:
        """Return a whole log, page by page."""
        found, cursor = b"", ""
        while (answer := self.ask("read_records", key=key, cursor=cursor, limit=1 << 20))[0]:
            for segment, after, length in answer[0]:
                stretch = LogBatch(segment, after, answer[1][:length])
                answer = answer[0], answer[1][length:]
                cursor = stretch.cursor
                found += b"".join(data for name, data in stretch.runs() if stream in {None, name})
        return found

    def attach(self, key: str, **hello: Any) -> Attached:
        status = self.status(key)
        assert status is not None
        return Attached(status.attach_path, **hello)

    def start_attached(self, wanted: ProcessSpec, **hello: Any) -> Attached:
        return Attached(self.start(wanted).attach_path, **hello)

    def destroy(self) -> None:
        """End all programs that a test has left, then the agent, and remove its files."""
        assert self.process is not None
        if self.process.poll() is None:
            alive = [status["key"] for status in self.ask("list") if status["exit"] is None]
            for key in alive:
                self.ask("stop", key=key, grace_s=0)
            for key in alive:
                self.ended(key)
            self.down()
        shutil.rmtree(self.root, ignore_errors=True)


@contextlib.contextmanager
def fresh_node() -> Iterator[Node]:
    node = Node().up()
    try:
        yield node
    finally:
        node.destroy()


TTY = Stdio.TTY
PIPES = Stdio.PIPES
BATCH = Stdio.BATCH
