"""The checks of the state folder's disk: space, owner, file system, and SQLite's write-ahead log."""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gpupool.daemon.doctor.check import DoctorContext, Finding, NamedCheck, fine, problem, read_text, warning
from gpupool.domain.units import format_mib

_MIB = 1 << 20
_MIN_FREE_MIB = 64
_LOW_FREE_MIB = 1024
_MIN_FREE_INODES = 1_000
_LOW_FREE_INODES = 20_000
# File systems shared between machines: SQLite's write-ahead log needs memory shared by all its users (sqlite.org/wal).
_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|9p|afs|ceph|lustre|gpfs|beegfs|ocfs2|gfs2|fuse\.(sshfs|glusterfs|s3fs)"
)
_VOLATILE = frozenset({"tmpfs", "ramfs"})
_REMEDY = "Choose another folder with GPUPOOL_STATE_DIR."


def nearest(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists for this user."""
    found = (path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110 - never raises
    return next(found, Path("/"))


def space(context: DoctorContext) -> Iterator[Finding]:
    """Check free space and free inodes."""
    at = os.statvfs(nearest(context.state_dir))
    free_mib = at.f_bavail * at.f_frsize // _MIB
    sentence = f"{format_mib(free_mib)} free for {context.state_dir}."
    if free_mib < _MIN_FREE_MIB:
        yield problem("disk-space", f"Only {sentence}", "Free some space: logs and new jobs will fail.")
    elif free_mib < _LOW_FREE_MIB:
        yield warning("disk-space", f"Only {sentence}", "Free some space before the disk is full.")
    else:
        yield fine("disk-space", sentence)
    if not at.f_files:  # btrfs and others create inodes on demand
        return
    if at.f_favail < _MIN_FREE_INODES:
        yield problem("disk-inodes", f"Only {at.f_favail} more files fit on the disk.", "Remove unused files.")
    elif at.f_favail < _LOW_FREE_INODES:
        yield warning("disk-inodes", f"Only {at.f_favail} more files fit on the disk.", "Remove unused files.")
    else:
        yield fine("disk-inodes", f"{at.f_favail} more files fit on the disk.")


def folders(context: DoctorContext) -> Iterator[Finding]:
    """Check owner and permissions of the state and run folders."""
    yield _folder(context.state_dir)
    if not context.closed and context.run_dir != context.state_dir:
        yield _folder(context.run_dir)


def _folder(folder: Path) -> Finding:
    place = nearest(folder)
    if not place.is_dir():
        return problem("folders", f"{place} exists but is not a folder.", f"Move it. {_REMEDY}")
    if place == folder:
        return _existing(folder)
    if not os.access(place, os.W_OK | os.X_OK):
        return problem("folders", f"{place} cannot be written by this user.", _REMEDY)
    return fine("folders", f"{folder} does not exist yet and can be created.")


def _existing(folder: Path) -> Finding:
    found, me = folder.stat(), os.geteuid()
    if found.st_uid == 0 != me:
        return warning("folders", f"{folder} belongs to root's pool.", "Run 'gpupool doctor' as root to check it.")
    if found.st_uid != me:
        return problem("folders", f"{folder} belongs to another user (uid {found.st_uid}).", _REMEDY)
    if not os.access(folder, os.W_OK | os.X_OK):
        return problem("folders", f"{folder} cannot be written by this user.", f"Run 'chmod u+rwx {folder}'.")
    if found.st_mode & 0o022:
        return problem("folders", f"{folder} can be written by other users.", f"Run 'chmod go-w {folder}'.")
    return fine("folders", f"{folder} is yours and can be written.")


def file_system(context: DoctorContext) -> Iterator[Finding]:
    """Check that the file system suits a database."""
    kind = file_system_type(nearest(context.state_dir), context.root)
    if _NETWORK.fullmatch(kind):
        yield problem(
            "file-system",
            f"{context.state_dir} is on a network file system ({kind}), where the database can be damaged.",
            "Choose a folder on a local disk with GPUPOOL_STATE_DIR.",
        )
    elif kind in _VOLATILE:
        yield warning(
            "file-system", f"{context.state_dir} is in memory ({kind}): a restart of the machine deletes it.", _REMEDY
        )
    else:
        yield fine("file-system", f"{context.state_dir} is on {kind or 'an unknown file system'}.")


def file_system_type(path: Path, root: Path = Path("/")) -> str:
    """Return the type of the file system that holds a path, from ``mountinfo``; empty if unknown."""
    best, kind = -1, ""
    target = path.resolve()
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = Path(_unescaped(fields[4]))
        if target.is_relative_to(point) and len(point.parts) >= best:  # a later mount covers an earlier one
            best, kind = len(point.parts), after.split()[0]
    return kind


def _unescaped(text: str) -> str:
    """Decode a path of ``mountinfo``, where blanks are octal escapes (proc(5))."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def database_works(context: DoctorContext) -> Iterator[Finding]:
    """Check in a temporary folder that SQLite can use a write-ahead log in the state folder."""
    place = nearest(context.state_dir)
    if not os.access(place, os.W_OK | os.X_OK):
        return  # reported by another check
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as folder:
            mode = _try_wal(Path(folder) / "probe.db")
    except (OSError, sqlite3.Error) as error:
        yield problem("database-place", f"A database cannot be stored in {place}: {error}.", _REMEDY)
        return
    if mode == "wal":
        yield fine("database-place", f"A database with a write-ahead log works in {place}.")
    else:
        yield problem("database-place", f"SQLite cannot use a write-ahead log in {place} (mode {mode}).", _REMEDY)


def _try_wal(path: Path) -> str:
    with closing(sqlite3.connect(path)) as database:
        mode = str(database.execute("PRAGMA journal_mode=WAL").fetchone()[0])
        database.execute("CREATE TABLE probe (x)")
        database.commit()
    return mode


CHECKS: list[NamedCheck] = [
    ("disk-space", space),
    ("folders", folders),
    ("file-system", file_system),
    ("database-place", database_works),
]
