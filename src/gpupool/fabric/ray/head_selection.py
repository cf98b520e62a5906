"""Selection of the head that this machine's Ray follows, by asking the heads over pinned connections.

A machine stores the known heads in ``heads.json`` next to its keys, and updates them from the leader now and then. On a
head, the control plane writes in ``leader.json``, in the run folder, if it leads.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.heads import FollowedHead, Head, choose_leader, other_heads
from gpupool.fabric.ray.environment import log_event, write_secret

HEADS_FILE = "heads.json"
MEMBER_FILE = "member.json"
REFUSED_FILE = "refused.json"  # on heads: names of removed nodes
REMOVED_FILE = "removed.json"  # on a removed machine: the error from its pool
LOOK_EVERY_S = 2.0
REFRESH_EVERY_S = 30.0
ANSWER_S = 2.0
_ANSWER_LIMIT = 1 << 20

Gcs = tuple[str, int]


def read_heads(folder: Path) -> tuple[Head, ...]:
    """Return the known heads; empty if the file is missing or invalid."""
    try:
        found = json.loads((folder / HEADS_FILE).read_bytes())
        return tuple(Head.from_dict(entry) for entry in found["heads"])
    except (OSError, ValueError, TypeError, KeyError):
        return ()


def keep_heads(folder: Path, heads: Iterable[Head]) -> None:
    """Write the heads, atomically. Raises OSError."""
    text = json.dumps({"heads": [asdict(head) for head in heads]}, indent=1)
    write_secret(folder / HEADS_FILE, text.encode())


def read_member(folder: Path) -> tuple[str, str] | None:
    """Return the name and the secret of this machine in the pool; None if it is no member."""
    try:
        found = json.loads((folder / MEMBER_FILE).read_bytes())
        return str(found["node"]), str(found["secret"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_refused(folder: Path) -> frozenset[str]:
    """Return the names of nodes that were removed from the pool; empty if unknown."""
    try:
        return frozenset(map(str, json.loads((folder / REFUSED_FILE).read_bytes())["nodes"]))
    except (OSError, ValueError, TypeError, KeyError):
        return frozenset()


def keep_refused(folder: Path, names: Iterable[str]) -> None:
    """Write these names if they changed. Raises OSError."""
    wanted = sorted(names)
    if frozenset(wanted) != read_refused(folder):
        write_secret(folder / REFUSED_FILE, json.dumps({"nodes": wanted}).encode())


def read_removal(folder: Path) -> GpupoolError | None:
    """Return the error by which this machine was removed from its pool; None if it was not."""
    try:
        return GpupoolError.from_dict(json.loads((folder / REMOVED_FILE).read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def note_removal(folder: Path, error: GpupoolError) -> None:
    """Write that this machine was removed from its pool, once. Raises OSError."""
    if read_removal(folder) is None:
        write_secret(folder / REMOVED_FILE, json.dumps(error.to_dict()).encode())


@dataclass(frozen=True, slots=True)
class HeadLead:
    """The lead that this machine's control plane has written: if it leads, and its newest known term."""

    leads: bool
    term: int

    @classmethod
    def read(cls, path: Path) -> HeadLead | None:
        """Read the file; return None if it was not written since this machine's pool was started."""
        try:
            found = json.loads(path.read_bytes())
            return cls(bool(found["leads"]), int(found["term"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None


class PinnedConnection:
    """A persistent connection to the API of one head, which must have its pinned certificate."""

    def __init__(self, url: str, certificate: str) -> None:
        self._connection: http.client.HTTPSConnection | None = None
        self._url, self._certificate = url, certificate
        self._busy = threading.Lock()

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer, ``{"error": ...}`` for a refusal; empty without one, or during another request."""
        if not self._busy.acquire(blocking=False):
            return {}
        try:
            return self._try(method, path, body)
        finally:
            self._busy.release()

    def _try(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        fresh = self._connection is None
        try:
            return self._ask(method, path, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            if fresh or isinstance(error, TimeoutError):
                return {}
        return self._try(method, path, body)  # an idle connection may have been closed

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        if self._connection is None:
            host = self._url.removeprefix("https://")
            context = _pinned(self._certificate)
            self._connection = http.client.HTTPSConnection(host, timeout=ANSWER_S, context=context)
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
        response = self._connection.getresponse()
        answer = json.loads(response.read(_ANSWER_LIMIT))
        if not isinstance(answer, dict):
            return {}
        return answer if response.status == http.client.OK else {"error": answer.get("error")}

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _pinned(certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context


def term_of(health: dict[str, Any]) -> int | None:
    """Return the term in which a head leads; None for a standby and without an answer.

    It is 0 where the head alone can lead (it has its own database), or if it has an older release.
    """
    term = health.get("term")
    return (term if isinstance(term, int) else 0) if health.get("status") == "ok" else None


class HeadFollower:
    """The choice of the head to follow. ``given`` is the GCS from the join.

    ``lead`` is the file in which a head's control plane writes its lead (None: a node, or the only head). Used by one
    thread at a time.
    """

    def __init__(self, name: str, folder: Path, given: Gcs | None, lead: Path | None) -> None:
        self._name, self._folder, self._given, self._lead = name, folder, given, lead
        self._present: FollowedHead | None = None
        self.gcs: Gcs | None = None  # the followed GCS; None: this machine's own
        self._lines: dict[tuple[str, str], PinnedConnection] = {}

    def look(self) -> tuple[bool, Gcs | None]:
        """Return if the head to follow is known, and its GCS; None: this machine runs its own."""
        if self._given is None and self._lead is None:
            return True, None
        heads = read_heads(self._folder)
        strangers = other_heads(heads, self._name) if self._lead else heads
        if self._lead is not None and not strangers:
            return True, None
        if self._lead is None and len(heads) < 2:
            return True, heads[0].gcs if heads else self._given
        self._present = choose_leader(self._terms(strangers), self._present)
        return self._where(heads)

    def _where(self, heads: Sequence[Head]) -> tuple[bool, Gcs | None]:
        if self._present is None:
            return False, None
        if self._lead is not None and self._present.name == self._name:
            return True, None
        found = next((head.gcs for head in heads if head.name == self._present.name), None)
        if found is None:
            self._present = None  # no longer a head
        return found is not None, found

    def follow(self, gcs: Gcs | None) -> None:
        """Follow this head now, until another one leads in a newer term."""
        self.gcs = gcs
        if self._present is None:
            name = next((head.name for head in read_heads(self._folder) if head.gcs == gcs), "")
            self._present = FollowedHead(self._name if gcs is None else name)

    def moved(self) -> bool:
        """Return True if another head is to be followed now."""
        known, gcs = self.look()
        return known and gcs != self.gcs

    def _terms(self, heads: Sequence[Head]) -> dict[str, int]:
        """Ask all heads at once, and return the terms of those that lead.

        A machine that follows a head returns at the first newer term, because the others may not answer.
        """
        own = HeadLead.read(self._lead) if self._lead is not None else None
        said = {self._name: own.term} if own is not None and own.leads else {}
        if own is not None and own.leads and self._is_newer(self._name, own.term):
            return said
        threads = ThreadPoolExecutor(max(1, len(heads)))
        lines = {threads.submit(self._line(head).ask, "GET", "/v1/health"): head.name for head in heads}
        for answer in as_completed(lines):
            if (term := term_of(answer.result())) is not None:
                said[lines[answer]] = term
                if self._is_newer(lines[answer], term):
                    break
        threads.shutdown(wait=False)
        return said

    def _is_newer(self, name: str, term: int) -> bool:
        return self._present is not None and name != self._present.name and term > self._present.term

    def _line(self, head: Head) -> PinnedConnection:
        return self._lines.setdefault((head.url, head.certificate), PinnedConnection(head.url, head.certificate))

    def refresh(self) -> None:
        """Ask any head for the current heads, and if this machine was removed.

        A head knows both from its control plane. Raises OSError.
        """
        if self._lead is not None:
            return
        try:
            member = json.loads((self._folder / MEMBER_FILE).read_bytes())
            joined = Head("", str(member["url"]), str(member["certificate"]), "", 0)
            about, body = f"/v1/members/{member['node']}", {"secret": str(member["secret"])}
        except (OSError, ValueError, TypeError, KeyError):
            return
        known = read_heads(self._folder)
        for place in [*known, joined]:
            line = self._line(place)
            answer = line.ask("POST", f"{about}/heads", body)
            if self._take(answer, known):
                return
            if answer and self._take(line.ask("POST", f"{about}/standing", body), known):  # older release
                return

    def _take(self, answer: dict[str, Any], known: tuple[Head, ...]) -> bool:
        """Store the answer of a head; return True if it had one."""
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            if "error" in answer:
                error = GpupoolError.from_dict(answer["error"])
                if error.code is ErrorCode.NODE_REMOVED:
                    note_removal(self._folder, error)
                    return True
                return False
            if heads := tuple(Head.from_dict(entry) for entry in answer["heads"]):
                if heads != known:
                    keep_heads(self._folder, heads)
                    log_event("heads", names=[head.name for head in heads])
                return True
        return False

    @property
    def removed(self) -> GpupoolError | None:
        """Return why this machine was removed from the cluster; None while it is a member."""
        return read_removal(self._folder)


class HeadWatch:
    """A thread that checks if another head leads, and updates the list of heads."""

    def __init__(self, following: HeadFollower, *, is_node: bool) -> None:
        self.moved = False
        self.removed = False
        self._following = following
        self._is_node = is_node
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follows", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread soon."""
        self._end.set()

    def _run(self) -> None:
        refresh_at = time.monotonic() + _jittered(REFRESH_EVERY_S) / 4
        while not self._end.wait(_jittered(LOOK_EVERY_S)) and not self.moved:
            if self._is_node and time.monotonic() >= refresh_at:
                _quietly(self._following.refresh)
                refresh_at = time.monotonic() + _jittered(REFRESH_EVERY_S)
            self.removed = self._following.removed is not None
            self.moved = self.removed or bool(_quietly(self._following.moved))


def _quietly(work: Callable[[], Any]) -> Any:
    """Return the result of ``work``; a full disk or an invalid file must not end the thread."""
    try:
        return work()
    except (OSError, ValueError) as error:
        log_event("heads not asked", error=repr(error)[:200])
        return None


def _jittered(seconds: float) -> float:
    """Vary the interval, so that machines do not ask at the same time."""
    return seconds * random.uniform(0.75, 1.25)  # noqa: S311 - nothing depends on it but the load
