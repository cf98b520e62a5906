"""Routes by path, host name and model, from a real client's bytes to a real replica's."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from gateway_process import (
    OTHER_TOKEN,
    TOKEN,
    ControlPlane,
    GatewayProcess,
    Replica,
    body_of,
    digest,
    problem_of,
    status_of,
)

from gpupool.domain.protocol.gateway_table import Route, RouteAccess, RouteLimits

PUBLIC = RouteAccess.PUBLIC


def get(path: str, *fields: str, method: str = "GET", body: str = "", host: str = "gpu1:8471") -> str:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *fields]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines) + "\r\n\r\n" + body


def sent(response: bytes) -> dict[str, object]:
    assert status_of(response) == 200, response
    found: dict[str, object] = json.loads(body_of(response))
    return found


def fields_of(response: bytes) -> dict[str, str]:
    return dict(sent(response)["fields"])  # type: ignore[call-overload, no-any-return]


def test_path_prefix_is_removed_and_told(
    gateway: GatewayProcess, control: ControlPlane, replica: Callable[..., Replica]
) -> None:
    gateway.table(control, Route("team", "chat", PUBLIC, replicas=(replica().entry(),)))
    answer = gateway.ask(get("/s/team/chat/a/b?x=1&y=%20", "X-Forwarded-For: 6.6.6.6", "Forwarded: for=6.6.6.6"))
    assert sent(answer)["target"] == "/a/b?x=1&y=%20"
    fields = fields_of(answer)
    assert fields["x-forwarded-for"] == "127.0.0.1"
    assert fields["x-forwarded-prefix"] == "/s/team/chat"
    assert fields["x-forwarded-host"] == fields["host"] == "gpu1:8471"
    assert fields["x-forwarded-proto"] == "http"
    assert "forwarded" not in fields
    assert "connection" not in fields


def test_a_service_without_a_slash_is_redirected(
    gateway: GatewayProcess, control: ControlPlane, replica: Callable[..., Replica]
) -> None:
    gateway.table(control, Route("team", "chat", PUBLIC, replicas=(replica().entry(),)))
    answer = gateway.ask(get("/s/team/chat?a=1"))
    assert status_of(answer) == 308
    assert b"Location: /s/team/chat/?a=1\r\n" in answer


def test_host_names_reach_their_service_at_the_root(
    gateway: GatewayProcess, control: ControlPlane, replica: Callable[..., Replica]
) -> None:
    gateway.table(control, Route("t", "n", PUBLIC, hosts=("n.example.org",), replicas=(replica().entry(),)))
    answer = gateway.ask(get("/v1/models", host="N.example.org:8443"))
    assert sent(answer)["target"] == "/v1/models"
    assert "x-forwarded-prefix" not in fields_of(answer)
    assert status_of(gateway.ask(get("/", host="other.example.org"))) == 404


@pytest.mark.parametrize("path", ["/", "/s", "/s/", "/s/t", "/s/t/other/", "/s//n/", "/v1/audio", "/s/t%2Fn/"])
def test_unknown_addresses_are_not_found(gateway: GatewayProcess, control: ControlPlane, path: str) -> None:
    gateway.table(control, Route("t", "n", PUBLIC))
    assert problem_of(gateway.ask(get(path)))["code"] in {"NOT_FOUND", "UNKNOWN_SERVICE"}


@pytest.fixture
def models(gateway: GatewayProcess, control: ControlPlane, replica: Callable[..., Replica]) -> Replica:
    one = replica()
    token = (digest(TOKEN),)
    gateway.table(
        control,
        Route("a", "chat", RouteAccess.PROJECT, token, models=("qwen", "qwen-small"), replicas=(one.entry(),)),
        Route("b", "embed", RouteAccess.PROJECT, (digest(OTHER_TOKEN),), models=("bge",), replicas=(one.entry(),)),
    )
    return one


AUTH = f"Authorization: Bearer {TOKEN}"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
def test_calls_reach_the_service_of_their_model(gateway: GatewayProcess, models: Replica, path: str) -> None:
    body = json.dumps({"model": "qwen", "messages": ["ü" * 100_000]})
    answer = sent(gateway.ask(get(path, AUTH, method="POST", body=body)))
    assert answer["body"] == body
    assert answer["target"] == path
    assert "authorization" not in dict(answer["fields"])  # type: ignore[call-overload]


def test_a_chunked_call_is_sent_on_with_its_length(gateway: GatewayProcess, models: Replica) -> None:
    request = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{AUTH}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    answer = sent(gateway.ask(request + '8\r\n{"model"\r\n8\r\n:"qwen"}\r\n0\r\n\r\n'))
    assert answer["body"] == '{"model":"qwen"}'
    fields = dict(answer["fields"])  # type: ignore[call-overload]
    assert fields["content-length"] == "16"
    assert "transfer-encoding" not in fields


def test_expect_is_answered_by_the_gateway_when_it_needs_the_body(gateway: GatewayProcess, models: Replica) -> None:
    head = get("/v1/completions", AUTH, "Expect: 100-continue", "Content-Length: 16", method="POST")
    with gateway.connect() as sock:
        sock.sendall(head.encode())
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b'{"model":"qwen"}')
        answer = b""
        while part := sock.recv(65536):
            answer += part
    assert "expect" not in fields_of(answer)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ('{"model": "gpt-5"}', 404, "UNKNOWN_MODEL"),
        ('{"model": "bge"}', 404, "UNKNOWN_MODEL"),  # of a project that the token does not belong to
        ('{"model": 5}', 400, "INVALID_REQUEST"),
        ("{}", 400, "INVALID_REQUEST"),
        ("[1]", 400, "INVALID_REQUEST"),
        ("[" * 100_000, 400, "INVALID_REQUEST"),
        ("\xff\xfe", 400, "INVALID_REQUEST"),
        ("", 400, "INVALID_REQUEST"),
    ],
)
def test_calls_without_a_usable_model(
    gateway: GatewayProcess, models: Replica, body: str, status: int, code: str
) -> None:
    problem = problem_of(gateway.ask(get("/v1/chat/completions", AUTH, method="POST", body=body)))
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["error"]["message"]
    assert not models.requests()


def test_a_call_that_is_too_large_is_refused_before_its_body(gateway: GatewayProcess, models: Replica) -> None:
    head = get("/v1/completions", AUTH, "Content-Length: 10485761", method="POST")
    assert problem_of(gateway.ask(head))["code"] == "TOO_LARGE"


def test_a_chunked_call_that_becomes_too_large_is_refused(gateway: GatewayProcess, models: Replica) -> None:
    head = get("/v1/completions", AUTH, "Transfer-Encoding: chunked", method="POST").encode()
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    assert problem_of(gateway.ask(head + chunk * 11))["code"] == "TOO_LARGE"


def test_models_are_those_that_the_token_may_use(gateway: GatewayProcess, models: Replica) -> None:
    listed = sent(gateway.ask(get("/v1/models", AUTH)))
    assert [entry["id"] for entry in listed["data"]] == ["qwen", "qwen-small"]  # type: ignore[attr-defined]
    assert sent(gateway.ask(get("/v1/models/qwen", AUTH)))["owned_by"] == "a/chat"
    assert problem_of(gateway.ask(get("/v1/models/bge", AUTH)))["code"] == "UNKNOWN_MODEL"
    assert problem_of(gateway.ask(get("/v1/models")))["code"] == "UNAUTHENTICATED"
    assert problem_of(gateway.ask(get("/v1/completions", method="POST", body="{}")))["code"] == "UNAUTHENTICATED"
    assert problem_of(gateway.ask(get("/v1/completions", AUTH)))["status"] == 405


def test_a_body_above_the_limit_of_its_service_is_refused(
    gateway: GatewayProcess, control: ControlPlane, replica: Callable[..., Replica]
) -> None:
    one = replica()
    limits = RouteLimits(body_bytes=10)
    gateway.table(control, Route("t", "n", PUBLIC, limits=limits, replicas=(one.entry(),)))
    assert problem_of(gateway.ask(get("/s/t/n/", method="POST", body="x" * 11)))["code"] == "TOO_LARGE"
    assert not one.requests()
    chunked = get("/s/t/n/", "Transfer-Encoding: chunked", method="POST") + "b\r\nhello world\r\n0\r\n\r\n"
    assert problem_of(gateway.ask(chunked))["code"] == "TOO_LARGE"
    assert status_of(gateway.ask(get("/s/t/n/", method="POST", body="x" * 10))) == 200
