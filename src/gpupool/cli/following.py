"""Following live streams, through restarts of the control plane."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from gpupool.cli.connections import StreamEvent
from gpupool.cli.errors import no_answer
from gpupool.cli.output import out_style, show, write_out
from gpupool.cli.pool import Pool, Query
from gpupool.cli.render.workloads import event_line

RECONNECT_S = 30.0
RETRY_S = 0.5


def persistent(pool: Pool, path: str, query: Query, last_id: str = "") -> Iterator[StreamEvent]:
    """A stream that is taken up again where it broke; it ends when the pool ends it. Raises ``GpupoolError``."""
    failing_since: float | None = None
    while True:
        try:
            for message in pool.stream(path, query, last_id):
                failing_since = None
                last_id = message.id or last_id
                yield message
        except OSError as error:
            failing_since = failing_since or time.monotonic()
            if time.monotonic() - failing_since > RECONNECT_S:
                raise no_answer(error) from error
            time.sleep(RETRY_S)
        else:
            return


def follow_events(pool: Pool, seen: Sequence[dict[str, Any]], workload: str | None, *, as_json: bool) -> None:
    """Print events as they happen, after those already known; JSON is one object per line."""
    style = out_style()
    line: Callable[[dict[str, Any]], str] = json.dumps if as_json else lambda event: event_line(event, style)
    show(line(event) for event in seen)
    last_id = str(seen[-1]["id"]) if seen else ""
    query = {"workload": workload, "after_id": last_id or None}
    for message in persistent(pool, "events/stream", query, last_id):
        show([line(message.data)])


class LogPrinter:
    """Writes pieces of output to the right descriptor, byte for byte, or with a time before each line."""

    def __init__(self, *, timestamps: bool = False, since: float | None = None, prefix: str = "") -> None:
        self._timestamps = timestamps
        self._since = since
        self._prefix = prefix
        self._at_line_start = {"out": True, "err": True}

    def chunk(self, chunk: dict[str, Any]) -> None:
        """One piece as the API gives it."""
        if self._since is not None and chunk["at"] < self._since:
            return
        data = base64.b64decode(chunk["data"])
        stream = chunk["stream"]
        marked = self._marked(data, stream, chunk["at"])
        if stream == "out":
            write_out(marked)
            return
        sys.stderr.buffer.write(marked)
        sys.stderr.buffer.flush()

    def _marked(self, data: bytes, stream: str, at: float) -> bytes:
        if not self._timestamps and not self._prefix:
            return data
        moment = f"{datetime.fromtimestamp(at, UTC).isoformat(timespec='milliseconds')} " if self._timestamps else ""
        mark = f"{moment}{self._prefix}".encode()
        marked = bytearray()
        for line in data.splitlines(keepends=True):
            marked += mark + line if self._at_line_start[stream] else line
            self._at_line_start[stream] = line.endswith(b"\n")
        return bytes(marked)
