"""Logs and events as they happen: order, resuming, and ends."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from live_pool import LivePool, shell

from gpupool.api.streams import whole_log
from gpupool.domain.protocol.log_records import OUT, RECORD, WHOLE, LogBatch, LogDecoder
from gpupool.services.workloads.output import OutputPage

Json = dict[str, Any]


def messages(http: httpx2.Client, path: str, last_id: str = "", **params: Any) -> Iterator[httpx2.ServerSentEvent]:
    headers = {"last-event-id": last_id} if last_id else {}
    with http.stream("GET", path, params=params, headers=headers) as response:
        assert response.status_code == 200
        yield from httpx2.EventSource(response)


def data(message: httpx2.ServerSentEvent) -> bytes:
    return base64.b64decode(json.loads(message.data)["data"])


@pytest.fixture
def counted(http: httpx2.Client) -> str:
    """Yield a program that has written ten lines and ended."""
    made = http.post("/v1/workloads", json=shell("for i in 0 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.01; done")).json()
    http.get(f"/v1/workloads/{made['id']}/wait")
    return str(made["id"])


def test_log_is_read_page_by_page(http: httpx2.Client, counted: str) -> None:
    page = http.get(f"/v1/workloads/{counted}/logs").json()
    assert b"".join(base64.b64decode(c["data"]) for c in page["chunks"]) == b"".join(b"%d\n" % i for i in range(10))
    rest = http.get(f"/v1/workloads/{counted}/logs", params={"cursor": page["cursor"]}).json()
    assert (rest["chunks"], rest["end"]) == ([], True)
    tail = http.get(f"/v1/workloads/{counted}/logs", params={"tail": 1}).json()
    assert base64.b64decode(tail["chunks"][-1]["data"]).endswith(b"9\n")
    last = page["chunks"][-1]["at"]
    since = http.get(f"/v1/workloads/{counted}/logs", params={"since": last}).json()
    assert [c["at"] >= last for c in since["chunks"]] == [True] * len(since["chunks"])
    assert since["chunks"]
    later = http.get(f"/v1/workloads/{counted}/logs", params={"since": last + 1000}).json()
    assert (later["chunks"], later["end"]) == ([], True)


def octets(http: httpx2.Client, ref: str, **params: Any) -> list[LogBatch]:
    answer = http.get(f"/v1/workloads/{ref}/logs", params=params, headers={"accept": "application/octet-stream"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/octet-stream")
    decoder = LogDecoder()
    found = decoder.feed(answer.content)
    assert decoder.whole
    return found


def test_whole_log_equals_its_pages(http: httpx2.Client) -> None:
    script = "echo bad >&2; head -c 3000000 /dev/urandom | base64; echo last"
    made = http.post("/v1/workloads", json=shell(script)).json()
    http.get(f"/v1/workloads/{made['id']}/wait")
    path, pages, cursor = f"/v1/workloads/{made['id']}/logs", list[Json](), ""
    while (page := http.get(path, params={"cursor": cursor} if cursor else {}).json())["chunks"]:
        pages += page["chunks"]
        cursor = page["cursor"]
    whole = octets(http, made["id"])
    chunks = [chunk for part in whole for chunk in part.chunks()]
    assert [(c.at, c.stream, base64.b64encode(c.data).decode(), c.cursor) for c in chunks] == [
        (c["at"], c["stream"], c["data"], c["cursor"]) for c in pages
    ]
    assert {c.stream for c in chunks} == {"out", "err"}
    assert whole[-1].cursor == cursor
    assert octets(http, made["id"], cursor=cursor) == []
    again = [chunk for part in octets(http, made["id"], cursor=chunks[9].cursor) for chunk in part.chunks()]
    assert again == chunks[10:]
    assert octets(http, made["id"], tail=1)[0].output().endswith(b"last\n")
    recent = [chunk for part in octets(http, made["id"], since=chunks[20].at) for chunk in part.chunks()]
    assert recent == [chunk for chunk in chunks if chunk.at >= chunks[20].at]
    assert octets(http, made["id"], since=chunks[-1].at + 1000) == []


def test_page_tells_that_older_output_was_deleted(http: httpx2.Client) -> None:
    script = "for i in 1 2 3; do head -c 600000 /dev/zero | tr '\\0' a; echo; sleep 0.3; done"
    made = http.post("/v1/workloads", json=shell(script) | {"log_limit": "1M"}).json()
    http.get(f"/v1/workloads/{made['id']}/wait")
    path = f"/v1/workloads/{made['id']}/logs"
    page = http.get(path).json()
    assert page["dropped"]
    cursor, first = page["cursor"], page["chunks"][0]["at"]
    assert not http.get(path, params={"cursor": cursor}).json()["dropped"]
    assert not http.get(path, params={"tail": 1}).json()["dropped"]
    assert http.get(path, params={"since": first - 0.1}).json()["dropped"]
    assert not http.get(path, params={"since": first + 0.1}).json()["dropped"]
    assert http.get(path, params={"cursor": "1:9"}).json()["dropped"]


def test_deleted_log_differs_from_an_empty_one(http: httpx2.Client, pool: LivePool) -> None:
    made = http.post("/v1/workloads", json=shell("true")).json()
    http.get(f"/v1/workloads/{made['id']}/wait")
    path = f"/v1/workloads/{made['id']}/logs"
    assert http.get(path).json() == {"chunks": [], "cursor": "", "end": True, "dropped": False}
    for folder in pool.root.glob(f"**/ended/{made['id']}*"):
        shutil.rmtree(folder)
    assert http.get(path).json() == {"chunks": [], "cursor": "", "end": True, "dropped": True}


def test_whole_log_of_running_program_ends(http: httpx2.Client) -> None:
    made = http.post("/v1/workloads", json=shell("while :; do echo line; done")).json()
    while not (found := octets(http, made["id"])):
        http.get(f"/v1/workloads/{made['id']}/wait", params={"timeout_s": 0.1})
    assert set(b"".join(part.output() for part in found).splitlines()[:-1]) <= {b"line"}
    http.post(f"/v1/workloads/{made['id']}/stop", json={"force": True})


def test_whole_log_ends_at_the_first_page_that_is_not_full() -> None:
    record = RECORD.pack(1, OUT, 1) + b"x"
    read: list[str] = []

    async def page(cursor: str) -> OutputPage:
        """Return more output at each call, as of a program that writes all the time."""
        read.append(cursor)
        batch = LogBatch(1, len(record) * len(read), record)
        return OutputPage((batch,), batch.cursor, end=False, full=len(read) < 3)

    async def collect() -> list[bytes]:
        return [part async for part in whole_log("", page, asyncio.Event())]

    parts = asyncio.run(collect())
    assert (len(read), len(parts), parts[-1]) == (3, 4, WHOLE)


def test_followed_log_resumes_at_its_cursor(http: httpx2.Client, counted: str) -> None:
    path = f"/v1/workloads/{counted}/logs"
    everything = list(messages(http, path, follow=True))
    assert everything[-1].event == "end"
    chunks = everything[:-1]
    assert b"".join(map(data, chunks)).split() == [b"%d" % i for i in range(10)]
    for at, message in enumerate(chunks):
        again = list(messages(http, path, last_id=message.id, follow=True))
        assert [m.data for m in again[:-1]] == [m.data for m in chunks[at + 1 :]]


def test_log_is_followed_while_the_program_writes(http: httpx2.Client) -> None:
    made = http.post("/v1/workloads", json=shell("echo one; sleep 60")).json()
    stream = messages(http, f"/v1/workloads/{made['id']}/logs", follow=True)
    assert data(next(stream)) == b"one\n"
    http.post(f"/v1/workloads/{made['id']}/stop", json={"force": True})
    assert [m.event for m in stream][-1] == "end"


def test_unknown_attempt_is_refused(http: httpx2.Client, counted: str) -> None:
    answer = http.get(f"/v1/workloads/{counted}/logs", params={"attempt": 9})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND")
    answer = http.get(f"/v1/workloads/{counted}/logs", params={"index": 9})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND")
    answer = http.get(f"/v1/workloads/{counted}/logs", params={"attempt": 0})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


def test_events_are_paginated(http: httpx2.Client, counted: str) -> None:
    events = http.get("/v1/events", params={"workload": counted}).json()["events"]
    assert [e["reason"] for e in events][:2] == ["SUBMITTED", "GRANTED"]
    assert [e["id"] for e in events] == sorted(e["id"] for e in events)
    newest = http.get("/v1/events", params={"workload": counted, "newest": True, "limit": 1}).json()["events"]
    assert newest == events[-1:]
    after = http.get("/v1/events", params={"workload": counted, "after_id": events[0]["id"]}).json()["events"]
    assert after == events[1:]
    unknown = http.get("/v1/events", params={"workload": "nothing-like-it"})
    assert unknown.json()["error"]["code"] == "UNKNOWN_WORKLOAD"


def test_event_stream_resumes_at_its_cursor(pool: LivePool, http: httpx2.Client) -> None:
    made = http.post("/v1/workloads", json=shell("true")).json()
    stream = messages(http, "/v1/events/stream", workload=made["id"])
    seen: list[Json] = []
    while not seen or seen[-1]["reason"] != "EXITED":
        seen.append(json.loads(next(stream).data))
    stream.close()
    assert [e["id"] for e in seen] == sorted({e["id"] for e in seen})
    for event in seen[:-1]:
        resumed = messages(http, "/v1/events/stream", last_id=str(event["id"]), workload=made["id"])
        assert json.loads(next(resumed).data)["id"] == seen[seen.index(event) + 1]["id"]
        resumed.close()


def test_event_reaches_an_open_stream(pool: LivePool, http: httpx2.Client) -> None:
    newest = http.get("/v1/events", params={"newest": True, "limit": 1}).json()["events"][-1]["id"]
    heard: list[Json] = []
    listening = threading.Event()

    def listen() -> None:
        with pool.http() as own, own.stream("GET", "/v1/events/stream", params={"after_id": newest}) as response:
            listening.set()
            heard.extend(json.loads(message.data) for message in [next(iter(httpx2.EventSource(response)))])

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert listening.wait(30)
    http.post("/v1/nodes/n1/uncordon")
    thread.join(30)
    assert [e["reason"] for e in heard] == ["UNCORDONED"]


@pytest.mark.parametrize("params", [{"after_id": -1}, {"after_id": "x"}, {"workload": "../etc"}])
def test_invalid_stream_requests_are_refused(http: httpx2.Client, params: Json) -> None:
    answer = http.get("/v1/events/stream", params=params)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
