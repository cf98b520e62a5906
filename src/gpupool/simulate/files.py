"""Reading traces and nodes from files."""

from __future__ import annotations

from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Node
from gpupool.simulate.clusters import parse_nodes
from gpupool.simulate.traces import TraceFormat, format_of, parse_trace
from gpupool.simulate.values import Trace

MOST_BYTES = 512 * 1024 * 1024


def read_trace(path: Path, kind: TraceFormat | None = None, most: int | None = None) -> Trace:
    """The jobs of a file, its format told by its first line unless given; raises ``GpupoolError``."""
    lines = read_lines(path)
    return parse_trace(lines, kind or format_of(lines[0] if lines else ""), most)


def read_nodes(path: Path) -> tuple[Node, ...]:
    """The nodes of a file; raises ``GpupoolError``."""
    return parse_nodes(read_lines(path))


def read_lines(path: Path) -> list[str]:
    """The lines of a file that is not too large; raises ``GpupoolError`` (INVALID_FILE, TOO_LARGE)."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            sentence = f"{path} is larger than {MOST_BYTES // 1024**2} MiB."
            raise GpupoolError(ErrorCode.TOO_LARGE, sentence, "Cut it.")
        with path.open(encoding="utf-8", newline="") as file:
            return file.readlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        sentence = f"{path} cannot be read: {why}."
        raise GpupoolError(ErrorCode.INVALID_FILE, sentence, "Name a CSV file that you may read.") from error
