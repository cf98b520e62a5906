"""Clients and servers that others wrote: OpenAI's client, websockets, curl; uvicorn and FastAPI behind the gateway."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from gateway_process import TIMEOUT_S, TOKEN, ControlPlane, GatewayProcess, digest
from websockets.sync.client import connect

from gpupool.domain.protocol.gateway_table import Route, RouteAccess, RouteChange, RouteReplica

SERVER = Path(__file__).with_name("openai_server.py")


@pytest.fixture
def server() -> Iterator[RouteReplica]:
    process = subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    yield RouteReplica("s0", f"127.0.0.1:{int(process.stdout.readline())}")
    process.kill()
    process.wait(TIMEOUT_S)
    process.stdout.close()


def route(*replicas: RouteReplica) -> Route:
    return Route(
        "lab", "chat", RouteAccess.PROJECT, (digest(TOKEN),), models=("echo-1",), replicas=replicas, estimate_s=5
    )


def client(gateway: GatewayProcess, token: str = TOKEN) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=token, timeout=TIMEOUT_S, max_retries=0
    )


def test_openai_client(gateway: GatewayProcess, control: ControlPlane, server: RouteReplica) -> None:
    gateway.table(control, route(server))
    with client(gateway) as api:
        messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "a b c " * 2000}]
        answer = api.chat.completions.create(model="echo-1", messages=messages)
        assert str(answer.choices[0].message.content).split() == ["a", "b", "c"] * 2000
        stream = api.chat.completions.create(model="echo-1", messages=messages, stream=True)
        assert [part.choices[0].delta.content for part in stream] == ["a", "b", "c"] * 2000
        assert [entry.embedding for entry in api.embeddings.create(model="echo-1", input=["x", "yy"]).data] == [
            [1],
            [2],
        ]
        assert [model.id for model in api.models.list()] == ["echo-1"]
        with pytest.raises(openai.NotFoundError, match="gpt-9") as refused:
            api.chat.completions.create(model="gpt-9", messages=messages)
        assert refused.value.code == "model_not_found"
    with client(gateway, "wrong") as api, pytest.raises(openai.AuthenticationError):
        api.models.list()


def test_openai_client_of_a_service_that_starts_on_demand(
    gateway: GatewayProcess, control: ControlPlane, server: RouteReplica
) -> None:
    gateway.table(control, route())

    def start() -> None:
        control.wait_wake("lab/chat")
        gateway.version += 1
        control.send(RouteChange(gateway.version, route(server)))

    starting = threading.Timer(1.5, start)  # after the first comment of the held stream
    starting.start()
    with client(gateway) as api:
        stream = api.chat.completions.create(model="echo-1", messages=[{"role": "user", "content": "a b"}], stream=True)
        assert [part.choices[0].delta.content for part in stream] == ["a", "b"]
    starting.join(TIMEOUT_S)


def test_websocket(gateway: GatewayProcess, control: ControlPlane, server: RouteReplica) -> None:
    gateway.table(control, route(server))
    address = f"ws://127.0.0.1:{gateway.port}/s/lab/chat/echo"
    with connect(address, additional_headers={"Authorization": f"Bearer {TOKEN}"}, open_timeout=TIMEOUT_S) as socket:
        for text in ("hello", "x" * 500_000):
            socket.send(text)
            assert socket.recv(TIMEOUT_S) == text
    assert control.wait_load("lab/chat", lambda load: load.in_flight == 0)
    with connect(f"{address}?gpupool_token={TOKEN}", open_timeout=TIMEOUT_S) as socket:  # browsers cannot set fields
        socket.send("again")
        assert socket.recv(TIMEOUT_S) == "again"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_uploads_with_expect(
    gateway: GatewayProcess, control: ControlPlane, server: RouteReplica, tmp_path: Path
) -> None:
    gateway.table(control, route(server))
    body = tmp_path / "body"
    body.write_text('{"model": "echo-1", "input": "' + "x" * 3_000_000 + '"}')
    command = ["curl", "-sS", "--fail-with-body", "-H", f"Authorization: Bearer {TOKEN}", "-H", "Expect: 100-continue"]
    command += ["-H", "Content-Type: application/json", "--data-binary", f"@{body}"]
    for path in ("/v1/embeddings", "/s/lab/chat/v1/embeddings"):
        done = subprocess.run([*command, f"http://127.0.0.1:{gateway.port}{path}"], capture_output=True, check=False)
        assert b"[3000000.0]" in done.stdout, done
