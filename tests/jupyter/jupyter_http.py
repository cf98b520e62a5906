"""Requests to a Jupyter server as its clients send them, with nothing of Jupyter's own client."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

PATIENCE_S = 60.0


def ask(url: str, token: str = "", body: object = None, method: str | None = None) -> tuple[int, Any]:
    """Return the status of an answer, and its JSON (or text)."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"token {token}"} if token else {}
    request = urllib.request.Request(url, data, headers | {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def execute(server: str, token: str, code: str) -> str:
    """Start a kernel of a server, execute code over its WebSocket, and return what it printed."""
    status, kernel = ask(f"{server}/api/kernels", token, {"name": "python3"})
    assert status == 201, kernel
    return execute_in(server, token, kernel["id"], code)


@contextmanager
def channels(server: str, token: str, kernel_id: str, session: str) -> Iterator[ClientConnection]:
    """Connect to a kernel as a browser's tab does."""
    url = f"{server.replace('http', 'ws', 1)}/api/kernels/{kernel_id}/channels?session_id={session}"
    with connect(url, additional_headers={"Authorization": f"token {token}"}, open_timeout=PATIENCE_S) as socket:
        yield socket


def begin_code(socket: ClientConnection, code: str) -> str:
    """Send code to the kernel of a connection, do not wait for its end, and return the ID of the message."""
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "execute_request",
        "session": uuid.uuid4().hex,
        "username": "",
        "version": "5.3",
    }
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}
    socket.send(json.dumps(message))
    return header["msg_id"]


def execute_in(server: str, token: str, kernel_id: str, code: str) -> str:
    """Execute code in a running kernel over its WebSocket, and return what it printed."""
    printed = ""
    with channels(server, token, kernel_id, uuid.uuid4().hex) as socket:
        sent = begin_code(socket, code)
        while True:
            said = json.loads(socket.recv(timeout=PATIENCE_S))
            if said["parent_header"].get("msg_id") != sent:
                continue
            if said["msg_type"] == "stream":
                printed += said["content"]["text"]
            if said["msg_type"] == "error":
                printed += said["content"]["evalue"]
            if said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
                return printed
