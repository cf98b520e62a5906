"""Files of manifests as people name them: files, folders, standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.files import decode, read_bounded

MANIFESTS = {".yaml", ".yml", ".json"}


def texts(files: list[str], *, recursive: bool) -> Iterator[tuple[str, str]]:
    """Names and contents of the files that are named; those of a folder by name."""
    for name in files:
        if name == "-":
            yield "standard input", decode(sys.stdin.buffer.read(), "standard input")
        elif name.startswith(("http://", "https://")):
            raise GpupoolError(
                ErrorCode.INVALID_FILE, f"{name[:80]} is an address.", "Fetch it, and look at it, first."
            )
        elif Path(name).is_dir():
            yield from (
                (str(path), decode(read_bounded(path, str(path)), str(path))) for path in _within(name, recursive)
            )
        else:
            yield name, decode(read_bounded(Path(name), name), name)


def _within(folder: str, recursive: bool) -> list[Path]:
    paths = Path(folder).rglob("*") if recursive else Path(folder).iterdir()
    found = sorted(path for path in paths if path.suffix in MANIFESTS and path.is_file())
    if not found:
        raise GpupoolError(ErrorCode.INVALID_FILE, f"{folder} holds no .yaml, .yml or .json file.", "Name another.")
    return found
