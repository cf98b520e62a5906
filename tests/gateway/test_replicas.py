"""Replicas that are missing, slow, leaving or dying: requests are held, retried or answered clearly."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from gateway_process import (
    TIMEOUT_S,
    TOKEN,
    ControlPlane,
    GatewayProcess,
    Replica,
    body_of,
    digest,
    eventually,
    problem_of,
    read_all,
    read_until,
    readable,
    status_of,
)

from free_ports import free_port
from gpupool.domain.protocol.gateway_table import (
    Route,
    RouteAccess,
    RouteChange,
    RouteLimits,
    RouteRemoval,
    RouteReplica,
    TokenUse,
)

START = Callable[..., Replica]


def get(path: str = "/s/t/n/name", *fields: str, method: str = "GET") -> bytes:
    return ("\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *fields]) + "\r\n\r\n").encode()


def route(
    *replicas: RouteReplica, held: int = 10, hold_s: float = 60, models: tuple[str, ...] = (), **more: object
) -> Route:
    limits = RouteLimits(held=held, hold_s=hold_s)
    return Route("t", "n", RouteAccess.PUBLIC, limits=limits, replicas=replicas, models=models, **more)  # type: ignore[arg-type]


def change(gateway: GatewayProcess, control: ControlPlane, changed: Route) -> None:
    gateway.version += 1
    control.send(RouteChange(gateway.version, changed))


def send(gateway: GatewayProcess, request: bytes) -> socket.socket:
    sock = gateway.connect()
    sock.sendall(request)
    return sock


def test_requests_are_held_until_there_is_a_replica(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    gateway.table(control, route())
    body = b"x" * 300_000  # more than is kept in memory while the request is held
    post = get("/s/t/n/echo", f"Content-Length: {len(body)}", method="POST")
    first = send(gateway, post)
    sender = threading.Thread(target=lambda: first.sendall(body))
    sender.start()
    control.wait_wake("t/n")
    others = [send(gateway, get()) for _ in range(3)]
    load = control.wait_load("t/n", lambda load: load.held == 4)
    assert load.in_flight == 0
    change(gateway, control, route(replica().entry()))
    sender.join(TIMEOUT_S)
    assert json.loads(body_of(read_all(first)))["bytes"] == len(body)
    assert [body_of(read_all(sock)) for sock in others] == [b"r0"] * 3
    load = control.wait_load("t/n", lambda load: load.in_flight == 0 and load.held == 0)
    assert load.errors == 0
    for sock in (first, *others):
        sock.close()


def test_more_requests_than_the_limit_get_503_at_once(gateway: GatewayProcess, control: ControlPlane) -> None:
    gateway.table(control, route(held=2, estimate_s=42.4, reason="waits for a GPU"))
    held = [send(gateway, b"GET /s/t/n/name HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(2)]
    control.wait_load("t/n", lambda load: load.held == 2)
    answer = gateway.ask(get())
    assert problem_of(answer)["code"] == "SERVICE_NOT_READY"
    assert "waits for a GPU" in problem_of(answer)["detail"]
    assert status_of(answer) == 503
    assert b"Retry-After: 42\r\n" in answer
    held[0].close()
    control.wait_load("t/n", lambda load: load.held == 1)  # a client that leaves frees its place
    held[1].close()


def test_a_stopped_service_answers_at_once_why(gateway: GatewayProcess, control: ControlPlane) -> None:
    gateway.table(control, route(held=0, reason="The service n is stopped."))
    problem = problem_of(gateway.ask(get()))
    assert problem["detail"] == "The service t/n has no replica that is ready (The service n is stopped)."


def test_a_request_is_not_held_for_ever(gateway: GatewayProcess, control: ControlPlane) -> None:
    gateway.table(control, route(hold_s=0.5))
    answer = gateway.ask(get())
    assert problem_of(answer)["code"] == "SERVICE_NOT_READY"
    assert b"Retry-After: 10\r\n" in answer


def test_a_removed_service_answers_its_held_requests(gateway: GatewayProcess, control: ControlPlane) -> None:
    gateway.table(control, route())
    sock = send(gateway, get())
    control.wait_wake("t/n")
    gateway.version += 1
    control.send(RouteRemoval(gateway.version, "t/n"))
    assert problem_of(read_all(sock))["code"] == "UNKNOWN_SERVICE"
    sock.close()


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_event_streams_get_comments_while_held(
    gateway: GatewayProcess, control: ControlPlane, replica: START, version: str
) -> None:
    gateway.table(control, route(estimate_s=30, reason="starting"))
    request = get("/s/t/n/stream?3", "Accept: text/event-stream").replace(b"HTTP/1.1", f"HTTP/{version}".encode())
    with send(gateway, request) as sock:
        begun = read_until(sock, b": waiting for a replica, expected in 30 s (starting)\n\n")
        assert status_of(begun) == 200
        assert b"Content-Type: text/event-stream\r\n" in begun
        change(gateway, control, route(replica().entry()))
        rest = read_all(sock)
    if version == "1.1":
        assert rest.endswith(b"0\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in begun
    else:
        assert rest.endswith(b"data: 2\n\n")
    for number in range(3):
        assert b"data: %d\n\n" % number in rest


def test_a_stream_that_was_begun_ends_with_an_error_event(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    gateway.table(control, route(models=("m",)))
    body = b'{"model":"m","stream":true}'
    request = get("/v1/chat/completions", f"Content-Length: {len(body)}", method="POST") + body
    with send(gateway, request) as sock:
        read_until(sock, b": waiting for a replica")
        change(gateway, control, route(replica().entry(), models=("m",)))  # it answers with JSON, not with a stream
        rest = read_all(sock)
    event = rest[rest.index(b"event: error\ndata: ") + 19 :].split(b"\n\n")[0]
    assert json.loads(event)["code"] == "REPLICA_FAILED"
    assert json.loads(event)["error"]["message"]
    assert rest.endswith(b"0\r\n\r\n")


def test_each_request_goes_to_the_replica_with_the_fewest(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    one, two = replica("one"), replica("two")
    gateway.table(control, route(one.entry(), two.entry()))
    slow = [send(gateway, get("/s/t/n/slow?60")) for _ in range(8)]
    eventually(lambda: len(one.requests()) + len(two.requests()) == 8)
    assert len(one.requests()) == len(two.requests()) == 4
    for sock in slow:
        sock.close()


def test_a_draining_replica_finishes_and_gets_no_new_requests(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    one, two = replica("one"), replica("two")
    gateway.table(control, route(one.entry()))
    with send(gateway, get("/s/t/n/stream?20")) as stream, gateway.connect() as kept:
        read_until(stream, b"data: 0")
        kept.sendall(b"GET /s/t/n/name HTTP/1.1\r\nHost: x\r\n\r\n")
        read_until(kept, b"one")
        gateway.table(control, route(one.entry(draining=True), two.entry()))
        kept.sendall(b"GET /s/t/n/name HTTP/1.1\r\nHost: x\r\n\r\n")
        read_until(kept, b"two")
        assert {body_of(gateway.ask(get())) for _ in range(5)} == {b"two"}
        gateway.table(control, route(two.entry()))
        assert read_all(stream).endswith(b"data: 19\n\n\r\n0\r\n\r\n")


def test_no_request_fails_while_replicas_are_replaced_under_load(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    current = replica("v0")
    gateway.table(control, route(current.entry()))
    done = threading.Event()
    answers: list[bytes] = []

    def load() -> None:
        while not done.is_set():
            answers.append(gateway.ask(get("/s/t/n/echo", "Content-Length: 5", method="POST") + b"hello"))

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(load) for _ in range(4)]
        try:
            for number in range(1, 5):
                following = replica(f"v{number}")
                gateway.table(control, route(current.entry(draining=True), following.entry()))
                control.wait_load("t/n", lambda load: load.requests > 0)
                gateway.table(control, route(following.entry()))
                eventually(lambda: len(answers) > 20)
                current, _ = following, current
        finally:
            done.set()
        for each in running:
            each.result()
    assert {status_of(answer) for answer in answers} == {200}
    assert {json.loads(body_of(answer))["name"] for answer in answers} >= {"v0", "v4"}


def test_an_unreachable_replica_costs_nobody_a_request(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    dead = RouteReplica("dead", f"127.0.0.1:{free_port()}")
    gateway.table(control, route(dead, replica().entry()))
    for _ in range(10):
        assert body_of(gateway.ask(get("/s/t/n/echo", "Content-Length: 1", method="POST") + b"x"))


def test_a_request_waits_for_a_replica_that_comes_back(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    port = free_port()
    gateway.table(control, route(RouteReplica("late", f"127.0.0.1:{port}")))
    with send(gateway, get("/s/t/n/echo", "Content-Length: 1", method="POST") + b"x") as sock:
        control.wait_wake("t/n")
        replica("late", port=port)
        assert status_of(read_all(sock)) == 200


def test_a_safe_request_is_sent_again_when_its_replica_dies(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    dying, living = replica("dying"), replica("living")
    gateway.table(control, route(dying.entry(), living.entry(draining=True)))
    with send(gateway, get("/s/t/n/slow?600")) as sock:
        eventually(dying.requests)
        change(gateway, control, route(dying.entry(), living.entry()))
        dying.stop()
        eventually(living.requests)
        assert living.requests()[0]["target"] == "/slow?600"
        living.stop()
        gateway.version += 1
        control.send(RouteRemoval(gateway.version, "t/n"))
        assert problem_of(read_all(sock))["code"] in {"REPLICA_FAILED", "UNKNOWN_SERVICE"}


def test_a_call_by_model_is_sent_again_and_another_post_is_not(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    one, two = replica("one"), replica("two")
    gateway.table(control, route(one.entry(), two.entry(), models=("m",)))
    answer = gateway.ask(get("/s/t/n/hang_up", "Content-Length: 5", method="POST") + b"hello")
    assert problem_of(answer)["code"] == "REPLICA_FAILED"
    assert len(one.requests()) + len(two.requests()) == 1
    assert problem_of(gateway.ask(get("/s/t/n/hang_up")))["code"] == "REPLICA_FAILED"
    assert len([entry for entry in one.requests() + two.requests() if entry.get("method") == "GET"]) == 3
    assert status_of(gateway.ask(get())) == 200  # and they are not taken for dead


def test_a_head_without_its_body_is_passed_on(gateway: GatewayProcess, control: ControlPlane, replica: START) -> None:
    gateway.table(control, route(replica().entry()))
    answer = gateway.ask(get("/s/t/n/head_only"))
    assert status_of(answer) == 200
    assert answer.endswith(b"Content-Length: 10\r\n\r\n")


@pytest.mark.parametrize("path", ["die_after_head", "cut"])
def test_a_response_that_breaks_is_never_complete(
    gateway: GatewayProcess, control: ControlPlane, replica: START, path: str
) -> None:
    gateway.table(control, route(replica().entry()))
    answer = gateway.ask(get(f"/s/t/n/{path}"))
    assert status_of(answer) == 200
    assert b"hello" in answer
    assert not answer.endswith(b"0\r\n\r\n")
    assert control.wait_load("t/n", lambda load: load.errors > 0).errors == 1


def test_a_response_until_the_end_of_the_connection_has_an_end(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    gateway.table(control, route(replica().entry()))
    answer = gateway.ask(get("/s/t/n/close"))
    assert b"Transfer-Encoding: chunked" in answer
    assert body_of(answer) == b"d\r\nuntil the end\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000,
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 40,
    ],
)
def test_an_invalid_response_is_an_error(
    gateway: GatewayProcess, control: ControlPlane, replica: START, raw: bytes
) -> None:
    gateway.table(control, route(replica().entry()))
    path = f"/s/t/n/raw?{raw.hex()}"
    if len(path) > 30_000:
        path = "/s/t/n/raw_long"
    assert problem_of(gateway.ask(get(path)))["code"] == "REPLICA_FAILED"


def test_bytes_after_a_response_are_not_given_to_the_next_request(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    gateway.table(control, route(replica().entry()))
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
    with gateway.connect() as sock:
        sock.sendall(f"GET /s/t/n/raw?{raw.hex()} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        read_until(sock, b"ok")
        sock.sendall(get())
        assert body_of(read_all(sock)) == b"r0"


def test_interim_responses_are_passed_on(gateway: GatewayProcess, control: ControlPlane, replica: START) -> None:
    gateway.table(control, route(replica().entry()))
    answer = gateway.ask(get("/s/t/n/interim"))
    assert answer.startswith(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_head_and_kept_connections(gateway: GatewayProcess, control: ControlPlane, replica: START) -> None:
    one = replica()
    gateway.table(control, route(one.entry()))
    with gateway.connect() as sock:
        for _ in range(3):
            sock.sendall(b"HEAD /s/t/n/echo HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status_of(read_until(sock, b"\r\n\r\n")) == 200
            assert not readable(sock, 0.05)
        sock.sendall(get())
        assert body_of(read_all(sock)) == b"r0"


def test_a_websocket_carries_bytes_both_ways_until_both_have_ended(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    one = replica()
    gateway.table(control, route(one.entry()))
    upgrade = b"GET /s/t/n/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with gateway.connect() as sock:
        sock.sendall(upgrade + b"early")
        answer = read_until(sock, b"helloearly")
        assert status_of(answer) == 101
        assert b"Upgrade: websocket\r\n" in answer
        assert dict(one.requests()[0]["fields"])["upgrade"] == "websocket"
        sock.sendall(b"x" * 1_000_000)
        received = 0
        while received < 1_000_000:
            received += len(sock.recv(65536))
        assert control.wait_load("t/n", lambda load: load.in_flight == 1)
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b"bye"
    assert control.wait_load("t/n", lambda load: load.in_flight == 0)


def test_loads_name_the_tokens_and_the_times(gateway: GatewayProcess, control: ControlPlane, replica: START) -> None:
    found = Route("t", "n", RouteAccess.TOKEN, (digest(TOKEN),), replicas=(replica().entry(),))
    gateway.table(control, found)
    answers = [gateway.ask(get("/s/t/n/name", f"Authorization: Bearer {TOKEN}")) for _ in range(4)]
    fields = f"Host: h\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 7\r\nConnection: close\r\n"
    answers.append(gateway.ask(f"POST /s/t/n/echo HTTP/1.1\r\n{fields}\r\n1234567"))
    requests, used = 0, TokenUse()
    while requests < 5 or used.sent == 0:
        load = control.wait_load("t/n", lambda load: load.requests > 0)
        requests += load.requests
        used = used.plus(load.tokens[digest(TOKEN)])
        assert load.first_byte_ms is not None
        assert 0 < load.first_byte_ms[0] <= load.first_byte_ms[1]
    assert (requests, used.requests, used.errors, used.received) == (5, 5, 0, 7)
    assert used.sent == sum(len(body_of(answer)) for answer in answers)
    assert used.busy_s > 0


def test_requests_without_a_replica_count_as_refused(gateway: GatewayProcess, control: ControlPlane) -> None:
    gateway.table(control, route(held=0))
    assert status_of(gateway.ask(get("/s/t/n/x"))) == 503
    load = control.wait_load("t/n", lambda load: load.requests > 0)
    assert (load.refused, load.errors, load.tokens[""].errors, load.tokens[""].busy_s) == (1, 1, 1, 0.0)


def test_requests_end_when_the_gateway_is_stopped(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    gateway.table(control, route(replica().entry()))
    with send(gateway, get("/s/t/n/stream?20")) as stream, gateway.connect():
        read_until(stream, b"data: 0")
        assert gateway.process is not None
        gateway.process.send_signal(signal.SIGTERM)
        assert read_all(stream).endswith(b"0\r\n\r\n")
    assert gateway.process.wait(TIMEOUT_S) == 0
