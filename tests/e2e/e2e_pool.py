"""A real pool in a folder of its own, used through the command as people type it."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fork_server
from fork_server import COMMAND
from gpupool.client import Client

PATIENCE_S = 60.0


def eventually(condition: Callable[[], object], timeout_s: float = PATIENCE_S, *, pause_s: float = 0.03) -> bool:
    """Return whether a condition becomes true in time, which only bounds a failing test.

    A condition may ask for the first of things that do not exist yet: it fails with its LookupError at the end only.
    ``pause_s``: between two tries; longer for a condition that takes processor time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        late = time.monotonic() > deadline
        try:
            if condition():
                return True
        except LookupError:
            if late:
                raise
        if late:
            return False
        time.sleep(pause_s)


class RealPool:
    """A supervisor, an agent, a control plane and what runs under shepherds."""

    def __init__(self, folder: Path, emulate: str) -> None:
        self.folder = folder
        self.emulate = emulate
        self.state, self.run = folder / "state", folder / "run"
        self.home = folder / "home"
        self.work = folder / "work"
        self.home.mkdir(mode=0o755)
        self.work.mkdir()
        self.work.chmod(0o777)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUPOOL_", "XDG_"))}
        self.env = {
            **kept,
            "GPUPOOL_STATE_DIR": str(self.state),
            "GPUPOOL_RUN_DIR": str(self.run),
            "HOME": str(self.home),
            "PATH": f"{COMMAND.parent}:{os.environ['PATH']}",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }

    def __call__(
        self, *words: str, stdin: bytes = b"", ok: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one command to its end; ``ok`` says that it must succeed."""
        timeout_s = options.pop("timeout", PATIENCE_S)
        options = {"cwd": self.work, "env": self.env, **options}
        done = fork_server.run([str(COMMAND), *words], stdin, timeout_s, **options)
        assert not ok or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout!r}\n{done.stderr.decode()}"
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    def text(self, *words: str, **options: Any) -> str:
        return self(*words, **options).stdout.decode()

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json").stdout)

    def begin(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command and do not wait for it."""
        pipe = subprocess.PIPE
        options = {"cwd": self.work, "env": self.env, "stdin": pipe, "stdout": pipe, "stderr": pipe, **options}
        return fork_server.popen([str(COMMAND), *words], **options)

    def up(self, *words: str, ok: bool = True, **options: Any) -> subprocess.CompletedProcess[bytes]:
        return self("up", "--background", "--emulate", self.emulate, *words, ok=ok, **options)

    def down(self, *words: str) -> None:
        self("down", *words, ok=False)

    @property
    def client(self) -> Client:
        return Client(socket_path=str(self.run / "api.sock"))

    def state_of(self, name: str) -> str:
        with self.client as client:
            return str(client.get(name).status)

    def becomes(self, name: str, *states: str) -> bool:
        """Wait until a workload is in one of these states, and until its programs have started for ``running``.

        The state of a workload is ``running`` as soon as GPUs are granted to one of its replicas.
        """
        with self.client as client:

            def reached() -> bool:
                view = client.get(name).refresh().view
                return view.state in states and not view.counts.starting

            return eventually(reached)

    def free_permille(self) -> list[int]:
        with self.client as client:
            return [1000 - gpu.allocated_permille for gpu in client.gpus()]

    def all_free(self) -> bool:
        with self.client as client:
            return eventually(lambda: not any(gpu.allocated_permille for gpu in client.gpus()))

    def newest_log_lines(self) -> str:
        """Return the last lines of the log of each process, for the report of a failed test."""
        files = sorted((self.state / "log").glob("*.log"))
        return "\n".join(line for file in files for line in [f"-- {file.name}", *_last_lines(file)])

    def pids(self) -> dict[str, int]:
        state = json.loads((self.run / "state.json").read_text())
        return {child["name"]: child["pid"] for child in state["children"]}

    def kill_child(self, name: str) -> None:
        """Kill -9 one of the pool's processes and wait until another has taken its place and answers."""
        old = self.pids()[name]
        os.kill(old, signal.SIGKILL)
        self.wait_for_successor(name, old)

    def wait_for_successor(self, name: str, old: int) -> None:
        """Wait until another process has taken the place of a killed one, and the pool answers."""
        assert eventually(lambda: self.pids().get(name) not in {old, None})
        assert eventually(lambda: self("ps", ok=False).returncode == 0)

    def clear(self) -> None:
        """Stop and forget all workloads, so that the next test finds every GPU free."""
        with self.client as client:
            for job in client.list(limit=1000):
                if not job.done():
                    job.cancel(force=True)
            assert eventually(lambda: not client.list(limit=1))  # some hold no GPU
        assert self.all_free()

    def delete_projects(self) -> None:
        """Delete all projects but the first one: their quotas would keep GPUs from the work of the next test."""
        with self.client as client:
            for project in client.projects():
                if project.name != "default":
                    client.delete_project(project.name)


def _last_lines(file: Path, lines: int = 25) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]


@contextmanager
def folder_for_pool() -> Iterator[Path]:
    """Return a short path that other users can pass."""
    folder = Path(tempfile.mkdtemp(prefix="gpe2e-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fresh_pool(emulate: str = "2xT4", *words: str, started: bool = True, executed: bool = False) -> Iterator[RealPool]:
    """Start a pool and end it; ``executed``: without the fork server, as users do."""
    with folder_for_pool() as folder:
        pool = RealPool(folder, emulate)
        try:
            if started:
                pool.up(*words, env={**pool.env, "GPUPOOL_TEST_FORK": "0"} if executed else pool.env)
            yield pool
        finally:
            pool("down", "--stop-jobs", ok=False)
            pool.down()


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, pool: RealPool, *words: str, rows: int = 30, columns: int = 100) -> None:
        self.master, slave = pty.openpty()
        import fcntl
        import struct
        import termios

        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            [str(COMMAND), *words],
            cwd=pool.work,
            env={**pool.env, "TERM": "dumb"},
            preexec_fn=lambda: os.login_tty(slave),  # noqa: PLW1509 - no threads here
            pass_fds=(slave,),
        )
        os.close(slave)
        self.seen = b""

    def send(self, data: bytes) -> None:
        os.write(self.master, data)

    def expect(self, wanted: bytes, timeout_s: float = PATIENCE_S) -> bytes:
        deadline = time.monotonic() + timeout_s
        while wanted not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{wanted!r} did not come: {self.seen!r}"
            if select.select([self.master], [], [], min(left, 0.5))[0]:
                try:
                    self.seen += os.read(self.master, 65536)
                except OSError:
                    assert wanted in self.seen, f"{wanted!r} did not come before the end: {self.seen!r}"
                    break
        return self.seen

    def wait(self) -> int:
        """Return the exit status; ``seen`` has all output then."""
        ended = False
        while not ended or select.select([self.master], [], [], 0)[0]:
            ended = self.process.poll() is not None  # what it has written before can be read now
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.master, 65536)
                except OSError:
                    break
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


def walk(folder: Path) -> Iterator[Path]:
    """Yield all paths below a folder, also while others delete there (``Path.rglob`` raises then)."""
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
