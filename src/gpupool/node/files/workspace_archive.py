"""The program that writes the files of a workspace as a tar archive to stdout, or reads them from stdin.

Runs as the user, in the home, with a Python that need not know the package. Standard library only.

The first member of an archive, ``workspace.json``, describes the workspace; the files of its home follow below
``home/``; the last member, ``workspace.end``, shows that the archive is complete. The files are read into a folder of
the home, from which they are moved then: an import that was interrupted leaves no file under its own name. Devices and
sockets are left out, members that would be written outside of the home are refused, and all files belong to the reader.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

HEADER, HOME, END = "workspace.json", "home", "workspace.end"
PARTIAL = ".gpupool-import"
ENVIRONMENT_FOLDER = "environment"  # with the files of the environment, made with the home
MAX_ENVIRONMENT_FILE = 1 << 20
MIN_FREE_DIVISOR = 32  # an import leaves this part of the disk free
_CHECK_EACH = 64 << 20
# Enters a user namespace in which the caller is root over its own files and those of its subordinate users, to whom
# files belong that other users of a rootless container have made.
OWN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--map-auto", "--")
GIVE_BACK = 'In a session of the workspace, give them to its owner: chown -R 0:0 "$HOME".'


class ArchiveError(Exception):
    """The archive cannot be written or read."""


def write(home: Path, about: str, to: BinaryIO) -> None:
    """Write the archive of a home; ``about`` is JSON that describes the workspace."""
    described = json.loads(about) | {"environment_files": dict(_environment_files(home))}
    header = tarfile.TarInfo(HEADER)
    text = json.dumps(described).encode()
    header.size = len(text)
    with tarfile.open(fileobj=to, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(header, BytesIO(text))
        for path in sorted(home.iterdir()):
            if path.name != PARTIAL:
                archive.add(path, f"{HOME}/{path.name}", filter=_without_owner)
        archive.addfile(tarfile.TarInfo(END))


def first_unreadable(home: Path) -> Path | None:
    """Return a file or folder that this process may not read, if there is one."""
    closed: list[OSError] = []
    for folder, _, files in os.walk(home, onerror=closed.append):
        paths = (Path(folder, name) for name in files)
        closed_file = next((path for path in paths if not path.is_symlink() and not os.access(path, os.R_OK)), None)
        if closed_file is not None:
            return closed_file
    return Path(closed[0].filename) if closed else None


def _read_as_all_users(home: Path, words: list[str]) -> None:
    """Begin again in a user namespace if files of other users are unreadable. Raises ``ArchiveError``."""
    path = first_unreadable(home)
    if path is None:
        return
    with contextlib.suppress(OSError):
        if subprocess.run([*OWN_NAMESPACE, "cat", "/dev/null"], capture_output=True, check=False).returncode == 0:
            os.execvp(OWN_NAMESPACE[0], [*OWN_NAMESPACE, sys.executable, __file__, *words])  # noqa: S606 - no shell
    raise ArchiveError(f"{path} belongs to another user and cannot be read. {GIVE_BACK}")


def _environment_files(home: Path) -> Iterator[tuple[str, str]]:
    folder = home / ENVIRONMENT_FOLDER
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and path.stat().st_size <= MAX_ENVIRONMENT_FILE:
            yield path.name, path.read_text(encoding="utf-8", errors="replace")


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if member.isdev():
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def read(home: Path, archive: BinaryIO) -> None:
    """Put the files of an archive into an empty home. Raises ``ArchiveError`` and changes nothing else."""
    if others := [path.name for path in home.iterdir() if path.name not in {PARTIAL, ENVIRONMENT_FOLDER}]:
        raise ArchiveError(f"the home is not empty: it has {others[0]}")
    partial = home / PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    try:
        _extract(partial, archive)
        shutil.rmtree(home / ENVIRONMENT_FOLDER, ignore_errors=True)
        made = partial / HOME
        for path in sorted(made.iterdir()) if made.is_dir() else ():
            path.rename(home / path.name)
    except (tarfile.TarError, OSError) as error:
        raise ArchiveError(str(error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _extract(folder: Path, source: BinaryIO) -> None:
    with tarfile.open(fileobj=source, mode="r|") as archive:
        archive.extractall(folder, _files(archive, folder), filter="tar")


def _files(archive: tarfile.TarFile, folder: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members below ``home/`` as they are read. Raises ``ArchiveError`` for an incomplete archive."""
    unchecked, name = 0, ""
    for member in archive:
        name = member.name
        if member.isdev() or not (name + "/").startswith(f"{HOME}/"):
            continue
        unchecked += member.size
        if unchecked >= _CHECK_EACH:
            unchecked = 0
            _check_room(folder, member.size)
        yield member
    if name != END:
        raise ArchiveError("the archive ends too early")


def _check_room(folder: Path, wanted: int) -> None:
    disk = shutil.disk_usage(folder)
    if disk.free - wanted < disk.total // MIN_FREE_DIVISOR:
        raise ArchiveError("the disk of the node is too full for these files")


def main(words: list[str]) -> int:
    """Run ``export ABOUT`` or ``import``."""
    try:
        if words[0] == "export":
            if os.geteuid() != 0:
                _read_as_all_users(Path.cwd(), words)
            write(Path.cwd(), words[1], sys.stdout.buffer)
        else:
            read(Path.cwd(), sys.stdin.buffer)
    except (ArchiveError, tarfile.TarError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
