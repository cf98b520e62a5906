"""Credentials: who is admitted, and that no replica ever sees them."""

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

from gpupool.domain.protocol.gateway_table import Route, RouteAccess


def get(path: str, *fields: str, method: str = "GET") -> str:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *fields]) + "\r\n\r\n"


@pytest.fixture
def one(gateway: GatewayProcess, control: ControlPlane, replica: Callable[..., Replica]) -> Replica:
    found = replica()
    gateway.table(
        control,
        Route("a", "chat", RouteAccess.PROJECT, (digest(TOKEN),), replicas=(found.entry(),), hosts=("chat.org",)),
        Route("b", "page", RouteAccess.TOKEN, (digest(OTHER_TOKEN),), replicas=(found.entry(),)),
        Route("c", "open", RouteAccess.PUBLIC, replicas=(found.entry(),)),
    )
    return found


def seen(answer: bytes) -> str:
    assert status_of(answer) == 200, answer
    return body_of(answer).decode()


@pytest.mark.parametrize("path", ["/s/a/chat/x", "/s/a/chat/"])
def test_a_token_is_needed(gateway: GatewayProcess, one: Replica, path: str) -> None:
    answer = gateway.ask(get(path))
    assert problem_of(answer)["code"] == "UNAUTHENTICATED"
    assert b"WWW-Authenticate: Bearer" in answer
    for wrong in ("Bearer wrong", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer x {TOKEN}"):
        assert problem_of(gateway.ask(get(path, f"Authorization: {wrong}")))["code"] == "UNAUTHENTICATED"
    assert problem_of(gateway.ask(get(path, f"Authorization: Bearer {OTHER_TOKEN}")))["code"] == "FORBIDDEN"
    assert problem_of(gateway.ask(get(path, f"Authorization: Bearer {digest(TOKEN)}")))["code"] == "UNAUTHENTICATED"
    assert not one.requests()


@pytest.mark.parametrize(
    "fields",
    [
        [f"Authorization: Bearer {TOKEN}"],
        [f"authorization: bearer  {TOKEN}"],
        [f"Cookie: a=1; gpupool-service={TOKEN}; b=2"],
        [f"Cookie: gpupool-service={TOKEN}", f"Authorization: Bearer {OTHER_TOKEN}"],
        [f"Cookie: gpupool-service={TOKEN}", "Authorization: Bearer gpt_t9_unknown"],
        [f"Cookie: gpupool-service={TOKEN}; gpupool-p1-session=abc; __Host-gpupool-p1-session=abc; A=b"],
        [f"Authorization: Bearer {TOKEN}", f"X-Api-Key: {TOKEN}", f"Proxy-Authorization: Bearer {TOKEN}"],
    ],
)
def test_no_credential_of_the_pool_reaches_a_replica(gateway: GatewayProcess, one: Replica, fields: list[str]) -> None:
    text = seen(gateway.ask(get("/s/a/chat/x", *fields)))
    for secret in (TOKEN, OTHER_TOKEN, "gpt_", "gpupool-", "uthorization"):
        assert secret not in text.replace("x-forwarded", "")


def test_a_public_service_gets_its_own_credentials_only(gateway: GatewayProcess, one: Replica) -> None:
    own = ("Authorization: Bearer sk-own", "Cookie: a=1; gpupool-service=x; b=2", "X-Api-Key: own")
    fields = dict(json.loads(seen(gateway.ask(get("/s/c/open/", *own))))["fields"])
    assert fields["authorization"] == "Bearer sk-own"
    assert fields["cookie"] == "a=1; b=2"
    assert fields["x-api-key"] == "own"
    assert TOKEN not in seen(gateway.ask(get("/s/c/open/", f"Authorization: Bearer {TOKEN}")))


def test_a_link_sets_a_cookie_for_its_service_only(gateway: GatewayProcess, one: Replica) -> None:
    answer = gateway.ask(get(f"/s/a/chat/x?a=1&gpupool_token={TOKEN}&b=2"))
    assert status_of(answer) == 303
    assert b"Location: /s/a/chat/x?a=1&b=2\r\n" in answer
    cookie = f"Set-Cookie: gpupool-service={TOKEN}; Path=/s/a/chat/; HttpOnly; SameSite=Lax\r\n"
    assert cookie.encode() in answer
    assert not one.requests()
    assert status_of(gateway.ask(get("/s/a/chat/x", f"Cookie: gpupool-service={TOKEN}"))) == 200


@pytest.mark.parametrize("path", ["/s/a/chat/?gpupool_token=wrong", "/s/a/chat/?gpupool_token="])
def test_a_link_with_a_wrong_token_sets_no_cookie(gateway: GatewayProcess, one: Replica, path: str) -> None:
    answer = gateway.ask(get(path))
    assert problem_of(answer)["code"] == "UNAUTHENTICATED"
    assert b"Set-Cookie" not in answer


def test_a_link_never_leads_to_another_host(gateway: GatewayProcess, one: Replica) -> None:
    for path in ("//evil.org/", "/\\evil.org/", "///evil.org"):
        request = get(f"{path}?gpupool_token={TOKEN}").replace("Host: x", "Host: chat.org")
        assert b"Location: /evil.org" in gateway.ask(request)


def test_the_token_of_a_link_is_not_accepted_for_other_methods(gateway: GatewayProcess, one: Replica) -> None:
    assert status_of(gateway.ask(get(f"/s/a/chat/?gpupool_token={TOKEN}", method="DELETE"))) == 405
    assert not one.requests()


def test_a_replica_cannot_change_other_services(gateway: GatewayProcess, one: Replica) -> None:
    answer = gateway.ask(get("/s/c/open/headers")).decode()
    assert "Location: /s/c/open/login?next=%2F\r\n" in answer
    assert "Set-Cookie: own=1\r\n" in answer
    for removed in ("stolen", "Service-Worker-Allowed", "Alt-Svc", "X-Private", "timeout=5"):
        assert removed not in answer


def test_trusted_proxies_say_where_a_request_comes_from(
    gateway: GatewayProcess, control: ControlPlane, replica: Callable[..., Replica]
) -> None:
    gateway.stop()
    gateway.options = ("--fallback", "--trusted-proxy", "127.0.0.0/8")
    gateway.start()
    gateway.table(
        gateway.control_plane(), Route("t", "n", RouteAccess.PROJECT, (digest(TOKEN),), replicas=(replica().entry(),))
    )
    forwarded = ("X-Forwarded-For: 203.0.113.7", "X-Forwarded-Proto: https")
    fields = dict(json.loads(seen(gateway.ask(get("/s/t/n/", f"Authorization: Bearer {TOKEN}", *forwarded))))["fields"])
    assert fields["x-forwarded-for"] == "203.0.113.7, 127.0.0.1"
    assert fields["x-forwarded-proto"] == "https"
    assert b"; Secure\r\n" in gateway.ask(get(f"/s/t/n/?gpupool_token={TOKEN}", *forwarded))
