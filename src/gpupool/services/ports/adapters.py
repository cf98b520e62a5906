"""The adapters that the composition root passes to the services."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gpupool.services.clock import Clock
from gpupool.services.ports.cluster import Authority
from gpupool.services.ports.courier import Courier
from gpupool.services.ports.fabric import Fabric
from gpupool.services.ports.files import BlobStore, OtherHeads
from gpupool.services.ports.store import Store


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
