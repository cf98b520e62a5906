"""Serve a model that reads handwritten digits, trained at the start on the data in ``examples/data``.

The model is a nearest-mean classifier: it compares an image with the mean image of each digit. ``POST /predict`` with
``{"images": [[64 pixels from 0 to 16], ...]}`` answers ``{"digits": [...]}``; ``GET /health`` answers 200 once the
model is trained.

    gpupool serve digits -p 0.1 --replicas 0..4 --ready /health -- python3 digits_server.py --port {port}
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "digits.csv.gz"
PIXELS = 64
MAX_IMAGES = 1000
MAX_BODY_BYTES = 1 << 20

Image = list[float]


class Model:
    """The mean image of each digit."""

    def __init__(self, images: list[Image], digits: list[int]) -> None:
        self.means: dict[int, Image] = {}
        for digit in sorted(set(digits)):
            own = [image for image, shown in zip(images, digits, strict=True) if shown == digit]
            self.means[digit] = [sum(column) / len(own) for column in zip(*own, strict=True)]

    def predict(self, image: Image) -> int:
        """Return the digit whose mean is nearest."""
        if len(image) != PIXELS:
            raise ValueError(f"an image has {PIXELS} pixels, not {len(image)}")
        return min(self.means, key=lambda digit: _distance(self.means[digit], image))


def _distance(one: Image, other: Image) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def load_digits() -> tuple[list[Image], list[int]]:
    """Return the images and the digits that they show."""
    with gzip.open(DATA, "rt", encoding="ascii", newline="") as file:
        rows = [[int(value) for value in row] for row in csv.reader(file)]
    return [[float(value) for value in row[:PIXELS]] for row in rows], [row[PIXELS] for row in rows]


class Server(ThreadingHTTPServer):
    """The server; ``model`` is None until it is trained."""

    daemon_threads = False  # a stop waits for the requests in progress
    model: Model | None = None

    def train(self) -> None:
        """Train on four fifths of the images, and print the accuracy on the others."""
        images, digits = load_digits()
        model = Model([i for n, i in enumerate(images) if n % 5], [d for n, d in enumerate(digits) if n % 5])
        right = sum(model.predict(image) == shown for image, shown in zip(images[::5], digits[::5], strict=True))
        print(f"test accuracy: {right / len(images[::5]):.2%}", flush=True)
        self.model = model


class Handler(BaseHTTPRequestHandler):
    """Answers one request after another on a connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Answer the health check."""
        self._answer(200 if self.server.model else 503, {"status": "ok" if self.server.model else "training"})

    def do_POST(self) -> None:
        """Answer with the digits of the images in the body."""
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 < length <= MAX_BODY_BYTES or self.server.model is None:
            self.close_connection = True
            self._answer(503 if self.server.model is None else 413, {"error": "not ready, or a wrong length"})
            return
        try:
            images = json.loads(self.rfile.read(length))["images"][:MAX_IMAGES]
            self._answer(200, {"digits": [self.server.model.predict(image) for image in images]})
        except (ValueError, KeyError, TypeError) as error:
            self._answer(400, {"error": str(error)})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


def main() -> None:
    """Serve until SIGTERM; requests in progress are completed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")))
    parser.add_argument("--host", default="127.0.0.1")
    options = parser.parse_args()
    server = Server((options.host, options.port), Handler)
    threading.Thread(target=server.train).start()
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever(poll_interval=0.1)
    server.server_close()


if __name__ == "__main__":
    main()
