"""The messages between control plane and gateway: a round trip for valid ones, a reason for all others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.protocol import gateway_table
from gpupool.domain.protocol.gateway_table import (
    Load,
    MessageError,
    Route,
    RouteAccess,
    RouteChange,
    RouteLimits,
    RouteRemoval,
    RouteReplica,
    Table,
    TokenUse,
    Wake,
    decode_command,
    decode_report,
    encode,
)

DIGEST = "0123456789abcdef" * 4
ROUTE = Route(
    project="team-a",
    name="chat",
    access=RouteAccess.TOKEN,
    tokens=(DIGEST,),
    models=("Qwen/Qwen3-8B",),
    hosts=("chat.services.example.org",),
    limits=RouteLimits(held=4, hold_s=2.5, body_bytes=1000),
    replicas=(
        RouteReplica("w1.0", "10.0.0.5:41230"),
        RouteReplica("w1.1", "[::1]:80", draining=True),
        RouteReplica("w1.2", "10.0.0.6:80", agent="/run/nodes/n1.sock", key="w1.2.0", direct=False),
    ),
    estimate_s=12.5,
    reason="waiting for a GPU",
)


@pytest.mark.parametrize(
    "message",
    [Table(3, (ROUTE, Route("p", "n"))), Table(0), RouteChange(4, ROUTE), RouteRemoval(5, "team-a/chat")],
)
def test_commands_survive_a_round_trip(message: Any) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_command(line) == message


@pytest.mark.parametrize(
    "message",
    [
        Load("a/b", 1, 2, 3, 4, (0.5, 9.0), {DIGEST: TokenUse(3, 1, 5, 7, 0.5)}, refused=1),
        Load("a/b", 0, 0, 0, 0),
        Wake("a/b"),
    ],
)
def test_reports_survive_a_round_trip(message: Any) -> None:
    assert decode_report(encode(message)) == message


def changed(**parts: Any) -> bytes:
    return json.dumps(
        {"type": "route", "version": 1, "route": {**gateway_table.route_to_dict(ROUTE), **parts}}
    ).encode()


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"key": "team-b/chat"}, "key"),
        ({"project": "team/a"}, "project"),
        ({"project": "../x"}, "project"),
        ({"name": ""}, "name"),
        ({"name": 4}, "name"),
        ({"access": "everyone"}, "access"),
        ({"access": ["public"]}, "access"),
        ({"tokens": ["secret"]}, "tokens"),
        ({"tokens": DIGEST}, "tokens"),
        ({"tokens": [DIGEST] * 5001}, "tokens"),
        ({"models": ["a\nb"]}, "models"),
        ({"hosts": ["Chat.example.org"]}, "hosts"),
        ({"hosts": ["a b"]}, "hosts"),
        ({"limits": []}, "limits"),
        ({"limits": {"held": -1}}, "held"),
        ({"limits": {"hold_s": float("nan")}}, "hold_s"),
        ({"limits": {"body_bytes": 1.5}}, "body_bytes"),
        ({"replicas": [{"id": "a", "address": "localhost"}]}, "address"),
        ({"replicas": [{"id": "a", "address": "h:0"}]}, "address"),
        ({"replicas": [{"id": "a", "address": "h:65536"}]}, "address"),
        ({"replicas": [{"id": "a", "address": "h:80\r\nX: y"}]}, "address"),
        ({"replicas": [{"id": "a", "address": "h:80", "draining": 1}]}, "draining"),
        ({"replicas": [{"id": "a", "address": "h:80"}, {"id": "a", "address": "h:81"}]}, "replicas"),
        ({"replicas": ["h:80"]}, "replicas"),
        ({"estimate_s": "soon"}, "estimate_s"),
        ({"estimate_s": True}, "estimate_s"),
        ({"reason": "x" * 513}, "reason"),
    ],
)
def test_a_wrong_route_is_refused_with_the_name_of_its_part(parts: dict[str, Any], named: str) -> None:
    with pytest.raises(MessageError, match=named):
        decode_command(changed(**parts))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"type":"wake","key":"a/b"}',
        b'{"type":"table","version":-1,"routes":[]}',
        b'{"type":"table","routes":[]}',
        b'{"type":"remove","version":1,"key":"a"}',
        b'{"type":"remove","version":1,"key":"a/b/c"}',
        b'{"type":"route","version":1}',
    ],
)
def test_other_lines_are_refused(line: bytes) -> None:
    with pytest.raises(MessageError):
        decode_command(line)


def test_a_key_may_not_appear_twice_in_a_table() -> None:
    with pytest.raises(MessageError, match="twice"):
        decode_command(encode(Table(1, (ROUTE, ROUTE))))


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5), st.data()
)
def test_a_changed_value_is_accepted_or_refused_but_never_breaks_the_decoder(value: Any, data: st.DataObject) -> None:
    report: dict[str, Any] = {
        "type": "load",
        "key": "a/b",
        "in_flight": 0,
        "held": 0,
        "requests": 0,
        "errors": 0,
        "tokens": {DIGEST: {"requests": 1, "errors": 0, "received": 5, "sent": 7, "busy_s": 0.5}, "": 2},
        "refused": 0,
    }
    report[data.draw(st.sampled_from(sorted(report)))] = value
    try:
        decode_report(json.dumps(report).encode())
    except MessageError:
        return
    assert decode_report(encode(decode_report(json.dumps(report).encode())))
