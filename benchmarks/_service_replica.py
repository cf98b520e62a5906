"""A replica for services.py under uvicorn: ``/plain`` without a framework, ``/json`` with FastAPI, open ``/stream``s.

``python benchmarks/_service_replica.py``: prints its port.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI

api = FastAPI()
_BODY = b"x" * 200
_PLAIN = [(b"content-type", b"application/json"), (b"content-length", b"200")]
_STREAM = [(b"content-type", b"text/event-stream")]


@api.get("/json")
async def answer() -> dict[str, Any]:
    """Answer like a small model server."""
    return {"id": "c-1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 30}}]}


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer ``/plain`` and ``/stream`` directly, and pass the rest to FastAPI."""
    if scope["type"] == "http" and scope["path"] == "/plain":
        await send({"type": "http.response.start", "status": 200, "headers": _PLAIN})
        await send({"type": "http.response.body", "body": _BODY})
    elif scope["type"] == "http" and scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
        await send({"type": "http.response.body", "body": b"data: 0\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
    else:
        await api(scope, receive, send)


if __name__ == "__main__":
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", access_log=False, lifespan="off")
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named: asyncio sets TCP_NODELAY
    sock.bind(("127.0.0.1", 0))
    sock.listen(4096)
    print(sock.getsockname()[1], flush=True)
    asyncio.run(uvicorn.Server(config).serve([sock]))
