"""Hostile and broken HTTP over real sockets: always a clear answer, and nothing reaches a replica that should not."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import pytest
from gateway_process import (
    ControlPlane,
    GatewayProcess,
    Replica,
    body_of,
    eventually,
    problem_of,
    read_all,
    read_until,
    status_of,
)

from gpupool.domain.protocol.gateway_table import Route, RouteAccess

GET = "GET /s/t/n/name HTTP/1.1\r\nHost: x\r\n"
POST = "POST /s/t/n/echo HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def one(gateway: GatewayProcess, control: ControlPlane, replica: Callable[..., Replica]) -> Replica:
    found = replica()
    gateway.table(control, Route("t", "n", RouteAccess.PUBLIC, replicas=(found.entry(),)))
    return found


def test_each_kind_of_smuggling_is_refused_and_the_connection_ends(gateway: GatewayProcess, one: Replica) -> None:
    smuggled = "GET /s/t/n/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    for fields, body in (
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ("Content-Length: 5\r\nContent-Length: 0\r\n", "hello"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding:\x0bchunked\r\n", "0\r\n\r\n"),
        ("X: a\r\n Transfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ("X: a\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n", "5;\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n", "0\r\nHost: y\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n", "0\n\n"),
        ("Host: y\r\n", ""),
    ):
        answer = gateway.ask(f"{POST}{fields}\r\n{body}{smuggled}")
        assert problem_of(answer)["code"] == "MALFORMED_REQUEST"
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"Connection: close" in answer
    assert not [entry for entry in one.requests() if "smuggled" in str(entry.get("target"))]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", 400),  # TLS to a plain port
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /" + b"a" * 40_000, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 10_000, 431),
    ],
)
def test_other_bytes_get_an_answer(gateway: GatewayProcess, one: Replica, data: bytes, status: int) -> None:
    assert problem_of(gateway.ask(data))["status"] == status


def test_slow_heads_time_out_and_others_are_served_meanwhile(gateway: GatewayProcess, one: Replica) -> None:
    slow, silent = gateway.connect(), gateway.connect()
    begun = time.monotonic()
    with slow, silent:
        slow.sendall(b"GET /s/t/n/name HTTP/1.1\r\nHost: x\r\nX-A: ")
        for _ in range(20):
            assert status_of(gateway.ask(GET + "Connection: close\r\n\r\n")) == 200
        assert problem_of(read_all(slow))["code"] == "REQUEST_TIMEOUT"
        assert read_all(silent) == b""  # it has asked nothing
    assert time.monotonic() - begun >= 14


def test_a_head_in_single_bytes_is_served(gateway: GatewayProcess, one: Replica) -> None:
    with gateway.connect() as sock:
        for byte in (POST + "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n").encode():
            sock.sendall(bytes([byte]))
        assert json.loads(body_of(read_all(sock)))["body"] == "hello"


def test_pipelined_requests_are_answered_in_their_order(gateway: GatewayProcess, one: Replica) -> None:
    requests = "".join(f"{POST}Content-Length: {len(str(n))}\r\n\r\n{n}" for n in range(50))
    last = f"{GET}Connection: close\r\n\r\n"
    answer = gateway.ask(requests + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 51
    bodies = [json.loads(part[: part.index(b"}") + 1].decode())["body"] for part in answer.split(b"\r\n\r\n")[1:-1]]
    assert bodies == [str(n) for n in range(50)]


def test_many_pipelined_errors_do_not_nest(gateway: GatewayProcess, one: Replica) -> None:
    answer = gateway.ask("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n" * 1000 + f"{GET}Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 404") == 1000
    assert answer.count(b"HTTP/1.1 200") == 1


def test_http_1_0_is_answered_without_chunks_and_closed(gateway: GatewayProcess, one: Replica) -> None:
    answer = gateway.ask("GET /s/t/n/stream?3 HTTP/1.0\r\n\r\n")
    assert b"Connection: close" in answer
    assert b"Transfer-Encoding" not in answer
    assert body_of(answer) == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    sent = [entry["fields"] for entry in one.requests() if "fields" in entry]  # its end is an entry, too
    assert sent[-1][0] == ["host", "localhost"]


def test_expect_is_passed_to_the_replica(gateway: GatewayProcess, one: Replica) -> None:
    with gateway.connect() as sock:
        sock.sendall(f"{POST}Expect: 100-continue\r\nContent-Length: 5\r\nConnection: close\r\n\r\n".encode())
        assert read_until(sock, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"hello")
        assert json.loads(body_of(read_all(sock)))["body"] == "hello"


def test_an_answer_before_the_body_closes_the_connection(gateway: GatewayProcess, one: Replica) -> None:
    head = "POST /s/t/n/early HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    answer = gateway.ask(head)
    assert status_of(answer) == 403
    assert b"Connection: close" in answer
    assert body_of(answer) == b"early"


def test_a_body_that_ends_early_is_refused(gateway: GatewayProcess, one: Replica) -> None:
    for body in ("Content-Length: 9\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhel"):
        assert problem_of(gateway.ask(f"{POST}{body}", end=True))["code"] == "MALFORMED_REQUEST"
    assert problem_of(gateway.ask(GET, end=True))["code"] == "MALFORMED_REQUEST"


def test_a_client_that_only_stops_sending_gets_its_answer(gateway: GatewayProcess, one: Replica) -> None:
    request = "GET /s/t/n/slow?0.3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert body_of(gateway.ask(request, end=True)) == b"r0"


def test_a_client_that_leaves_ends_the_request_at_the_replica(gateway: GatewayProcess, one: Replica) -> None:
    for ending in (socket.SHUT_RDWR, None):
        before = len(one.requests())
        sock = gateway.connect()
        sock.sendall(b"GET /s/t/n/slow?600 HTTP/1.1\r\nHost: x\r\n\r\n")
        eventually(lambda before=before: len(one.requests()) > before)
        if ending is not None:
            sock.shutdown(ending)
        sock.close()
        eventually(lambda: one.requests()[-1] == {"event": "disconnected"})


def test_a_large_upload_streams_with_little_memory(gateway: GatewayProcess, one: Replica) -> None:
    assert gateway.process is not None
    size = 200 << 20
    with gateway.connect() as sock:
        sock.sendall(f"{POST}Content-Length: {size}\r\nConnection: close\r\n\r\n".encode())
        part = b"x" * (1 << 20)
        for _ in range(size >> 20):
            sock.sendall(part)
        assert json.loads(body_of(read_all(sock)))["bytes"] == size
    assert memory_mib(gateway.process.pid) < 80


def test_a_slow_reader_does_not_fill_the_memory(gateway: GatewayProcess, one: Replica) -> None:
    assert gateway.process is not None
    size = 200 << 20
    with gateway.connect() as sock:
        sock.sendall(f"GET /s/t/n/big?{size} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head = read_until(sock, b"\r\n\r\n")
        received = len(body_of(head))
        for _ in range(20):
            assert status_of(gateway.ask(GET + "Connection: close\r\n\r\n")) == 200
        assert memory_mib(gateway.process.pid) < 80
        while part := sock.recv(1 << 20):
            received += len(part)
    assert received == size


def memory_mib(pid: int) -> float:
    """Return the largest memory that a process has used so far."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:  # noqa: PTH123
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))


def test_refused_uploads_get_their_answer(gateway: GatewayProcess, one: Replica) -> None:
    """The client is still sending when the gateway answers: closing at once would destroy the answer."""
    with gateway.connect() as sock:
        sock.sendall(b"POST /s/t/unknown/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 300_000)
        assert problem_of(read_all(sock))["code"] == "UNKNOWN_SERVICE"
