"""The heads of a cluster: stored by the leader, and sent to each machine of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.nodes.heads import MAX_HEADS, Head, HeadStatus, takeover_faults
from gpupool.domain.nodes.joining import refused_names
from gpupool.domain.work.lifecycle import POOL
from gpupool.services.control.engine import Engine
from gpupool.services.state.mirror import Draft

MAX_URL_LENGTH = 300
CHECK_INTERVAL_S = 5.0
NOTICE_AFTER_S = 30.0  # no warning for a head that only restarts
JOIN_TIMEOUT_S = 120.0  # time for a new head until its first report

log = structlog.get_logger("gpupool.heads")


@dataclass(frozen=True, slots=True)
class HeadOffer:
    """The addresses of a new head: the URL of its API, with its certificate (PEM), and its GCS port."""

    url: str
    certificate: str
    gcs_port: int


class Heads:
    """The heads of a pool; ``own`` is this machine (None: not a head), ``database`` the URL that other heads use.

    ``database`` is None if the database is a file of this machine: then no other machine can lead.
    """

    def __init__(self, engine: Engine, own: Head | None, database: str | None) -> None:
        self._engine = engine
        self._own = own
        self._database = database
        self._known: tuple[Head, ...] = ()
        self._faults: dict[str, tuple[str, ...]] = {}
        self._unready_since: dict[str, float] = {}
        self._announced: set[str] = set()  # heads with a recorded event that they cannot take over

    @property
    def known(self) -> tuple[Head, ...]:
        """Return all heads, sorted by name."""
        return self._known

    def leads(self, node: str) -> bool:
        """Return True if the node is the leader."""
        return self._own is not None and self._own.name == node

    def standing(self, node: str) -> HeadStatus | None:
        """Return the status of a head; None for the only head and for other nodes."""
        if len(self._known) < 2 or node not in {head.name for head in self._known}:
            return None
        return HeadStatus.LEADS if self.leads(node) else HeadStatus.WAITS

    def faults(self, name: str) -> tuple[str, ...]:
        """Return the reasons why a head cannot take over; none for the leader."""
        return () if self.leads(name) else self._faults.get(name, ())

    def warnings(self) -> dict[str, str]:
        """Return a sentence for each head that cannot take over, by name."""
        return {head.name: _not_ready(head.name, found) for head in self._known if (found := self.faults(head.name))}

    async def run(self) -> None:
        """Run for ever: read the heads and their reports."""
        while True:
            try:
                await self.check()
            except GpupoolError as error:
                log.warning("cannot read the reports of heads", code=error.code)
            await self._engine.ports.sleep(CHECK_INTERVAL_S)

    async def check(self) -> None:
        """Read the heads; write an event when one cannot take over for a while, or can again."""
        await self.refresh()
        waiting = {head.name: head for head in self._known if not self.leads(head.name)}
        read = await self._engine.ports.store.joins.head_reports() if waiting else ()
        reports = {report.name: report for report in read}
        self._faults = {name: found for name in waiting if (found := takeover_faults(reports.get(name)))}
        clock = self._engine.ports.clock
        now, joined_since = clock.monotonic(), clock.now() - JOIN_TIMEOUT_S
        starting = {name for name in waiting.keys() - reports.keys() if waiting[name].added_at > joined_since}
        self._unready_since = {
            name: self._unready_since.get(name, now) for name in self._faults if name not in starting
        }
        late = {name for name, since in self._unready_since.items() if now - since >= NOTICE_AFTER_S}
        ready_again = (self._announced & waiting.keys()) - self._faults.keys()
        if events := [*self._events(late - self._announced), *self._events(ready_again)]:
            await self._engine.transact(lambda draft: _note(draft, events))
        self._announced = (self._announced | late) & self._faults.keys()

    def _events(self, names: Iterable[str]) -> Iterator[Event]:
        for name in sorted(names):
            found, at = self._faults.get(name, ()), self._engine.ports.clock.now()
            reason = Reason.HEAD_NOT_READY if found else Reason.HEAD_READY
            sentence = _not_ready(name, found) if found else f"{name} can take over"
            yield Event(at, POOL, reason, sentence, target=f"node {name}")

    async def announce(self) -> None:
        """Store this machine as a head when it becomes the leader."""
        if self._own is None:
            return
        found = {head.name: head for head in await self._engine.ports.store.joins.heads()}
        before = found.get(self._own.name)
        own = replace(self._own, added_at=before.added_at if before else self._engine.ports.clock.now())
        if own != before:
            await self._engine.run_exclusive(lambda: self._engine.ports.store.joins.save_head(own))
        self._take([*found.values(), own])
        await self._refuse_removed()

    async def refresh(self) -> tuple[Head, ...]:
        """Read the heads again, because machines join and leave."""
        if self._own is not None:
            self._take(await self._engine.ports.store.joins.heads())
            await self._refuse_removed()
        return self._known

    async def _refuse_removed(self) -> None:
        """Store the removed machines, so that the bridge of this machine refuses them."""
        joins, authority = self._engine.ports.store.joins, self._engine.ports.authority
        if authority is None:
            return
        names = refused_names(await joins.removed(), (member.node for member in await joins.members()))
        try:
            authority.keep_refused(names)
        except OSError as error:
            log.warning("removed machines not recorded for the bridge", error=str(error))

    def _take(self, heads: Iterable[Head]) -> None:
        """Store the known heads; without a shared database only this machine counts."""
        able = (head for head in heads if self._database is not None or self.leads(head.name))
        known = tuple(sorted({head.name: head for head in able}.values(), key=lambda head: head.name))
        authority = self._engine.ports.authority
        if known != self._known and authority is not None:
            try:
                authority.keep_heads(known)
            except OSError as error:
                log.warning("heads not stored for this machine's Ray", error=str(error))
        self._known = known

    def need_room(self) -> str:
        """Return the URL of the database for one more head; raises UNSUPPORTED if no other machine can lead."""
        if self._database is None:
            raise GpupoolError(
                ErrorCode.UNSUPPORTED,
                "The database of this pool is a file of this machine, so no other machine can lead.",
                "Move it to PostgreSQL first: 'gpupool backup', then 'gpupool restore --database postgresql://...'.",
            )
        if len(self._known) >= MAX_HEADS:
            raise GpupoolError(
                ErrorCode.OVER_LIMIT, f"A pool has at most {MAX_HEADS} heads.", "Remove one with 'gpupool leave'."
            )
        return self._database

    def made_of(self, offer: HeadOffer, node: str, address: str, certificate: str) -> Head:
        """Return the head to store; raises INVALID_REQUEST."""
        if not offer.url.startswith("https://") or len(offer.url) > MAX_URL_LENGTH:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST, f"'{offer.url[:80]}' is not the address of a head.", "Update this machine."
            )
        now = self._engine.ports.clock.now()
        return Head(node, offer.url, certificate, address, offer.gcs_port, now)


def _note(draft: Draft, events: Iterable[Event]) -> None:
    for event in events:
        draft.note(event)


def _not_ready(name: str, faults: Sequence[str]) -> str:
    return f"{name} cannot take over: {' '.join(faults)}"
