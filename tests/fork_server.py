"""Starts gpupool's Python programs as forks of one process that has loaded their modules.

The tests start about two thousand commands and pools, and importing takes most of the time of a start: 0.3 s of CPU for
a command, 1.8 s for a control plane. ``popen`` and ``run`` start the same programs without it. Everything else is as in
a new process: its own pid, descriptors, environment, folder, signals and streams. The supervisor of such a pool starts
the control plane and the agent in the same way.

``GPUPOOL_TEST_FORK=0`` executes all programs. These are always executed: spawners and shepherds, pools shared by many
tests (``executed=True``), the pools of ``tests/daemon``, and programs with unusual options or variables of Python.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

COMMAND = Path(sys.executable).with_name("gpupool")
POOL_PROGRAMS = ("gpupool.daemon.supervisor", "gpupool.daemon.control_plane_main", "gpupool.node.agent_main")
STATUS = struct.Struct("i")
FIRST_TEMPORARY_FD = 400
_replaced: list[Any] = []  # streams of the parent, kept because the end of one would write its buffer
_SUPPORTED_OPTIONS = {"cwd", "env", "stdin", "stdout", "stderr", "pass_fds", "start_new_session", "space"}
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "OPENBLAS_", "SSL_", "COVERAGE", "GPUPOOL_NATIVE")


# In the process of the tests


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start ``gpupool`` with arguments, as ``subprocess.Popen`` does; ``space``: in this network namespace.

    Pipes are not buffered: ``communicate`` would lose what an earlier ``readline`` has read ahead.
    """
    env, space = options.get("env") or os.environ, options.get("space")
    if not _enabled(env) or options.keys() - _SUPPORTED_OPTIONS or _read_at_start(env):
        options.pop("space", None)
        command = ["ip", "netns", "exec", space, *command] if space else command
        return subprocess.Popen(command, bufsize=0, **options)
    return Forked(command, bufsize=0, **options)


def run(command: Sequence[str], stdin: bytes, timeout_s: float, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run ``gpupool`` with arguments to its end; return its status and output."""
    pipe = subprocess.PIPE
    with popen(command, **{"stdin": pipe, "stdout": pipe, "stderr": pipe, **options}) as process:
        try:
            output, errors = process.communicate(stdin, timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _enabled(env: Mapping[str, str]) -> bool:
    supported = (3, 11) <= sys.version_info < (3, 14)  # what ``subprocess`` does inside differs between versions
    return supported and "0" not in {env.get("GPUPOOL_TEST_FORK"), os.environ.get("GPUPOOL_TEST_FORK")}


def _read_at_start(env: Mapping[str, str]) -> bool:
    """Return whether variables that matter before the first line of a program differ from those of this process."""

    def matter(variables: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in variables.items() if name.startswith(_READ_AT_START)}

    return matter(env) != matter(os.environ)


class Forked(subprocess.Popen[bytes]):
    """A child of the fork server instead of this process; the server reports its exit status."""

    def __init__(self, command: Sequence[str], *, space: str | None = None, **options: Any) -> None:
        self._space = space
        super().__init__(command, **options)

    def _execute_child(self, args: Any, *rest: Any) -> None:
        _executable, _preexec_fn, _close_fds, pass_fds, cwd, env, _startup, _flags, _shell, *pipes = rest[:15]
        mine, theirs = os.pipe2(os.O_CLOEXEC)
        self._status_fd = mine
        asked = {
            "argv": [os.fspath(word) for word in args],
            "cwd": os.fspath(cwd) if cwd is not None else str(Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "pass_fds": list(pass_fds),
            "new_session": bool(rest[20]),
            "space": self._space,
        }
        body = os.memfd_create("request", os.MFD_CLOEXEC)
        try:
            os.write(body, json.dumps(asked).encode())
            standard = [own if fd == -1 else fd for own, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
            _server().send([body, theirs, *standard, *pass_fds])
        finally:
            os.close(body)
            os.close(theirs)
        self._close_pipe_fds(*pipes)
        (self.pid,) = STATUS.unpack(os.read(mine, STATUS.size))
        self._child_created = True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        self._has_ended(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _has_ended(self, timeout_s: float | None) -> bool:
        if self.returncode is not None:
            return True
        ready = select.poll()
        ready.register(self._status_fd, select.POLLIN)
        if not ready.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000):
            return False
        with self._waitpid_lock:
            if self.returncode is None:
                data = os.read(self._status_fd, STATUS.size)
                os.close(self._status_fd)
                self._handle_exitstatus(STATUS.unpack(data)[0] if data else signal.SIGKILL)
        return True


class _Server:
    """The connection to the fork server of this process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())], pass_fds=(theirs.fileno(),)
        )
        theirs.close()
        self._lock = threading.Lock()
        atexit.register(self.close)

    def send(self, descriptors: list[int]) -> None:
        with self._lock:
            socket.send_fds(self._socket, [b"."], descriptors)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _server() -> _Server:
    return _Server()


# In the fork server


def serve(connection: socket.socket) -> None:
    """Fork a program for each request until the connection ends, and report how the programs ended."""
    running: dict[int, int] = {}
    wakes, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    ready = select.poll()
    ready.register(connection, select.POLLIN)
    ready.register(wakes, select.POLLIN)
    while True:
        events = dict(ready.poll())
        if wakes in events:
            os.read(wakes, 4096)
            _reap(running)
        if connection.fileno() in events:
            _, descriptors, _, _ = socket.recv_fds(connection, 16, 250)
            if not descriptors:
                return
            body, report, *files = descriptors
            pid = os.fork()
            if not pid:
                _run_request(body, files)
            running[pid] = report
            os.write(report, STATUS.pack(pid))
            for fd in (body, *files):
                os.close(fd)


def _reap(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        report = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(report, STATUS.pack(status))
        os.close(report)


def _run_request(body: int, files: list[int]) -> NoReturn:
    with open(body, "rb", closefd=False) as file:
        file.seek(0)
        asked = json.load(file)
    numbers = [0, 1, 2, *asked["pass_fds"]]
    _arrange_descriptors(dict(zip(numbers, files, strict=True)), os.close)
    if asked["new_session"]:
        os.setsid()
    if asked["space"]:
        _enter_network_namespace(asked["space"])
    from gpupool.cli import entry

    _run_program(entry.main, asked["argv"], asked["env"], asked["cwd"])


def _enter_network_namespace(name: str) -> None:
    """Do what ``ip netns exec`` does: enter the namespace, and mount its view of ``/sys``."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def call(function: str, *arguments: Any) -> None:
        if getattr(libc, function)(*arguments):
            raise OSError(ctypes.get_errno(), f"{function} failed in namespace {name}")

    new_network, new_mounts, slave, detach = 0x40000000, 0x20000, (1 << 19) | (1 << 14), 2
    fd = os.open(f"/run/netns/{name}", os.O_RDONLY)
    call("setns", fd, new_network)
    os.close(fd)
    call("unshare", new_mounts)
    call("mount", b"", b"/", b"none", slave, None)
    call("umount2", b"/sys", detach)
    call("mount", name.encode(), b"/sys", b"sysfs", 0, None)


# In programs


def fork_exec(original: Callable[..., int]) -> Callable[..., int]:
    """Return a replacement of ``subprocess._fork_exec`` that forks this process for the programs of a pool."""

    def start(args: Sequence[Any], executables: Any, *rest: Any) -> int:
        argv = [os.fsdecode(word) for word in args]
        place = argv.index("-m") + 1 if "-m" in argv[:8] else 0
        if argv[0] != sys.executable or not place or argv[place] not in POOL_PROGRAMS:
            return original(args, executables, *rest)
        _close_fds, keep, cwd, env, stdin, _, _, stdout, _, stderr, _, errors, _restore, new_session = rest[:14]
        umask, preexec = rest[18:20]
        pid = os.fork()
        if pid:
            return pid
        gc.freeze()  # objects of the parent must not be freed here: they would close descriptors
        try:
            standard = {own: own if fd == -1 else fd for own, fd in enumerate((stdin, stdout, stderr))}
            null = os.open(os.devnull, os.O_RDWR)
            wanted = standard | {fd: fd for fd in keep if fd != errors}
            _arrange_descriptors(wanted, lambda fd: os.dup2(null, fd, inheritable=False))
            if new_session:
                os.setsid()
            if umask >= 0:
                os.umask(umask)
            if preexec is not None:
                preexec()
            variables = dict(os.environ) if env is None else dict(os.fsdecode(word).split("=", 1) for word in env)
            module = importlib.import_module(argv[place])
            folder = os.getcwd() if cwd is None else os.fsdecode(cwd)  # noqa: PTH109 - text
            _run_program(module.main, argv[place:], variables, folder)
        except BaseException:  # noqa: BLE001 - must not return into the parent's frames
            traceback.print_exc()
        os._exit(1)

    return start


def _arrange_descriptors(wanted: dict[int, int], close: Callable[[int], Any]) -> None:
    """Give open descriptors the numbers of ``wanted``, and close all others."""
    import fcntl

    moved = {}
    for number, fd in wanted.items():
        with contextlib.suppress(OSError):  # closed in the parent as well
            moved[number] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_TEMPORARY_FD)
    open_now = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - numbers
    for number, fd in moved.items():
        os.dup2(fd, number)
    for fd in open_now:
        if fd not in wanted:
            with contextlib.suppress(OSError):
                os.close(fd) if fd in moved.values() else close(fd)


def _run_program(main: Callable[[], int], argv: list[str], env: dict[str, str], cwd: str) -> NoReturn:
    """Call a program's main function in this process as if it had just been executed, and exit."""
    gc.freeze()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    _forget_results()
    sys.argv = argv
    _replaced.extend((sys.stdin, sys.stdout, sys.stderr))
    status = 1
    try:
        sys.stdin, sys.stdout, sys.stderr = _stream(0), _stream(1), _stream(2)  # type: ignore[assignment]
        os.chdir(cwd)
        status = main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit((status or 0) & 0xFF)


def _stream(fd: int) -> io.TextIOWrapper | None:
    """Return the standard stream for a descriptor, as the interpreter creates it."""
    try:
        os.fstat(fd)
    except OSError:
        return None
    binary = open(fd, "rb" if fd == 0 else "wb", closefd=False)  # noqa: SIM115 - for the life of this process
    errors = "backslashreplace" if fd == 2 else sys.__stdout__.errors if sys.__stdout__ else "strict"
    return io.TextIOWrapper(
        binary, encoding="utf-8", errors=errors, line_buffering=fd == 2 or os.isatty(fd), write_through=False
    )


def _forget_results() -> None:
    """Clear what functions of gpupool remember of their results: it may depend on the environment."""
    for name, module in list(sys.modules.items()):
        if name.startswith("gpupool.") and module is not None:
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


def load_programs() -> None:
    """Import the modules of all programs. The control plane runs without ``rich``, commands with it."""
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    for name in (*POOL_PROGRAMS, "gpupool.daemon.control_plane"):
        importlib.import_module(name)
    with contextlib.suppress(ImportError):
        importlib.import_module("gpupool.daemon.cluster.standby")  # needs psycopg
    del sys.modules["rich"]
    import gpupool.cli.commands

    for found in pkgutil.walk_packages(gpupool.cli.commands.__path__, "gpupool.cli.commands."):
        importlib.import_module(found.name)
    for name in ("gpupool.cli.app", "gpupool.cli.fast.commands", "gpupool.client", "rich.console"):
        importlib.import_module(name)


def main() -> None:
    """Load the programs and serve the connection whose descriptor is the argument."""
    gc.disable()
    load_programs()
    gc.collect()
    gc.freeze()
    gc.enable()
    subprocess._fork_exec = fork_exec(subprocess._fork_exec)  # type: ignore[attr-defined]
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
