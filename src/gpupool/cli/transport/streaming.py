"""Follow live streams and logs, also when the control plane restarts."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gpupool.cli.errors import connection_error, unreachable_error
from gpupool.cli.output import out_style, show, write_out
from gpupool.cli.render.line_filter import Line, LineFilter
from gpupool.cli.render.workloads import event_line
from gpupool.cli.transport.pool import PoolClient, Query
from gpupool.domain.errors import NO_LEADER_CODES, ErrorCode, GpupoolError
from gpupool.domain.protocol.log_records import LogBatch, LogDecoder

if TYPE_CHECKING:
    from gpupool.client.transport.requests import StreamEvent

RECONNECT_TIMEOUT_S = 60.0
RETRY_DELAY_S = 0.5
# After a stream was open: another control plane is about to serve it. It may not have contacted the node yet.
LOST_STREAM_CODES = NO_LEADER_CODES | {ErrorCode.NODE_UNREACHABLE, ErrorCode.DATABASE_UNREACHABLE}
STABLE_STREAM_S = 90.0  # a stream that lasted this long resets the retry timeout


def stream_with_retry(
    pool: PoolClient, path: str, query: Query, last_id: str = "", *, explicit_end: bool = False
) -> Iterator[StreamEvent]:
    """Yield the events of a stream, and reconnect when it breaks. Raises ``GpupoolError``.

    ``explicit_end``: the pool ends the stream with an ``end`` event; without one it is about to restart.
    """
    failing_since: float | None = None
    started = False
    while True:
        opened_at = time.monotonic()
        try:
            for message in pool.stream(path, query, last_id):
                failing_since, started = None, True
                last_id = message.id or last_id
                yield message
                if message.event == "end":
                    return
            if not explicit_end:
                return
            broken = unreachable_error("the stream was cut off")
        except OSError as error:
            broken = connection_error(error)
        except GpupoolError as error:
            if error.code not in LOST_STREAM_CODES or not started:
                raise
            broken = error
        now = time.monotonic()
        if failing_since is None or now - opened_at > STABLE_STREAM_S:
            failing_since = now
        if now - failing_since > _retry_timeout_s(pool, broken):
            raise broken
        time.sleep(RETRY_DELAY_S)


def _retry_timeout_s(pool: PoolClient, broken: GpupoolError) -> float:
    """Return how long to retry: a cluster's nodes may take longer to return than its control plane."""
    return pool.transport.reattach_timeout_s if broken.code is ErrorCode.NODE_UNREACHABLE else RECONNECT_TIMEOUT_S


def follow_events(pool: PoolClient, seen: Sequence[dict[str, Any]], workload: str | None, *, as_json: bool) -> None:
    """Print events as they happen, after those already known; JSON is one object per line."""
    style = out_style()
    line: Callable[[dict[str, Any]], str] = json.dumps if as_json else lambda event: event_line(event, style)
    show(line(event) for event in seen)
    last_id = str(seen[-1]["id"]) if seen else ""
    query = {"workload": workload, "after_id": last_id or None}
    for message in stream_with_retry(pool, "events/stream", query, last_id):
        show([line(message.data)])


def read_log_with_retry(pool: PoolClient, path: str, query: Query) -> Iterator[LogBatch]:
    """Yield a whole log as it is now, and continue where the answer was cut off. Raises ``GpupoolError``."""
    failing_since: float | None = None
    while True:
        decoder, broken = LogDecoder(), unreachable_error("the stream was cut off")
        try:
            for piece in pool.stream_bytes(path, query):
                for batch in decoder.feed(piece):
                    failing_since = None
                    query = {**query, "cursor": batch.cursor, "tail": None}
                    yield batch
        except OSError as error:
            broken = connection_error(error)
        except GpupoolError as error:
            if error.code not in LOST_STREAM_CODES:
                raise
            broken = error
        if decoder.whole:
            return
        failing_since = failing_since or time.monotonic()
        if "cursor" not in query or time.monotonic() - failing_since > _retry_timeout_s(pool, broken):
            raise broken
        time.sleep(RETRY_DELAY_S)


class LogPrinter:
    """Writes output to the right descriptor, byte for byte, or with a prefix on each line, or ``only`` some lines."""

    def __init__(
        self,
        *,
        timestamps: bool = False,
        since: float | None = None,
        prefix: str = "",
        only: LineFilter | None = None,
    ) -> None:
        self._only = only
        self._timestamps = timestamps
        self._since = since
        self._prefix = prefix
        self._at_line_start = {"out": True, "err": True}

    def chunk(self, chunk: dict[str, Any]) -> None:
        """Print one chunk of the API."""
        if self._since is not None and chunk["at"] < self._since:
            return
        data = base64.b64decode(chunk["data"])
        if self._only is not None:
            self._lines(self._only.feed(chunk["stream"], data, chunk["at"]))
            return
        _write(chunk["stream"], self._marked(data, chunk["stream"], chunk["at"]) if self._marks else data)

    def batch(self, batch: LogBatch) -> None:
        """Print many chunks."""
        if self._only is not None:
            for chunk in batch.chunks():
                self._lines(self._only.feed(chunk.stream, chunk.data, chunk.at))
            return
        if not self._marks:
            for name, data in batch.runs():
                _write(name, data)
            return
        for name, chunks in groupby(batch.chunks(), attrgetter("stream")):
            _write(name, b"".join([self._marked(chunk.data, name, chunk.at) for chunk in chunks]))

    def finish(self) -> None:
        """Print an incomplete last line that is selected."""
        if self._only is not None:
            self._lines(self._only.finish())

    def _lines(self, lines: Iterable[Line]) -> None:
        for stream, line, at in lines:
            _write(stream, self._marked(line, stream, at) if at else line)

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
