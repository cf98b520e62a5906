"""Connections of the standard library to a pool, for what is not on the fast path."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError

STREAM_SILENCE_S = 60.0  # the pool says something every 15 s, if only a comment
LINE_LIMIT_BYTES = 4 << 20
PIECE_BYTES = 1 << 18
OCTETS = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One message of a server-sent stream; ``data`` is its JSON."""

    id: str
    event: str
    data: Any


def read_octets(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body piece by piece. Raises ``GpupoolError(UNSUPPORTED)`` when it is something else."""
    if response.headers.get_content_type() != OCTETS:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED, "The pool is older than this client.", "Bring both to the same version."
        )
    while piece := response.read(PIECE_BYTES):
        yield piece


def read_events(response: http.client.HTTPResponse) -> Iterator[StreamEvent]:
    """The messages of a stream until it ends. Raises ``OSError`` when it breaks."""
    fields: dict[str, str] = {}
    while line := response.readline(LINE_LIMIT_BYTES):
        text = line.decode(errors="replace").rstrip("\r\n")
        if not text:
            if "data" in fields:
                yield StreamEvent(fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"]))
            fields = {}
            continue
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
    if response.chunked and getattr(response, "chunk_left", None) is not None:
        raise ConnectionAbortedError("the stream broke off")  # its end, an empty chunk, never came
