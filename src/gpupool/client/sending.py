"""Sending a folder to a pool: looked through, only what the pool lacks, gone on with where it stopped."""

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

from gpupool.blobs.scan import Known, Scan, scan
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.trees import Tree, shown

PIECE_BYTES = 4 << 20
SMALL_BYTES = 256 << 10  # files up to this size travel many in one request
ASKED_AT_ONCE = 10_000
RETRY_S = 60.0  # how long to go on while the pool does not answer
ANSWER_S = 60.0
TRIES = 3  # of a folder that changes while it is sent
SETTLED_NS = 2_000_000_000  # what changed a moment ago may change again unseen: it is read anew
_LENGTH = struct.Struct(">I")


class Gate(Protocol):
    """The way to the pool: connections of the standard library, and what requests carry."""

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """A fresh connection."""

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A folder that the pool now has: its name there, what it consists of, what of it travelled, what stayed."""

    tree: str
    files: int
    bytes: int
    sent_bytes: int
    outside: tuple[str, ...]
    special: tuple[str, ...]


class Changed(Exception):  # noqa: N818 - not an error: the folder is looked at again
    """A file is not what it was when it was looked at."""


def send_folder(gate: Gate, root: str, *, gitignore: bool = False, tell: Callable[[str], None] | None = None) -> Sent:
    """Send what is in a folder; ``tell`` hears how far it is. Raises ``GpupoolError``."""
    say = tell or (lambda _text: None)
    memory = Memory(root)
    for _ in range(TRIES):
        look = scan(root, gitignore=gitignore, known=memory.load(), tick=lambda count: say(f"{count} files"))
        memory.save(look)
        with contextlib.suppress(Changed):
            sender = Sender(gate, root, say)
            tree = look.tree()
            name = sender.send(tree)
            return Sent(
                name, len(tree.files), tree.total_bytes, sender.sent_bytes, tuple(look.outside), tuple(look.special)
            )
    raise GpupoolError(
        ErrorCode.INVALID_FILE,
        f"The files in {shown(root)} change while they are sent.",
        "Wait until they do not, or leave them out with a .gpupoolignore file.",
    )


class Sender:
    """One folder on its way, over one connection at a time."""

    def __init__(self, gate: Gate, root: str, say: Callable[[str], None]) -> None:
        self._gate = gate
        self._root = root
        self._say = say
        self._connection: http.client.HTTPConnection | None = None
        self.sent_bytes = 0

    def send(self, tree: Tree) -> str:
        """The name of the tree, once the pool has all of it. Raises ``GpupoolError``, ``Changed``."""
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
        """Whether the pool has the whole of a list that it knows."""
        try:
            self._ask("POST", "/v1/files/trees", json.dumps({"tree": name}).encode())
        except GpupoolError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            return False
        return True

    def _lacking(self, wanted: list[tuple[str, int]]) -> list[tuple[str, int, int]]:
        found = []
        for first in range(0, len(wanted), ASKED_AT_ONCE):
            page = wanted[first : first + ASKED_AT_ONCE]
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
            raise Changed
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
                raise Changed
            try:
                held = self._ask("PUT", f"/v1/files/blobs/{sha256}?size={size}&offset={here}", data)["held"][0]
            except GpupoolError as error:
                if error.code is ErrorCode.INVALID_FILE:  # all of it came, and it is not what was looked at
                    raise Changed from error
                raise
            self._count(max(0, held - here), total)
            here = max(0, held)

    def _open(self, path: str) -> Any:
        try:
            fd = os.open(os.path.join(self._root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # noqa: PTH118
        except OSError as error:
            raise Changed from error
        return os.fdopen(fd, "rb", buffering=0)

    def _count(self, size: int, total: int) -> None:
        self.sent_bytes += size
        self._say(f"{_mib(self.sent_bytes)} of {_mib(total)} MiB")

    def _ask(self, method: str, target: str, body: bytes) -> Any:
        """Ask until there is an answer: everything here may be said twice. Raises ``GpupoolError``."""
        deadline, pause_s = time.monotonic() + RETRY_S, 0.1
        while True:
            try:
                status, answer = self._ask_once(method, target, body)
            except (OSError, http.client.HTTPException) as error:
                status, answer = (
                    503,
                    GpupoolError(
                        ErrorCode.POOL_UNREACHABLE, f"The pool does not answer: {error}.", "Say it again to go on."
                    ).to_dict(),
                )
                answer = {"error": answer}
                if self._connection is not None:
                    self._connection.close()
                self._connection = None
            if 200 <= status < 300:
                return answer
            if status != 503 or time.monotonic() > deadline:
                raise problem(status, answer)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 2.0)

    def _ask_once(self, method: str, target: str, body: bytes) -> tuple[int, Any]:
        if self._connection is None:
            self._connection = self._gate.connection(ANSWER_S)
        kind = "application/json" if body[:1] == b"{" and len(target) < 40 else "application/octet-stream"
        self._connection.request(method, target, body, self._gate.headers | {"Content-Type": kind})
        response = self._connection.getresponse()
        data = response.read()
        try:
            return response.status, json.loads(data) if data.strip() else None
        except ValueError as error:
            raise http.client.HTTPException("what answered is not a gpupool API") from error


class Memory:
    """The digests of a folder's files, as they were when it was looked at last: what has not changed is not read."""

    def __init__(self, root: str) -> None:
        base = os.environ.get("XDG_CACHE_HOME", "")
        base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")  # noqa: PTH111, PTH117
        name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
        self._path = f"{base}/gpupool/folders/{name}.json"

    def load(self) -> Known:
        """What is remembered; nothing when that cannot be read."""
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123 - as below
                return {path: tuple(row) for path, row in json.load(file).items() if len(row) == 5}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def save(self, look: Scan) -> None:
        """Remember what has been at rest for a while; where that cannot be written it is not."""
        before = time.time_ns() - SETTLED_NS
        rows = {path: row for path, row in look.seen.items() if max(row[1], row[2]) < before}
        temporary = f"{self._path}.{os.getpid()}"
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as file:
                json.dump(rows, file, separators=(",", ":"))
            os.replace(temporary, self._path)  # noqa: PTH105


def problem(status: int, answer: Any) -> GpupoolError:
    """The error that an answer carries."""
    try:
        return GpupoolError.from_dict(answer["error"])
    except (KeyError, TypeError, AttributeError):
        return GpupoolError(ErrorCode.INTERNAL, f"The pool answered with status {status}.", "See 'gpupool doctor'.")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f}"
