"""Take over the request that the native program ``gpupool`` sent before it started Python (``native/command``)."""

# pathlib takes longer to import than this module takes to run:
# ruff: noqa: PTH115

from __future__ import annotations

import os
from _socket import AF_UNIX, SOCK_STREAM, socket

from gpupool.client.transport import light_json
from gpupool.client.transport.http import CONNECT_TIMEOUT_S, HttpExchange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "GPUPOOL_EARLY_REQUEST"  # SOCKET:BODY:PATH, two descriptors and the path of the pool's socket
BODY_FILE = "/memfd:gpupool-request (deleted)"
MAX_BODY_BYTES = 1 << 26  # more than the arguments and the environment of a process


class EarlyRequest:
    """A submission that waits for its answer: its ``exchange``, its ``body`` and the pool's socket."""

    __slots__ = ("api_socket", "body", "exchange")

    def __init__(self, exchange: HttpExchange, body: dict[str, Any], api_socket: str) -> None:
        self.exchange = exchange
        self.body = body
        self.api_socket = api_socket


def take() -> EarlyRequest | None:
    """Return the request that was sent for this process, or None. It can be taken once."""
    sent, body, api_socket = (*os.environ.pop(VARIABLE, "").split(":", 2), "", "")[:3]
    try:
        if os.readlink(f"/proc/self/fd/{body}") != BODY_FILE:
            return None  # the variable is from another process
        fields = light_json.loads(_read_and_close(int(body)))
        sock = socket(AF_UNIX, SOCK_STREAM, 0, int(sent))
        os.set_inheritable(int(sent), False)  # noqa: FBT003 - it takes no keyword
    except (OSError, ValueError):
        return None
    sock.settimeout(CONNECT_TIMEOUT_S)
    return EarlyRequest(HttpExchange(sock), fields, api_socket)


def _read_and_close(fd: int) -> bytes:
    try:
        return os.pread(fd, MAX_BODY_BYTES, 0)
    finally:
        os.close(fd)
