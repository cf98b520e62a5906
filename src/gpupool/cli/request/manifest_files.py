"""Read manifests from files, folders and standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.text.files import decode, read_bounded

MANIFESTS = {".yaml", ".yml", ".json"}


def read_manifests(files: list[str], *, recursive: bool) -> Iterator[tuple[str, str]]:
    """Yield the name and content of each file; files in a folder are sorted by name."""
    for name in files:
        if name == "-":
            yield "standard input", decode(sys.stdin.buffer.read(), "standard input")
        elif name.startswith(("http://", "https://")):
            raise GpupoolError(
                ErrorCode.INVALID_FILE, f"{name[:80]} is a URL, not a file.", "Download and review it first."
            )
        elif Path(name).is_dir():
            yield from (
                (str(path), decode(read_bounded(path, str(path)), str(path))) for path in _files_in(name, recursive)
            )
        else:
            yield name, decode(read_bounded(Path(name), name), name)


def _files_in(folder: str, recursive: bool) -> list[Path]:
    paths = Path(folder).rglob("*") if recursive else Path(folder).iterdir()
    found = sorted(path for path in paths if path.suffix in MANIFESTS and path.is_file())
    if not found:
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"{folder} contains no .yaml, .yml or .json file.", "Give another folder."
        )
    return found
