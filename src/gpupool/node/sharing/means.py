"""What the share mode needs of a node, found once: the libraries, the driver behind them, sizes of contexts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpupool.node import native
from gpupool.node.inventory.emulated import EmulatedInventory
from gpupool.node.native import Product
from gpupool.node.ports import SharingHost
from gpupool.node.sharing.drivers import CUDA, DriverPaths, find_drivers
from gpupool.node.sharing.emulation import context_bytes, describe_gpus
from gpupool.node.sharing.preload import Libraries, libraries

CONTEXT_BYTES = 256 << 20  # of a process on a real GPU, until the driver tells; at most a quarter of the slice
_SHARE = (Product.SHARE_CUDA, Product.SHARE_CUDA_ALIAS, Product.SHARE_NVML)


@dataclass(frozen=True, slots=True)
class Means:
    """Everything there is to keep programs to slices. ``env`` is for every program."""

    libraries: Libraries
    drivers: DriverPaths
    env: Mapping[str, str] = field(default_factory=dict)
    emulated_contexts: Mapping[str, int] = field(default_factory=dict)

    def context_bytes(self, uuid: str, limit_bytes: int) -> int:
        """What a process's context on a GPU is taken to need in a slice of that size."""
        return self.emulated_contexts.get(uuid, min(CONTEXT_BYTES, limit_bytes // 4))


def find_means(host: SharingHost) -> Means | str:
    """The means of this node; or why it has none and what to do, in a sentence."""
    if why := native.missing():
        return why
    found = libraries(host, _SHARE)
    if isinstance(found, str):
        return found
    return _emulated(host, found) if isinstance(host.inventory, EmulatedInventory) else _real(found)


def _emulated(host: SharingHost, found: Libraries) -> Means | str:
    fakes = DriverPaths(str(Product.FAKE_CUDA.path), str(Product.FAKE_NVML.path))
    environment = describe_gpus(host)
    if isinstance(environment, str):
        return environment
    return Means(found, fakes, environment, context_bytes(environment))


def _real(found: Libraries) -> Means | str:
    drivers = find_drivers()
    if not drivers.cuda:
        return f"The driver's library {CUDA} is not found: run ldconfig, or install the driver's CUDA part."
    return Means(found, drivers)
