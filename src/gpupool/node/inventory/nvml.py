"""NVIDIA GPUs found through NVML (nvidia-ml-py): their properties, health, links and samples."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from gpupool import __version__
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import XID_DEGRADED, XID_OF_PROGRAMS, Gpu, GpuHealth, NodeReport
from gpupool.domain.nodes.telemetry import GpuSample
from gpupool.node.inventory.counters import CounterReader
from gpupool.node.inventory.host import read_host
from gpupool.node.inventory.mig import has_mig, mig_gpu, mig_handles
from gpupool.node.inventory.processes import foreign_processes
from gpupool.node.inventory.queries import NvmlCode, Queries, as_text
from gpupool.node.ports import GpuUsageSample

_MIB = 1024 * 1024
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2 of nvml.h: its "used" excludes memory reserved by the driver
# Constants of nvml.h; they are part of its binary interface and do not change.
_EVENT_XID = 8
_UNCORRECTED = 1
_SINCE_DRIVER_LOAD = 0
_EVENTS_PER_POLL = 64
_MAX_XIDS_PER_GPU = 16

Finding = tuple[GpuHealth, str]
# nvmlGpuTopologyLevel_t of nvml.h
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_NVLINK_MAX = 36
_REMOTE_IS_SWITCH = 2
_NO_SUCH_LINK = frozenset({NvmlCode.INVALID_ARGUMENT})
T = TypeVar("T")
_TEMPERATURE_GPU, _CLOCK_SM, _CLOCK_MEMORY = 0, 1, 2  # of nvml.h
_LACKING = frozenset({NvmlCode.NOT_SUPPORTED, NvmlCode.FUNCTION_NOT_FOUND, NvmlCode.VERSION_MISMATCH})


class NoGpusError(GpupoolError):
    """NVML finds no GPU on this machine; ``reason`` says why, as a clause."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            ErrorCode.UNSUPPORTED,
            f"No GPUs: {reason}.",
            "Install or repair the NVIDIA driver (nvidia-smi must work), or emulate GPUs with --emulate 1xT4.",
        )
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _NvmlCard:
    """The constant facts of a GPU, and NVML's handle."""

    handle: Any
    gpu: Gpu


class NvmlInventory:
    """An inventory of the NVIDIA GPUs of this machine.

    ``nvml`` is the NVML module to use (nvidia-ml-py by default). Raises ``NoGpusError`` when there are no GPUs. Before
    the first call of ``gpus`` the pool's own processes are not known: ``report`` then shows every process on a GPU as
    foreign; later it uses the ``pool_pids`` of the last call. ``simulated``: NVML is the fake driver's.
    """

    name: ClassVar[str] = "nvml"

    def __init__(self, node_name: str | None = None, nvml: Any = None, *, simulated: bool = False) -> None:
        self._nvml = _start(nvml)
        self._simulated = simulated
        self._use = UseReader(self._nvml)
        self._host = read_host(node_name)
        self._pool_pids: frozenset[int] = frozenset()
        self._cards: dict[int, _NvmlCard] = {}
        self._devices: tuple[_NvmlCard, ...] = ()
        self._xids = XidWatch(self._queries([], None))
        self._counters = CounterReader(self._nvml, time.monotonic)

    @classmethod
    def open(cls, node_name: str, options: str) -> Self:
        """Create an inventory without options.

        Raises ``NoGpusError``, or ``GpupoolError(INVALID_REQUEST)`` if options are given.
        """
        if options:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"The NVML inventory takes no options, not '{options[:40]}'.",
                "Give no options.",
            )
        return cls(node_name)

    def nvml(self, _run_folder: Path, *, shared: bool) -> Any:  # noqa: ARG002 - a keyword of the Protocol
        """Return the NVML module."""
        return self._nvml

    def report(self) -> NodeReport:
        """Return a full scan of the machine and its GPUs, with failed queries as warnings."""
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
        """Return the GPUs, including MIG instances, with current health, foreign processes and use."""
        self._pool_pids = pool_pids
        warnings: list[str] = []
        if not self._cards:
            self._scan(warnings)
        return self._refresh(warnings)

    def look(self) -> tuple[GpuUsageSample, ...]:
        """Return samples of the GPUs and MIG instances found by the last scan."""
        if not self._devices:
            self._scan([])
            self._refresh([])
        looks = tuple((device.handle, self._use.look(device.gpu.uuid, device.handle)) for device in self._devices)
        if self._simulated:
            return tuple(look for _, look in looks)
        return tuple(self._counted(handle, self._use.physics(handle, look)) for handle, look in looks)

    def _counted(self, handle: Any, look: GpuUsageSample) -> GpuUsageSample:
        xids = self._xids.count(look.sample.gpu_uuid)
        return replace(look, sample=self._counters.add(look.sample, handle, xids))

    def _scan(self, warnings: list[str]) -> None:
        """Read constant facts; a GPU that has vanished keeps its last known facts."""
        general = self._queries(warnings, None)
        count = general.ask(None, "nvmlDeviceGetCount")
        if count is None:  # the driver was reloaded
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

    def _identify(self, queries: Queries, index: int, handle: Any) -> _NvmlCard | None:
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
        return _NvmlCard(handle, gpu)

    def _memory_mib(self, queries: Queries, handle: Any) -> int:
        info = queries.ask(None, "nvmlDeviceGetMemoryInfo", handle)
        if info is not None and info.total:
            return int(info.total) // _MIB
        queries.warn("it does not report its memory; assumed to share the machine's memory")
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

    def _fresh(self, queries: Queries, card: _NvmlCard, devices: list[_NvmlCard]) -> list[Gpu]:
        """Return the GPU with current values, or its MIG instances, which share the GPU's health."""
        used = [self._used(queries, device) for device in devices]
        health, note = judge(queries, card.handle, self._xids.seen(card.gpu.uuid))
        return [replace(gpu, health=health, health_note=note) for gpu in used]

    def _used(self, queries: Queries, device: _NvmlCard) -> Gpu:
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
    """Return the initialised module, with at least one GPU."""
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
    """Return ``12.4`` for 12040."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _used_mib(queries: Queries, handle: Any) -> int:
    info = queries.ask(None, "nvmlDeviceGetMemoryInfo", handle, version=_MEMORY_V2)
    info = info or queries.ask(None, "nvmlDeviceGetMemoryInfo", handle)
    return int(info.used) // _MIB if info is not None else 0


def _devices(queries: Queries, card: _NvmlCard) -> list[_NvmlCard]:
    """Return the usable devices of a GPU: itself, or its MIG instances."""
    if not has_mig(queries, card.handle):
        return [card]
    found = {
        place: (handle, mig_gpu(queries, handle, card.gpu, place))
        for place, handle in mig_handles(queries, card.handle).items()
    }
    return [_NvmlCard(handle, gpu) for handle, gpu in found.values() if gpu is not None]


class XidWatch:
    """Records the XID errors that GPUs report while the agent runs; polling never blocks."""

    def __init__(self, queries: Queries) -> None:
        self._events = queries.ask(None, "nvmlEventSetCreate")
        self._watched: set[str] = set()
        self._seen: dict[str, deque[int]] = {}
        self._counts: Counter[str] = Counter()

    def watch(self, queries: Queries, uuid: str, handle: Any) -> None:
        """Register for the XIDs of a GPU; a GPU without events is skipped."""
        if self._events is None or uuid in self._watched:
            return
        queries.ask(None, "nvmlDeviceRegisterEvents", handle, _EVENT_XID, self._events)
        self._watched.add(uuid)

    def poll(self, queries: Queries) -> None:
        """Read the events since the last call."""
        if self._events is None:
            return
        for _ in range(_EVENTS_PER_POLL):
            event: Any = queries.ask(None, "nvmlEventSetWait", self._events, 0)
            if event is None:
                return
            uuid = as_text(queries.ask("", "nvmlDeviceGetUUID", event.device))
            self._seen.setdefault(uuid, deque(maxlen=_MAX_XIDS_PER_GPU)).append(int(event.eventData))
            self._counts[uuid] += 1

    def count(self, uuid: str) -> int:
        """Return the number of all XIDs of a GPU, also of those caused by programs."""
        return self._counts[uuid]

    def seen(self, uuid: str) -> tuple[int, ...]:
        """Return the latest XIDs of a GPU, oldest first, without those caused by faulty programs."""
        return tuple(x for x in self._seen.get(uuid, ()) if x not in XID_OF_PROGRAMS)


def judge(queries: Queries, handle: Any, xids: tuple[int, ...]) -> Finding:
    """Return the worst health of a GPU and a note with all findings (empty if it is healthy)."""
    queries.check_present(handle)
    findings = [*_xid_findings(xids), *_ecc_findings(queries, handle), *_reset_findings(queries, handle)]
    if queries.fatal:
        findings.insert(0, (GpuHealth.FAILED, f"the card does not answer: {queries.fatal}"))
    order = list(GpuHealth)
    worst = max((health for health, _ in findings), key=order.index, default=GpuHealth.OK)
    return worst, "; ".join(note for _, note in findings)


def _xid_findings(xids: tuple[int, ...]) -> list[Finding]:
    found = []
    for xid in dict.fromkeys(xids):
        health = GpuHealth.DEGRADED if xid in XID_DEGRADED else GpuHealth.FAILED
        found.append((health, f"XID {xid} reported (reset the card, then restart the agent)"))
    return found


def _ecc_findings(queries: Queries, handle: Any) -> list[Finding]:
    count = queries.ask(0, "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _SINCE_DRIVER_LOAD)
    errors = f"{count} uncorrected memory error{'s' if count != 1 else ''} since the driver was loaded"
    return [(GpuHealth.FAILED, errors)] if count else []


def _reset_findings(queries: Queries, handle: Any) -> list[Finding]:
    found = []
    _, _, pending, failure = queries.ask((0, 0, 0, 0), "nvmlDeviceGetRemappedRows", handle)
    if failure:
        found.append((GpuHealth.FAILED, "a memory row could not be remapped: the card needs repair"))
    if pending:
        found.append((GpuHealth.DEGRADED, "a memory row waits to be remapped: reset the card"))
    if queries.ask(0, "nvmlDeviceGetRetiredPagesPendingStatus", handle):
        found.append((GpuHealth.DEGRADED, "memory pages wait to be retired: reset the card"))
    return found


@dataclass(frozen=True, slots=True)
class _NvLinks:
    """Active NVLinks of one GPU: how many end at each PCI address, and how many at a switch."""

    to_cards: Mapping[str, int]
    to_switch: int


def bus_id(info: Any) -> str:
    """Return the PCI address of an NVML PCI record, like ``00000000:65:00.0``."""
    return as_text(getattr(info, "busId", "")).lower()


def links_between(queries: Mapping[int, Queries], handles: Mapping[int, Any]) -> dict[int, dict[int, str]]:
    """Return each GPU's links to every other by index: ``NV4`` for four NVLinks, else the PCI topology level."""
    links: dict[int, dict[int, str]] = {index: {} for index in handles}
    if len(handles) < 2:
        return links
    address = {i: bus_id(queries[i].ask(None, "nvmlDeviceGetPciInfo", handle)) for i, handle in handles.items()}
    nvlinks = {i: _nvlinks(queries[i], handle) for i, handle in handles.items()}
    for one in handles:
        for other in (index for index in handles if index > one):
            count = _joint_nvlinks(nvlinks[one], nvlinks[other], address[other])
            name = f"NV{count}" if count else _pci_path(queries[one], handles[one], handles[other])
            if name:
                links[one][other] = links[other][one] = name
    return links


def _joint_nvlinks(one: _NvLinks, other: _NvLinks, other_address: str) -> int:
    """Return the number of direct links; with NVSwitch, the minimum of both GPUs' links to switches."""
    return one.to_cards.get(other_address, 0) or min(one.to_switch, other.to_switch)


def _nvlinks(queries: Queries, handle: Any) -> _NvLinks:
    to_cards: dict[str, int] = {}
    to_switch = 0
    for link in range(_NVLINK_MAX):
        state = queries.ask(None, "nvmlDeviceGetNvLinkState", handle, link, silent=_NO_SUCH_LINK)
        if state is None:
            break
        if not state:
            continue
        if queries.ask(0, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _REMOTE_IS_SWITCH:
            to_switch += 1
            continue
        address = bus_id(queries.ask(None, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
        to_cards[address] = to_cards.get(address, 0) + 1
    to_cards.pop("", None)
    return _NvLinks(to_cards, to_switch)


def _pci_path(queries: Queries, one: Any, other: Any) -> str:
    return _LEVELS.get(queries.ask(-1, "nvmlDeviceGetTopologyCommonAncestor", one, other), "")


class UseReader:
    """Samples devices through one NVML module; unsupported queries are not repeated."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._lacking: set[tuple[str, str]] = set()
        self._seen_us: dict[str, int] = {}  # time of a device's newest process measurement

    def look(self, uuid: str, handle: Any) -> GpuUsageSample:
        """Sample one device; values that cannot be read are None or empty."""
        sample = GpuSample(uuid, self._utilisation(uuid, handle), self._memory_mib(uuid, handle))
        memory = self._processes(uuid, handle)
        return GpuUsageSample(replace(sample, processes=len(memory)), memory, self._shares(uuid, handle))

    def physics(self, handle: Any, look: GpuUsageSample) -> GpuUsageSample:
        """Add the values that only real GPUs have: power, temperature, clocks."""
        uuid = look.sample.gpu_uuid
        power_mw = self._ask(None, uuid, "nvmlDeviceGetPowerUsage", handle)
        temperature = self._ask(None, uuid, "nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU)
        sample = replace(
            look.sample,
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=None if temperature is None else float(temperature),
            sm_clock_mhz=self._clock(uuid, handle, _CLOCK_SM),
            memory_clock_mhz=self._clock(uuid, handle, _CLOCK_MEMORY),
        )
        return replace(look, sample=sample)

    def _clock(self, uuid: str, handle: Any, kind: int) -> int | None:
        return self._ask(None, f"{uuid}/{kind}", "nvmlDeviceGetClockInfo", handle, kind)

    def _utilisation(self, uuid: str, handle: Any) -> float | None:
        rates = self._ask(None, uuid, "nvmlDeviceGetUtilizationRates", handle)
        return None if rates is None else float(rates.gpu)

    def _memory_mib(self, uuid: str, handle: Any) -> int:
        info = self._ask(None, f"{uuid}/2", "nvmlDeviceGetMemoryInfo", handle, version=_MEMORY_V2)
        info = info or self._ask(None, uuid, "nvmlDeviceGetMemoryInfo", handle)
        return 0 if info is None else int(info.used) // _MIB

    def _processes(self, uuid: str, handle: Any) -> dict[int, int]:
        entries: list[Any] = self._ask([], uuid, "nvmlDeviceGetComputeRunningProcesses", handle)
        return {int(entry.pid): int(entry.usedGpuMemory or 0) for entry in entries}

    def _shares(self, uuid: str, handle: Any) -> dict[int, float] | None:
        """Return the percentage of the device's time by process since the last sample; None if unsupported."""
        since_us = self._seen_us.get(uuid, int((time.time() - 1) * 1e6))
        rows: list[Any] | None = self._ask(None, uuid, "nvmlDeviceGetProcessUtilization", handle, since_us, none=[])
        if rows is None:
            return None
        found: dict[int, list[float]] = {}
        for row in rows:
            found.setdefault(int(row.pid), []).append(float(row.smUtil))
            self._seen_us[uuid] = max(self._seen_us.get(uuid, 0), int(row.timeStamp))
        return {pid: sum(values) / len(values) for pid, values in found.items()}

    def _ask(self, default: T, what: str, function: str, *args: Any, none: Any = None, **kwargs: Any) -> T:
        """Return the function's result; ``none`` if there is no data, ``default`` if it fails."""
        if (what, function) in self._lacking:
            return default
        try:
            answer: T = getattr(self._nvml, function)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - NVML, ctypes and decoding errors all mean "no answer"
            code = getattr(error, "value", None)
            if code in _LACKING or isinstance(error, AttributeError | TypeError):  # an older nvidia-ml-py
                self._lacking.add((what, function))
            return none if none is not None and code == NvmlCode.NOT_FOUND else default
        return answer
