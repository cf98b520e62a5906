"""A stand-in for the module pynvml, for machines without GPUs.

It behaves as nvidia-ml-py does: functions raise ``NVMLError`` with a ``value``, process lists are objects, texts may be
bytes. Every function the code under test may call is here; what a card does not define is "not supported".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

NOT_SUPPORTED, NOT_FOUND, DRIVER_NOT_LOADED, TIMEOUT = 3, 6, 9, 10
LIBRARY_NOT_FOUND, GPU_IS_LOST, UNKNOWN = 12, 15, 999
MIB = 1 << 20

_TEXTS = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    6: "Not Found",
    9: "Driver Not Loaded",
    10: "Timeout",
    12: "NVML Shared Library Not Found",
    15: "GPU is lost",
    18: "RM has detected an NVML/RM version mismatch.",
    999: "Unknown Error",
}


class NVMLError(Exception):
    """An error like in pynvml: the code is in ``value``."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return _TEXTS.get(self.value, f"NVML Error with code {self.value}")


@dataclass
class FakeMig:
    uuid: str
    name: str
    memory_mib: int
    processes: list[tuple[int, int | None]] = field(default_factory=list)


@dataclass
class FakeCard:
    """One card. ``fails`` maps function names to the code they raise; ``nvlinks`` lists the far end of each link."""

    uuid: str
    name: str | bytes = "Tesla T4"
    memory_mib: int = 15360
    used_mib: int = 0
    bus: str = "00000000:01:00.0"
    utilisation: int = 0
    uncorrected: int | None = None
    remapped: tuple[int, int, int, int] | None = None
    retirement_pending: int | None = None
    nvlinks: list[str] = field(default_factory=list)  # a bus id, "switch", or "" for a link that is down
    levels: dict[str, int] = field(default_factory=dict)  # uuid of another card: nvmlGpuTopologyLevel_t
    mig: list[FakeMig] | None = None
    processes: list[tuple[int, int | None]] = field(default_factory=list)  # pid, bytes
    fails: dict[str, int] = field(default_factory=dict)
    lost: bool = False


class FakeNvml:
    """Build one with its cards and hand it over where the module pynvml is wanted."""

    NVMLError = NVMLError
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_DRIVER_NOT_LOADED = DRIVER_NOT_LOADED
    NVML_ERROR_LIBRARY_NOT_FOUND = LIBRARY_NOT_FOUND
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18

    def __init__(self, *cards: FakeCard, init_fails: int | None = None, lacks: frozenset[str] = frozenset()) -> None:
        self.cards = list(cards)
        self.init_fails = init_fails
        self.lacks = lacks
        self.fails: dict[str, int] = {}
        self.broken: dict[str, Exception] = {}
        self.xids: deque[tuple[FakeCard, int]] = deque()
        self.watched: list[str] = []
        self.initialised = 0

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name.startswith("nvml"):
            if name in self.lacks:
                raise AttributeError(f"module 'pynvml' has no attribute '{name}'")
            return lambda *args, **kwargs: self._call(name, value, *args, **kwargs)
        return value

    def _call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name in self.broken:
            raise self.broken[name]
        if name in self.fails:
            raise NVMLError(self.fails[name])
        for card in (arg for arg in args if isinstance(arg, FakeCard)):
            if card.lost:
                raise NVMLError(GPU_IS_LOST)
            if name in card.fails:
                raise NVMLError(card.fails[name])
        return function(*args, **kwargs)

    def nvmlInit(self) -> None:  # noqa: N802 - the names are NVML's
        if self.init_fails is not None:
            raise NVMLError(self.init_fails)
        self.initialised += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"550.54.15"

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 12040

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:  # noqa: N802
        if self.cards[index].lost:
            raise NVMLError(GPU_IS_LOST)
        return self.cards[index]

    def nvmlDeviceGetUUID(self, handle: FakeCard | FakeMig) -> str:  # noqa: N802
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeCard | FakeMig) -> str | bytes:  # noqa: N802
        return handle.name

    def nvmlDeviceGetPciInfo(self, handle: FakeCard) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=handle.bus.encode())

    def nvmlDeviceGetMemoryInfo(self, handle: FakeCard | FakeMig, version: int | None = None) -> Any:  # noqa: N802
        used = handle.used_mib if isinstance(handle, FakeCard) else 0
        reserved = 0 if version else 300
        return SimpleNamespace(total=handle.memory_mib * MIB, used=(used + reserved) * MIB)

    def nvmlDeviceGetAttributes(self, handle: FakeMig) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpuInstanceSliceCount=3, memorySizeMB=handle.memory_mib)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeCard | FakeMig) -> SimpleNamespace:  # noqa: N802
        if isinstance(handle, FakeMig):
            raise NVMLError(NOT_SUPPORTED)
        return SimpleNamespace(gpu=handle.utilisation, memory=0)

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeCard, kind: int, counter: int) -> int:  # noqa: N802
        assert (kind, counter) == (1, 0), "uncorrected, since the driver was loaded"
        return _supported(handle.uncorrected)

    def nvmlDeviceGetRemappedRows(self, handle: FakeCard) -> tuple[int, int, int, int]:  # noqa: N802
        return _supported(handle.remapped)

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: FakeCard) -> int:  # noqa: N802
        return _supported(handle.retirement_pending)

    def nvmlDeviceGetNvLinkState(self, handle: FakeCard, link: int) -> int:  # noqa: N802
        if not handle.nvlinks:
            raise NVMLError(NOT_SUPPORTED)
        if link >= len(handle.nvlinks):
            raise NVMLError(2)
        return int(bool(handle.nvlinks[link]))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: FakeCard, link: int) -> int:  # noqa: N802
        return 2 if handle.nvlinks[link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: FakeCard, link: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=handle.nvlinks[link].upper())

    def nvmlDeviceGetTopologyCommonAncestor(self, one: FakeCard, other: FakeCard) -> int:  # noqa: N802
        return _supported(one.levels.get(other.uuid))

    def nvmlDeviceGetMigMode(self, handle: FakeCard) -> list[int]:  # noqa: N802
        return _supported(None if handle.mig is None else [1, 1])

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeCard) -> int:  # noqa: N802
        return 7 if handle.mig is not None else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeCard, index: int) -> FakeMig:  # noqa: N802
        if handle.mig is None or index >= len(handle.mig):
            raise NVMLError(NOT_FOUND)
        return handle.mig[index]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeCard | FakeMig) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in handle.processes]

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        return "event set"

    def nvmlDeviceRegisterEvents(self, handle: FakeCard, types: int, events: str) -> None:  # noqa: N802
        assert (types, events) == (8, "event set")
        self.watched.append(handle.uuid)

    def nvmlEventSetWait(self, events: str, timeout_ms: int) -> SimpleNamespace:  # noqa: N802
        assert timeout_ms == 0, "asking must never block"
        if not self.xids:
            raise NVMLError(TIMEOUT)
        card, xid = self.xids.popleft()
        return SimpleNamespace(device=card, eventType=8, eventData=xid)


def _supported(value: Any) -> Any:
    if value is None:
        raise NVMLError(NOT_SUPPORTED)
    return value
