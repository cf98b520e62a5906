"""A server of OpenAI's API that repeats what it is asked, and a WebSocket that echoes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse

app = FastAPI()


def answer(model: str, **parts: Any) -> dict[str, Any]:
    return {"id": "c-1", "object": "chat.completion", "created": 1, "model": model, **parts}


@app.post("/v1/chat/completions")
async def chat(request: dict[str, Any]) -> Any:
    words = request["messages"][-1]["content"].split()
    if not request.get("stream"):
        message = {"role": "assistant", "content": " ".join(words)}
        return answer(request["model"], choices=[{"index": 0, "message": message, "finish_reason": "stop"}])

    async def events() -> AsyncIterator[bytes]:
        for word in words:
            part = [{"index": 0, "delta": {"content": word}, "finish_reason": None}]
            document = answer(request["model"], choices=part) | {"object": "chat.completion.chunk"}
            yield b"data: " + json.dumps(document).encode() + b"\n\n"
            await asyncio.sleep(0)
        yield b"data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.post("/v1/embeddings")
async def embed(request: dict[str, Any]) -> Any:
    texts = request["input"] if isinstance(request["input"], list) else [request["input"]]
    data = [{"object": "embedding", "index": i, "embedding": [float(len(text))]} for i, text in enumerate(texts)]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return {"object": "list", "model": request["model"], "data": data, "usage": usage}


@app.websocket("/echo")
async def echo(socket: WebSocket) -> None:
    await socket.accept()
    try:
        while True:
            await socket.send_text(await socket.receive_text())
    except WebSocketDisconnect:
        return


if __name__ == "__main__":
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    sock = config.bind_socket()
    print(sock.getsockname()[1], flush=True)  # noqa: T201 - the test reads it
    asyncio.run(server.serve([sock]))
