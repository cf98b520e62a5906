"""Only heads of a cluster may lead it, and no machine that was removed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from databases import PostgresServer
from e2e_pool import eventually

from gpupool.daemon.cluster.leader import ElectionState, Leading
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.heads import HeadIdentity
from gpupool.store import database_copy
from gpupool.store.backends import postgres
from gpupool.store.backends.address import PostgresAddress
from gpupool.store.backends.leadership import LeaderSession

H1, H2, H3 = (HeadIdentity(name, name[-1] * 64) for name in ("h1", "h2", "h3"))
REMOVE = (
    "DELETE FROM heads WHERE name = 'h2'; DELETE FROM members WHERE node = 'h2';"
    " INSERT INTO removed_members VALUES (repeat('2', 64), 'h2', 1795000000, 'root')"
)


def cluster(server: PostgresServer) -> str:
    """Yield the URL of a database in which h1 and h2 are heads."""
    url = server.fresh()
    for head in (H1, H2):
        server.sql(
            f"INSERT INTO heads VALUES ('{head.node}', 'https://{head.node}', 'pem', '10.0.0.1', 8650, 1);"
            f"INSERT INTO members VALUES ('{head.node}', '{head.secret_sha256}', 'key', '10.0.0.1', 1, 't')",
            name_of(url),
        )
    return url


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


@contextmanager
def session(url: str) -> Iterator[LeaderSession]:
    made = LeaderSession(PostgresAddress(url))
    try:
        yield made
    finally:
        made.close()


@contextmanager
def asking(url: str, identity: Callable[[], HeadIdentity | None]) -> Iterator[Leading]:
    made = Leading(PostgresAddress(url), "cp", "cp:8443", identity, lambda: None)
    made.start()
    try:
        yield made
    finally:
        made.close()


def test_removed_head_does_not_become_leader(server: PostgresServer) -> None:
    url = cluster(server)
    with session(url) as first:
        assert first.try_lock()
        assert first.begin_term("h1", "", H1)
        server.sql(REMOVE, name_of(url))
        with asking(url, lambda: H2) as second:
            assert eventually(lambda: second.refusal.code is ErrorCode.NODE_REMOVED)
            first.close()
            server.sql("SELECT pg_sleep(1.5)")  # it asks twice a second
            assert (second.standing, second.term) == (ElectionState.WAITING, None)
            assert "removed from the pool by root" in second.refusal.message
            assert "join-token create" in second.refusal.hint
            with asking(url, lambda: H1) as again:  # the lock is free: nobody who must not lead holds it
                assert eventually(lambda: again.standing is ElectionState.LEADING)


def test_election_waits_for_uncommitted_removal(server: PostgresServer) -> None:
    url = cluster(server)
    said: list[GpupoolError] = []
    with session(url) as second, psycopg.connect(url) as removal:
        removal.execute("SELECT term FROM leadership WHERE id = 1 FOR UPDATE")
        removal.execute(REMOVE)
        assert second.try_lock()

        def begin() -> None:
            try:
                second.begin_term("h2", "", H2)
            except GpupoolError as error:
                said.append(error)

        thread = threading.Thread(target=begin)
        thread.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = '{}'"
        assert eventually(lambda: server.sql(waits.format(name_of(url))) == "1")
        removal.commit()
        thread.join()
    assert [error.code for error in said] == [ErrorCode.NODE_REMOVED]
    assert server.sql("SELECT term FROM leadership", name_of(url)) == "0"


@pytest.mark.parametrize(
    "identity",
    [H3, None, HeadIdentity("h2", "9" * 64), HeadIdentity("h2")],
    ids=["unlisted", "no-cluster", "another-of-its-name", "no-secret"],
)
def test_unlisted_head_does_not_lead(server: PostgresServer, identity: HeadIdentity | None) -> None:
    with asking(cluster(server), lambda: identity) as stranger:
        assert eventually(lambda: "not one of the heads" in stranger.refusal.message)
        assert "h1, h2" in stranger.refusal.message
        assert stranger.term is None


def test_listed_heads_lead_and_without_list_any_process_may(server: PostgresServer) -> None:
    for url, identity in ((cluster(server), H2), (server.fresh(), H3), (server.empty(), H3), (server.empty(), None)):
        with asking(url, lambda identity=identity: identity) as asks:  # type: ignore[misc]
            assert eventually(lambda: asks.standing is ElectionState.LEADING)
    url = cluster(server)
    server.sql("DELETE FROM members", name_of(url))  # of a first head that has not been enrolled yet
    with asking(url, lambda: HeadIdentity("h1")) as asks:
        assert eventually(lambda: asks.standing is ElectionState.LEADING)


def test_restored_copy_may_be_led_by_unlisted_head(server: PostgresServer, tmp_path: Path) -> None:
    url = cluster(server)
    engine = postgres.make_engine(PostgresAddress(url))
    with engine.begin() as conn:
        database_copy.write_copy(conn, tmp_path / "copy.db")
    with engine.begin() as conn:
        database_copy.restore_into(conn, tmp_path / "copy.db")
    engine.dispose()
    with session(url) as new:
        assert new.exclusion(None) is not None
        assert new.try_lock()
        assert new.begin_term("h3", "", H3)
        assert new.begin_term("h3", "", H3)  # it ended before it could add itself to the list
        assert new.begin_term("h1", "", H1)  # a head of the copy leads: there is no need for another
        with pytest.raises(GpupoolError, match="not one of the heads"):
            new.begin_term("h3", "", H3)
