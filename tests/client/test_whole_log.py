"""All of a log in one answer: taken up where it broke off, each piece once, and given up when that is no use."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from gpupool.client.transport.connection import PoolConnection
from gpupool.client.transport.endpoint import UnixEndpoint
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.protocol.log_records import OUT, RECORD, WHOLE, LogBatch

PATH = "/v1/workloads/w/logs"
LINES = [b"line %d\n" % number for number in range(9)]
Answer = bytes | None  # the response to one request; None: nobody listens


def stretch(first: int, last: int) -> LogBatch:
    """Return some of the lines; a cursor here is the number of lines before it."""
    data = b"".join(RECORD.pack(number, OUT, len(line)) + line for number, line in enumerate(LINES[first:last]))
    return LogBatch(1, last, data)


def response(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n"
    return head.encode() + body


def sent(*parts: bytes) -> bytes:
    return response("200 OK", "application/octet-stream", b"".join(parts))


def refusal(code: ErrorCode) -> bytes:
    body = json.dumps({"error": GpupoolError(code, "It is away.", "").to_dict()})
    return response("503 -", "application/json", body.encode())


def read(tmp_path: Path, *answers: Answer) -> tuple[bytes, list[str]]:
    """Return the text read from a pool with these answers, and the cursors of the requests."""
    asked: list[str] = []

    def serve(listener: socket.socket) -> None:
        for answer in answers:
            near, _ = listener.accept()
            with near:
                target = near.recv(65536).split()[1].decode()
                asked.append(parse_qs(urlsplit(target).query).get("cursor", [""])[0])
                if answer is not None:
                    near.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "api.sock"))
        listener.listen()
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        connection = PoolConnection(UnixEndpoint(str(tmp_path / "api.sock")), retry_s=5.0)
        found = b"".join(part.output() for part in connection.read_log_with_retry(PATH, {"index": 0, "tail": 9}))
    return found, asked


def test_interrupted_answer_is_resumed_at_its_cursor(tmp_path: Path) -> None:
    torn = stretch(0, 2).encode() + stretch(2, 4).encode() + stretch(4, 6).data[:9]
    found, asked = read(
        tmp_path, sent(torn), None, refusal(ErrorCode.NODE_UNREACHABLE), sent(stretch(4, 9).encode() + WHOLE)
    )
    assert found == b"".join(LINES)
    assert asked == ["", "1:4", "1:4", "1:4"]


def test_unreached_node_is_not_awaited(tmp_path: Path) -> None:
    with pytest.raises(GpupoolError) as caught:
        read(tmp_path, refusal(ErrorCode.NODE_UNREACHABLE))
    assert caught.value.code is ErrorCode.NODE_UNREACHABLE


def test_invalid_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GpupoolError) as caught:
        read(tmp_path, sent(b"\xff" * 99))
    assert caught.value.code is ErrorCode.INTERNAL
