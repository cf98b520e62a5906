"""Heads of a cluster are read back unchanged from both databases and from an older schema."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from store_values import run_async
from test_migrations import make_at

from gpupool.domain.events import Event, Reason
from gpupool.domain.nodes.heads import Head
from gpupool.domain.nodes.joining import JoinedMachine, JoinToken, RemovedMember
from gpupool.store import open_store
from gpupool.store.backends import sqlite
from gpupool.store.migrations import migrate

EVENT = Event(1.0, "root", Reason.CHANGED, "joined")
FIRST = Head("h1", "https://10.0.0.1:8443", "-----BEGIN…", "10.0.0.1", 8650, 1.0)
SECOND = Head("h2", "https://[fd00::2]:443", "pem", "fd00::2", 9000, 2.5)
TOKEN = JoinToken("t1", "0" * 64, "root", 1.0, 1e12, 2, for_head=True)


def member(name: str) -> JoinedMachine:
    return JoinedMachine(name, "0" * 64, "1" * 64, "10.0.0.2", 3.0, "t1")


def test_heads_are_stored_at_admission_and_deleted_with_their_node(target: str) -> None:
    async def scene() -> None:
        store = await open_store(target)
        try:
            joins = store.joins
            await joins.save_token(TOKEN, EVENT)
            assert list(await joins.tokens()) == [TOKEN]
            await joins.save_head(FIRST)
            assert not await joins.admit("f" * 64, member("h3"), EVENT, SECOND)
            assert await joins.admit(TOKEN.secret_sha256, member("h2"), EVENT, SECOND)
            assert await joins.admit(TOKEN.secret_sha256, member("n1"), EVENT)
            assert list(await joins.heads()) == [FIRST, SECOND]
            await joins.save_head(SECOND)
            await joins.drop_member("h2", EVENT)
            assert list(await joins.heads()) == [FIRST]
            await store.delete_node("h1", EVENT)
            assert list(await joins.heads()) == []
        finally:
            await store.close()

    run_async(scene())


def test_removed_node_is_recognised_by_its_secret(target: str) -> None:
    async def scene() -> None:
        store = await open_store(target)
        try:
            joins = store.joins
            await joins.save_token(TOKEN, EVENT)
            await joins.admit(TOKEN.secret_sha256, replace(member("n1"), secret_sha256="a" * 64), EVENT)
            await joins.admit(TOKEN.secret_sha256, replace(member("n2"), secret_sha256="b" * 64), EVENT)
            await joins.drop_member("n1", EVENT)
            await store.delete_node("n2", replace(EVENT, at=2.0))
            await store.delete_node("never-joined", EVENT)
            assert list(await joins.members()) == []
            assert list(await joins.removed()) == [
                RemovedMember("b" * 64, "n2", 2.0, "root"),
                RemovedMember("a" * 64, "n1", 1.0, "root"),
            ]
        finally:
            await store.close()

    run_async(scene())


def test_join_tokens_of_older_schema_admit_nodes(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    make_at(path, "0006")
    engine = sqlite.make_engine(path)
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "INSERT INTO join_tokens (id, secret_sha256, created_by, created_at, expires_at, uses_left, note)"
            " VALUES ('t1', 'x', 'root', 1.0, 2.0, 1, '')"
        )
    engine.dispose()
    migrate.prepare(path)

    async def scene() -> None:
        store = await open_store(path)
        assert [token.for_head for token in await store.joins.tokens()] == [False]
        assert list(await store.joins.heads()) == []
        await store.close()

    run_async(scene())
