"""Leading: which of several control planes of one database works, and what the others, and one that is cut off, do.

A thread asks the database for the right to lead, and once it has it for a sign of life every second. When that fails
the control plane is suspended: it writes nothing, answers what it can from memory and asks again. If nobody else has
begun a term meanwhile it goes on; otherwise it ends, and the supervisor starts one that waits.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from enum import StrEnum

import psycopg
import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.heads import Head, MemberKey
from gpupool.store import faults, migrate_postgres
from gpupool.store.address import PostgresAddress
from gpupool.store.leadership import Leader, LeaderSession

ASK_EVERY_S = 0.5
AT_ONCE_S = 0.05  # after a session was lost: most often the next one is had
HEADS_EVERY_S = 10.0
GRACE_S = 3.0  # after an outage, for whoever led: that one knows everything already
PING_EVERY_S = 1.0
SILENT_AFTER_S = 4.0  # well before the server gives the right to another (``leadership.SILENCE_S``)

log = structlog.get_logger("gpupool.leader")


class Standing(StrEnum):
    """Where a control plane stands."""

    WAITING = "waiting"  # another leads, or the database does not answer
    LEADING = "leading"
    SUSPENDED = "suspended"  # it led and is cut off
    ENDED = "ended"  # it led and another does by now, or it must not lead at all


class Leading:
    """One control plane's standing; ``changed`` is called, on the thread, whenever it or its reason changes."""

    def __init__(self, database: PostgresAddress, name: str, address: str, changed: Callable[[], None]) -> None:
        self.standing = Standing.WAITING
        self.refusal = GpupoolError(ErrorCode.NOT_LEADING, "This control plane is starting.", "Try again in a moment.")
        self.term: int | None = None
        self.present: Leader | None = None  # who began the newest term that is known here, if that is another
        self.heads: tuple[Head, ...] = ()  # of a cluster, as the database says while this one waits
        self.members: tuple[MemberKey, ...] = ()  # likewise: which machines there are, and which of them are heads
        self._database, self._name, self._address = database, name, address
        self._changed = changed
        self._session: LeaderSession | None = None
        self._heard_at = time.monotonic()
        self._away = False
        self._heads_at = -HEADS_EVERY_S
        self._not_before = 0.0  # monotonic: when this one may lead
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"leader-{name}", daemon=True)
            for name, work in (("asks", self._ask_on), ("watches", self._watch_on))
        ]

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Give the right back, if this control plane has it; harmless when repeated."""
        self._closing.set()
        for thread in self._threads:
            thread.join(SILENT_AFTER_S)
        self._drop_session()

    def _ask_on(self) -> None:
        while not self._closing.is_set() and self.standing is not Standing.ENDED:
            led = self.standing is Standing.LEADING
            try:
                self._step()
                self._heard_at = time.monotonic()
            except GpupoolError as error:
                self._refused(error)
            except psycopg.Error as error:
                self._unheard(faults.translate(error, self._database))
            leads = self.standing is Standing.LEADING
            self._closing.wait(PING_EVERY_S if leads else AT_ONCE_S if led else ASK_EVERY_S)

    def _step(self) -> None:
        if self._session is None:
            self._session = LeaderSession(self._database)
            self._not_before = time.monotonic() + GRACE_S if self._away and self.term is None else 0.0
            self._away = False
        elif self.standing is Standing.LEADING:
            self._session.ping()
            return
        if time.monotonic() >= self._not_before and self._session.try_lock():
            self._begin(self._session)
        else:
            self._wait_for(self._session.present())
            self._learn(self._session)

    def _learn(self, session: LeaderSession) -> None:
        """Who else may lead: whoever waits cannot ask another for that."""
        if time.monotonic() >= self._heads_at + HEADS_EVERY_S:
            self._heads_at, before, self.heads = time.monotonic(), self.heads, session.heads()
            self.members = session.members()
            if self.heads != before:
                self._changed()

    def _begin(self, session: LeaderSession) -> None:
        if self.term is None:
            migrate_postgres.prepare(self._database)
            self.term = session.begin_term(self._name, self._address)
            log.info("leading", term=self.term)
        elif not self._still_ours(session.present()):
            return
        else:
            log.info("leading again", term=self.term)
        self._stand(Standing.LEADING, self.refusal)

    def _still_ours(self, present: Leader | None) -> bool:
        if present is not None and present.term == self.term:
            return True
        self._stand(Standing.ENDED, led_by(present))
        return False

    def _wait_for(self, present: Leader | None) -> None:
        """Another session has the right. Of a leader that was cut off it may be an old one of its own."""
        before, self.present = self.present, present
        if self.term is None:
            self._stand(Standing.WAITING, led_by(present))
        else:
            self._still_ours(present)
        if present != before:
            self._changed()

    def _refused(self, error: GpupoolError) -> None:
        """What the database is lets nobody lead, unless it just did not answer."""
        if error.code in {ErrorCode.DATABASE_UNREACHABLE, ErrorCode.DATABASE_UNWRITABLE}:
            self._unheard(error)
        else:
            self._drop_session()
            self._stand(Standing.ENDED, error)

    def _unheard(self, error: GpupoolError) -> None:
        self._away = True
        self._drop_session()
        self._stand(Standing.WAITING if self.term is None else Standing.SUSPENDED, error)

    def _watch_on(self) -> None:
        """Suspend a leader whose question hangs, and free the thread that waits for the answer."""
        while not self._closing.wait(PING_EVERY_S / 2):
            silent_s = time.monotonic() - self._heard_at
            if self.standing is Standing.LEADING and silent_s > SILENT_AFTER_S:
                said = f"silent for {silent_s:.0f} s"
                self._stand(Standing.SUSPENDED, faults.unreachable(self._database, said))
                if (session := self._session) is not None:
                    session.hang_up()

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(psycopg.Error):
                session.close()

    def _stand(self, standing: Standing, refusal: GpupoolError) -> None:
        before = (self.standing, self.refusal.message)
        self.standing, self.refusal = standing, refusal
        if before != (standing, refusal.message):
            if standing is not Standing.LEADING:
                log.warning("not leading", standing=standing, code=refusal.code, why=refusal.message)
            self._changed()


def led_by(leader: Leader | None) -> GpupoolError:
    """The error of a control plane that waits: who leads, and where that one is."""
    if leader is None:
        return GpupoolError(
            ErrorCode.NOT_LEADING, "Another control plane is about to lead this pool.", "Try again in a moment."
        )
    where = f"Ask it at https://{leader.address}." if leader.address else f"Ask it on {leader.name}."
    return GpupoolError(ErrorCode.NOT_LEADING, f"This control plane waits; {leader.name} leads this pool.", where)
