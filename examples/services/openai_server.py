"""A small OpenAI-compatible server with the standard library only, for tests of clients and services.

It answers ``/v1/models``, ``/v1/chat/completions`` and ``/v1/completions`` with the words of the question, one for
each token, also as a stream (``"stream": true``). ``/health`` answers 503 until it is loaded, as servers of large
models do.

    gpupool serve echo -p 0.1 --model echo --ready /health -- python3 openai_server.py --port {port}
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_BODY_BYTES = 1 << 20


class Server(ThreadingHTTPServer):
    """The server; ``loaded_at`` is the time from which it answers."""

    daemon_threads = False  # a stop waits for the requests in progress
    block_on_close = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, model: str, load_s: float, token_s: float) -> None:
        super().__init__((host, port), Handler)
        self.model = model
        self.loaded_at = time.monotonic() + load_s
        self.token_s = token_s


class Handler(BaseHTTPRequestHandler):
    """Answers one request after another on a connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Answer the health check and the list of models."""
        if self.path == "/health":
            ready = time.monotonic() >= self.server.loaded_at
            self._json(200 if ready else 503, {"status": "ok" if ready else "loading model"})
        elif self.path.endswith("/v1/models"):
            self._json(200, {"object": "list", "data": [{"id": self.server.model, "object": "model"}]})
        elif self.path.rstrip("/").endswith("/whoami"):
            names = ("GPUPOOL_ATTEMPT", "CUDA_VISIBLE_DEVICES", "VERSION")
            self._json(200, {"pid": os.getpid()} | {name: os.environ.get(name, "") for name in names})
        else:
            self._json(404, {"error": {"message": f"there is no {self.path}", "type": "invalid_request_error"}})

    def do_POST(self) -> None:
        """Answer a question with its own words."""
        try:
            length = min(int(self.headers.get("Content-Length", "0")), MAX_BODY_BYTES)
            request = json.loads(self.rfile.read(max(0, length)))
            words = _question(request).split()
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            self.close_connection = True
            self._json(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
            return
        if request.get("stream"):
            self._stream(words)
            return
        time.sleep(self.server.token_s * len(words))
        usage = {"prompt_tokens": len(words), "completion_tokens": len(words), "total_tokens": 2 * len(words)}
        message = {"role": "assistant", "content": " ".join(words)}
        choice = {"index": 0, "message": message, "text": message["content"], "finish_reason": "stop"}
        self._json(200, self._envelope("chat.completion", [choice]) | {"usage": usage})

    def _stream(self, words: list[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, word in enumerate(words):
            time.sleep(self.server.token_s)
            delta = {"role": "assistant", "content": word if number == 0 else f" {word}"}
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            self._chunk(json.dumps(self._envelope("chat.completion.chunk", [choice])))
        last = {"index": 0, "delta": {}, "finish_reason": "stop"}
        self._chunk(json.dumps(self._envelope("chat.completion.chunk", [last])))
        self._chunk("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        made = int(time.time())
        return {"id": f"echo-{made}", "object": kind, "created": made, "model": self.server.model, "choices": choices}

    def _json(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Print a line for each request except health checks."""
        if self.path != "/health":
            print(self.command, self.path, *args[2:3], flush=True)


def _question(request: dict[str, Any]) -> str:
    if "messages" in request:
        return str(request["messages"][-1]["content"])
    return str(request["prompt"])


def main() -> None:
    """Serve until SIGTERM; requests in progress are completed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--model", default="echo")
    parser.add_argument("--load-s", type=float, default=0.0, help="time until /health answers 200")
    parser.add_argument("--token-s", type=float, default=0.0, help="time for each token")
    options = parser.parse_args()
    server = Server(options.host, options.port, options.model, options.load_s, options.token_s)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"listening on port {options.port}", flush=True)
    server.serve_forever(poll_interval=0.1)
    server.server_close()


if __name__ == "__main__":
    main()
