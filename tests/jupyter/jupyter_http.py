"""Requests to a Jupyter server as its clients send them, with nothing of Jupyter's own client."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from typing import Any

from websockets.sync.client import connect

PATIENCE_S = 60.0


def ask(url: str, token: str = "", body: object = None) -> tuple[int, Any]:
    """Return the status of an answer, and its JSON (or text)."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"token {token}"} if token else {}
    request = urllib.request.Request(url, data, headers | {"Content-Type": "application/json"})
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
    session = uuid.uuid4().hex
    channels = f"{server.replace('http', 'ws', 1)}/api/kernels/{kernel['id']}/channels?session_id={session}"
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "execute_request",
        "session": session,
        "username": "",
        "version": "5.3",
    }
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}
    printed = ""
    with connect(channels, additional_headers={"Authorization": f"token {token}"}, open_timeout=PATIENCE_S) as socket:
        socket.send(json.dumps(message))
        while True:
            said = json.loads(socket.recv(timeout=PATIENCE_S))
            if said["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            if said["msg_type"] == "stream":
                printed += said["content"]["text"]
            if said["msg_type"] == "error":
                printed += said["content"]["evalue"]
            if said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
                return printed
