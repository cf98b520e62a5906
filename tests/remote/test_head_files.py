"""Heads that fetch folders from each other: real TLS, real stores; all received data is checked before it counts."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpupool.api.app import create_waiting_app
from gpupool.api.server.server import BoundAddresses, ListenConfig, serve
from gpupool.api.server.tls import CertificateFiles, ensure_self_signed
from gpupool.blobs import blob_store as keep_module
from gpupool.client.transport import tls_pinning
from gpupool.daemon.cluster import peer_heads
from gpupool.daemon.cluster.peer_heads import HeadsOfFolder
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.heads import Head, MemberKey
from gpupool.domain.work.program.file_tree import FileEntry, FileTree, user_space
from gpupool.fabric.ray.head_selection import MEMBER_FILE, keep_heads
from gpupool.services.cluster.membership import ClusterMembers
from gpupool.services.files.pull import BlobPuller, Round
from gpupool.services.files.serve import HeadFiles
from gpupool.services.files.sync import SWEEP_EVERY_S, FolderSync
from gpupool.services.ports.files import Folder
from gpupool.store.blobs import GRACE_S, MAX_UNUSED_S, StoredBlobs

ADA, GRACE = user_space("ada"), user_space("grace")
LARGE = os.urandom((3 << 20) + 17)
NOT_LEADING = GpupoolError(ErrorCode.NOT_LEADING, "This control plane waits; a leads this pool.", "")


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class CountingStore(StoredBlobs):
    """A store that counts what is read of it and can end an answer early."""

    def __init__(self, path: Path, most_bytes: int | None = None) -> None:
        super().__init__(path, *([most_bytes] if most_bytes else []))
        self.path = path
        self.read_bytes = 0
        self.ends_after: int | None = None  # bytes; then nothing is had any more
        self.broken = ""  # a content of which nothing can be read
        self.waits_at = ""  # a content that is not read before ``go_on``
        self.waiting, self.go_on = asyncio.Event(), asyncio.Event()

    async def read(self, space: str, sha256: str, offset: int, limit: int) -> bytes:
        if self.ends_after is not None and self.read_bytes >= self.ends_after:
            return b""
        if sha256 == self.broken:
            return b""
        if sha256 == self.waits_at:
            self.waiting.set()
            await self.go_on.wait()
        data = await super().read(space, sha256, offset, limit)
        self.read_bytes += len(data)
        return data

    def blob(self, space: str, sha256: str) -> Path:
        return self.path / space / "blobs" / sha256[:2] / sha256

    async def take_in(self, space: str, *contents: bytes) -> Folder:
        """Store a folder with these files, as if its owner had sent it."""
        files = tuple(FileEntry(f"f{n:04}", 0o644, 0, len(data), sha(data)) for n, data in enumerate(contents))
        manifest = FileTree(files).to_bytes()
        await self.put(space, [*contents, manifest])
        await self.mark(space, sha(manifest))
        return Folder(space, sha(manifest))

    async def has(self, folder: Folder) -> bool:
        return await self.is_marked(folder.space, folder.tree)

    def files(self) -> int:
        return sum(len(list(path.iterdir())) for path in self.path.glob("u-*/blobs/*"))


@dataclass
class OneHead:
    """A head of a cluster: its store, what it serves of it, and how it asks the others."""

    name: str
    store: CountingStore
    keys: Path
    heads: HeadsOfFolder
    needed: list[Folder] | None = None  # None: it waits
    url: str = ""
    certificate: str = ""
    up: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def say_needed(self) -> list[Folder]:
        if self.needed is None:
            raise NOT_LEADING
        return self.needed

    async def fetch(self, folder: Folder, *of: str) -> bool:
        """Ask these heads (all) for a folder."""
        fetcher = BlobPuller(self.store, self.heads, lambda: self.store.sweep({}))
        return await fetcher.fetch(folder, Round(of or self.heads.names()))


class Cluster:
    """Heads a, b and c, and a mere node n, each with a secret of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heads = [self._make(name) for name in "abc"]
        self.node = self._make("n")

    def _make(self, name: str) -> OneHead:
        keys = self.folder / name / "cluster"
        keys.mkdir(parents=True)
        member = {"url": "", "certificate": "", "node": name, "secret": f"secret-of-{name}"}
        (keys / MEMBER_FILE).write_text(json.dumps(member))
        return OneHead(name, CountingStore(self.folder / name / "files"), keys, HeadsOfFolder(keys))

    async def members(self) -> ClusterMembers:
        return ClusterMembers([MemberKey(name, sha(f"secret-of-{name}".encode()), name != "n") for name in "abcn"], [])

    async def serve(self, head: OneHead) -> None:
        files = CertificateFiles(head.keys / "cert.pem", head.keys / "key.pem")
        ensure_self_signed(files, "127.0.0.1")
        head.certificate = files.certificate.read_text()

        def ready(bound: BoundAddresses) -> None:
            head.url = f"https://{bound.listen}"
            head.up.set()

        app = create_waiting_app(lambda: NOT_LEADING, HeadFiles(head.store, self.members, head.say_needed))
        place = self.folder / f"{head.name}.sock"
        listen = ListenConfig("127.0.0.1", 0, files)
        await serve(app, socket_path=place, listen=listen, stop=head.stop, ready=ready)

    def write_down(self) -> None:
        known = [Head(head.name, head.url, head.certificate, "127.0.0.1", 1) for head in self.heads if head.url]
        for one in (*self.heads, self.node):
            keep_heads(one.keys, known)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    made = Cluster(folder)
    async with AsyncExitStack() as stack:
        for head in made.heads:
            serving = asyncio.create_task(made.serve(head))
            stack.push_async_callback(_ended, head, serving)
            await head.up.wait()
        made.write_down()
        yield made


async def _ended(head: OneHead, serving: asyncio.Task[None]) -> None:
    head.stop.set()
    await serving


def with_cluster(tmp_path: Path, scenario: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as made:
            await scenario(made)

    asyncio.run(main())


async def refused(code: ErrorCode, work: Awaitable[object]) -> GpupoolError:
    with pytest.raises(GpupoolError) as caught:
        await work
    assert caught.value.code is code, caught.value
    return caught.value


def test_folder_is_fetched_completely_without_repetition(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, _ = made.heads
        small = [f"file {n}".encode() for n in range(1200)]
        folder = await a.store.take_in(ADA, LARGE, b"", *small)
        assert await b.fetch(folder, "a")
        assert await b.store.has(folder)
        assert b.store.blob(ADA, sha(LARGE)).read_bytes() == LARGE
        assert b.store.files() == a.store.files() == len(small) + 3
        assert b.store.blob(ADA, sha(LARGE)).stat().st_mode & 0o777 == 0o600
        sent = a.store.read_bytes
        assert sent == sum(path.stat().st_size for path in a.store.path.glob("u-*/blobs/*/*"))
        second = await a.store.take_in(ADA, LARGE, b"one more")
        assert await b.fetch(second, "a")
        assert a.store.read_bytes - sent < 1000  # a list of files and one of them

    with_cluster(tmp_path, scenario)


def test_interrupted_fetch_resumes(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, _ = made.heads
        folder = await a.store.take_in(ADA, LARGE)
        a.store.ends_after = 2 << 20
        assert not await b.fetch(folder, "a")
        assert not await b.store.has(folder)
        assert (await b.store.have(ADA, [(sha(LARGE), len(LARGE))]))[0] in range(1 << 20, len(LARGE))
        a.store.ends_after = None
        assert await b.fetch(folder, "a")
        assert b.store.blob(ADA, sha(LARGE)).read_bytes() == LARGE
        assert a.store.read_bytes < len(LARGE) + (1 << 20) + 2000

    with_cluster(tmp_path, scenario)


def test_next_head_is_asked_if_one_dies_during_transfer(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, c = made.heads
        folder = await a.store.take_in(ADA, LARGE)
        await c.store.take_in(ADA, LARGE)
        a.store.ends_after = 1 << 20
        asked = Round(["a", "c"])
        assert await BlobPuller(b.store, b.heads, lambda: b.store.sweep({})).fetch(folder, asked)
        assert list(asked.silent) == ["a"]
        assert c.store.read_bytes <= len(LARGE) - (1 << 20) + (1 << 18)

    with_cluster(tmp_path, scenario)


@pytest.mark.parametrize(
    "change", [lambda data: bytes([data[0] ^ 1]) + data[1:], lambda data: data[:-1], lambda data: data + b"X"]
)
def test_wrong_contents_are_rejected(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, c = made.heads
        folder = await a.store.take_in(ADA, LARGE, b"small")
        await c.store.take_in(ADA, LARGE, b"small")
        place = a.store.blob(ADA, sha(LARGE))
        place.write_bytes(change(LARGE))
        assert not await b.fetch(folder, "a")
        assert not await b.store.has(folder)
        assert not b.store.blob(ADA, sha(LARGE)).exists()
        assert await b.fetch(folder)  # of the other one that has it
        assert b.store.blob(ADA, sha(LARGE)).read_bytes() == LARGE

    with_cluster(tmp_path, scenario)


def test_invalid_manifest_is_rejected(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, _ = made.heads
        bad = FileTree((FileEntry("../../etc/passwd", 0o644, 0, 1, sha(b"x")),)).to_bytes()
        await a.store.put(ADA, [bad, b"x"])
        await a.store.mark(ADA, sha(bad))
        assert not await b.fetch(Folder(ADA, sha(bad)), "a")
        assert not await b.store.has(Folder(ADA, sha(bad)))

    with_cluster(tmp_path, scenario)


def test_only_heads_get_an_answer(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, _ = made.heads
        folder = await a.store.take_in(ADA, b"private")
        a.needed = [folder]
        said = await refused(ErrorCode.FORBIDDEN, made.node.heads.needed("a"))
        assert "Only heads" in said.message
        asked = Round(["a"])
        assert not await BlobPuller(made.node.store, made.node.heads, lambda: b.store.sweep({})).fetch(folder, asked)
        assert "Only heads" in asked.silent["a"]
        (b.keys / MEMBER_FILE).write_text(json.dumps({"node": "b", "secret": "guessed"}))
        await refused(ErrorCode.UNAUTHENTICATED, b.heads.needed("a"))
        (b.keys / MEMBER_FILE).write_text(json.dumps({"node": "stranger", "secret": "secret-of-b"}))
        await refused(ErrorCode.UNAUTHENTICATED, b.heads.needed("a"))
        for _ in range(10):
            with suppress(GpupoolError):
                await b.heads.needed("a")
        await refused(ErrorCode.TOO_MANY_ATTEMPTS, b.heads.needed("a"))
        (b.keys / MEMBER_FILE).unlink()
        assert b.heads.names() == []
        assert a.store.read_bytes == 0

    with_cluster(tmp_path, scenario)


def test_only_holder_of_certificate_gets_the_secret(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, c = made.heads
        a.needed = []
        keep_heads(b.keys, [Head("a", c.url, a.certificate, "127.0.0.1", 1)])  # c answers where a was
        assert "CERTIFICATE_VERIFY_FAILED" in (await refused(ErrorCode.POOL_UNREACHABLE, b.heads.needed("a"))).message

    with_cluster(tmp_path, scenario)


@pytest.mark.parametrize(
    ("space", "wanted"),
    [
        ("u-../../x", []),
        ("x", []),
        (ADA, [["../../../etc/passwd", 0]]),
        (ADA, [[sha(b"x"), -1]]),
        (ADA, [[sha(b"x"), 0]] * 1001),
    ],
)
def test_requests_are_bounded_and_paths_are_none(tmp_path: Path, space: str, wanted: list[Any]) -> None:
    async def scenario(made: Cluster) -> None:
        a = made.heads[0]
        body = {"secret": "secret-of-b", "space": space, "wanted": wanted}

        def ask() -> tuple[int, bytes]:
            connection = http.client.HTTPSConnection(
                a.url.removeprefix("https://"), context=tls_pinning.pinned_context(a.certificate), timeout=60
            )
            connection.request(
                "POST", "/v1/members/b/files/contents", json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            return response.status, response.read()

        status, said = await asyncio.to_thread(ask)
        assert status == 400
        assert json.loads(said)["error"]["code"] == "INVALID_REQUEST"

    with_cluster(tmp_path, scenario)


def test_full_disk_and_full_store_keep_existing_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, _ = made.heads
        folder = await a.store.take_in(ADA, LARGE)
        usage = shutil.disk_usage(tmp_path)
        left = SimpleNamespace(total=usage.total, free=(256 << 20) + (1 << 20) + (1 << 19))
        monkeypatch.setattr(keep_module.shutil, "disk_usage", lambda _path: left)
        assert usage.total > 16 * (256 << 20)
        left.free = 256 << 20
        await refused(ErrorCode.DISK_FULL, b.fetch(folder, "a"))
        assert not await b.store.has(folder)
        monkeypatch.undo()
        b.store._most_bytes = 4 << 20  # half of it for one user
        said = await refused(ErrorCode.OVER_LIMIT, b.fetch(folder, "a"))
        assert "2 MiB of files per user" in said.message
        b.store._most_bytes = 64 << 20
        assert await b.fetch(folder, "a")

    with_cluster(tmp_path, scenario)


def test_unneeded_contents_are_deleted_first_in_full_store(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, _ = made.heads
        old = await b.store.take_in(ADA, LARGE[::-1])
        long_ago = time.time() - max(MAX_UNUSED_S, GRACE_S) - 1
        for path in b.store.path.rglob("*"):
            os.utime(path, (long_ago, long_ago))
        b.store._most_bytes = 8 << 20
        folder = await a.store.take_in(ADA, LARGE)
        assert await b.fetch(folder, "a")
        assert not await b.store.has(old)

    with_cluster(tmp_path, scenario)


def test_two_that_fetch_the_same_at_once(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, c = made.heads
        folder = await a.store.take_in(ADA, LARGE, b"small")
        await c.store.take_in(ADA, LARGE, b"small")
        got = await asyncio.gather(b.fetch(folder, "a"), b.fetch(folder, "c"))
        assert any(got)
        assert await b.fetch(folder)
        assert b.store.blob(ADA, sha(LARGE)).read_bytes() == LARGE

    with_cluster(tmp_path, scenario)


class Rounds(FolderSync):
    """Copies that are looked for when a test says so."""

    async def round(self) -> bool:
        led = await self.sync()
        await self.fetched()
        return led


def copies_of(head: OneHead, monotonic: Callable[[], float] = time.monotonic) -> Rounds:
    return Rounds(head.store, head.heads, monotonic, asyncio.sleep)


def test_standby_head_has_only_folders_of_live_work(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, _ = made.heads
        mine = await a.store.take_in(ADA, b"mine", LARGE)
        other = await a.store.take_in(GRACE, b"hers")
        unused = await a.store.take_in(GRACE, b"sent, and no work needs it")
        assert not await copies_of(b).round()  # nobody leads
        a.needed = [mine, other]
        copies = copies_of(b)
        assert await copies.round()
        assert await b.store.has(mine)
        assert await b.store.has(other)
        assert not await b.store.has(unused)
        # Content of another user is as unknown here as content that was never sent.
        assert await b.store.have(GRACE, [(sha(b"mine"), 4)]) == [-1]
        assert not await b.store.is_marked(GRACE, mine.tree)
        sent = a.store.read_bytes
        assert await copies.round()
        assert await copies_of(b).round()  # a new one, as after a restart
        assert a.store.read_bytes == sent

    with_cluster(tmp_path, scenario)


def test_unneeded_folders_follow_rules_of_store(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, _ = made.heads
        first, second = await a.store.take_in(ADA, b"first"), await a.store.take_in(ADA, b"second")
        clock = SimpleNamespace(now=0.0)
        a.needed = [first, second]
        copies = copies_of(b, lambda: clock.now)
        await copies.round()
        long_ago = time.time() - MAX_UNUSED_S - 1
        for path in b.store.path.rglob("*"):
            os.utime(path, (long_ago, long_ago))
        clock.now += SWEEP_EVERY_S + 1
        a.needed = None
        assert not await copies.round()  # nobody says what is needed: nothing goes
        assert await b.store.has(first)
        a.needed = [second]
        await copies.round()
        assert not await b.store.has(first)
        assert await b.store.has(second)

    with_cluster(tmp_path, scenario)


def test_contents_of_other_users_count_from_first_round(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, _ = made.heads
        b.store._most_bytes = 7 << 20
        await b.store.take_in(GRACE, LARGE)
        fresh = CountingStore(b.store.path, 6 << 20)  # as after a restart
        folder = await a.store.take_in(ADA, LARGE[: 3 << 20])
        a.needed = [folder]
        copies = Rounds(fresh, b.heads, time.monotonic, asyncio.sleep)
        await copies.round()
        assert not await fresh.has(folder)

    with_cluster(tmp_path, scenario)


def test_unavailable_folder_delays_no_other_and_is_retried_with_pauses(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, _ = made.heads
        good = await a.store.take_in(ADA, b"good")
        broken = await a.store.take_in(ADA, LARGE)
        a.store.blob(ADA, sha(LARGE)).write_bytes(LARGE[::-1])
        clock = SimpleNamespace(now=0.0)
        a.needed = sorted([broken, good])
        copies = copies_of(b, lambda: clock.now)
        await copies.round()
        assert await b.store.has(good)
        sent = a.store.read_bytes
        await copies.round()
        assert a.store.read_bytes == sent
        a.store.blob(ADA, sha(LARGE)).write_bytes(LARGE)
        clock.now += 6.0
        await copies.round()
        assert await b.store.has(broken)

    with_cluster(tmp_path, scenario)


def test_unsendable_folder_delays_others_only_once(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, _ = made.heads
        folders = [await a.store.take_in(ADA, bytes([n]) * 5000) for n in range(5)]
        first = min(folders)
        a.store.broken = sha(bytes([folders.index(first)]) * 5000)
        a.needed = folders
        clock = SimpleNamespace(now=0.0)
        copies = copies_of(b, lambda: clock.now)
        await copies.round()
        await copies.round()
        assert [await b.store.has(folder) for folder in folders] == [folder != first for folder in folders]

    with_cluster(tmp_path, scenario)


def test_damaged_partial_content_is_fetched_again(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, _ = made.heads
        folder = await a.store.take_in(ADA, LARGE)
        part = b.store.path / ADA / "parts" / sha(LARGE)
        part.parent.mkdir(parents=True)
        part.write_bytes(bytes(1 << 20))
        assert await b.fetch(folder, "a")
        assert b.store.blob(ADA, sha(LARGE)).read_bytes() == LARGE

    with_cluster(tmp_path, scenario)


def test_small_folder_does_not_wait_for_large_transfer(tmp_path: Path) -> None:
    async def scenario(made: Cluster) -> None:
        a, b, _ = made.heads
        large = await a.store.take_in(ADA, LARGE)
        a.needed, a.store.waits_at = [large], sha(LARGE)
        copies = copies_of(b)
        await copies.sync()
        await a.store.waiting.wait()
        small = await a.store.take_in(GRACE, b"small")
        a.needed = [large, small]
        await copies.sync()
        await asyncio.wait_for(copies._fetching[GRACE], 60)
        assert await b.store.has(small)
        assert not await b.store.has(large)
        a.store.go_on.set()
        await copies.fetched()
        assert await b.store.has(large)

    with_cluster(tmp_path, scenario)


def test_silent_head_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(made: Cluster) -> None:
        b = made.heads[1]
        monkeypatch.setattr(peer_heads, "PIECE_S", 0.5)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            keep_heads(b.keys, [Head("a", f"https://127.0.0.1:{port}", made.heads[0].certificate, "127.0.0.1", 1)])
            await refused(ErrorCode.POOL_UNREACHABLE, b.heads.needed("a"))

    with_cluster(tmp_path, scenario)
