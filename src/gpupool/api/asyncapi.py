"""The description of the WebSockets at ``/v1/asyncapi.json`` (AsyncAPI 3.0)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.routing import APIWebSocketRoute
from pydantic import Field, TypeAdapter

from gpupool import __version__
from gpupool.domain.protocol import frames

Json = dict[str, Any]

CLOSE_CODES = {
    1000: "The program or the port has ended.",
    1001: "The control plane is stopping; connect again.",
    1003: "A message was not binary.",
    4000: "4000 + HTTP status: the request was refused; the reason is `CODE: sentence`.",
}


@dataclass(frozen=True, slots=True)
class FrameType:
    """A kind of frame; ``payload`` is the JSON Schema of its content, or None for bytes."""

    name: str
    kind: int
    to_program: bool
    summary: str
    payload: Json | None = None


def _object(required: Sequence[str] = (), **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


_INTEGER: Json = {"type": "integer", "minimum": 0}
FRAMES = (
    FrameType(
        "HELLO",
        frames.HELLO,
        to_program=True,
        summary="Once and first: the terminal's size, whether input follows, and the part of the output already seen.",
        payload=_object(
            ("version",),
            version={"const": frames.VERSION},
            rows=_INTEGER,
            columns=_INTEGER,
            stdin={"type": "boolean"},
            returns_s={"type": "number", "minimum": 0},
            seen={"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2},
        ),
    ),
    FrameType("STDIN", frames.STDIN, to_program=True, summary="Input of the program."),
    FrameType("STDIN_EOF", frames.STDIN_EOF, to_program=True, summary="The end of the input; no payload."),
    FrameType("RESIZE", frames.RESIZE, to_program=True, summary="Rows and columns, two bytes each, big-endian."),
    FrameType("SIGNAL", frames.SIGNAL, to_program=True, summary="One byte: a signal for the foreground processes."),
    FrameType("DETACH", frames.DETACH, to_program=True, summary="The program continues without you; no payload."),
    FrameType(
        "STARTED",
        frames.STARTED,
        to_program=False,
        summary="The program runs. `stdin`, for a client that may return: the bytes of input that it has received.",
        payload=_object(("pid",), pid=_INTEGER, stdin=_INTEGER),
    ),
    FrameType("STDOUT", frames.STDOUT, to_program=False, summary="Standard output; all output of a terminal."),
    FrameType("STDERR", frames.STDERR, to_program=False, summary="Standard error."),
    FrameType("NOTE", frames.NOTE, to_program=False, summary="A text for people."),
    FrameType(
        "EXIT",
        frames.EXIT,
        to_program=False,
        summary="The last frame: reason, exit code or signal, message, and the status that a shell shows.",
        payload=_object(("status",), status=_INTEGER),
    ),
)
INTERNAL_FRAMES = ("GONE", "STDOUT_EOF")  # between control plane and node only


def describe_sockets(routers: Iterable[APIRouter]) -> Json:
    """Return the AsyncAPI document of all WebSocket routes."""
    document: Json = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "gpupool",
            "version": __version__,
            "description": "The pool sends and receives these messages. Credentials: as for HTTP. Close codes: "
            + " ".join(f"{code}: {text}" for code, text in CLOSE_CODES.items()),
        },
        "channels": {},
        "operations": {},
        "components": {"messages": dict(_messages())},
    }
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIWebSocketRoute):
                _add_channel(document, route)
    return document


def _messages() -> Iterator[tuple[str, Json]]:
    for frame in FRAMES:
        payload = frame.payload or {"type": "string", "format": "binary"}
        yield (
            frame.name,
            {
                "name": frame.name,
                "summary": frame.summary,
                "contentType": "application/json" if frame.payload else "application/octet-stream",
                "payload": payload,
                "x-frame-kind": frame.kind,
            },
        )
    yield (
        "BYTES",
        {
            "name": "BYTES",
            "summary": "Bytes of the connection; an empty message ends this direction.",
            "contentType": "application/octet-stream",
            "payload": {"type": "string", "format": "binary"},
        },
    )


def _add_channel(document: Json, route: APIWebSocketRoute) -> None:
    name = str(route.name)
    framed = route.path.endswith("/attach")
    received = [frame.name for frame in FRAMES if frame.to_program] if framed else ["BYTES"]
    sent = [frame.name for frame in FRAMES if not frame.to_program] if framed else ["BYTES"]
    wire = (
        f"A frame is a byte of kind, four bytes of length (big-endian, at most {frames.MAX_PAYLOAD_BYTES}), a payload."
    )
    document["channels"][name] = {
        "address": route.path,
        "description": (inspect.getdoc(route.endpoint) or "") + (f"\n\n{wire}" if framed else ""),
        "parameters": {one: {"description": one} for one in re.findall(r"{(\w+)}", route.path)},
        "messages": {one: {"$ref": f"#/components/messages/{one}"} for one in dict.fromkeys((*received, *sent))},
        "bindings": {"ws": {"method": "GET", "query": _query(route)}},
    }
    for action, names in (("receive", received), ("send", sent)):
        document["operations"][f"{name}_{action}"] = {
            "action": action,
            "channel": {"$ref": f"#/channels/{name}"},
            "messages": [{"$ref": f"#/channels/{name}/messages/{one}"} for one in names],
        }


def _query(route: APIWebSocketRoute) -> Json:
    properties: Json = {}
    required = []
    waiting = [route.dependant]
    while waiting:
        dependant = waiting.pop()
        waiting.extend(dependant.dependencies)
        for field in dependant.query_params:
            kind: Any = field.field_info.annotation
            schema = TypeAdapter(Annotated[kind, Field(), *field.field_info.metadata]).json_schema()
            properties[field.alias] = schema | ({"description": text} if (text := field.field_info.description) else {})
            if field.field_info.is_required():
                required.append(field.alias)
    return {"type": "object", "properties": properties, "required": required}
