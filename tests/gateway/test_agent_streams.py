"""Replicas that only their node's agent reaches: requests, WebSockets and bodies go through the agent's socket."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gateway_process import (
    ControlPlane,
    GatewayProcess,
    Replica,
    body_of,
    problem_of,
    read_until,
    status_of,
)

from free_ports import free_port
from gpupool.domain.protocol.gateway_table import Route, RouteAccess, RouteLimits, RouteReplica

AGREES = b'{"id":0,"result":null}\n'
REFUSES = b'{"id":0,"error":{"code":"WRONG_STATE","message":"No process of the job listens on port 1."}}\n'


@dataclass
class AgentSocket:
    """An agent's socket: it gives ``answer`` to each request, and connects to the port if that agrees."""

    path: Path
    answer: bytes = AGREES
    asked: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(self.path))
        self.server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        request = json.loads(near.makefile("rb").readline())
        self.asked.append(request)
        if self.answer is not AGREES:
            near.sendall(self.answer)
            near.close()
            return
        far = socket.create_connection(("127.0.0.1", request["params"]["port"]))
        near.sendall(self.answer)
        threading.Thread(target=_copy, args=(far, near), daemon=True).start()
        _copy(near, far)


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentSocket]:
    found = AgentSocket(tmp_path / "node.sock")
    yield found
    found.server.shutdown(socket.SHUT_RDWR)
    found.server.close()


def far(agent: AgentSocket, port: int, *, direct: bool = False, host: str = "192.0.2.1") -> Route:
    """Return a route to a replica on a node that is reached through its agent only."""
    entry = RouteReplica("far", f"{host}:{port}", agent=str(agent.path), key="w1.0.3", direct=direct)
    return Route("t", "n", RouteAccess.PUBLIC, limits=RouteLimits(held=10, hold_s=1), replicas=(entry,))


def get(path: str, *fields: str) -> bytes:
    return ("\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *fields]) + "\r\n\r\n").encode()


def test_requests_go_through_the_agent_on_kept_connections(
    gateway: GatewayProcess, control: ControlPlane, agent: AgentSocket, replica: Callable[..., Replica]
) -> None:
    server = replica()
    gateway.table(control, far(agent, server.port))
    with gateway.connect() as sock:
        for _ in range(3):
            sock.sendall(get("/s/t/n/name"))
            assert read_until(sock, b"r0")
    params = {"key": "w1.0.3", "port": server.port, "activity": False}
    assert [each["params"] for each in agent.asked] == [params]
    big = gateway.ask(get("/s/t/n/big?3000000", "Connection: close"))
    assert len(body_of(big)) == 3_000_000


def test_an_upgraded_connection_goes_through_the_agent(
    gateway: GatewayProcess, control: ControlPlane, agent: AgentSocket, replica: Callable[..., Replica]
) -> None:
    gateway.table(control, far(agent, replica().port))
    with gateway.connect() as sock:
        sock.sendall(get("/s/t/n/ws", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x"))
        assert status_of(read_until(sock, b"\r\n\r\n")) == 101
        sock.sendall(b"hello")
        assert read_until(sock, b"hello").endswith(b"hello")


@pytest.mark.parametrize("answer", [REFUSES, b"", b"nonsense\n", b"[]\n", b"x" * 200_000])
def test_an_agent_that_refuses_counts_as_an_unreachable_replica(
    gateway: GatewayProcess, control: ControlPlane, agent: AgentSocket, answer: bytes
) -> None:
    agent.answer = answer
    gateway.table(control, far(agent, free_port()))
    refused = gateway.ask(get("/s/t/n/name", "Connection: close"))
    assert (status_of(refused), problem_of(refused)["code"]) == (503, "SERVICE_NOT_READY")
    assert agent.asked


def test_a_missing_agent_counts_as_an_unreachable_replica(
    gateway: GatewayProcess, control: ControlPlane, agent: AgentSocket
) -> None:
    agent.path.unlink()
    gateway.table(control, far(agent, free_port()))
    assert status_of(gateway.ask(get("/s/t/n/name", "Connection: close"))) == 503


def test_the_agent_is_used_when_the_network_does_not_reach_the_node(
    gateway: GatewayProcess, control: ControlPlane, agent: AgentSocket, replica: Callable[..., Replica]
) -> None:
    server = replica()
    unreachable = "255.255.255.255"  # the kernel refuses to connect there
    gateway.table(control, far(agent, server.port, direct=True, host=unreachable))
    assert status_of(gateway.ask(get("/s/t/n/name", "Connection: close"))) == 200
    assert agent.asked


def test_the_agent_is_not_asked_for_a_server_that_does_not_listen(
    gateway: GatewayProcess, control: ControlPlane, agent: AgentSocket
) -> None:
    gateway.table(control, far(agent, free_port(), direct=True, host="127.0.0.1"))
    assert status_of(gateway.ask(get("/s/t/n/name", "Connection: close"))) == 503
    assert not agent.asked
