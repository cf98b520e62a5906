"""A login learns the heads of its pool, and uses whichever leads: over real connections, to those it trusts only."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from pool_heads import Head

from gpupool.cli.remote import RemoteGate
from gpupool.client import heads, ways
from gpupool.client.connection import Call, Connection
from gpupool.client.endpoint import TlsEndpoint, resolve
from gpupool.client.locate import Remote, find_pool
from gpupool.client.ways import Ways
from gpupool.domain.errors import ErrorCode, GpupoolError

TOKEN = "gpt_a_token"
Make = Callable[[str, int | None], Head]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where logins are kept; nothing in the environment leads to a pool."""
    for name in [name for name in os.environ if name.startswith("GPUPOOL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "gpupool"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Head] = []

    def build(name: str, term: int | None) -> Head:
        made.append(Head(tmp_path, name, term))
        return made[-1]

    yield build
    for head in made:
        head.close()


@pytest.fixture
def pair(make: Make) -> tuple[Head, Head]:
    """Two heads, of which the first leads."""
    first, second = make("h1", 1), make("h2", None)
    for head in (first, second):
        head.heads = [first.row, second.row]
    return first, second


def login_at(head: Head) -> Remote:
    return Remote(head.url, TOKEN, None, head.certificate, login=True)


def endpoint_at(head: Head) -> TlsEndpoint:
    return TlsEndpoint.of(login_at(head))


def gate_that_knows(head: Head) -> RemoteGate:
    gate = RemoteGate(login_at(head))
    assert gate.call("GET", "/v1/whoami").ok
    assert gate.ways.several
    return gate


def kept(head: Head) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(heads.kept_for(endpoint_at(head)).read_text())
    return found


def test_a_login_learns_the_heads_with_its_first_command(pair: tuple[Head, Head], home: Path) -> None:
    first, second = pair
    gate_that_knows(first)
    path = heads.kept_for(endpoint_at(first))
    assert path.parent == home / "heads"
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert [(row["name"], row["url"]) for row in kept(first)["heads"]] == [("h1", first.url), ("h2", second.url)]
    assert TOKEN not in path.read_text()
    assert [path.name for path in path.parent.iterdir()] == [path.name]


def test_the_heads_are_asked_for_now_and_then_only(pair: tuple[Head, Head]) -> None:
    first, _ = pair

    def times() -> int:
        return [what for _, what, _ in first.asked].count("/v1/heads")

    for _ in range(3):
        assert RemoteGate(login_at(first)).call("GET", "/v1/whoami").ok
    assert times() == 1
    path = heads.kept_for(endpoint_at(first))
    learnt = heads.read(path)
    assert learnt is not None
    heads.keep(path, dataclasses.replace(learnt, asked_at=time.time() - heads.FRESH_S - 1))
    for _ in range(3):
        assert RemoteGate(login_at(first)).call("GET", "/v1/whoami").ok
    assert times() == 2


def test_a_pool_that_does_not_tell_is_used_as_before(make: Make) -> None:
    alone = make("h1", 0)
    for _ in range(3):
        gate = RemoteGate(login_at(alone))
        assert gate.call("GET", "/v1/whoami").ok
        assert not gate.ways.several
    assert [what for _, what, _ in alone.asked].count("/v1/heads") == 1
    alone.term = None  # its database is another's meanwhile: there is nobody else to ask
    assert RemoteGate(login_at(alone)).call("GET", "/v1/whoami").status == 503


def test_commands_go_to_the_other_head_when_one_is_lost(pair: tuple[Head, Head]) -> None:
    first, second = pair
    gate_that_knows(first)
    first.die()
    second.term = 2
    assert RemoteGate(login_at(first)).call("POST", "/v1/workloads", {}).body == {"head": "h2"}
    assert second.asked[-1] == ("POST", "/v1/workloads", f"Bearer {TOKEN}")
    assert kept(first)["last"] == second.url


def test_the_next_command_does_not_wait_for_the_one_that_is_lost(pair: tuple[Head, Head]) -> None:
    first, second = pair
    gate_that_knows(first)
    first.freeze()
    second.term = 2
    began = time.monotonic()
    assert RemoteGate(login_at(first)).call("GET", "/v1/whoami").body == {"head": "h2"}
    waited_s = time.monotonic() - began
    assert ways.CONNECT_S <= waited_s < 3 * ways.CONNECT_S
    second.asked.clear()
    began = time.monotonic()
    assert RemoteGate(login_at(first)).call("GET", "/v1/whoami").body == {"head": "h2"}
    assert time.monotonic() - began < ways.CONNECT_S
    assert [what for _, what, _ in second.asked] == ["/v1/whoami"]  # nobody had to be asked who leads


def test_who_only_waits_is_told_nothing_and_the_one_that_leads_once(pair: tuple[Head, Head]) -> None:
    first, second = pair
    gate = gate_that_knows(first)
    first.term, second.term = None, 2
    assert gate.call("POST", "/v1/workloads/w/extend", {"seconds": 60}).body == {"head": "h2"}
    assert gate.call("POST", "/v1/workloads/w/extend", {"seconds": 60}).body == {"head": "h2"}
    assert second.targets() == ["POST /v1/workloads/w/extend"] * 2
    assert first.targets()[1:] == ["POST /v1/workloads/w/extend"]  # refused, and not asked again


def test_what_may_have_been_done_is_not_said_to_the_other(pair: tuple[Head, Head]) -> None:
    first, second = pair
    gate = gate_that_knows(first)
    first.hangs_up, second.term = True, 2
    with pytest.raises(ConnectionError):
        gate.call("POST", "/v1/workloads/w/extend", {"seconds": 60})
    assert second.targets() == []


def test_one_that_was_replaced_is_left(pair: tuple[Head, Head]) -> None:
    """It does not know it: a part of what it was asked for may be done. Questions go to the one that leads."""
    first, second = pair
    gate = gate_that_knows(first)
    first.replaced, second.term = True, 2
    assert gate.call("POST", "/v1/workloads/w/extend", {"seconds": 60}).status == 503
    assert second.targets() == []
    assert gate.call("GET", "/v1/whoami").body == {"head": "h2"}
    again = RemoteGate(login_at(first))
    assert again.call("POST", "/v1/workloads/w/extend", {"seconds": 60}).body == {"head": "h2"}


def test_a_question_is_asked_again_at_the_one_that_leads(pair: tuple[Head, Head]) -> None:
    first, second = pair
    gate = gate_that_knows(first)
    first.replaced, second.term = True, 2
    assert gate.call("GET", "/v1/whoami").body == {"head": "h2"}


def test_a_head_with_another_certificate_than_listed_is_refused(pair: tuple[Head, Head], make: Make) -> None:
    first, second = pair
    stranger = make("h3", 9)
    first.heads = [first.row, {**second.row, "url": stranger.url}]
    gate = gate_that_knows(first)
    first.die()
    with pytest.raises(OSError, match="refused"):
        gate.call("GET", "/v1/whoami", timeout_s=5)
    assert stranger.asked == []


def test_no_list_is_taken_from_who_is_not_trusted(pair: tuple[Head, Head], make: Make) -> None:
    first, _ = pair
    liar = make("liar", 9)
    liar.heads = [liar.row]
    gate = RemoteGate(Remote(liar.url, TOKEN, None, first.certificate, login=True))
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        gate.call("GET", "/v1/whoami", timeout_s=5)
    assert liar.asked == []
    assert not heads.kept_for(TlsEndpoint(liar.url, TOKEN, certificate=first.certificate)).exists()


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://127.0.0.1:1"},
        {"url": "https://127.0.0.1:1/elsewhere"},
        {"url": "https://u:p@127.0.0.1:1"},
        {"url": "https://127.0.0.1:99999"},
        {"url": "https://:8443"},
        {"url": "https://a..b:8443"},
        {"url": f"https://{'a' * 64}:8443"},
        {"url": f"https://{'a' * 300}"},
        {"certificate": "no certificate"},
        {"certificate": 7},
        {"name": "a\nb"},
        {"name": None},
    ],
)
def test_a_list_that_cannot_be_used_is_left(pair: tuple[Head, Head], change: dict[str, Any]) -> None:
    first, second = pair
    first.heads = [first.row, {**second.row, **change}]
    gate = RemoteGate(login_at(first))
    assert gate.call("GET", "/v1/whoami").ok
    assert not gate.ways.several


def test_two_certificates_are_not_one_and_seventeen_heads_too_many(pair: tuple[Head, Head]) -> None:
    first, second = pair
    both = {**second.row, "certificate": first.certificate + second.certificate}
    for listed in ([both], [second.row] * 17, "heads", None):
        with pytest.raises(ValueError, match=r"not|many"):
            heads.heads_of({"heads": listed})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"heads": [{}], "asked_at": 1, "last": ""}', '{"heads": []}'])
def test_a_file_that_is_not_ours_is_as_none(pair: tuple[Head, Head], text: str) -> None:
    first, _ = pair
    path = heads.kept_for(endpoint_at(first))
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert gate_that_knows(first).call("GET", "/v1/whoami").ok
    assert kept(first)["heads"]


def test_a_login_that_somebody_spoilt_trusts_nobody(pair: tuple[Head, Head]) -> None:
    first, _ = pair
    gate = RemoteGate(Remote(first.url, TOKEN, None, "-----BEGIN", login=True))
    with pytest.raises(OSError, match="does not contain a certificate"):
        gate.call("GET", "/v1/whoami", timeout_s=5)
    assert first.asked == []


def test_while_none_leads_a_command_waits_for_the_one_that_will(pair: tuple[Head, Head]) -> None:
    first, second = pair
    gate_that_knows(first)
    first.die()
    threading.Timer(2.0, lambda: setattr(second, "term", 2)).start()
    assert RemoteGate(login_at(first)).call("POST", "/v1/workloads", {}).body == {"head": "h2"}


def test_it_does_not_wait_for_ever(pair: tuple[Head, Head]) -> None:
    first, _ = pair
    gate = gate_that_knows(first)
    first.die()
    with pytest.raises(OSError, match="no head of the pool leads"):
        gate.call("GET", "/v1/whoami", timeout_s=2)


def test_where_nobody_is_left_that_is_said_soon(pair: tuple[Head, Head]) -> None:
    first, second = pair
    gate = gate_that_knows(first)
    first.die()
    second.die()
    began = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        gate.call("GET", "/v1/whoami")
    assert time.monotonic() - began < ways.NOBODY_S + ways.CONNECT_S


def test_one_that_serves_nobody_while_it_begins_to_lead_is_waited_for(pair: tuple[Head, Head]) -> None:
    first, second = pair
    gate = gate_that_knows(first)
    first.die()
    second.die()

    def leads() -> None:
        second.term = 2
        second.up()

    threading.Timer(2.0, leads).start()
    assert gate.call("GET", "/v1/whoami").body == {"head": "h2"}


def test_an_address_given_by_hand_uses_what_a_login_learnt_there(
    pair: tuple[Head, Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same address, trusted in the same way; learnt is nothing by itself."""
    first, second = pair
    print_of_first = heads.trust.fingerprint_of_pem(first.certificate)
    by_hand = {"url": first.url, "token": "gpt_another", "fingerprint": print_of_first}
    with Connected(resolve(**by_hand)) as alone:
        alone.send(Call("GET", "/v1/whoami"))
    assert not heads.kept_for(endpoint_at(first)).exists()
    gate_that_knows(first)
    first.die()
    second.term = 2
    with Connected(resolve(**by_hand)) as connection:
        assert connection.send(Call("GET", "/v1/whoami")).json() == {"head": "h2"}
    assert second.asked[-1][2] == "Bearer gpt_another"
    monkeypatch.setenv("GPUPOOL_URL", first.url)
    monkeypatch.setenv("GPUPOOL_TOKEN", TOKEN)
    monkeypatch.setenv("GPUPOOL_CA", str(first.files.certificate))
    place = find_pool()
    assert isinstance(place, Remote)
    assert not RemoteGate(place).ways.several


class Connected(Connection):
    """One that is let go of."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def test_a_client_goes_on_at_the_other_head(pair: tuple[Head, Head]) -> None:
    first, second = pair
    with Connected(endpoint_at(first)) as connection:
        assert connection.send(Call("GET", "/v1/whoami")).json() == {"head": "h1"}
        first.term, second.term = None, 2
        assert connection.send(Call("POST", "/v1/workloads/w/extend", json={})).json() == {"head": "h2"}
        assert connection.endpoint == TlsEndpoint(second.url, TOKEN, certificate=second.certificate)
        first.term, second.term = 3, None
        assert connection.send(Call("GET", "/v1/whoami")).json() == {"head": "h1"}
    assert [what for what in second.targets() if what.startswith("POST")] == ["POST /v1/workloads/w/extend"]
    assert kept(first)["last"] == first.url


def test_a_client_says_nothing_twice_that_may_have_been_done(pair: tuple[Head, Head]) -> None:
    first, second = pair
    with Connected(endpoint_at(first), 5.0) as connection:
        connection.send(Call("GET", "/v1/whoami"))
        first.hangs_up, second.term = True, 2
        with pytest.raises(GpupoolError) as refused:
            connection.send(Call("POST", "/v1/workloads/w/extend", json={}))
        assert refused.value.code is ErrorCode.POOL_UNREACHABLE
        assert second.targets() == []
        again = connection.send(Call("POST", "/v1/workloads", json={"request_id": "r"}, again=True))
        assert again.json() == {"head": "h2"}


def test_logins_that_are_gone_leave_no_heads(pair: tuple[Head, Head]) -> None:
    first, second = pair
    gate_that_knows(first)
    second.term = 2
    gate_that_knows(second)
    heads.forget_all_but([endpoint_at(second)])
    assert not heads.kept_for(endpoint_at(first)).exists()
    assert Ways(endpoint_at(second)).several
