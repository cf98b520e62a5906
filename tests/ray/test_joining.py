"""Join tokens: who may create them, which machines they admit, and what a machine gets."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from gpupool.daemon.cluster.heads import database_for_others
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.nodes.heads import Head as ClusterHead
from gpupool.domain.nodes.heads import HeadStatus
from gpupool.domain.nodes.joining import JoinedMachine, JoinText, Versions
from gpupool.domain.people.access import Actor, Role
from gpupool.fabric.ray.authority import FolderAuthority, new_request, versions
from gpupool.fabric.ray.head_selection import read_heads, read_refused
from gpupool.services.cluster.heads import HeadOffer, Heads
from gpupool.services.cluster.joining import HeadFacts, Invitation, JoinRequest, JoinService, check_versions
from gpupool.store import SqlStore, open_store

ROOT = Actor("root", Role.ADMIN, "test", 0)
ANN = Actor("ann", Role.MEMBER, "test", 1000)
EVENT = Event(1.0, "root", Reason.CHANGED, "joined")
FIRST = ClusterHead("head", "https://10.0.0.1:8443", "pem", "10.0.0.1", 8650)
SAME = Versions("0.1.0", "2.60.0", "3.11.7")


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time


class Engine:
    """The parts of an engine that joining needs."""

    def __init__(self, store: SqlStore, authority: FolderAuthority | None) -> None:
        self.ports = self
        self.joins = store.joins
        self.store = store
        self.clock = Clock()
        self.authority = authority

    async def run_exclusive(self, work: Any) -> None:
        await work()


class Permissions:
    def need_role(self, actor: Actor, role: Role) -> None:
        if not actor.role.includes(role):
            raise GpupoolError(ErrorCode.FORBIDDEN, "No.")


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


class Nodes:
    async def nodes(self) -> list[Named]:
        return [Named("n1")]

    async def node(self, name: str) -> Any:
        raise GpupoolError(ErrorCode.UNKNOWN_NODE, name)


class Access:
    def on_revoked(self, act: Any) -> None:
        self.revoke = act

    async def end_of(self, actor: Actor) -> float:
        return 50.0 if actor.token_id else float("inf")


class Head:
    """A head on a real database, with a real authority."""

    def __init__(self, folder: Path, store: SqlStore, database: str | None = "postgresql://db/pool") -> None:
        self.folder = folder / "cluster"
        self.authority = FolderAuthority(folder / "cluster", "10.0.0.1", 8650)
        self.authority.establish("head")
        self.engine = Engine(store, self.authority)
        facts = HeadFacts("pool", "0.0.0.0:8443")
        self.heads = Heads(self.engine, FIRST, database)  # type: ignore[arg-type]
        self.service = JoinService(self.engine, Permissions(), Nodes(), facts, Access(), self.heads)  # type: ignore[arg-type]

    async def invite(self, **options: Any) -> Invitation:
        return await self.service.create_token(ROOT, **({"expires_in_s": 60.0} | options))

    def request(self, invitation: Invitation, node: str = "n1", key: Path = Path("/none"), **other: Any) -> JoinRequest:
        text = JoinText.read(invitation.text)
        assert text is not None
        made = JoinRequest(text.secret, node, "10.0.0.2", versions(), new_request(key, "n")[1])
        return dataclasses.replace(made, **other)


def with_head(folder: Path, scene: Any) -> Any:
    async def play() -> Any:
        store = await open_store(folder / "pool.db")
        try:
            return await scene(Head(folder, store))
        finally:
            await store.close()

    return asyncio.run(play())


async def refusal(work: Coroutine[Any, Any, Any]) -> ErrorCode:
    with pytest.raises(GpupoolError) as caught:
        await work
    return caught.value.code


def test_transferred_credentials_are_readable() -> None:
    text = JoinText("gpj_ab12cd34_" + "0" * 40, "f" * 64)
    assert JoinText.read(f" {text}\n") == text
    for other in ("", "gpt_a_b", str(text)[:-1], str(text).replace("gpj", "gpt"), "gpj_" + "x" * 300):
        assert JoinText.read(other) is None


def test_join_token_admits_its_number_of_machines(tmp_path: Path) -> None:
    async def scene(head: Head) -> None:
        invitation = await head.invite(uses=2)
        assert invitation.head == "10.0.0.1:8443"
        first = await head.service.join(head.request(invitation, "n2"))
        await head.service.join(head.request(invitation, "n3"))
        assert await refusal(head.service.join(head.request(invitation, "n4"))) is ErrorCode.UNAUTHENTICATED
        assert first.head == ("10.0.0.1", 8650)
        assert [member.node for member in await head.engine.joins.members()] == ["n2", "n3"]

    with_head(tmp_path, scene)


def test_last_use_of_join_token_is_exclusive(tmp_path: Path) -> None:
    async def scene(head: Head) -> list[str]:
        invitation = await head.invite()
        tries = (head.service.join(head.request(invitation, f"m{n}")) for n in range(5))
        results = await asyncio.gather(*tries, return_exceptions=True)
        return [type(result).__name__ for result in results]

    assert sorted(with_head(tmp_path, scene)) == ["Admission", *["GpupoolError"] * 4]


def test_expired_revoked_or_unknown_join_tokens_are_refused(tmp_path: Path) -> None:
    async def scene(head: Head) -> None:
        old, revoked = await head.invite(expires_in_s=10.0), await head.invite()
        await head.service.revoke_token(ROOT, revoked.token.id)
        head.engine.clock.time += 11.0
        for invitation in (old, revoked):
            assert await refusal(head.service.join(head.request(invitation))) is ErrorCode.UNAUTHENTICATED
        invented = head.request(await head.invite(), secret="gpj_0_0")
        assert await refusal(head.service.join(invented)) is ErrorCode.UNAUTHENTICATED
        assert await refusal(head.service.revoke_token(ROOT, "none")) is ErrorCode.UNKNOWN_TOKEN

    with_head(tmp_path, scene)


def test_only_administrators_manage_join_tokens(tmp_path: Path) -> None:
    async def scene(head: Head) -> None:
        made = await head.invite()
        for work in (
            head.service.create_token(ANN, expires_in_s=1.0),
            head.service.tokens(ANN),
            head.service.revoke_token(ANN, made.token.id),
        ):
            assert await refusal(work) is ErrorCode.FORBIDDEN

    with_head(tmp_path, scene)


def test_node_name_belongs_to_one_machine(tmp_path: Path) -> None:
    async def scene(head: Head) -> None:
        invitation = await head.invite(uses=5)
        key = tmp_path / "node.key"
        key.write_bytes(new_request(key, "n1")[0])
        request = head.request(invitation, key=key)
        await head.engine.joins.save_member(
            JoinedMachine("n1", "0" * 64, head.authority.key_of(request.certificate_request), "10.0.0.2", 1.0, "t"),
            EVENT,
        )
        await head.service.join(request)  # the same machine again
        assert await refusal(head.service.join(head.request(invitation))) is ErrorCode.NAME_TAKEN
        for name in ("../x", "a/b", "", "x" * 300):
            assert await refusal(head.service.join(head.request(invitation, name))) is ErrorCode.INVALID_NAME

    with_head(tmp_path, scene)


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (dataclasses.replace(SAME, ray="2.59.0"), "Ray 2.59.0 (the head has 2.60.0)"),
        (dataclasses.replace(SAME, python="3.11.8"), "Python 3.11.8 (the head has 3.11.7)"),
        (dataclasses.replace(SAME, gpupool="0.2.0"), "gpupool 0.2.0 (the head has 0.1.0)"),
    ],
)
def test_incompatible_versions_are_named(theirs: Versions, said: str) -> None:
    check_versions(SAME, dataclasses.replace(SAME, gpupool="0.1.9"))
    with pytest.raises(GpupoolError) as caught:
        check_versions(SAME, theirs)
    assert said in caught.value.message


def test_certificate_has_only_contents_decided_by_the_head(tmp_path: Path) -> None:
    authority = FolderAuthority(tmp_path / "cluster", "10.0.0.1", 8650)
    authority.establish("head")
    papers = authority.papers("n1", "10.0.0.2", new_request(tmp_path / "none", "head")[1])
    made, ca = (x509.load_pem_x509_certificate(pem.encode()) for pem in (papers.certificate, papers.ca))
    made.verify_directly_issued_by(ca)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["n1", "localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.2", "127.0.0.1", "::1"]
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    for wrong in ("", "no request", papers.certificate):
        with pytest.raises(GpupoolError):
            authority.papers("n1", "10.0.0.2", wrong)
    with pytest.raises(GpupoolError):
        authority.papers("n1", "gpu2.example.org", new_request(tmp_path / "none", "n1")[1])


def test_restarted_head_keeps_authority_and_token(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    for _ in range(2):
        FolderAuthority(folder, "10.0.0.1", 8650).establish("head")
        kept = {name: (folder / name).read_bytes() for name in ("ca.pem", "ca.key", "ray.token", "node.key")}
    FolderAuthority(folder, "10.0.0.1", 8650).establish("head")
    assert kept == {name: (folder / name).read_bytes() for name in kept}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_machine_is_identified_by_its_secret(tmp_path: Path) -> None:
    async def scene(head: Head) -> None:
        admission = await head.service.join(head.request(await head.invite(), "n7"))
        assert (await head.service.standing("n7", admission.secret)).state is None
        assert await refusal(head.service.standing("n7", "wrong")) is ErrorCode.UNAUTHENTICATED
        assert await refusal(head.service.leave("n2", admission.secret, force=True)) is ErrorCode.UNAUTHENTICATED
        await head.service.leave("n7", admission.secret, force=False)
        await head.service.gone("n7", admission.secret)
        assert await refusal(head.service.standing("n7", admission.secret)) is ErrorCode.NODE_REMOVED

    with_head(tmp_path, scene)


def test_removed_machine_needs_a_new_join_token(tmp_path: Path) -> None:
    async def scene(head: Head) -> None:
        service, folder = head.service, head.folder
        old = await service.join(head.request(await head.invite(), "n7"))
        await head.engine.joins.drop_member("n7", dataclasses.replace(EVENT, actor="ann"))
        await head.heads.refresh()
        for work in (service.standing, service.heads_for, service.gone):
            assert await refusal(work("n7", old.secret)) is ErrorCode.NODE_REMOVED
        assert read_refused(folder) == {"n7"}  # for this machine's bridge
        new = await service.join(head.request(await head.invite(), "n7"))
        assert read_refused(folder) == frozenset()
        assert (await service.standing("n7", new.secret)).state is None
        assert await refusal(service.standing("n7", old.secret)) is ErrorCode.NODE_REMOVED  # the name may be reused
        with pytest.raises(GpupoolError, match="removed from the pool by ann"):
            await service.standing("n7", old.secret)

    with_head(tmp_path, scene)


def wish(head: Head) -> HeadOffer:
    return HeadOffer("https://10.0.0.2:8443", (head.folder / "node.pem").read_text(), 8650)


def test_head_token_admits_a_head_that_all_nodes_learn(tmp_path: Path) -> None:
    async def scene(head: Head) -> None:
        await head.heads.announce()
        assert head.heads.standing("head") is None  # the only one
        before = await head.service.join(head.request(await head.invite(), "n1x"))
        assert before.charge is None
        assert [known.name for known in before.heads] == ["head"]
        request = head.request(await head.invite(for_head=True), "h2", head=wish(head))
        admission = await head.service.join(request)
        assert admission.charge is not None
        assert admission.charge.authority_key == (head.folder / "ca.key").read_text()
        assert admission.charge.database == "postgresql://db/pool"
        second = ClusterHead("h2", "https://10.0.0.2:8443", wish(head).certificate, "10.0.0.2", 8650, 1000.0)
        assert [known for known in admission.heads if known.name != "head"] == [second]
        assert (await head.service.standing("n1x", before.secret)).heads == admission.heads
        assert read_heads(head.folder) == admission.heads  # for this machine's own Ray
        assert [head.heads.standing(name) for name in ("head", "h2", "n1x")] == [
            HeadStatus.LEADS,
            HeadStatus.WAITS,
            None,
        ]
        await head.service.leave("h2", admission.secret, force=False)
        await head.service.gone("h2", admission.secret)
        assert [known.name for known in read_heads(head.folder)] == ["head"]

    with_head(tmp_path, scene)


def test_head_needs_head_token_and_refusal_uses_no_admission(tmp_path: Path) -> None:
    async def scene(head: Head) -> None:
        invitation = await head.invite()
        assert await refusal(head.service.join(head.request(invitation, "h2", head=wish(head)))) is ErrorCode.FORBIDDEN
        assert list(await head.engine.joins.heads()) == []
        await head.service.join(head.request(invitation, "h2"))  # as a node it may
        for_head = await head.invite(for_head=True)
        for wrong in (HeadOffer("http://10.0.0.2", wish(head).certificate, 1), HeadOffer("https://x", "pem", 1)):
            request = head.request(for_head, "h3", head=wrong)
            assert await refusal(head.service.join(request)) is ErrorCode.INVALID_REQUEST

    with_head(tmp_path, scene)


def test_pool_with_sqlite_has_one_head(tmp_path: Path) -> None:
    async def scene(first: Head) -> None:
        invitation = await first.invite(for_head=True)
        head = Head(tmp_path, first.engine.store, None)  # it was PostgreSQL before
        request = head.request(invitation, "h2", head=wish(head))
        assert await refusal(head.invite(for_head=True)) is ErrorCode.UNSUPPORTED
        assert await refusal(head.service.join(request)) is ErrorCode.UNSUPPORTED
        assert list(await head.engine.joins.heads()) == []
        await first.service.join(first.request(invitation, "h2", head=wish(head)))
        await head.heads.announce()
        assert [known.name for known in head.heads.known] == ["head"]  # the other cannot lead any more

    with_head(tmp_path, scene)


def test_leader_cannot_leave(tmp_path: Path) -> None:
    async def scene(head: Head) -> None:
        await head.heads.announce()
        secret = "a-secret"
        await head.service.enrol(FIRST, new_request(head.folder / "node.key", "head")[1], secret)
        assert await head.service.knows("head", secret)
        assert not await head.service.knows("head", "another")
        for force in (False, True):
            assert await refusal(head.service.leave("head", secret, force=force)) is ErrorCode.WRONG_STATE

    with_head(tmp_path, scene)


@pytest.mark.parametrize(
    ("url", "others"),
    [
        (None, None),
        ("postgresql://gpupool@127.0.0.1/gpupool", None),
        ("postgresql://gpupool@localhost:5433/gpupool", None),
        ("postgresql://gpupool@/gpupool?host=/var/run/postgresql", None),
        ("postgresql:///gpupool", None),
        ("postgresql://gpupool@db.example.org/gpupool", "postgresql://gpupool@db.example.org/gpupool"),
        (
            "postgresql://u@db/p?sslmode=verify-full&passfile=/root/.pgpass&sslrootcert=/etc/ca.pem",
            "postgresql://u@db/p?sslmode=verify-full&sslrootcert=/etc/ca.pem",
        ),
        ("postgresql://u@[fd00::1]:5432/p", "postgresql://u@[fd00::1]:5432/p"),
    ],
)
def test_database_url_for_other_machines(url: str | None, others: str | None) -> None:
    assert database_for_others(url) == others
