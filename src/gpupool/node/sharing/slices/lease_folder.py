"""The folder of one lease: created completely or not at all, and read without trusting its content.

Only the agent can write to the parent folder, so nobody can place a link where it creates a file. Other users may pass
through the parent folder but not list it. The name of each lease's folder has a random part, so only programs of the
lease can reach the files.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpupool.node.host.mapped_file import MappedFile
from gpupool.node.sharing.slices import pages

CONTROL = "control"
STATUS = "status"
WAITING = "waiting"  # in the folder of a lazy lease: the share library writes to it and waits for the control page
_NEW = ".new-"
_WITHDRAWN = ".withdrawn"  # the control page while the agent takes it away
_SECRET_BYTES = 9


@dataclass(frozen=True, slots=True)
class LeaseFolder:
    """An existing folder of one lease."""

    lease: int
    path: Path
    gpu_count: int

    def read_slots(self, gpu: int) -> tuple[pages.LedgerSlot, ...]:
        """Return the tenant's processes on a GPU; empty if the file cannot be read."""
        size = pages.SLOT * pages.SLOTS
        return pages.read_slots(self._read(STATUS, size, pages.slots_offset(gpu)))

    def heartbeat(self) -> bytes:
        """Return bytes that change as long as the arbiter lives and serves this lease."""
        return self._read(CONTROL, 4, pages.heartbeat_offset())

    def _read(self, name: str, size: int, offset: int) -> bytes:
        try:
            fd = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(fd, size, offset)
        except OSError:
            return b""
        finally:
            os.close(fd)

    def open_to_all(self) -> None:
        """Let programs of a second user on the same lease write its status page. Raises OSError."""
        for name in (STATUS, WAITING):
            with contextlib.suppress(FileNotFoundError):
                (self.path / name).chmod(0o666)

    @property
    def owner(self) -> int:
        """Return the owner of the status page. Raises OSError."""
        return (self.path / STATUS).stat().st_uid

    def complete(self, control: bytes, gpu_count: int, uid: int | None) -> LeaseFolder:
        """Write the pages of a lazy lease, the control page last; repetitions change nothing. Raises OSError."""
        whole = LeaseFolder(self.lease, self.path, gpu_count)
        with contextlib.suppress(FileNotFoundError):  # an agent was killed while it took the pages away
            (self.path / _WITHDRAWN).rename(self.path / CONTROL)
        if whole.sound():
            return whole
        others = stat.S_IMODE((self.path / WAITING).stat().st_mode) & 0o066
        for name, data, mode, owner in (
            (STATUS, pages.status_pages(gpu_count), 0o600 | others, uid),
            (CONTROL, control, 0o644, None),
        ):
            new = self.path / f"{_NEW}{name}"
            new.unlink(missing_ok=True)
            _write(new, data, mode, owner)
            new.rename(self.path / name)
        return whole

    def withdraw(self, pids: Callable[[], frozenset[int]]) -> bool:
        """Remove the pages of a lazy lease unless one of its processes has them; then nothing changes. Raises OSError.

        First no other process can open them any more. A process that has opened them before has the file open, or has
        it mapped. ``pids`` is called until it returns no new process: a child has the mappings of its parent.
        """
        hidden = self.path / _WITHDRAWN
        (self.path / CONTROL).rename(hidden)
        checked: frozenset[int] = frozenset()
        try:
            with MappedFile(hidden) as file:
                while new := pids() - checked:
                    if any(file.is_used_by(pid) for pid in new):
                        hidden.rename(self.path / CONTROL)
                        return False
                    checked |= new
            os.truncate(self.path / WAITING, 0)
            hidden.unlink()
        except Exception:
            hidden.rename(self.path / CONTROL)
            raise
        with contextlib.suppress(OSError):  # without the control page nothing reads it
            (self.path / STATUS).unlink()
        return True

    def wanted_at(self) -> float | None:
        """Return when a program first waited for the pages of a lazy lease; None: not yet."""
        try:
            found = (self.path / WAITING).lstat()
        except OSError:
            return None
        return found.st_mtime if found.st_size else None

    def ask_again(self) -> None:
        """Forget that a program waits: the next one that does asks again. Raises OSError."""
        os.truncate(self.path / WAITING, 0)

    def ask(self) -> None:
        """Write that a program waits. Raises OSError."""
        fd = os.open(self.path / WAITING, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(fd, b"1", 0)
        finally:
            os.close(fd)

    def set_suspended(self, *, suspended: bool) -> None:
        """Write whether its processes are suspended; they see it at once. Raises OSError."""
        fd = os.open(self.path / CONTROL, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if suspended:  # the correction was the driver's count of what leaves the GPU
                os.pwrite(fd, bytes(8), pages.correction_offset())
            os.pwrite(fd, int(suspended).to_bytes(4, sys.byteorder), pages.SUSPENDED_OFFSET)
        finally:
            os.close(fd)

    def suspended_gpu(self) -> str:
        """Return the UUID of the GPU from which its processes were suspended; empty: they are not."""
        if not any(self._read(CONTROL, 4, pages.SUSPENDED_OFFSET)):
            return ""
        text = self._read(CONTROL, pages.UUID_TEXT_BYTES, pages.PAGE + pages.UUID_TEXT_OFFSET)
        return text.rstrip(b"\0").decode(errors="replace")

    def attachable(self) -> bool:
        """Return True if its GPUs can be given and taken: a lazy lease, or one that can be suspended."""
        return (self.path / WAITING).exists()

    def sound(self) -> bool:
        """Return True if both files exist, are regular and complete."""
        wanted = {CONTROL: pages.control_size(self.gpu_count), STATUS: pages.status_size(self.gpu_count)}
        return all(_is_whole(self.path / name, size) for name, size in wanted.items())

    def remove(self) -> None:
        """Delete the folder with its content; never raises."""
        shutil.rmtree(self.path, ignore_errors=True)


def _is_whole(path: Path, size: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size


def make_leases_folder(parent: Path, *, shared: bool) -> None:
    """Create the folder of all leases of a node. Raises OSError."""
    mode = 0o711 if shared else 0o700
    parent.mkdir(mode=mode, exist_ok=True)
    parent.chmod(mode)


def make_lease_folder(
    parent: Path, lease: int, control: bytes | None, gpu_count: int, uid: int | None, *, attachable: bool = False
) -> LeaseFolder:
    """Create a folder for a lease whose programs run as ``uid`` (None: as the agent).

    ``attachable``: GPUs can be given to it and taken from it. Without ``control`` it gets its first ones later. Raises
    OSError; nothing is left then.
    """
    name = f"{lease}-{secrets.token_urlsafe(_SECRET_BYTES)}"
    new = parent / f"{_NEW}{name}"
    try:
        new.mkdir()
        new.chmod(0o711)
        if attachable or control is None:
            _write(new / WAITING, b"", 0o600, uid)
        if control is not None:
            _write(new / CONTROL, control, 0o644, None)
            _write(new / STATUS, pages.status_pages(gpu_count), 0o600, uid)
        new.rename(parent / name)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return LeaseFolder(lease, parent / name, gpu_count)


def _write(path: Path, data: bytes, mode: int, uid: int | None) -> None:
    """Write all bytes, including zeros: a full disk must fail now and not when a process maps the file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        if uid is not None and uid != os.geteuid():
            os.fchown(fd, uid, -1)
    finally:
        os.close(fd)


def stale_folders(parent: Path, keep: frozenset[Path]) -> Iterator[Path]:
    """Yield the folders of leases that are not kept."""
    with contextlib.suppress(OSError):
        yield from (path for path in parent.iterdir() if path not in keep)
