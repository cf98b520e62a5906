"""Which machines may lead a cluster: written down by whoever leads, told to every machine that asks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.heads import MOST_HEADS, Head, HeadStanding
from gpupool.services.engine import Engine

LONGEST_URL = 300

log = structlog.get_logger("gpupool.heads")


@dataclass(frozen=True, slots=True)
class HeadOffer:
    """What a machine that wants to be a head says of itself: its API, with its certificate (PEM), and its GCS port."""

    url: str
    certificate: str
    gcs_port: int


class Heads:
    """The heads of a pool; ``own`` is this machine (None: no head), ``database`` the URL that other heads use.

    ``database`` is None where the pool's database is this machine's own: then nobody else can lead.
    """

    def __init__(self, engine: Engine, own: Head | None, database: str | None) -> None:
        self._engine = engine
        self._own = own
        self._database = database
        self._known: tuple[Head, ...] = ()

    @property
    def known(self) -> tuple[Head, ...]:
        """All of them, by name."""
        return self._known

    def leads(self, node: str) -> bool:
        """Whether a node is on the machine that leads."""
        return self._own is not None and self._own.name == node

    def standing(self, node: str) -> HeadStanding | None:
        """What a node is as a head; None: it is none, or the only one."""
        if len(self._known) < 2 or node not in {head.name for head in self._known}:
            return None
        return HeadStanding.LEADS if self.leads(node) else HeadStanding.WAITS

    async def announce(self) -> None:
        """Write down that this machine is a head; called when it begins to lead."""
        if self._own is None:
            return
        found = {head.name: head for head in await self._engine.ports.store.joins.heads()}
        before = found.get(self._own.name)
        own = replace(self._own, added_at=before.added_at if before else self._engine.ports.clock.now())
        if own != before:
            await self._engine.alone(lambda: self._engine.ports.store.joins.save_head(own))
        self._take([*found.values(), own])

    async def refresh(self) -> tuple[Head, ...]:
        """Read them anew: machines come and go."""
        if self._own is not None:
            self._take(await self._engine.ports.store.joins.heads())
        return self._known

    def _take(self, heads: Iterable[Head]) -> None:
        """Where nobody else can lead any more, others that are still written down are none."""
        able = (head for head in heads if self._database is not None or self.leads(head.name))
        known = tuple(sorted({head.name: head for head in able}.values(), key=lambda head: head.name))
        authority = self._engine.ports.authority
        if known != self._known and authority is not None:
            try:
                authority.keep_heads(known)
            except OSError as error:
                log.warning("heads not kept for this machine's Ray", error=str(error))
        self._known = known

    def need_room(self) -> str:
        """The URL of the database for one more head; raises UNSUPPORTED where another machine cannot lead."""
        if self._database is None:
            raise GpupoolError(
                ErrorCode.UNSUPPORTED,
                "This pool keeps its database in a file of this machine, so no other machine can lead it.",
                "Move it to PostgreSQL first: 'gpupool backup', then 'gpupool restore --database postgresql://...'.",
            )
        if len(self._known) >= MOST_HEADS:
            raise GpupoolError(
                ErrorCode.OVER_LIMIT, f"A pool has at most {MOST_HEADS} heads.", "Have one leave with 'gpupool leave'."
            )
        return self._database

    def made_of(self, offer: HeadOffer, node: str, address: str, certificate: str) -> Head:
        """A head as it is written down. Raises INVALID_REQUEST."""
        if not offer.url.startswith("https://") or len(offer.url) > LONGEST_URL:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST, f"'{offer.url[:80]}' is not the address of a head.", "Update this machine."
            )
        now = self._engine.ports.clock.now()
        return Head(node, offer.url, certificate, address, offer.gcs_port, now)
