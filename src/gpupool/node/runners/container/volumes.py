"""Host volumes, opened with the rights of the job's user and passed to the engine by descriptor.

The engine may run as root, so a path alone could bypass permissions: a user who renames a folder between check and
mount would choose what is mounted. Here the user's own rights open the path, and the descriptor is checked. This
descriptor is then bound to a folder that only root can reach, in a mount namespace of the program. The namespace ends
with the program's last process, in any order of kills.
"""

from __future__ import annotations

import os
import posixpath
import pwd
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpupool.domain.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND
from gpupool.domain.work.program.container import Volume
from gpupool.node.host import mounts
from gpupool.node.host.child import StartError

# Paths of the machine: never mounted, nor any path that contains them.
MACHINE = ("/etc", "/proc", "/sys", "/dev", "/run", "/var/run", "/boot", "/var/lib/containers")
MACHINE_ALONE = (
    "/",
    "/usr",
    "/var",
    "/lib",
    "/lib64",
    "/bin",
    "/sbin",
    "/var/lib",
)  # paths below are allowed


@contextmanager
def user_rights(uid: int | None, gid: int | None) -> Iterator[None]:
    """Access files as the user; only in a process with one thread."""
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
    """Return the main group of a user; an unknown user has the group with its own number."""
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def groups_of(uid: int, gid: int | None) -> list[int]:
    """Return all groups of a user."""
    gid = main_group(uid) if gid is None else gid
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return [gid]


def open_source(volume: Volume, roots: Sequence[str], forbidden: Sequence[str]) -> int:
    """Return a descriptor of a volume's source, opened with the caller's rights. Raises ``StartError``."""
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
        raise StartError(EXIT_NOT_EXECUTABLE, f"A volume must be a folder or a file; {volume.source} is neither")
    if shows_forbidden(real, forbidden):
        raise StartError(
            EXIT_NOT_EXECUTABLE, f"{volume.source} belongs to the machine or the pool and cannot be a volume"
        )
    if roots and not any(_within(real, _real(root)) for root in roots):
        places = ", ".join(roots)
        raise StartError(EXIT_NOT_EXECUTABLE, f"{volume.source} is outside the allowed volume folders ({places})")
    wanted = os.R_OK | (os.X_OK if stat.S_ISDIR(kind) else 0)
    if not os.access(f"/proc/self/fd/{fd}", wanted, effective_ids=True):
        raise StartError(EXIT_NOT_EXECUTABLE, f"You may not read {volume.source}")


def shows_forbidden(real: str, forbidden: Sequence[str]) -> bool:
    """Return True if a path belongs to the machine or the pool, or contains such a path."""
    if real in MACHINE_ALONE:
        return True
    places = [*MACHINE, *forbidden]
    return any(_within(real, place) or _within(place, real) for place in (*places, *map(_real, places)))


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _real(path: str) -> str:
    return posixpath.normpath(os.path.realpath(path))


class Staging:
    """Binds descriptors to paths that only root can reach, in a mount namespace of this process and its children."""

    def __init__(self, folder: Path) -> None:
        """Leave the machine's mount namespace and mount a small file system on ``folder``. Raises OSError.

        Sources must be opened after this: a descriptor belongs to the namespace in which it was opened.
        """
        self._folder = folder
        self._count = 0
        mounts.leave_machine()
        folder.mkdir(mode=0o700, exist_ok=True)
        mounts.mount_memory(folder, 0o700)

    def bind(self, fd: int) -> str:
        """Bind the descriptor and return its path. Raises OSError."""
        place = self._folder / f"v{self._count}"
        self._count += 1
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            place.mkdir()
        else:
            place.touch()
        mounts.bind(f"/proc/self/fd/{fd}", str(place))
        return str(place)
