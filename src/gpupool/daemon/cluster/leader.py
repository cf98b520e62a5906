"""Leader election: which of several control planes of one database works, and what the others do.

A thread asks the database for the right to lead and then, once it leads, for a sign of life every second. If that fails
the control plane is suspended: it writes nothing, answers from memory where it can, and asks again. If no other one
has begun a term meanwhile, it continues. Otherwise it ends, and the supervisor starts a standby.
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
from gpupool.domain.nodes.heads import Head, HeadIdentity, MemberKey
from gpupool.domain.nodes.joining import RemovedMember
from gpupool.domain.protocol.fencing import LeadProof
from gpupool.node.host.heartbeat import boottime
from gpupool.store.backends import errors
from gpupool.store.backends.address import PostgresAddress
from gpupool.store.backends.leadership import Leader, LeaderSession
from gpupool.store.migrations import migrate_postgres

ASK_EVERY_S = 0.5
RETRY_DELAY_S = 0.05  # after a lost session: the next one usually succeeds
HEADS_EVERY_S = 10.0
GRACE_S = 3.0  # after an outage, for the former leader: its memory is still valid
PING_EVERY_S = 1.0
SILENT_AFTER_S = 4.0  # well before the server releases the lock (``leadership.SILENCE_S``)

log = structlog.get_logger("gpupool.leader")


class ElectionState(StrEnum):
    """The state of a control plane in the election."""

    WAITING = "waiting"  # another one leads, or the database does not respond
    LEADING = "leading"
    SUSPENDED = "suspended"  # it led and lost its connection
    ENDED = "ended"  # it led and another one does now, or it must not lead at all


class Leading:
    """The election state of one control plane; ``changed`` is called, on the thread, when it or its reason changes."""

    def __init__(
        self,
        database: PostgresAddress,
        name: str,
        address: str,
        identity: Callable[[], HeadIdentity | None],
        changed: Callable[[], None],
        pool_id: str | None = None,
    ) -> None:
        """Create it; ``pool_id`` is the pool id for an empty database, None: a new one."""
        self._pool_id = pool_id
        self.standing = ElectionState.WAITING
        self._starting = GpupoolError(
            ErrorCode.POOL_STARTING, "This control plane is starting.", "Try again in a moment."
        )
        self.refusal = self._starting
        self.term: int | None = None
        self.present: Leader | None = None  # the leader of the newest known term, if it is another one
        self.heads: tuple[Head, ...] = ()  # heads of the cluster in the database, while standby
        self.members: tuple[MemberKey, ...] = ()  # members of the cluster, likewise
        self.removed: tuple[RemovedMember, ...] = ()  # removed machines, likewise
        self._identity = identity
        self._database, self._name, self._address = database, name, address
        self._changed = changed
        self._session: LeaderSession | None = None
        self._heard_at = time.monotonic()
        self._proof = LeadProof()
        self._away = False
        self._heads_at = -HEADS_EVERY_S
        self._not_before = 0.0  # monotonic: when this one may lead
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"leader-{name}", daemon=True)
            for name, work in (("election", self._run_election), ("watch", self._watch_session))
        ]

    def held(self) -> bool:
        """Return whether no other control plane leads, as the database's last answer proves; from any thread."""
        return self.standing is ElectionState.LEADING and self._proof.holds(boottime())

    @property
    def starting(self) -> bool:
        """Return whether it is about to lead: no other leader is known, and the database has not refused it."""
        return self.refusal is self._starting

    def start(self) -> None:
        """Start the thread."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Release the right to lead, if this control plane has it; safe to repeat."""
        self._closing.set()
        for thread in self._threads:
            thread.join(SILENT_AFTER_S)
        self._drop_session()

    def _run_election(self) -> None:
        while not self._closing.is_set() and self.standing is not ElectionState.ENDED:
            led = self.standing is ElectionState.LEADING
            try:
                self._proof.ask(boottime())
                self._step()
                self._heard_at = time.monotonic()
                if self.standing is ElectionState.LEADING:
                    self._proof.answered()
            except GpupoolError as error:
                self._refused(error)
            except psycopg.Error as error:
                self._lose_contact(errors.translate(error, self._database))
            leads = self.standing is ElectionState.LEADING
            self._closing.wait(PING_EVERY_S if leads else RETRY_DELAY_S if led else ASK_EVERY_S)

    def _step(self) -> None:
        if self._session is None:
            self._session = LeaderSession(self._database)
            self._not_before = time.monotonic() + GRACE_S if self._away and self.term is None else 0.0
            self._away = False
        elif self.standing is ElectionState.LEADING:
            self._session.ping()
            return
        if (refusal := self._session.exclusion(self._identity())) is not None:
            self._exclude(refusal)
        elif time.monotonic() < self._not_before:
            self._wait_for(self._session.present(), leads=False)
        elif self._session.try_lock():
            self._begin(self._session)
        else:
            self._wait_for(self._session.present())
            self._learn(self._session)

    def _learn(self, session: LeaderSession) -> None:
        """Read the other heads: a standby cannot ask the leader for them."""
        if time.monotonic() >= self._heads_at + HEADS_EVERY_S:
            self._heads_at, before, self.heads = time.monotonic(), self.heads, session.heads()
            self.members, self.removed = session.members(), session.removed()
            if self.heads != before:
                self._changed()

    def _begin(self, session: LeaderSession) -> None:
        if self.term is None:
            self.refusal = self._starting  # creating the tables can take long
            with session.kept_without_queries():
                migrate_postgres.prepare(self._database, self._pool_id)
            self._proof.ask(boottime())
            self.term = session.begin_term(self._name, self._address, self._identity())
            log.info("leading", term=self.term)
        elif not self._holds_term(session.present()):
            return
        else:
            log.info("leading again", term=self.term)
        self._set_standing(ElectionState.LEADING, self.refusal)

    def _exclude(self, refusal: GpupoolError) -> None:
        """Stop asking for the right to lead: this machine is not, or no longer, a head of the cluster."""
        if self.term is not None:  # it led before; another control plane leads now
            self._set_standing(ElectionState.ENDED, refusal)
            return
        if self._session is not None:
            self.present = self._session.present()
            self._learn(self._session)
        self._set_standing(ElectionState.WAITING, refusal)

    def _holds_term(self, present: Leader | None) -> bool:
        if present is not None and present.term == self.term:
            return True
        self._set_standing(ElectionState.ENDED, led_by(present))
        return False

    def _wait_for(self, present: Leader | None, *, leads: bool = True) -> None:
        """Wait while another session has the right; after an outage it may be an old session of this process.

        ``leads``: False while nobody knows whether the leader of the last term still lives.
        """
        before, self.present = self.present, present
        if self.term is None:
            self._set_standing(ElectionState.WAITING, led_by(present if leads else None))
        else:
            self._holds_term(present)
        if present != before:
            self._changed()

    def _refused(self, error: GpupoolError) -> None:
        """Handle an error of the database that excludes leading, unless it just did not respond."""
        if error.code in {ErrorCode.DATABASE_UNREACHABLE, ErrorCode.DATABASE_UNWRITABLE}:
            self._lose_contact(error)
        elif error.code in {ErrorCode.NODE_REMOVED, ErrorCode.NOT_LEADING}:  # removed while it took the lock
            self._drop_session()
            self._exclude(error)
        else:
            self._drop_session()
            self._set_standing(ElectionState.ENDED, error)

    def _lose_contact(self, error: GpupoolError) -> None:
        self._away = True
        self._drop_session()
        self._set_standing(ElectionState.WAITING if self.term is None else ElectionState.SUSPENDED, error)

    def _watch_session(self) -> None:
        """Suspend a leader whose query hangs, and release the thread that waits for the answer."""
        while not self._closing.wait(PING_EVERY_S / 2):
            silent_s = time.monotonic() - self._heard_at
            if self.standing is ElectionState.LEADING and silent_s > SILENT_AFTER_S:
                said = f"silent for {silent_s:.0f} s"
                self._set_standing(ElectionState.SUSPENDED, errors.unreachable(self._database, said))
                if (session := self._session) is not None:
                    session.disconnect()

    def _drop_session(self) -> None:
        self._proof.lost()
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(psycopg.Error):
                session.close()

    def _set_standing(self, standing: ElectionState, refusal: GpupoolError) -> None:
        before = (self.standing, self.refusal.message)
        self.standing, self.refusal = standing, refusal
        if before != (standing, refusal.message):
            if standing is not ElectionState.LEADING:
                log.warning("not leading", standing=standing, code=refusal.code, why=refusal.message)
            self._changed()


def led_by(leader: Leader | None) -> GpupoolError:
    """Return the error of a standby: who leads, and where to reach the leader."""
    if leader is None:
        return GpupoolError(
            ErrorCode.POOL_STARTING, "Another control plane is about to lead this pool.", "Try again in a moment."
        )
    where = f"Use https://{leader.address}." if leader.address else f"Ask it on {leader.name}."
    return GpupoolError(
        ErrorCode.NOT_LEADING, f"This control plane is a standby; {leader.name} leads this pool.", where
    )
