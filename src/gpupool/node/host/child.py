"""The steps between the shepherd and the user's program: fork, streams, session, user, folder, exec.

Most of this code runs in the forked child. Errors are written to a pipe that the exec closes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pwd
import resource
import signal
import struct
import sys
import termios
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gpupool.domain.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND
from gpupool.domain.work.program.supervision import NODE_PROGRAM, ProcessSpec
from gpupool.node.host.mounts import Bind, bind_all
from gpupool.node.host.priority import make_ordinary

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SHELL = "/bin/sh"
_PACKAGE = Path(__file__).resolve().parents[2]
_libc = ctypes.CDLL(None, use_errno=True)


class StartError(Exception):
    """The reason why the program could not be started, with the exit status that a shell would give."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ProgramChild:
    """Everything that the child needs, prepared before the fork."""

    spec: ProcessSpec
    environment: dict[str, str]
    streams: tuple[int, int, int]
    tty: bool
    shepherd: int
    cgroup_entries: tuple[str, ...] = ()
    process_limit: int | None = None  # of the user; set where no control group limits the program
    binds: tuple[Bind, ...] = ()

    def become(self, failure_fd: int) -> NoReturn:
        """Turn the calling process into the program; on failure report ``status message`` and exit."""
        try:
            self._prepare()
            _execute(*self.program())
        except StartError as error:
            self._give_up(failure_fd, error.status, str(error))
        except BaseException as error:  # noqa: BLE001 - nothing may escape from a forked child
            self._give_up(failure_fd, EXIT_NOT_EXECUTABLE, f"Could not start: {error}")

    @staticmethod
    def _give_up(failure_fd: int, status: int, message: str) -> NoReturn:
        with contextlib.suppress(OSError):
            os.write(failure_fd, f"{status} {message}".encode("utf-8", "replace")[:4000])
        os._exit(status)

    def _prepare(self) -> None:
        os.setsid()
        if self.tty:
            fcntl.ioctl(self.streams[0], termios.TIOCSCTTY, 0)
        for target, fd in enumerate(self.streams):
            os.dup2(fd, target, inheritable=True)
        for entry in self.cgroup_entries:
            Path(entry).write_text("0", encoding="ascii")
        make_ordinary()
        self._limit_processes()
        self.bind_files()
        self.change_user()
        die_with_parent(self.shepherd)
        os.umask(self.spec.umask)
        self.enter_folder()
        reset_signals()

    def _limit_processes(self) -> None:
        """Limit the processes of the user, where no control group limits the program. Root has no limit."""
        if self.process_limit is not None:
            _soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
            limit = self.process_limit if hard == resource.RLIM_INFINITY else min(self.process_limit, hard)
            resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))

    def program(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the command to execute and its environment. Raises ``StartError``."""
        return self.spec.argv, self.environment

    def enter_folder(self) -> None:
        """Change to the working directory. Raises ``StartError``."""
        _enter_folder(self.spec.cwd)

    def bind_files(self) -> None:
        """Show the program files over those of the machine. Raises ``StartError``."""
        try:
            if self.binds:
                bind_all(self.binds)
        except OSError as error:
            sentence = f"Cannot bind the share library over the driver: {error.strerror} ({error.filename})"
            raise StartError(EXIT_NOT_EXECUTABLE, sentence) from error

    def change_user(self) -> None:
        """Change to the job's user. Raises ``StartError``."""
        uid = self.spec.uid
        if uid is None or (uid == os.geteuid() and self.spec.gid in {None, os.getegid()}):
            return
        name, gid = _account(uid)
        gid = gid if self.spec.gid is None else self.spec.gid
        try:
            if name is None:
                os.setgroups([gid])
            else:
                os.initgroups(name, gid)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        except OSError as error:
            raise StartError(EXIT_NOT_EXECUTABLE, f"Cannot run as user {uid}: {error.strerror}") from error


def _account(uid: int) -> tuple[str | None, int]:
    """Return the name (None if not in the user database) and the main group of a user."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None, uid
    return entry.pw_name, entry.pw_gid


def become_subreaper() -> None:
    """Make orphans among our descendants our children, so that none can detach itself. Raises OSError."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when ``parent`` dies; kill this process now if it already has."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def reset_signals() -> None:
    """Restore the default handling of all signals and block none, as a program expects."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _enter_folder(folder: str) -> None:
    try:
        os.chdir(folder)
    except FileNotFoundError as error:
        raise StartError(EXIT_NOT_FOUND, f"Working directory is gone: {folder}") from error
    except OSError as error:
        raise StartError(EXIT_NOT_EXECUTABLE, f"Cannot enter working directory {folder}: {error.strerror}") from error


def _execute(argv: tuple[str, ...], environment: dict[str, str]) -> NoReturn:
    """Replace this process with the program, found through the PATH of its own environment as a shell does."""
    if argv[0] == NODE_PROGRAM:
        argv = _own_program(argv[1:])
    denied = False
    for candidate in _candidates(argv[0], environment):
        try:
            _execute_one(candidate, argv, environment)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            denied = True
        except OSError as error:
            raise StartError(EXIT_NOT_EXECUTABLE, f"Cannot execute {candidate}: {error.strerror}") from error
    if denied:
        raise StartError(EXIT_NOT_EXECUTABLE, f"Permission denied: {argv[0]}")
    raise StartError(EXIT_NOT_FOUND, f"No such program: {argv[0]}")


def _own_program(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command for one of the pool's programs, with this Python or the one on the user's PATH."""
    python = sys.executable if os.access(sys.executable, os.X_OK) else "python3"
    return (python, "-I", str(_PACKAGE / words[0]), *words[1:])


def _candidates(program: str, environment: dict[str, str]) -> list[str]:
    if not program:
        return []
    if "/" in program:
        return [program]
    folders = environment.get("PATH", os.defpath).split(":")
    return [f"{folder or '.'}/{program}" for folder in folders]


def _execute_one(path: str, argv: tuple[str, ...], environment: dict[str, str]) -> None:
    try:
        os.execve(path, argv, environment)  # noqa: S606 - no shell is meant
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        os.execve(_SHELL, (_SHELL, path, *argv[1:]), environment)  # noqa: S606 - a script without #!, as execvp does


_CLONE3 = 435  # the same number on every architecture
_CLONE_INTO_CGROUP = 0x2_0000_0000
_ARGUMENTS = struct.Struct("=11Q")  # struct clone_args up to its field `cgroup`

# PyDLL keeps the interpreter's lock across the call, because both processes continue with it.
_locked_libc = ctypes.PyDLL(None, use_errno=True)
_locked_libc.syscall.restype = ctypes.c_long


def fork_into(folder: str | None) -> int:
    """Fork like ``os.fork``, with the child in a group of the unified hierarchy; else move the child there.

    Only for a process with one thread whose child soon executes a program: the interpreter is not notified of the fork.
    Raises OSError as ``os.fork`` does.
    """
    pid = None if folder is None else _clone(folder)
    if pid is not None:
        return pid
    pid = os.fork()
    if pid == 0 and folder is not None:
        with contextlib.suppress(OSError):  # slower, but out of the pool's own group
            Path(folder, "cgroup.procs").write_text("0", encoding="ascii")
    return pid


def _clone(folder: str) -> int | None:
    """Return the pid as ``os.fork`` does; None if the kernel does not support it."""
    try:
        group = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    arguments = _ARGUMENTS.pack(_CLONE_INTO_CGROUP, 0, 0, 0, int(signal.SIGCHLD), 0, 0, 0, 0, 0, group)
    try:
        buffer = ctypes.create_string_buffer(arguments, _ARGUMENTS.size)
        pid = int(_locked_libc.syscall(ctypes.c_long(_CLONE3), buffer, ctypes.c_size_t(_ARGUMENTS.size)))
    finally:
        os.close(group)
    return None if pid < 0 else pid
