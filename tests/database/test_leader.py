"""Leadership of control planes: one at a time, again after an outage, never with a foreign database."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from databases import PostgresServer
from e2e_pool import eventually

from gpupool.daemon.cluster.leader import ElectionState, Leading
from gpupool.domain.errors import ErrorCode
from gpupool.store.backends.address import PostgresAddress

SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'gpupool leader' AND datname = '{}'"


@contextmanager
def control_planes(url: str, count: int = 2) -> Iterator[list[Leading]]:
    """Yield candidates in this order; each records its changes in its list ``seen``."""
    made: list[Leading] = []
    try:
        for number in range(count):
            made.append(Leading(PostgresAddress(url), f"cp{number}", f"cp{number}:8443", lambda: None, lambda: None))
            made[-1].start()
            assert eventually(
                lambda: made[-1].standing is not ElectionState.WAITING or "leads" in made[-1].refusal.message
            )
        yield made
    finally:
        for leading in made:
            leading.close()


def stands(leading: Leading, *wanted: ElectionState) -> bool:
    return eventually(lambda: leading.standing in wanted)


def sessions(server: PostgresServer, url: str) -> list[int]:
    return [int(pid) for pid in server.sql(SESSIONS.format(url.rpartition("/")[2])).split()]


def test_first_process_leads_and_next_one_follows(server: PostgresServer) -> None:
    with control_planes(server.empty()) as (first, second):
        assert (first.standing, second.standing) == (ElectionState.LEADING, ElectionState.WAITING)
        assert "cp0" in second.refusal.message
        assert "https://cp0:8443" in second.refusal.hint
        assert second.refusal.code is ErrorCode.NOT_LEADING
        first.close()
        assert stands(second, ElectionState.LEADING)
        assert first.term is not None
        assert (second.term or 0) > first.term


def test_leader_continues_in_same_term_after_outage(server: PostgresServer) -> None:
    with control_planes(server.fresh()) as (first, second):
        term = first.term
        server.stop()
        try:
            assert stands(first, ElectionState.SUSPENDED)
            assert first.refusal.code is ErrorCode.DATABASE_UNREACHABLE
            assert eventually(lambda: second.refusal.code is ErrorCode.DATABASE_UNREACHABLE)
        finally:
            server.start()
        assert stands(first, ElectionState.LEADING)
        assert first.term == term
        assert eventually(lambda: second.refusal.code is ErrorCode.NOT_LEADING)
        assert second.standing is ElectionState.WAITING


def test_leader_with_ended_session_leads_again_or_exits(server: PostgresServer) -> None:
    url = server.fresh()
    with control_planes(url) as (first, second):
        term = first.term
        server.sql(f"SELECT pg_terminate_backend(pid) FROM ({SESSIONS.format(url.rpartition('/')[2])}) AS s")
        assert eventually(lambda: [first.standing, second.standing].count(ElectionState.LEADING) == 1)
        leads = first if first.standing is ElectionState.LEADING else second
        assert leads is second or first.term == term
        assert leads is first or stands(first, ElectionState.ENDED)


def test_hanging_server_suspends_the_leader(server: PostgresServer) -> None:
    url = server.fresh()
    with control_planes(url, count=1) as (first,):
        term = first.term
        (backend,) = sessions(server, url)
        os.kill(backend, signal.SIGSTOP)
        try:
            assert stands(first, ElectionState.SUSPENDED)
            assert first.refusal.code is ErrorCode.DATABASE_UNREACHABLE
        finally:
            os.kill(backend, signal.SIGCONT)
        assert stands(first, ElectionState.LEADING)
        assert first.term == term


def test_leadership_is_provable_only_while_database_answers(server: PostgresServer) -> None:
    url = server.fresh()
    with control_planes(url) as (first, second):
        assert eventually(first.held)
        assert not second.held()
        (backend,) = [pid for pid in sessions(server, url) if holds_lock(server, pid)]
        os.kill(backend, signal.SIGSTOP)
        try:
            assert eventually(lambda: not first.held())
        finally:
            os.kill(backend, signal.SIGCONT)
        assert eventually(lambda: [first.held(), second.held()].count(True) == 1)
        leads, other = (first, second) if first.held() else (second, first)
        leads.close()
        assert eventually(lambda: not leads.held())
        # It led before and is replaced, or it leads now; it may take a moment to notice either.
        assert eventually(lambda: other.standing is ElectionState.ENDED or other.held())


def holds_lock(server: PostgresServer, pid: int) -> bool:
    return server.sql(f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = {pid}") == "1"


def newer(server: PostgresServer) -> str:
    url = server.fresh()
    server.sql("UPDATE alembic_version SET version_num = '9999'", url.rpartition("/")[2])
    return url


def theirs(server: PostgresServer) -> str:
    url = server.empty()
    server.sql("CREATE TABLE somebody_elses (x int)", url.rpartition("/")[2])
    return url


@pytest.mark.parametrize(
    ("make", "code"), [(newer, ErrorCode.DATABASE_NEWER), (theirs, ErrorCode.DATABASE_FOREIGN)], ids=["newer", "theirs"]
)
def test_foreign_database_has_no_leader(
    server: PostgresServer, make: Callable[[PostgresServer], str], code: ErrorCode
) -> None:
    with control_planes(make(server), count=1) as (first,):
        assert stands(first, ElectionState.ENDED)
        assert first.refusal.code is code
        assert first.term is None
