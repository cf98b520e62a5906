"""Which head the Ray of this machine follows: what the heads say themselves, asked over their pinned connections.

A machine keeps what it knows of heads in ``heads.json`` beside its keys, and asks the leading one now and then which
there are. On a head the control plane says in ``leader.json``, in the run folder, whether it leads.
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

from gpupool.domain.heads import Followed, Head, choose, others
from gpupool.fabric.ray.surroundings import say, write_secret

HEADS_FILE = "heads.json"
MEMBER_FILE = "member.json"
LOOK_EVERY_S = 2.0
REFRESH_EVERY_S = 30.0
ANSWER_S = 2.0
_ANSWER_LIMIT = 1 << 20

Gcs = tuple[str, int]


def read_heads(folder: Path) -> tuple[Head, ...]:
    """The heads that are known on this machine; none where nothing was written, or what was cannot be read."""
    try:
        found = json.loads((folder / HEADS_FILE).read_bytes())
        return tuple(Head.from_dict(entry) for entry in found["heads"])
    except (OSError, ValueError, TypeError, KeyError):
        return ()


def keep_heads(folder: Path, heads: Iterable[Head]) -> None:
    """Write them down, whole or not at all. Raises OSError."""
    text = json.dumps({"heads": [asdict(head) for head in heads]}, indent=1)
    write_secret(folder / HEADS_FILE, text.encode())


@dataclass(frozen=True, slots=True)
class Lead:
    """What the control plane of this machine says: whether it leads, and the newest term that it knows of."""

    leads: bool
    term: int

    @classmethod
    def read(cls, path: Path) -> Lead | None:
        """What it said last; None when it has not said anything since this machine's pool was started."""
        try:
            found = json.loads(path.read_bytes())
            return cls(bool(found["leads"]), int(found["term"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None


class Line:
    """A connection to the API of one head that stays open; nobody but the holder of its certificate is spoken to."""

    def __init__(self, url: str, certificate: str) -> None:
        self._connection: http.client.HTTPSConnection | None = None
        self._url, self._certificate = url, certificate
        self._busy = threading.Lock()

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer; empty when there is none, or a refusal, or an earlier question still waits for its own."""
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
        return self._try(method, path, body)  # an old connection may have been closed meanwhile

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        if self._connection is None:
            host = self._url.removeprefix("https://")
            context = _pinned(self._certificate)
            self._connection = http.client.HTTPSConnection(host, timeout=ANSWER_S, context=context)
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
        response = self._connection.getresponse()
        answer = json.loads(response.read(_ANSWER_LIMIT))
        return answer if response.status == http.client.OK and isinstance(answer, dict) else {}

    def close(self) -> None:
        """Hang up."""
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
    """The term in which a head says that it leads; None for one that waits or does not answer.

    It is 0 where the head alone can lead (its database is its own), or is of an older release.
    """
    term = health.get("term")
    return (term if isinstance(term, int) else 0) if health.get("status") == "ok" else None


class Following:
    """Whom this machine follows. ``given`` is the GCS of a node's head as it was told when it joined.

    ``lead`` is where the control plane of a head says whether it leads (None: it is a node, or the only head there can
    be). One thread at a time.
    """

    def __init__(self, name: str, folder: Path, given: Gcs | None, lead: Path | None) -> None:
        self._name, self._folder, self._given, self._lead = name, folder, given, lead
        self._present: Followed | None = None
        self.gcs: Gcs | None = None  # the one that is followed; None: this machine's own
        self._lines: dict[tuple[str, str], Line] = {}

    def look(self) -> tuple[bool, Gcs | None]:
        """Whether it is known whom to follow, and that one's GCS; None: this machine runs its own."""
        if self._given is None and self._lead is None:
            return True, None
        heads = read_heads(self._folder)
        strangers = others(heads, self._name) if self._lead else heads
        if self._lead is not None and not strangers:
            return True, None
        if self._lead is None and len(heads) < 2:
            return True, heads[0].gcs if heads else self._given
        self._present = choose(self._terms(strangers), self._present)
        return self._where(heads)

    def _where(self, heads: Sequence[Head]) -> tuple[bool, Gcs | None]:
        if self._present is None:
            return False, None
        if self._lead is not None and self._present.name == self._name:
            return True, None
        found = next((head.gcs for head in heads if head.name == self._present.name), None)
        if found is None:
            self._present = None  # it is no head any more
        return found is not None, found

    def follow(self, gcs: Gcs | None) -> None:
        """This machine follows that one now: until somebody leads in a newer term."""
        self.gcs = gcs
        if self._present is None:
            name = next((head.name for head in read_heads(self._folder) if head.gcs == gcs), "")
            self._present = Followed(self._name if gcs is None else name)

    def moved(self) -> bool:
        """Whether it is another one by now."""
        known, gcs = self.look()
        return known and gcs != self.gcs

    def _terms(self, heads: Sequence[Head]) -> dict[str, int]:
        """Who says that it leads, and in which term; all are asked at once.

        The first newer one will do for a machine that follows another: of those before it one may not answer at all.
        """
        own = Lead.read(self._lead) if self._lead is not None else None
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

    def _line(self, head: Head) -> Line:
        return self._lines.setdefault((head.url, head.certificate), Line(head.url, head.certificate))

    def refresh(self) -> None:
        """Ask which heads there are by now; a head knows that from its control plane. Raises OSError."""
        if self._lead is not None:
            return
        try:
            member = json.loads((self._folder / MEMBER_FILE).read_bytes())
            joined = Head("", str(member["url"]), str(member["certificate"]), "", 0)
            path, body = f"/v1/members/{member['node']}/standing", {"secret": str(member["secret"])}
        except (OSError, ValueError, TypeError, KeyError):
            return
        known = read_heads(self._folder)
        for place in [*known, joined]:
            answer = self._line(place).ask("POST", path, body)
            with contextlib.suppress(KeyError, TypeError, ValueError):
                if heads := tuple(Head.from_dict(entry) for entry in answer["heads"]):
                    if heads != known:
                        keep_heads(self._folder, heads)
                        say("heads", names=[head.name for head in heads])
                    return


class Watch:
    """A thread that looks whether another head leads, and asks now and then which there are."""

    def __init__(self, following: Following, *, is_node: bool) -> None:
        self.moved = False
        self._following = following
        self._is_node = is_node
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follows", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End, soon."""
        self._end.set()

    def _run(self) -> None:
        refresh_at = time.monotonic() + _jittered(REFRESH_EVERY_S) / 4
        while not self._end.wait(_jittered(LOOK_EVERY_S)) and not self.moved:
            if self._is_node and time.monotonic() >= refresh_at:
                _quietly(self._following.refresh)
                refresh_at = time.monotonic() + _jittered(REFRESH_EVERY_S)
            self.moved = bool(_quietly(self._following.moved))


def _quietly(work: Callable[[], Any]) -> Any:
    """What it returns; a full disk or a strange file must not end the thread."""
    try:
        return work()
    except (OSError, ValueError) as error:
        say("heads not asked", error=repr(error)[:200])
        return None


def _jittered(seconds: float) -> float:
    """So that not all machines ask at once."""
    return seconds * random.uniform(0.75, 1.25)  # noqa: S311 - nothing depends on it but the load
