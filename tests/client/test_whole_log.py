"""All of a log in one answer: taken up where it broke off, each piece once, and given up when that is no use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from gpupool.client.connection import Connection
from gpupool.client.endpoint import UnixEndpoint
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.logrecords import OUT, RECORD, WHOLE, Stretch

PATH = "/v1/workloads/w/logs"
LINES = [b"line %d\n" % number for number in range(9)]
Answer = Callable[[str], httpx2.Response]


def stretch(first: int, last: int) -> Stretch:
    """Some of the lines; a cursor here says how many lines are before it."""
    data = b"".join(RECORD.pack(number, OUT, len(line)) + line for number, line in enumerate(LINES[first:last]))
    return Stretch(1, last, data)


def sent(*parts: bytes) -> httpx2.Response:
    return httpx2.Response(200, content=iter(parts))


def refusal(code: ErrorCode) -> httpx2.Response:
    return httpx2.Response(503, json={"error": GpupoolError(code, "It is away.", "").to_dict()})


def read(tmp_path: Path, *answers: Answer) -> tuple[bytes, list[str]]:
    """What is read from a pool that answers so in turn, and the cursors it was asked with."""
    asked: list[str] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.params.get("cursor", ""))
        return answers[len(asked) - 1](asked[-1])

    (tmp_path / "api.sock").touch()
    connection = Connection(UnixEndpoint(str(tmp_path / "api.sock")), retry_s=5.0)
    connection._http = httpx2.Client(transport=httpx2.MockTransport(handle), base_url="http://gpupool")
    found = b"".join(part.output() for part in connection.whole_log(PATH, {"index": 0, "tail": 9}))
    return found, asked


def lost(_cursor: str) -> httpx2.Response:
    raise httpx2.ConnectError("nobody listens")


def test_an_answer_that_broke_off_is_taken_up_where_it_was(tmp_path: Path) -> None:
    def torn(_cursor: str) -> httpx2.Response:
        return sent(
            stretch(0, 2).encode() + stretch(2, 4).encode()[:5], stretch(2, 4).encode()[5:], stretch(4, 6).data[:9]
        )

    found, asked = read(
        tmp_path,
        torn,
        lost,
        lambda _: refusal(ErrorCode.NODE_UNREACHABLE),
        lambda _: sent(stretch(4, 9).encode() + WHOLE),
    )
    assert found == b"".join(LINES)
    assert asked == ["", "1:4", "1:4", "1:4"]


def test_a_node_that_was_never_reached_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(GpupoolError) as caught:
        read(tmp_path, lambda _: refusal(ErrorCode.NODE_UNREACHABLE))
    assert caught.value.code is ErrorCode.NODE_UNREACHABLE


def test_what_is_no_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GpupoolError) as caught:
        read(tmp_path, lambda _: sent(b"\xff" * 99))
    assert caught.value.code is ErrorCode.INTERNAL
