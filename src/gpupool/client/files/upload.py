"""Upload a folder to a pool: scan it, send only the files that the pool lacks, and resume after interruptions."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gpupool.blobs.ignore import IGNORE_FILE
from gpupool.blobs.scan import Known, Scan, scan
from gpupool.client.transport.http import (
    SERVICE_UNAVAILABLE,
    Answer,
    error_of_answer,
    is_untrusted,
    untrusted_error,
)
from gpupool.client.transport.requests import ask
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import FileTree, printable_path

PIECE_BYTES = 4 << 20
SMALL_BYTES = 256 << 10  # smaller files are sent together in one request
MAX_DIGESTS_PER_REQUEST = 10_000
RETRY_TIMEOUT_S = 60.0  # how long to retry while the pool does not answer
ANSWER_TIMEOUT_S = 60.0
MAX_TRIES = 3  # for a folder that changes during the upload
SETTLED_NS = 2_000_000_000  # a recent change may be followed by another with the same time: read it again
_LENGTH = struct.Struct(">I")


class HttpTransport(Protocol):
    """Connections of the standard library to the pool, and the headers of requests."""

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a new connection."""

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""


@dataclass(frozen=True, slots=True)
class UploadResult:
    """An uploaded folder: its name in the pool, its size, the bytes sent, and the paths that were skipped."""

    tree: str
    files: int
    bytes: int
    sent_bytes: int
    outside: tuple[str, ...]
    special: tuple[str, ...]


class FolderChanged(Exception):  # noqa: N818 - not an error: the folder is scanned again
    """A file changed after the folder was scanned."""


def is_home_or_root(folder: str) -> bool:
    """Return whether a folder is ``/`` or the home folder, without an ignore file: it is not uploaded by itself."""
    homes = {"/", os.path.realpath(os.path.expanduser("~"))}  # noqa: PTH111 - text in, text out
    return os.path.realpath(folder) in homes and not os.path.exists(f"{folder}/{IGNORE_FILE}")  # noqa: PTH110 - as above


def send_folder(
    transport: HttpTransport, root: str, *, gitignore: bool = False, tell: Callable[[str], None] | None = None
) -> UploadResult:
    """Upload a folder; ``tell`` receives the progress. Raises ``GpupoolError``."""
    say = tell or (lambda _text: None)
    memory = DigestCache(root)
    for _ in range(MAX_TRIES):
        look = scan(root, gitignore=gitignore, known=memory.load(), tick=lambda count: say(f"{count} files"))
        memory.save(look)
        with contextlib.suppress(FolderChanged):
            sender = Uploader(transport, root, say)
            tree = look.tree()
            name = sender.send(tree)
            return UploadResult(
                name, len(tree.files), tree.total_bytes, sender.sent_bytes, tuple(look.outside), tuple(look.special)
            )
    raise GpupoolError(
        ErrorCode.INVALID_FILE,
        f"The files in {printable_path(root)} changed during the upload.",
        "Wait until they no longer change, or exclude them with a .gpupoolignore file.",
    )


class Uploader:
    """The upload of one folder, over one connection at a time."""

    def __init__(self, transport: HttpTransport, root: str, say: Callable[[str], None]) -> None:
        self._transport = transport
        self._root = root
        self._say = say
        self._connection: http.client.HTTPConnection | None = None
        self.sent_bytes = 0

    def send(self, tree: FileTree) -> str:
        """Return the name of the tree, once the pool has all of it. Raises ``GpupoolError``, ``FolderChanged``."""
        try:
            manifest = tree.to_bytes()
            name = hashlib.sha256(manifest).hexdigest()
            paths = {file.sha256: file.path for file in tree.files}
            wanted = [(name, len(manifest)), *tree.blobs().items()]
            lacking = self._lacking(wanted)
            if (name, len(manifest)) not in [row[:2] for row in lacking] and self._finished(name):
                return name
            total = sum(size for _, size, _ in lacking)
            self._send_small([row for row in lacking if row[1] <= SMALL_BYTES], paths, manifest, name, total)
            for sha256, size, here in (row for row in lacking if row[1] > SMALL_BYTES):
                self._send_large(sha256, size, here, None if sha256 == name else paths[sha256], manifest, total)
            self._ask("POST", "/v1/files/trees", json.dumps({"tree": name}).encode())
            return name
        finally:
            if self._connection is not None:
                self._connection.close()

    def _finished(self, name: str) -> bool:
        """Return whether the pool has all files of a manifest that it knows."""
        try:
            self._ask("POST", "/v1/files/trees", json.dumps({"tree": name}).encode())
        except GpupoolError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            return False
        return True

    def _lacking(self, wanted: list[tuple[str, int]]) -> list[tuple[str, int, int]]:
        found = []
        for first in range(0, len(wanted), MAX_DIGESTS_PER_REQUEST):
            page = wanted[first : first + MAX_DIGESTS_PER_REQUEST]
            held = self._ask("POST", "/v1/files/held", json.dumps({"blobs": page}).encode())["held"]
            found += [
                (sha256, size, max(here, 0)) for (sha256, size), here in zip(page, held, strict=True) if here < size
            ]
        return found

    def _send_small(
        self, rows: list[tuple[str, int, int]], paths: dict[str, str], manifest: bytes, name: str, total: int
    ) -> None:
        parcel, size = bytearray(), 0
        for sha256, _size, _here in rows:
            data = manifest if sha256 == name else self._read_small(paths[sha256], sha256)
            if size and size + len(data) > PIECE_BYTES:
                self._post(parcel, size, total)
                parcel, size = bytearray(), 0
            parcel += _LENGTH.pack(len(data)) + data
            size += len(data) + _LENGTH.size
        if size:
            self._post(parcel, size, total)

    def _post(self, parcel: bytearray, size: int, total: int) -> None:
        self._ask("POST", "/v1/files/pack", bytes(parcel))
        self._count(size, total)

    def _read_small(self, path: str, sha256: str) -> bytes:
        with self._open(path) as file:
            data: bytes = file.read(SMALL_BYTES + 1)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise FolderChanged
        return data

    def _send_large(self, sha256: str, size: int, here: int, path: str | None, manifest: bytes, total: int) -> None:
        while here < size:
            if path is None:
                data = manifest[here : here + PIECE_BYTES]
            else:
                with self._open(path) as file:
                    file.seek(here)
                    data = file.read(min(PIECE_BYTES, size - here))
            if not data:
                raise FolderChanged
            try:
                held = self._ask("PUT", f"/v1/files/blobs/{sha256}?size={size}&offset={here}", data)["held"][0]
            except GpupoolError as error:
                if error.code is ErrorCode.INVALID_FILE:  # all bytes arrived, but the file changed after the scan
                    raise FolderChanged from error
                raise
            self._count(max(0, held - here), total)
            here = max(0, held)

    def _open(self, path: str) -> Any:
        try:
            fd = os.open(os.path.join(self._root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # noqa: PTH118
        except OSError as error:
            raise FolderChanged from error
        return os.fdopen(fd, "rb", buffering=0)

    def _count(self, size: int, total: int) -> None:
        self.sent_bytes += size
        self._say(f"{_mib(self.sent_bytes)} of {_mib(total)} MiB")

    def _ask(self, method: str, target: str, body: bytes) -> Any:
        """Send a request until it is answered: all requests here can be repeated. Raises ``GpupoolError``."""
        deadline, pause_s = time.monotonic() + RETRY_TIMEOUT_S, 0.1
        while True:
            try:
                answer = self._ask_once(method, target, body)
            except OSError as error:
                if is_untrusted(error):
                    raise untrusted_error() from error
                interrupted = GpupoolError(
                    ErrorCode.POOL_UNREACHABLE, f"Upload interrupted: {error}.", "Run the command again to resume."
                )
                answer = Answer(SERVICE_UNAVAILABLE, {"error": interrupted.to_dict()})
                if self._connection is not None:
                    self._connection.close()
                self._connection = None
            if answer.ok:
                return answer.body
            if not _is_temporary(answer) or time.monotonic() > deadline:
                raise error_of_answer(answer)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 2.0)

    def _ask_once(self, method: str, target: str, body: bytes) -> Answer:
        if self._connection is None:
            self._connection = self._transport.connection(ANSWER_TIMEOUT_S)
        kind = "application/json" if body[:1] == b"{" and len(target) < 40 else "application/octet-stream"
        return ask(self._connection, method, target, body, self._transport.headers | {"Content-Type": kind})


class DigestCache:
    """The digests of a folder's files from the last scan, so that unchanged files are not read again."""

    def __init__(self, root: str) -> None:
        base = os.environ.get("XDG_CACHE_HOME", "")
        base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")  # noqa: PTH111, PTH117
        name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
        self._path = f"{base}/gpupool/folders/{name}.json"

    def load(self) -> Known:
        """Return the stored digests; empty when the file cannot be read."""
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123 - as below
                return {path: tuple(row) for path, row in json.load(file).items() if len(row) == 5}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def save(self, look: Scan) -> None:
        """Store the digests of files that have not changed recently; errors are ignored."""
        before = time.time_ns() - SETTLED_NS
        rows = {path: row for path, row in look.seen.items() if max(row[1], row[2]) < before}
        temporary = f"{self._path}.{os.getpid()}"
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as file:
                json.dump(rows, file, separators=(",", ":"))
            os.replace(temporary, self._path)  # noqa: PTH105


def _is_temporary(answer: Answer) -> bool:
    """Return whether a retry may succeed: the pool restarts, or the rate limit was exceeded."""
    return answer.status == SERVICE_UNAVAILABLE or answer.error_code == ErrorCode.RATE_LIMITED


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f}"
