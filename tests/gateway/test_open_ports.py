"""Ports of workloads have an origin of their own: only its pages, with its credentials, reach the program."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from gateway_process import ControlPlane, GatewayProcess, Replica, body_of, digest, problem_of, read_until, status_of

from gpupool.domain.protocol.gateway_table import (
    MessageError,
    Route,
    RouteAccess,
    RouteChange,
    RouteReplica,
    decode_command,
    encode,
    port_host,
)
from gpupool.gateway.local_programs import location_to_client

TICKET = "gpo_ticket-of-a-visitor"
WORKLOAD = "w3k9x2m4qp7"
START = Callable[..., Replica]


def host_of(gateway: GatewayProcess) -> str:
    return f"{port_host(WORKLOAD, 0, 8888, 'localhost')}:{gateway.port}"


def opened(port: int) -> Route:
    hosts = (port_host(WORKLOAD, 0, 8888, "localhost"),)
    entry = RouteReplica("p", f"127.0.0.1:{port}")
    return Route(WORKLOAD, "0-8888", RouteAccess.TOKEN, (digest(TICKET),), hosts=hosts, replicas=(entry,), local=True)


def ask(gateway: GatewayProcess, *fields: str, path: str = "/echo", method: str = "GET", host: str = "") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host or host_of(gateway)}", "Connection: close", *fields]
    return gateway.ask("\r\n".join(lines) + "\r\n\r\n")


@pytest.fixture
def program(gateway: GatewayProcess, control: ControlPlane, replica: START) -> Replica:
    server = replica()
    gateway.table(control, opened(server.port))
    return server


COOKIE = f"Cookie: gpupool-service={TICKET}; theme=dark; gpupool-session=of-the-dashboard"


def test_the_link_sets_a_cookie_and_loads_the_page_without_its_ticket(
    gateway: GatewayProcess, program: Replica
) -> None:
    answer = ask(gateway, path=f"/lab?gpupool_token={TICKET}&token=of-jupyter").decode()
    assert status_of(answer.encode()) == 303
    assert "Location: /lab?token=of-jupyter\r\n" in answer
    assert f"Set-Cookie: gpupool-service={TICKET}; Path=/; HttpOnly; SameSite=Lax" in answer
    assert "Referrer-Policy: no-referrer" in answer
    assert not program.requests()


def test_the_program_sees_a_request_for_localhost_without_credentials(
    gateway: GatewayProcess, program: Replica
) -> None:
    own = f"http://{host_of(gateway)}"
    fields = (COOKIE, f"Origin: {own}", f"Referer: {own}/lab/tree", "Sec-Fetch-Site: same-origin", "Content-Length: 0")
    seen = json.loads(body_of(ask(gateway, *fields, method="POST")))
    text = json.dumps(seen)
    assert f"localhost:{program.port}" in text
    assert f"http://localhost:{program.port}/lab/tree" in text
    assert "theme=dark" in text
    for hidden in (TICKET, "of-the-dashboard", WORKLOAD, "forwarded"):
        assert hidden not in text.lower(), hidden


@pytest.mark.parametrize(
    "fields",
    [
        ("Origin: https://evil.example",),
        ("Origin: http://localhost:8490",),
        ("Origin: null",),
        ("Origin: http://{host}", "Origin: https://evil.example"),
        ("Origin: https://{host}",),
        ("Sec-Fetch-Site: cross-site",),
        ("Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"),
        ("Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"),
        ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document", "Origin: null"),
        ("Origin: https://evil.example", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x"),
    ],
)
def test_requests_that_pages_of_other_origins_cause_are_refused(
    gateway: GatewayProcess, program: Replica, fields: tuple[str, ...]
) -> None:
    answer = ask(gateway, COOKIE, *[each.replace("{host}", host_of(gateway)) for each in fields])
    assert status_of(answer) == 403
    assert not program.requests()


def test_a_followed_link_may_open_the_page_but_not_post(gateway: GatewayProcess, program: Replica) -> None:
    link = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
    assert status_of(ask(gateway, COOKIE, *link)) == 200
    assert status_of(ask(gateway, COOKIE, *link, "Content-Length: 0", method="POST")) == 403
    assert [each["method"] for each in program.requests() if "method" in each] == ["GET"]


def test_without_the_ticket_nothing_is_passed_on(gateway: GatewayProcess, program: Replica) -> None:
    assert status_of(ask(gateway)) == 401
    assert status_of(ask(gateway, "Cookie: gpupool-service=other")) == 401
    assert status_of(ask(gateway, path=f"/s/{WORKLOAD}/0-8888/echo", host="x")) == 404  # only at its host name
    assert not program.requests()


def test_a_websocket_needs_the_origin_of_the_page(gateway: GatewayProcess, program: Replica) -> None:
    upgrade = ["GET /ws HTTP/1.1", f"Host: {host_of(gateway)}", f"Origin: http://{host_of(gateway)}", COOKIE]
    upgrade += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-Fetch-Site: same-origin"]
    with gateway.connect() as sock:
        sock.sendall(("\r\n".join(upgrade) + "\r\n\r\n").encode())
        assert status_of(read_until(sock, b"\r\n\r\n")) == 101
        sock.sendall(b"hello")
        assert read_until(sock, b"hello").endswith(b"hello")


def test_a_service_gets_neither_the_host_name_of_a_port_nor_its_pages(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    hosts = (port_host(WORKLOAD, 0, 8888, "localhost"), "chat.example.org")
    server = replica()
    entry = RouteReplica("r", f"127.0.0.1:{server.port}")
    gateway.table(control, Route("t", "n", RouteAccess.PUBLIC, hosts=hosts, replicas=(entry,)))
    assert status_of(ask(gateway, host="chat.example.org")) == 200
    for path in ("/echo", "/s/t/n/echo", "/v1/models"):
        refused = ask(gateway, path=path)
        assert (status_of(refused), problem_of(refused)["code"]) == (404, "NOT_FOUND")
    assert [each.get("target") for each in server.requests() if "target" in each] == ["/echo"]


def test_an_opened_port_is_never_public() -> None:
    for access, hosts in ((RouteAccess.PUBLIC, ()), (RouteAccess.TOKEN, ("chat.example.org",))):
        with pytest.raises(MessageError, match="local"):
            decode_command(encode(RouteChange(1, Route(WORKLOAD, "0-1", access, hosts=hosts, local=True))))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"/lab", b"/lab"),
        (b"http://localhost:8888/lab?a=b", b"/lab?a=b"),
        (b"http://127.0.0.1:8888/", b"/"),
        (b"http://localhost:8888", b"/"),
        (b"http://localhost:8888//evil.example/", b"/evil.example/"),
        (b"http://localhost:88889/", b"http://localhost:88889/"),
        (b"https://example.org/", b"https://example.org/"),
    ],
)
def test_redirects_to_localhost_stay_at_the_host_name(given: bytes, expected: bytes) -> None:
    assert location_to_client(given, b"localhost:8888") == expected
