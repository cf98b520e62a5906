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

from gpupool.cli.transport.remote import RemoteTransport
from gpupool.client.discovery import Remote, find_pool
from gpupool.client.transport import failover, heads
from gpupool.client.transport.connection import ApiCall, PoolConnection
from gpupool.client.transport.endpoint import TlsEndpoint, resolve_endpoint
from gpupool.client.transport.failover import HeadSelector
from gpupool.domain.errors import ErrorCode, GpupoolError

TOKEN = "gpt_a_token"
Make = Callable[[str, int | None], Head]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of logins, with an environment that names no pool."""
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
    """Yield two heads; the first one leads."""
    first, second = make("h1", 1), make("h2", None)
    for head in (first, second):
        head.heads = [first.row, second.row]
    return first, second


def login_at(head: Head) -> Remote:
    return Remote(head.url, TOKEN, None, head.certificate, login=True)


def endpoint_at(head: Head) -> TlsEndpoint:
    return TlsEndpoint.from_remote(login_at(head))


def gate_that_knows(head: Head) -> RemoteTransport:
    transport = RemoteTransport(login_at(head))
    assert transport.call("GET", "/v1/whoami").ok
    assert transport.heads.has_alternatives
    return transport


def kept(head: Head) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(heads.heads_file(endpoint_at(head)).read_text())
    return found


def test_first_command_after_login_stores_the_heads(pair: tuple[Head, Head], home: Path) -> None:
    first, second = pair
    gate_that_knows(first)
    path = heads.heads_file(endpoint_at(first))
    assert path.parent == home / "heads"
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert [(row["name"], row["url"]) for row in kept(first)["heads"]] == [("h1", first.url), ("h2", second.url)]
    assert TOKEN not in path.read_text()
    assert [path.name for path in path.parent.iterdir()] == [path.name]


def test_heads_are_refreshed_rarely(pair: tuple[Head, Head]) -> None:
    first, _ = pair

    def times() -> int:
        return [what for _, what, _ in first.asked].count("/v1/heads")

    for _ in range(3):
        assert RemoteTransport(login_at(first)).call("GET", "/v1/whoami").ok
    assert times() == 1
    path = heads.heads_file(endpoint_at(first))
    learnt = heads.load_heads(path)
    assert learnt is not None
    heads.save_heads(path, dataclasses.replace(learnt, asked_at=time.time() - heads.MAX_AGE_S - 1))
    for _ in range(3):
        assert RemoteTransport(login_at(first)).call("GET", "/v1/whoami").ok
    assert times() == 2


def test_pool_without_list_of_heads_is_used_as_before(make: Make) -> None:
    alone = make("h1", 0)
    for _ in range(3):
        transport = RemoteTransport(login_at(alone))
        assert transport.call("GET", "/v1/whoami").ok
        assert not transport.heads.has_alternatives
    assert [what for _, what, _ in alone.asked].count("/v1/heads") == 1
    alone.term = None  # its database is another's meanwhile: there is nobody else to ask
    assert RemoteTransport(login_at(alone)).call("GET", "/v1/whoami").status == 503


def test_command_uses_other_head_when_one_is_lost(pair: tuple[Head, Head]) -> None:
    first, second = pair
    gate_that_knows(first)
    first.die()
    second.term = 2
    assert RemoteTransport(login_at(first)).call("POST", "/v1/workloads", {}).body == {"head": "h2"}
    assert second.asked[-1] == ("POST", "/v1/workloads", f"Bearer {TOKEN}")
    assert kept(first)["last"] == second.url


def test_next_command_does_not_wait_for_lost_head(pair: tuple[Head, Head]) -> None:
    first, second = pair
    gate_that_knows(first)
    first.freeze()
    second.term = 2
    began = time.monotonic()
    assert RemoteTransport(login_at(first)).call("GET", "/v1/whoami").body == {"head": "h2"}
    waited_s = time.monotonic() - began
    assert failover.CONNECT_TIMEOUT_S <= waited_s < 3 * failover.CONNECT_TIMEOUT_S
    second.asked.clear()
    began = time.monotonic()
    assert RemoteTransport(login_at(first)).call("GET", "/v1/whoami").body == {"head": "h2"}
    assert time.monotonic() - began < failover.CONNECT_TIMEOUT_S
    assert [what for _, what, _ in second.asked] == ["/v1/whoami"]  # nobody had to be asked who leads


def test_replaced_leader_is_asked_once_and_then_left(pair: tuple[Head, Head]) -> None:
    first, second = pair
    transport = gate_that_knows(first)
    first.term, second.term = None, 2
    assert transport.call("POST", "/v1/workloads/w/extend", {"seconds": 60}).body == {"head": "h2"}
    assert transport.call("POST", "/v1/workloads/w/extend", {"seconds": 60}).body == {"head": "h2"}
    assert second.targets() == ["POST /v1/workloads/w/extend"] * 2
    assert first.targets()[1:] == ["POST /v1/workloads/w/extend"]  # refused, and not asked again


def test_possibly_executed_request_is_not_sent_to_other_head(pair: tuple[Head, Head]) -> None:
    first, second = pair
    transport = gate_that_knows(first)
    first.hangs_up, second.term = True, 2
    with pytest.raises(ConnectionError):
        transport.call("POST", "/v1/workloads/w/extend", {"seconds": 60})
    assert second.targets() == []


def test_replaced_leader_is_left(pair: tuple[Head, Head]) -> None:
    """The old leader does not know it and may have applied a part of a request. Queries go to the new leader."""
    first, second = pair
    transport = gate_that_knows(first)
    first.replaced, second.term = True, 2
    assert transport.call("POST", "/v1/workloads/w/extend", {"seconds": 60}).status == 503
    assert second.targets() == []
    assert transport.call("GET", "/v1/whoami").body == {"head": "h2"}
    again = RemoteTransport(login_at(first))
    assert again.call("POST", "/v1/workloads/w/extend", {"seconds": 60}).body == {"head": "h2"}


def test_read_request_is_repeated_at_the_leader(pair: tuple[Head, Head]) -> None:
    first, second = pair
    transport = gate_that_knows(first)
    first.replaced, second.term = True, 2
    assert transport.call("GET", "/v1/whoami").body == {"head": "h2"}


def test_head_with_unlisted_certificate_is_refused(pair: tuple[Head, Head], make: Make) -> None:
    first, second = pair
    stranger = make("h3", 9)
    first.heads = [first.row, {**second.row, "url": stranger.url}]
    transport = gate_that_knows(first)
    first.die()
    with pytest.raises(OSError, match="refused"):
        transport.call("GET", "/v1/whoami", timeout_s=5)
    assert stranger.asked == []


def test_list_of_heads_is_accepted_only_from_trusted_head(pair: tuple[Head, Head], make: Make) -> None:
    first, _ = pair
    liar = make("liar", 9)
    liar.heads = [liar.row]
    transport = RemoteTransport(Remote(liar.url, TOKEN, None, first.certificate, login=True))
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        transport.call("GET", "/v1/whoami", timeout_s=5)
    assert liar.asked == []
    assert not heads.heads_file(TlsEndpoint(liar.url, TOKEN, certificate=first.certificate)).exists()


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
def test_invalid_list_of_heads_is_ignored(pair: tuple[Head, Head], change: dict[str, Any]) -> None:
    first, second = pair
    first.heads = [first.row, {**second.row, **change}]
    transport = RemoteTransport(login_at(first))
    assert transport.call("GET", "/v1/whoami").ok
    assert not transport.heads.has_alternatives


def test_list_with_two_certificates_or_seventeen_heads_is_refused(pair: tuple[Head, Head]) -> None:
    first, second = pair
    both = {**second.row, "certificate": first.certificate + second.certificate}
    for listed in ([both], [second.row] * 17, "heads", None):
        with pytest.raises(ValueError, match=r"not|many"):
            heads.parse_heads({"heads": listed})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"heads": [{}], "asked_at": 1, "last": ""}', '{"heads": []}'])
def test_foreign_file_of_heads_is_ignored(pair: tuple[Head, Head], text: str) -> None:
    first, _ = pair
    path = heads.heads_file(endpoint_at(first))
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert gate_that_knows(first).call("GET", "/v1/whoami").ok
    assert kept(first)["heads"]


def test_damaged_login_trusts_no_head(pair: tuple[Head, Head]) -> None:
    first, _ = pair
    transport = RemoteTransport(Remote(first.url, TOKEN, None, "-----BEGIN", login=True))
    with pytest.raises(OSError, match="does not contain a certificate"):
        transport.call("GET", "/v1/whoami", timeout_s=5)
    assert first.asked == []


def test_command_waits_for_the_next_leader(pair: tuple[Head, Head]) -> None:
    first, second = pair
    gate_that_knows(first)
    first.die()
    threading.Timer(2.0, lambda: setattr(second, "term", 2)).start()
    assert RemoteTransport(login_at(first)).call("POST", "/v1/workloads", {}).body == {"head": "h2"}


def test_wait_for_a_leader_is_limited(pair: tuple[Head, Head]) -> None:
    first, _ = pair
    transport = gate_that_knows(first)
    first.die()
    with pytest.raises(OSError, match="no head of the pool leads"):
        transport.call("GET", "/v1/whoami", timeout_s=2)


def test_loss_of_all_heads_is_reported_soon(pair: tuple[Head, Head]) -> None:
    first, second = pair
    transport = gate_that_knows(first)
    first.die()
    second.die()
    began = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        transport.call("GET", "/v1/whoami")
    assert time.monotonic() - began < failover.NO_ANSWER_TIMEOUT_S + failover.CONNECT_TIMEOUT_S


def test_starting_leader_is_awaited(pair: tuple[Head, Head]) -> None:
    first, second = pair
    transport = gate_that_knows(first)
    first.die()
    second.die()

    def leads() -> None:
        second.term = 2
        second.up()

    threading.Timer(2.0, leads).start()
    assert transport.call("GET", "/v1/whoami").body == {"head": "h2"}


def test_given_url_uses_heads_of_its_login(pair: tuple[Head, Head], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same address, trusted in the same way; learnt is nothing by itself."""
    first, second = pair
    print_of_first = heads.tls_pinning.fingerprint_of_pem(first.certificate)
    by_hand = {"url": first.url, "token": "gpt_another", "fingerprint": print_of_first}
    with Connected(resolve_endpoint(**by_hand)) as alone:
        alone.send(ApiCall("GET", "/v1/whoami"))
    assert not heads.heads_file(endpoint_at(first)).exists()
    gate_that_knows(first)
    first.die()
    second.term = 2
    with Connected(resolve_endpoint(**by_hand)) as connection:
        assert connection.send(ApiCall("GET", "/v1/whoami")).body == {"head": "h2"}
    assert second.asked[-1][2] == "Bearer gpt_another"
    monkeypatch.setenv("GPUPOOL_URL", first.url)
    monkeypatch.setenv("GPUPOOL_TOKEN", TOKEN)
    monkeypatch.setenv("GPUPOOL_CA", str(first.files.certificate))
    place = find_pool()
    assert isinstance(place, Remote)
    assert not RemoteTransport(place).heads.has_alternatives


class Connected(PoolConnection):
    """A connection as a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def test_client_continues_at_the_other_head(pair: tuple[Head, Head]) -> None:
    first, second = pair
    with Connected(endpoint_at(first)) as connection:
        assert connection.send(ApiCall("GET", "/v1/whoami")).body == {"head": "h1"}
        first.term, second.term = None, 2
        assert connection.send(ApiCall("POST", "/v1/workloads/w/extend", json={})).body == {"head": "h2"}
        assert connection.endpoint == TlsEndpoint(second.url, TOKEN, certificate=second.certificate)
        first.term, second.term = 3, None
        assert connection.send(ApiCall("GET", "/v1/whoami")).body == {"head": "h1"}
    assert [what for what in second.targets() if what.startswith("POST")] == ["POST /v1/workloads/w/extend"]
    assert kept(first)["last"] == first.url


def test_client_never_repeats_possibly_executed_request(pair: tuple[Head, Head]) -> None:
    first, second = pair
    with Connected(endpoint_at(first), 5.0) as connection:
        connection.send(ApiCall("GET", "/v1/whoami"))
        first.hangs_up, second.term = True, 2
        with pytest.raises(GpupoolError) as refused:
            connection.send(ApiCall("POST", "/v1/workloads/w/extend", json={}))
        assert refused.value.code is ErrorCode.POOL_UNREACHABLE
        assert second.targets() == []
        again = connection.send(ApiCall("POST", "/v1/workloads", json={"request_id": "r"}, repeatable=True))
        assert again.body == {"head": "h2"}


def test_removed_login_removes_its_heads(pair: tuple[Head, Head]) -> None:
    first, second = pair
    gate_that_knows(first)
    second.term = 2
    gate_that_knows(second)
    heads.delete_other_lists([endpoint_at(second)])
    assert not heads.heads_file(endpoint_at(first)).exists()
    assert HeadSelector(endpoint_at(second)).has_alternatives
