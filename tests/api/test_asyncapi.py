"""The description of the WebSockets agrees with the routes and with what a program really sends."""

from __future__ import annotations

import importlib
import json
import pkgutil
from typing import Any

import httpx2
import jsonschema
import pytest
from fastapi import APIRouter
from fastapi.routing import APIWebSocketRoute
from live_pool import Json, LivePool, shell
from websockets.sync.client import unix_connect

from gpupool.api import routes
from gpupool.api.asyncapi import FRAMES, INTERNAL_FRAMES
from gpupool.domain.protocol import frames


@pytest.fixture(scope="module")
def document(pool: LivePool) -> Json:
    with pool.remote() as stranger:
        answer = stranger.get("/v1/asyncapi.json")
    assert answer.status_code == 200
    found: Json = answer.json()
    return found


def websocket_paths() -> set[str]:
    modules = (importlib.import_module(m.name) for m in pkgutil.walk_packages(routes.__path__, f"{routes.__name__}."))
    routers = (value for module in modules for value in vars(module).values() if isinstance(value, APIRouter))
    return {route.path for router in routers for route in router.routes if isinstance(route, APIWebSocketRoute)}


def test_every_websocket_route_has_a_channel(document: Json) -> None:
    assert {channel["address"] for channel in document["channels"].values()} == websocket_paths()
    assert len(document["operations"]) == 2 * len(document["channels"])


def test_references_exist(document: Json) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [one for part in value.values() for one in references(part)]
        return [one for part in value for one in references(part)] if isinstance(value, list) else []

    for reference in references(document):
        node: Any = document
        for key in reference.removeprefix("#/").split("/"):
            node = node[key]


def test_every_kind_of_frame_is_described(document: Json) -> None:
    known = {name: value for name, value in vars(frames).items() if name.isupper() and isinstance(value, int)}
    kinds = {
        name: kind for name, kind in known.items() if name not in {"VERSION", "MAX_PAYLOAD_BYTES", *INTERNAL_FRAMES}
    }
    messages = document["components"]["messages"]
    assert {name: message["x-frame-kind"] for name, message in messages.items() if name != "BYTES"} == kinds
    assert {frame.name for frame in FRAMES if frame.to_program} == {name for name in kinds if kinds[name] < 64}


def test_query_parameters_are_described(document: Json) -> None:
    query = document["channels"]["forward_socket"]["bindings"]["ws"]["query"]
    assert query["required"] == ["path"]
    assert set(query["properties"]) == {"path", "index", "activity", "half_close"}
    assert query["properties"]["index"]["minimum"] == 0


def test_frames_of_a_program_match_their_description(pool: LivePool, http: httpx2.Client, document: Json) -> None:
    described = {message.get("x-frame-kind"): message for message in document["components"]["messages"].values()}
    hello = {"version": 1, "rows": 24, "columns": 80, "stdin": True}
    jsonschema.validate(hello, described[frames.HELLO]["payload"])
    body = shell("echo out; echo err >&2; read line; exit 3", stdin=True, client_bound=True, kind="run")
    made = http.post("/v1/workloads", json=body, params={"wait": "started"}).json()
    buffer, received = bytearray(), []
    with unix_connect(str(pool.socket), f"ws://pool/v1/workloads/{made['id']}/attach", compression=None) as socket:
        socket.send(frames.encode(frames.HELLO, json.dumps(hello).encode()))
        socket.send(frames.encode(frames.STDIN, b"line\n") + frames.encode(frames.STDIN_EOF))
        for message in socket:
            assert isinstance(message, bytes)
            buffer += message
            received += frames.decode(buffer)
    assert {frames.STARTED, frames.STDOUT, frames.STDERR, frames.EXIT} <= {kind for kind, _ in received}
    sent_by_pool = {frame.kind for frame in FRAMES if not frame.to_program}
    for kind, payload in received:
        assert kind in sent_by_pool
        if described[kind]["contentType"] == "application/json":
            jsonschema.validate(json.loads(payload), described[kind]["payload"])
    assert json.loads(received[-1][1])["status"] == 3
