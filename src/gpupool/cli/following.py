"""Following live streams, through restarts of the control plane."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from gpupool.cli.connections import StreamEvent
from gpupool.cli.errors import no_answer, unreachable
from gpupool.cli.output import out_style, show, write_out
from gpupool.cli.pool import Pool, Query
from gpupool.cli.render.workloads import event_line
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.logrecords import Decoder, Stretch

RECONNECT_S = 60.0
RETRY_S = 0.5
LONG_S = 90.0  # what held so long was no attempt that failed


def persistent(pool: Pool, path: str, query: Query, last_id: str = "", *, said: bool = False) -> Iterator[StreamEvent]:
    """A stream that is taken up again where it broke; it ends when the pool ends it. Raises ``GpupoolError``.

    ``said``: the pool says so, by a last message; without that it is about to restart.
    """
    failing_since: float | None = None
    begun = False
    while True:
        opened_at = time.monotonic()
        try:
            for message in pool.stream(path, query, last_id):
                failing_since, begun = None, True
                last_id = message.id or last_id
                yield message
                if message.event == "end":
                    return
            if not said:
                return
            broken = unreachable("it broke off")
        except OSError as error:
            broken = no_answer(error)
        except GpupoolError as error:
            if error.code is not ErrorCode.NODE_UNREACHABLE or not begun:
                raise  # else a new control plane has yet to meet the node
            broken = error
        now = time.monotonic()
        if failing_since is None or now - opened_at > LONG_S:
            failing_since = now
        if now - failing_since > _patience_s(pool, broken):
            raise broken
        time.sleep(RETRY_S)


def _patience_s(pool: Pool, broken: GpupoolError) -> float:
    """How long to try: the machines of a cluster may take longer than its control plane to be back."""
    return pool.gate.returns_s if broken.code is ErrorCode.NODE_UNREACHABLE else RECONNECT_S


def follow_events(pool: Pool, seen: Sequence[dict[str, Any]], workload: str | None, *, as_json: bool) -> None:
    """Print events as they happen, after those already known; JSON is one object per line."""
    style = out_style()
    line: Callable[[dict[str, Any]], str] = json.dumps if as_json else lambda event: event_line(event, style)
    show(line(event) for event in seen)
    last_id = str(seen[-1]["id"]) if seen else ""
    query = {"workload": workload, "after_id": last_id or None}
    for message in persistent(pool, "events/stream", query, last_id):
        show([line(message.data)])


def whole_log(pool: Pool, path: str, query: Query) -> Iterator[Stretch]:
    """All of a log as it is now, taken up again where the answer broke off. Raises ``GpupoolError``."""
    failing_since: float | None = None
    while True:
        decoder, broken = Decoder(), unreachable("it broke off")
        try:
            for piece in pool.octets(path, query):
                for stretch in decoder.feed(piece):
                    failing_since = None
                    query = {**query, "cursor": stretch.cursor, "tail": None}
                    yield stretch
        except OSError as error:
            broken = no_answer(error)
        except GpupoolError as error:
            if error.code is not ErrorCode.NODE_UNREACHABLE:  # a new control plane has yet to meet the node
                raise
            broken = error
        if decoder.whole:
            return
        failing_since = failing_since or time.monotonic()
        if "cursor" not in query or time.monotonic() - failing_since > _patience_s(pool, broken):
            raise broken
        time.sleep(RETRY_S)


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
        _write(chunk["stream"], self._marked(data, chunk["stream"], chunk["at"]) if self._marks else data)

    def stretch(self, stretch: Stretch) -> None:
        """Many pieces."""
        if not self._marks:
            for name, data in stretch.runs():
                _write(name, data)
            return
        for name, chunks in groupby(stretch.chunks(), attrgetter("stream")):
            _write(name, b"".join([self._marked(chunk.data, name, chunk.at) for chunk in chunks]))

    @property
    def _marks(self) -> bool:
        return self._timestamps or bool(self._prefix)

    def _marked(self, data: bytes, stream: str, at: float) -> bytes:
        moment = f"{datetime.fromtimestamp(at, UTC).isoformat(timespec='milliseconds')} " if self._timestamps else ""
        mark = f"{moment}{self._prefix}".encode()
        marked = bytearray()
        for line in data.splitlines(keepends=True):
            marked += mark + line if self._at_line_start[stream] else line
            self._at_line_start[stream] = line.endswith(b"\n")
        return bytes(marked)


def _write(stream: str, data: bytes) -> None:
    if stream == "out":
        write_out(data)
        return
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()
