"""Requests to services through a real gateway: held at zero replicas, and never lost in updates and crashes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from e2e_pool import RealPool, eventually, fresh_pool

from gpupool.api.schemas.work.services import ServiceView

SERVER = Path(__file__).parents[2] / "examples" / "services" / "openai_server.py"
DIGITS = SERVER.with_name("digits_server.py")


class Front:
    """A pool with a gateway, and clients of its services."""

    def __init__(self, pool: RealPool) -> None:
        self.pool = pool

    @property
    def port(self) -> int:
        """The port of the gateway, which runs once there is a service; 1 before."""
        try:
            return int(json.loads((self.pool.run / "gateway.json").read_text())["port"])
        except (OSError, ValueError, KeyError):
            return 1

    def serve(self, name: str, *options: str, program: Path = SERVER, server: tuple[str, ...] = ()) -> None:
        command = [sys.executable, str(program), "--port", "{port}", *server]
        self.pool("serve", name, "-p", "0.1", "--access", "public", "--ready", "/health", *options, "--", *command)

    def service(self, name: str) -> ServiceView:
        with self.pool.client as client:
            return client.service(name)

    def ask(
        self, path: str, body: dict[str, Any] | None = None, token: str = "", connection: Any = None
    ) -> tuple[int, dict[str, Any]]:
        link = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            link.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
            response = link.getresponse()
            return response.status, json.loads(response.read() or b"{}")
        except ConnectionRefusedError:
            return 0, {}
        finally:
            if connection is None:
                link.close()


class Visitors:
    """Clients that repeat a request without a pause; ``statuses`` counts the answers."""

    def __init__(self, front: Front, path: str, clients: int = 4) -> None:
        self.statuses: dict[object, int] = {}
        self._front, self._path = front, path
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                status: object = self._front.ask(self._path)[0]
            except (OSError, http.client.HTTPException) as error:
                status = repr(error)
            self.statuses[status] = self.statuses.get(status, 0) + 1

    @property
    def answered(self) -> int:
        return self.statuses.get(200, 0)


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with fresh_pool("2xT4") as pool:
        yield Front(pool)


def test_request_reaches_a_replica_by_path_and_by_model(front: Front) -> None:
    front.serve("echo", "--model", "echo-1", server=("--model", "echo-1"))
    assert eventually(lambda: front.service("echo").state == "ready")
    assert eventually(lambda: front.ask("/s/default/echo/whoami")[0] == 200)
    question = {"model": "echo-1", "messages": [{"role": "user", "content": "how are you"}]}
    status, answer = front.ask("/v1/chat/completions", question)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "how are you")
    url = front.pool.text("service", "url", "echo").strip()
    assert url == f"http://127.0.0.1:{front.port}/s/default/echo/"
    front.pool("service", "stop", "echo")
    assert eventually(lambda: front.ask("/s/default/echo/whoami")[0] == 503)
    assert "stopped" in json.dumps(front.ask("/s/default/echo/whoami")[1])


def test_service_goes_to_zero_and_the_next_request_waits_for_a_replica(front: Front) -> None:
    front.serve("digits", "--replicas", "0..2", "--to-zero", "1s", "--drain", "2s", program=DIGITS)
    assert eventually(lambda: (front.service("digits").state, front.service("digits").replicas) == ("idle", []))
    zero = [[0] * 64]
    assert front.ask("/s/default/digits/predict", {"images": zero})[0] == 200  # held, then answered
    assert front.service("digits").desired >= 0
    assert eventually(lambda: (front.service("digits").state, front.service("digits").replicas) == ("idle", []))


def test_held_streams_get_the_estimated_start(front: Front) -> None:
    """The first start teaches how long the server loads; a stream that waits for the second one gets it."""
    front.serve("slow", "--to-zero", "1s", "--drain", "1s", server=("--load-s", "12"))
    assert eventually(lambda: front.service("slow").state == "ready")
    front.pool("service", "scale", "slow", "0..1")
    assert eventually(lambda: (front.service("slow").state, front.service("slow").replicas) == ("idle", []))
    question = {"model": "x", "stream": True, "messages": [{"role": "user", "content": "a b"}]}
    link = http.client.HTTPConnection("127.0.0.1", front.port, timeout=60)
    headers = {"Accept": "text/event-stream"}
    link.request("POST", "/s/default/slow/v1/chat/completions", json.dumps(question), headers)
    text = link.getresponse().read().decode()
    link.close()
    assert ": waiting for a replica, expected in " in text
    assert "data: [DONE]" in text


def test_number_of_replicas_follows_the_requests(front: Front) -> None:
    front.serve(
        "busy", "--replicas", "1..2", "--concurrency", "2", "--scale-up", "0", "--scale-down", "1s", "--drain", "3s",
        server=("--token-s", "0.05"),
    )  # fmt: skip
    assert eventually(lambda: front.service("busy").state == "ready")
    question = {"model": "x", "messages": [{"role": "user", "content": "a b c d e f g h"}]}

    def answered() -> bool:
        return front.ask("/s/default/busy/v1/chat/completions", question)[0] == 200

    stop = threading.Event()
    results: list[bool] = []

    def client() -> None:
        while not stop.is_set():
            results.append(answered())

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert eventually(lambda: front.service("busy").ready == 2)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert all(results)
    assert eventually(lambda: len(front.service("busy").replicas) == 1)


def test_no_request_fails_while_revisions_change_and_the_control_plane_is_killed(front: Front) -> None:
    front.serve("steady", "--replicas", "2", "-e", "VERSION=1")
    assert eventually(lambda: front.service("steady").state == "ready")
    assert eventually(lambda: front.ask("/s/default/steady/whoami")[0] == 200)
    with Visitors(front, "/s/default/steady/whoami") as load:
        front.pool("service", "update", "steady", "-e", "VERSION=2")
        assert eventually(lambda: (front.service("steady").revision, front.service("steady").state) == (2, "ready"))
        front.pool.kill_child("control-plane")
        front.pool("service", "undo", "steady")
        assert eventually(lambda: (front.service("steady").revision, front.service("steady").state) == (1, "ready"))
        before = load.answered
        assert eventually(lambda: load.answered > before + 20)
    assert set(load.statuses) == {200}, load.statuses
    assert front.ask("/s/default/steady/whoami")[1]["VERSION"] == "1"


def test_access_needs_a_token_of_a_member_or_of_the_service(front: Front) -> None:
    front.serve("closed", "--access", "token")
    assert eventually(lambda: front.service("closed").state == "ready")
    assert eventually(lambda: front.ask("/s/default/closed/whoami")[0] == 401)
    secret = front.pool.text("service", "token", "closed").strip()
    assert eventually(lambda: front.ask("/s/default/closed/whoami", token=secret)[0] == 200)
    front.pool("service", "token", "closed", "--delete-all")
    assert eventually(lambda: front.ask("/s/default/closed/whoami", token=secret)[0] == 401)
    front.pool("service", "update", "closed", "--access", "project")
    made = front.pool.json("token", "create")
    member = made["secret"]
    assert eventually(lambda: front.ask("/s/default/closed/whoami", token=member)[0] == 200)
    assert front.ask("/s/default/closed/whoami", token=secret)[0] == 401

    def used() -> set[tuple[str, str | None]]:
        return {(each.token, each.user) for each in front.service("closed").usage.tokens or ()}

    assert eventually(lambda: (made["id"], made["user"]) in used())
    front.pool("token", "revoke", made["id"])
    assert eventually(lambda: front.ask("/s/default/closed/whoami", token=member)[0] == 401)


def test_killed_gateway_comes_back_with_its_address_and_its_services(front: Front) -> None:
    front.serve("again")
    assert eventually(lambda: front.service("again").state == "ready")
    assert eventually(lambda: front.ask("/s/default/again/whoami")[0] == 200)
    before = front.port
    replica = front.ask("/s/default/again/whoami")[1]["pid"]
    gateway = json.loads((front.pool.run / "gateway.json").read_text())["pid"]
    os.kill(gateway, signal.SIGKILL)
    assert eventually(lambda: json.loads((front.pool.run / "gateway.json").read_text())["pid"] != gateway)
    assert eventually(lambda: front.ask("/s/default/again/whoami")[0] == 200)
    assert front.port == before
    assert front.ask("/s/default/again/whoami")[1]["pid"] == replica


def test_services_with_the_same_port_get_different_ones(front: Front) -> None:
    """The second one gets another port, which ``{port}`` names; a server with a port of its own is never ready."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    for name in ("first", "second"):
        front.serve(name, "--port", port)
    assert eventually(lambda: {front.service(name).state for name in ("first", "second")} == {"ready"})
    addresses = [front.service(name).replicas[0].address or "" for name in ("first", "second")]
    assert sorted(address.endswith(f":{port}") for address in addresses) == [False, True]
    own = [sys.executable, str(SERVER), "--port", port]
    front.pool("serve", "third", "-p", "0.1", "--port", port, "--ready", "/health", "--", *own)
    assert eventually(lambda: front.service("third").replicas[0].restarts > 0)
    assert front.service("third").ready == 0


def test_replica_that_dies_within_a_stream_ends_it_incomplete_and_is_replaced(front: Front) -> None:
    front.serve("talks", server=("--token-s", "0.3"))
    assert eventually(lambda: front.service("talks").state == "ready")
    assert eventually(lambda: front.ask("/s/default/talks/whoami")[0] == 200)
    question = {"model": "x", "stream": True, "messages": [{"role": "user", "content": " ".join("abcdefgh" * 9)}]}
    link = http.client.HTTPConnection("127.0.0.1", front.port, timeout=60)
    link.request("POST", "/s/default/talks/v1/chat/completions", json.dumps(question))
    answer = link.getresponse()
    assert answer.readline().startswith(b"data: ")
    os.kill(front.ask("/s/default/talks/whoami")[1]["pid"], signal.SIGKILL)
    with pytest.raises(http.client.IncompleteRead):
        answer.read()
    link.close()
    assert front.ask("/s/default/talks/whoami")[0] == 200  # held until the replica is there again


def test_services_that_do_not_fit_together_take_turns() -> None:
    with fresh_pool("1xT4") as pool:
        front = Front(pool)
        rules = {"replicas": "0..1", "access": "public", "ready": {"http": "/health"}, "update": {"drain": "1s"}}
        rules["scale"] = {"min_loaded": "1s", "to_zero": "1h"}
        with pool.client as client:
            for name in ("one", "two"):
                command = [sys.executable, str(SERVER), "--port", "{port}", "--model", name]
                client.serve(name, command, gpus=1, service=rules)
        for name in ("one", "two", "one"):
            assert eventually(lambda name=name: front.ask(f"/s/default/{name}/health")[0] == 200)  # type: ignore[misc]
            status, answer = front.ask(f"/s/default/{name}/v1/models")
            assert (status, answer["data"][0]["id"]) == (200, name)
            assert front.service(name).ready == 1
