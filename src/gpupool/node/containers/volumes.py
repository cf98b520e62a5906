"""Volumes of the node, opened with the rights of the job's user and shown to the engine by descriptor.

The engine may run as root, so a path alone would be a way round permissions: whoever can rename a folder between a
check and a mount chooses what is mounted. Here the user's own rights open the place, the descriptor is judged, and that
very descriptor is bound to a place that only root can reach, in a mount namespace of the program's own: it goes with
the program's last process, whoever is killed when.
"""

from __future__ import annotations

import ctypes
import os
import posixpath
import pwd
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpupool.domain.container import Volume
from gpupool.domain.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND
from gpupool.node.child import StartError

# Of the machine itself: never shown, and nothing that contains them.
MACHINE = ("/etc", "/proc", "/sys", "/dev", "/run", "/var/run", "/boot", "/var/lib/containers")
MACHINE_ALONE = ("/", "/usr", "/var", "/lib", "/lib64", "/bin", "/sbin", "/var/lib")  # but what is in them may be
_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def user_rights(uid: int | None, gid: int | None) -> Iterator[None]:
    """Reach files as the user would, and no further; only in a process with one thread."""
    if uid is None or uid == os.geteuid() or os.geteuid() != 0:
        yield
        return
    own, own_gid = os.getgroups(), os.getegid()
    os.setgroups(groups_of(uid, gid))
    os.setegid(main_group(uid) if gid is None else gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(own_gid)
        os.setgroups(own)


def main_group(uid: int) -> int:
    """The main group of a user; one that the machine does not know has its own number."""
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def groups_of(uid: int, gid: int | None) -> list[int]:
    """All groups of a user."""
    gid = main_group(uid) if gid is None else gid
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return [gid]


def open_source(volume: Volume, roots: Sequence[str], forbidden: Sequence[str]) -> int:
    """A descriptor of what a volume shows, opened by whoever calls. Raises ``StartError``."""
    try:
        fd = os.open(volume.source, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise StartError(EXIT_NOT_FOUND, f"No such folder for a volume: {volume.source}") from error
    except OSError as error:
        sentence = f"Cannot use {volume.source} as a volume: {error.strerror}"
        raise StartError(EXIT_NOT_EXECUTABLE, sentence) from error
    try:
        _judge(fd, volume, roots, forbidden)
    except StartError:
        os.close(fd)
        raise
    return fd


def _judge(fd: int, volume: Volume, roots: Sequence[str], forbidden: Sequence[str]) -> None:
    kind = os.fstat(fd).st_mode
    real = str(Path(f"/proc/self/fd/{fd}").readlink())
    if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)) or not real.startswith("/"):
        raise StartError(EXIT_NOT_EXECUTABLE, f"A volume is a folder or a file, and {volume.source} is neither")
    if shows_forbidden(real, forbidden):
        raise StartError(EXIT_NOT_EXECUTABLE, f"{volume.source} belongs to the machine or the pool: no volume shows it")
    if roots and not any(_within(real, _real(root)) for root in roots):
        places = ", ".join(roots)
        raise StartError(EXIT_NOT_EXECUTABLE, f"{volume.source} is not where volumes may be ({places})")
    wanted = os.R_OK | (os.X_OK if stat.S_ISDIR(kind) else 0)
    if not os.access(f"/proc/self/fd/{fd}", wanted, effective_ids=True):
        raise StartError(EXIT_NOT_EXECUTABLE, f"You may not read {volume.source}")


def shows_forbidden(real: str, forbidden: Sequence[str]) -> bool:
    """Whether a place is the machine's or the pool's own, or shows something of theirs."""
    if real in MACHINE_ALONE:
        return True
    places = [*MACHINE, *forbidden]
    return any(_within(real, place) or _within(place, real) for place in (*places, *map(_real, places)))


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _real(path: str) -> str:
    return posixpath.normpath(os.path.realpath(path))


class Staging:
    """Binds descriptors to places that only root reaches, in a mount namespace of this process and its children."""

    def __init__(self, folder: Path) -> None:
        """Leave the machine's namespace and cover ``folder`` there with a tiny file system. Raises OSError.

        What is to be bound has to be opened after this: a descriptor belongs to the namespace it was opened in.
        """
        self._folder = folder
        self._count = 0
        if _libc.unshare(_CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "unshare")
        _mount(None, "/", None, _MS_REC | _MS_SLAVE)
        folder.mkdir(mode=0o700, exist_ok=True)
        _mount("volumes", str(folder), "tmpfs", 0, b"mode=0700,size=1m")

    def bind(self, fd: int) -> str:
        """Where the thing is now. Raises OSError."""
        place = self._folder / f"v{self._count}"
        self._count += 1
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            place.mkdir()
        else:
            place.touch()
        _mount(f"/proc/self/fd/{fd}", str(place), None, _MS_BIND | _MS_REC)
        return str(place)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: bytes | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    if _libc.mount(*texts, ctypes.c_ulong(flags), data):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)
