"""NVIDIA GPUs found through NVML (nvidia-ml-py)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from gpupool import __version__
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Gpu, NodeReport
from gpupool.node.inventory.health import XidWatch, judge
from gpupool.node.inventory.host import read_host
from gpupool.node.inventory.mig import is_cut, mig_gpu, mig_handles
from gpupool.node.inventory.processes import foreign_processes
from gpupool.node.inventory.queries import Queries, as_text
from gpupool.node.inventory.topology import bus_id, links_between
from gpupool.node.inventory.use import UseReader
from gpupool.node.ports import GpuLook

_MIB = 1024 * 1024
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2 of nvml.h: its "used" leaves out what the driver reserves


class NoGpusError(GpupoolError):
    """This machine has no GPU that NVML can see; ``reason`` says why, in half a sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            ErrorCode.UNSUPPORTED,
            f"No GPUs: {reason}.",
            "Install or repair the NVIDIA driver (nvidia-smi must work), or emulate GPUs with --emulate 1xT4.",
        )
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Card:
    """What does not change about a card, and NVML's handle for it."""

    handle: Any
    gpu: Gpu


class NvmlInventory:
    """An inventory of the NVIDIA GPUs of this machine.

    ``nvml`` is the NVML module to use (nvidia-ml-py by default). Raises ``NoGpusError`` when there is none.
    Until the first call of ``gpus`` the pool's own processes are not known: ``report`` then shows every process on a
    GPU as foreign, later it judges by the ``pool_pids`` of the last call. ``simulated``: NVML is the fake driver's.
    """

    name: ClassVar[str] = "nvml"

    def __init__(self, node_name: str | None = None, nvml: Any = None, *, simulated: bool = False) -> None:
        self._nvml = _start(nvml)
        self._simulated = simulated
        self._use = UseReader(self._nvml)
        self._host = read_host(node_name)
        self._pool_pids: frozenset[int] = frozenset()
        self._cards: dict[int, _Card] = {}
        self._devices: tuple[_Card, ...] = ()
        self._xids = XidWatch(self._queries([], None))

    @classmethod
    def open(cls, node_name: str, options: str) -> Self:
        """Build one; it takes no options. Raises ``NoGpusError``, or ``GpupoolError(INVALID_REQUEST)`` for options."""
        if options:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"The NVML inventory takes no options, not '{options[:40]}'.",
                "Leave it empty.",
            )
        return cls(node_name)

    def report(self) -> NodeReport:
        """A full scan of the machine and its GPUs, with what could not be read as warnings."""
        warnings: list[str] = []
        self._scan(warnings)
        general = self._queries(warnings, None)
        gpus = self._refresh(warnings)
        return NodeReport(
            name=self._host.name,
            cpus=self._host.cpus,
            memory_mib=self._host.memory_mib,
            gpus=gpus,
            emulated=False,
            boot_id=self._host.boot_id,
            agent_version=__version__,
            driver_version=as_text(general.ask("", "nvmlSystemGetDriverVersion")),
            cuda_version=_cuda_version(general.ask(0, "nvmlSystemGetCudaDriverVersion")),
            warnings=tuple(warnings),
        )

    def gpus(self, pool_pids: frozenset[int]) -> tuple[Gpu, ...]:
        """The GPUs, MIG instances among them, with fresh health, foreign processes and use."""
        self._pool_pids = pool_pids
        warnings: list[str] = []
        if not self._cards:
            self._scan(warnings)
        return self._refresh(warnings)

    def look(self) -> tuple[GpuLook, ...]:
        """What the cards, or their MIG instances, that were there at the last reading are doing now."""
        if not self._devices:
            self._scan([])
            self._refresh([])
        looks = tuple((device.handle, self._use.look(device.gpu.uuid, device.handle)) for device in self._devices)
        if self._simulated:
            return tuple(look for _, look in looks)
        return tuple(self._use.physics(handle, look) for handle, look in looks)

    def _scan(self, warnings: list[str]) -> None:
        """Read what does not change; a card that has vanished stays with what was known of it."""
        general = self._queries(warnings, None)
        count = general.ask(None, "nvmlDeviceGetCount")
        if count is None:  # the driver was loaded anew
            general.ask(None, "nvmlInit")
            count = general.ask(None, "nvmlDeviceGetCount")
        for index in range(count or 0):
            queries = self._queries(warnings, index)
            handle = queries.ask(None, "nvmlDeviceGetHandleByIndex", index)
            card = None if handle is None else self._identify(queries, index, handle)
            if card is not None:
                self._cards[index] = card
                self._xids.watch(queries, card.gpu.uuid, handle)
        self._link(warnings)

    def _identify(self, queries: Queries, index: int, handle: Any) -> _Card | None:
        uuid = as_text(queries.ask("", "nvmlDeviceGetUUID", handle))
        if not uuid:
            return None
        info = queries.ask(None, "nvmlDeviceGetPciInfo", handle)
        gpu = Gpu(
            uuid=uuid,
            index=index,
            model=as_text(queries.ask("unknown GPU", "nvmlDeviceGetName", handle)),
            memory_mib=self._memory_mib(queries, handle),
            pci_bus_id=bus_id(info),
        )
        return _Card(handle, gpu)

    def _memory_mib(self, queries: Queries, handle: Any) -> int:
        info = queries.ask(None, "nvmlDeviceGetMemoryInfo", handle)
        if info is not None and info.total:
            return int(info.total) // _MIB
        queries.warn("it does not tell its memory; taken to share the machine's")
        return self._host.memory_mib

    def _link(self, warnings: list[str]) -> None:
        queries = {index: self._queries(warnings, index) for index in self._cards}
        links = links_between(queries, {index: card.handle for index, card in self._cards.items()})
        for index, card in self._cards.items():
            self._cards[index] = replace(card, gpu=replace(card.gpu, links=links[index]))

    def _refresh(self, warnings: list[str]) -> tuple[Gpu, ...]:
        self._xids.poll(self._queries(warnings, None))
        cards = [(self._queries(warnings, index), card) for index, card in sorted(self._cards.items())]
        found = [(queries, card, _devices(queries, card)) for queries, card in cards]
        self._devices = tuple(device for _, _, devices in found for device in devices)
        return tuple(gpu for queries, card, devices in found for gpu in self._fresh(queries, card, devices))

    def _fresh(self, queries: Queries, card: _Card, devices: list[_Card]) -> list[Gpu]:
        """The card as it is now, or its MIG instances when it is cut; they share the card's health."""
        used = [self._used(queries, device) for device in devices]
        health, note = judge(queries, card.handle, self._xids.seen(card.gpu.uuid))
        return [replace(gpu, health=health, health_note=note) for gpu in used]

    def _used(self, queries: Queries, device: _Card) -> Gpu:
        use = queries.ask(None, "nvmlDeviceGetUtilizationRates", device.handle)
        return replace(
            device.gpu,
            foreign=foreign_processes(queries, device.handle, self._pool_pids),
            memory_used_mib=_used_mib(queries, device.handle),
            utilisation_percent=int(use.gpu) if use is not None else 0,
        )

    def _queries(self, warnings: list[str], index: int | None) -> Queries:
        return Queries(self._nvml, "NVML" if index is None else f"GPU {index}", warnings)


def _start(nvml: Any) -> Any:
    """The module, initialised, with at least one card."""
    nvml = nvml or _module()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoGpusError(_start_reason(nvml, error)) from error
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise NoGpusError(f"the NVIDIA driver does not list its GPUs ({error})") from error
    if not count:
        raise NoGpusError("the NVIDIA driver sees no GPU")
    return nvml


def _module() -> Any:
    try:
        import pynvml
    except ImportError:
        raise NoGpusError("the Python package nvidia-ml-py is not installed") from None
    return pynvml


def _start_reason(nvml: Any, error: Exception) -> str:
    reasons = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "the NVIDIA driver is not installed (no libnvidia-ml.so.1)",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is installed but not loaded",
        nvml.NVML_ERROR_NO_PERMISSION: "this user may not use the NVIDIA driver",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was updated and the machine not restarted",
    }
    return reasons.get(getattr(error, "value", -1), f"the NVIDIA driver does not start ({error})")


def _cuda_version(number: int) -> str:
    """``12.4`` for 12040."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _used_mib(queries: Queries, handle: Any) -> int:
    info = queries.ask(None, "nvmlDeviceGetMemoryInfo", handle, version=_MEMORY_V2)
    info = info or queries.ask(None, "nvmlDeviceGetMemoryInfo", handle)
    return int(info.used) // _MIB if info is not None else 0


def _devices(queries: Queries, card: _Card) -> list[_Card]:
    """What of a card can be handed out: itself, or its MIG instances."""
    if not is_cut(queries, card.handle):
        return [card]
    found = {
        place: (handle, mig_gpu(queries, handle, card.gpu, place))
        for place, handle in mig_handles(queries, card.handle).items()
    }
    return [_Card(handle, gpu) for handle, gpu in found.values() if gpu is not None]
