"""The adapters that the composition root passes to the services."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpupool.domain.protocol.gateway_table import Report, Route
from gpupool.services.clock import Clock
from gpupool.services.ports.cluster import Authority
from gpupool.services.ports.courier import Courier
from gpupool.services.ports.fabric import Fabric
from gpupool.services.ports.files import BlobStore, OtherHeads
from gpupool.services.ports.storage import StorageReader
from gpupool.services.ports.store import Store


class Gateway(Protocol):
    """The connection to the gateway of this head; it is opened again when it is lost."""

    async def run(self, on_report: Callable[[Report], None]) -> None:
        """Keep the connection open for ever, and pass on what the gateway reports."""

    def publish(self, routes: Sequence[Route]) -> None:
        """Send all routes; a connection that opens later gets the last ones."""

    @property
    def url(self) -> str | None:
        """Return the address at which the gateway listens, without a path; None while it does not."""

    @property
    def connected(self) -> bool:
        """Return whether the gateway answers now."""

    def port_domain(self, *, here: bool) -> str | None:
        """Return the domain of the host names of workloads' ports; None if browsers cannot use one.

        ``here``: for a browser on this machine.
        """


@dataclass(slots=True)
class Ports:
    """The adapters that the composition root passes to the services."""

    store: Store
    fabric: Fabric
    clock: Clock
    random_bits: Callable[[int], int]
    sleep: Callable[[float], Awaitable[None]] = field(repr=False)
    courier: Courier | None = None
    authority: Authority | None = None
    blobs: BlobStore | None = None
    other_heads: OtherHeads | None = None
    gateway: Gateway | None = None
    storage: StorageReader | None = None
