"""The head that a machine follows: answers of heads over TLS, and what the machine stores of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpupool.api.server.tls import CertificateFiles, ensure_self_signed, server_context
from gpupool.domain.nodes.heads import FollowedHead, Head, choose_leader
from gpupool.fabric.ray import head_selection as following_module
from gpupool.fabric.ray.head_selection import HeadFollower, HeadLead, keep_heads, read_heads, term_of

A, B = ("10.0.0.1", 8650), ("10.0.0.2", 8650)


@pytest.mark.parametrize(
    ("said", "present", "expected"),
    [
        ({}, None, None),  # nobody leads yet: wait
        ({"a": 5}, None, FollowedHead("a", 5)),
        ({"a": 5, "b": 6}, None, FollowedHead("b", 6)),  # a was cut off and does not know it
        ({}, FollowedHead("a", 5), FollowedHead("a", 5)),  # nobody answers: stay
        ({"a": 5}, FollowedHead("a", 5), FollowedHead("a", 5)),
        ({"a": 7}, FollowedHead("a", 5), FollowedHead("a", 7)),  # it lost its lead and has it again
        ({"b": 6}, FollowedHead("a", 5), FollowedHead("b", 6)),
        ({"a": 5, "b": 6}, FollowedHead("a", 5), FollowedHead("b", 6)),
        ({"a": 5}, FollowedHead("b", 6), FollowedHead("b", 6)),  # an old leader is not gone back to
        ({"b": 1}, FollowedHead("a"), FollowedHead("b", 1)),  # of the present one no term is known
    ],
)
def test_newest_term_is_followed(
    said: dict[str, int], present: FollowedHead | None, expected: FollowedHead | None
) -> None:
    assert choose_leader(said, present) == expected


@pytest.mark.parametrize(
    ("health", "term"),
    [
        ({"status": "ok", "term": 3}, 3),
        ({"status": "ok", "term": None}, 0),  # its database is its own
        ({"status": "waiting", "code": "NOT_LEADING"}, None),
        ({}, None),
        ({"status": "ok"}, 0),  # of an older release
    ],
)
def test_only_a_leader_has_a_term(health: dict[str, Any], term: int | None) -> None:
    assert term_of(health) == term


@dataclass
class StandIn:
    """The API of a head, with a certificate of its own."""

    head: Head
    answers: dict[str, Any] = field(default_factory=dict)  # by path; absent: 503
    refuses: dict[str, Any] = field(default_factory=dict)  # by path: an error instead
    asked: list[tuple[str, Any]] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)  # set: it answers

    def __post_init__(self) -> None:
        self.held.set()

    def leads(self, term: int | None) -> None:
        health = {"status": "ok", "term": term} if term is not None else {"status": "waiting"}
        self.answers["/v1/health"] = health


@contextmanager
def stand_in(folder: Path, name: str, gcs: tuple[str, int]) -> Iterator[StandIn]:
    files = CertificateFiles(folder / f"{name}.pem", folder / f"{name}.key")
    ensure_self_signed(files, "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            made.asked.append((self.path, json.loads(body) if body else None))
            made.held.wait(60)
            found = made.answers.get(self.path)
            error = made.refuses.get(self.path, {"code": "NOT_LEADING"})
            text = json.dumps(found if found is not None else {"error": error}).encode()
            self.send_response(200 if found is not None else 503)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = answer  # noqa: N815 - as the library wants it

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = server_context(files).wrap_socket(server.socket, server_side=True)
    url = f"https://127.0.0.1:{server.server_address[1]}"
    made = StandIn(Head(name, url, files.certificate.read_text(), *gcs))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[StandIn, StandIn]]:
    with stand_in(tmp_path, "a", A) as a, stand_in(tmp_path, "b", B) as b:
        keep_heads(tmp_path, [a.head, b.head])
        yield a, b


def test_node_follows_the_leader(tmp_path: Path, two: tuple[StandIn, StandIn]) -> None:
    a, b = two
    following = HeadFollower("n1", tmp_path, A, None)
    a.leads(None)
    b.leads(None)
    assert following.look() == (False, None)
    b.leads(4)
    assert following.look() == (True, B)  # though it joined at the other
    following.follow(B)
    b.answers.clear()
    assert not following.moved()
    a.leads(3)
    assert not following.moved()
    a.leads(5)
    assert following.moved()
    assert following.look() == (True, A)


def test_head_follows_itself_without_a_newer_leader(tmp_path: Path, two: tuple[StandIn, StandIn]) -> None:
    _, b = two
    lead = tmp_path / "leader.json"
    following = HeadFollower("a", tmp_path, None, lead)
    assert following.look() == (False, None)
    lead.write_text('{"leads": true, "term": 2}')
    assert following.look() == (True, None)
    following.follow(None)
    lead.write_text('{"leads": false, "term": 2}')  # its control plane is started again
    assert not following.moved()
    lead.write_text('{"leads": true, "term": 3}')
    assert not following.moved()
    b.leads(2)
    assert not following.moved()
    b.leads(4)
    assert following.moved()
    assert following.look() == (True, B)
    assert [path for path, _ in two[0].asked] == []  # nobody asks itself


def test_newer_leader_is_followed_before_other_answers(
    tmp_path: Path, two: tuple[StandIn, StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two
    monkeypatch.setattr(following_module, "ANSWER_S", 60.0)
    following = HeadFollower("n1", tmp_path, A, None)
    a.leads(3)
    assert following.look() == (True, A)
    following.follow(A)
    b.leads(4)
    a.held.clear()
    try:
        assert following.moved()
        assert not a.held.is_set()
    finally:
        a.held.set()


def test_new_leader_asks_no_other_head(tmp_path: Path, two: tuple[StandIn, StandIn]) -> None:
    _, b = two
    b.leads(4)
    following = HeadFollower("a", tmp_path, None, tmp_path / "leader.json")
    assert following.look() == (True, B)
    following.follow(B)
    asked = len(b.asked)
    (tmp_path / "leader.json").write_text('{"leads": true, "term": 5}')
    assert following.moved()
    assert len(b.asked) == asked


def test_single_head_asks_no_other_head(tmp_path: Path, two: tuple[StandIn, StandIn]) -> None:
    a, b = two
    assert HeadFollower("a", tmp_path, None, None).look() == (True, None)  # a head with a database of its own
    keep_heads(tmp_path, [a.head])
    assert HeadFollower("a", tmp_path, None, tmp_path / "none").look() == (True, None)
    assert HeadFollower("n1", tmp_path, A, None).look() == (True, A)
    keep_heads(tmp_path, [b.head])  # the one that it joined at has gone for good
    assert HeadFollower("n1", tmp_path, A, None).look() == (True, B)
    (tmp_path / "heads.json").unlink()
    assert HeadFollower("n1", tmp_path, A, None).look() == (True, A)
    assert a.asked == b.asked == []


def test_head_with_other_certificate_is_not_trusted(tmp_path: Path, two: tuple[StandIn, StandIn]) -> None:
    a, b = two
    forged = Head("a", b.head.url, a.head.certificate, *A)
    keep_heads(tmp_path, [forged, b.head])
    b.leads(9)
    following = HeadFollower("n1", tmp_path, A, None)
    assert following.look() == (True, B)
    assert len(b.asked) == 1


def test_node_learns_of_new_heads(tmp_path: Path, two: tuple[StandIn, StandIn]) -> None:
    a, b = two
    keep_heads(tmp_path, [a.head])
    member = {"url": a.head.url, "certificate": a.head.certificate, "node": "n1", "secret": "s"}
    (tmp_path / "member.json").write_text(json.dumps(member))
    path = "/v1/members/n1/heads"
    both = [{**_plain(head), "strange": 1} for head in (a.head, b.head)]
    a.answers[path] = {"state": "up", "heads": both}
    following = HeadFollower("n1", tmp_path, A, None)
    following.refresh()
    assert a.asked == [(path, {"secret": "s"})]
    assert read_heads(tmp_path) == (a.head, b.head)
    a.answers.clear()  # it does not lead any more
    b.answers[path] = {"state": "up", "heads": both[1:]}
    following.refresh()
    assert read_heads(tmp_path) == (b.head,)
    b.answers[path] = {"state": "up", "heads": []}
    following.refresh()
    assert read_heads(tmp_path) == (b.head,)  # none at all is no answer


def joined(folder: Path, head: Head) -> HeadFollower:
    """Return a node that joined at a head and knows no other."""
    keep_heads(folder, [head])
    member = {"url": head.url, "certificate": head.certificate, "node": "n1", "secret": "s"}
    (folder / "member.json").write_text(json.dumps(member))
    return HeadFollower("n1", folder, A, None)


def test_node_learns_of_leader_from_a_known_head(tmp_path: Path, two: tuple[StandIn, StandIn]) -> None:
    a, b = two
    following = joined(tmp_path, a.head)
    a.leads(None)
    b.leads(6)
    a.answers["/v1/members/n1/heads"] = {"heads": [_plain(a.head), _plain(b.head)]}  # it waits, and knows all heads
    following.refresh()
    assert following.look() == (True, B)


def test_head_of_older_release_is_supported(tmp_path: Path, two: tuple[StandIn, StandIn]) -> None:
    a, b = two
    following = joined(tmp_path, a.head)
    a.answers["/v1/members/n1/standing"] = {"state": "up", "heads": [_plain(a.head), _plain(b.head)]}
    following.refresh()
    assert read_heads(tmp_path) == (a.head, b.head)


def test_removed_machine_is_informed_and_stays_out(tmp_path: Path, two: tuple[StandIn, StandIn]) -> None:
    a, _ = two
    following = joined(tmp_path, a.head)
    following.refresh()
    assert following.removed is None  # that a head does not lead, or does not know a machine, is no removal
    said = {"code": "NODE_REMOVED", "message": "n1 was removed", "hint": "Join again."}
    a.refuses["/v1/members/n1/heads"] = said
    following.refresh()
    assert following.removed is not None
    assert following.removed.to_dict() == said
    assert (tmp_path / "removed.json").stat().st_mode & 0o777 == 0o600


def test_list_of_heads_is_private_and_damaged_list_is_ignored(tmp_path: Path) -> None:
    head = Head("a", "https://10.0.0.1:8443", "pem", *A, 7.0)
    keep_heads(tmp_path, [head])
    path = tmp_path / "heads.json"
    assert read_heads(tmp_path) == (head,)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["heads.json"]
    for text in ("", "[]", "{}", '{"heads": [{}]}', path.read_text().replace("https", "http")):
        path.write_text(text)
        assert read_heads(tmp_path) == ()


def test_answer_of_control_plane_is_parsed_or_ignored(tmp_path: Path) -> None:
    path = tmp_path / "leader.json"
    assert HeadLead.read(path) is None
    path.write_text('{"leads": true, "term": 8}')
    assert HeadLead.read(path) == HeadLead(leads=True, term=8)
    path.write_text("{")
    assert HeadLead.read(path) is None


def _plain(head: Head) -> dict[str, Any]:
    return {name: getattr(head, name) for name in Head.__dataclass_fields__}
