"""Error counters of GPUs: ECC, PCIe, NVLink, XIDs, and the reasons for which their clocks are reduced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpupool.domain.nodes.telemetry import GpuSample
from gpupool.node.inventory.queries import Queries

INTERVAL_S = 10.0  # between two readings of a GPU
# Names and numbers from nvml.h
_CORRECTED, _UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t
_SINCE_DRIVER_LOAD = 0  # nvmlEccCounterType_t
_LINK_ERRORS = (0, 1, 2, 3)  # nvmlNvLinkErrorCounter_t: replay, recovery, CRC of flits, CRC of data
_MAX_LINKS = 18
_SLOWDOWN = {"power": 0x4 | 0x80, "hardware": 0x8, "thermal": 0x20 | 0x40}  # nvmlClocksEventReason...
SLOWDOWN_REASONS = tuple(_SLOWDOWN)


class CounterReader:
    """Reads the counters of each GPU at most every ``INTERVAL_S``; between two readings the last values stay."""

    def __init__(self, nvml: Any, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._clock = clock
        self._read: dict[str, tuple[float, GpuSample]] = {}
        self._without_links: set[str] = set()

    def add(self, sample: GpuSample, handle: Any, xids: int) -> GpuSample:
        """Return the sample with the counters of its GPU; ``xids`` were seen since the agent's start."""
        now = self._clock()
        at, last = self._read.get(sample.gpu_uuid, (-INTERVAL_S, sample))
        if now - at >= INTERVAL_S:
            last = self._counters(sample.gpu_uuid, handle)
            self._read[sample.gpu_uuid] = (now, last)
        return replace(
            sample,
            xids=xids,
            ecc_corrected=last.ecc_corrected,
            ecc_uncorrected=last.ecc_uncorrected,
            slowdown=last.slowdown,
            pcie_replays=last.pcie_replays,
            pcie_generation=last.pcie_generation,
            pcie_width=last.pcie_width,
            nvlink_errors=last.nvlink_errors,
        )

    def _counters(self, uuid: str, handle: Any) -> GpuSample:
        queries = Queries(self._nvml, uuid, [])
        return GpuSample(
            uuid,
            None,
            0,
            ecc_corrected=self._ecc(queries, handle, _CORRECTED),
            ecc_uncorrected=self._ecc(queries, handle, _UNCORRECTED),
            slowdown=self._slowdown(queries, handle),
            pcie_replays=queries.ask(None, "nvmlDeviceGetPcieReplayCounter", handle),
            pcie_generation=queries.ask(None, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
            pcie_width=queries.ask(None, "nvmlDeviceGetCurrPcieLinkWidth", handle),
            nvlink_errors=self._link_errors(queries, uuid, handle),
        )

    @staticmethod
    def _ecc(queries: Queries, handle: Any, kind: int) -> int | None:
        return queries.ask(None, "nvmlDeviceGetTotalEccErrors", handle, kind, _SINCE_DRIVER_LOAD)

    @staticmethod
    def _slowdown(queries: Queries, handle: Any) -> str | None:
        """Return the reasons, joined by commas (empty: none); None if they are unknown."""
        reasons: int | None = queries.ask(None, "nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:
            reasons = queries.ask(None, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        if reasons is None:
            return None
        return ",".join(name for name, bits in _SLOWDOWN.items() if reasons & bits)

    def _link_errors(self, queries: Queries, uuid: str, handle: Any) -> int | None:
        """Return the errors of all links together; a GPU without links is not asked again."""
        if uuid in self._without_links:
            return None
        found: list[int] = [
            count
            for link in range(_MAX_LINKS)
            if queries.ask(0, "nvmlDeviceGetNvLinkState", handle, link)
            for kind in _LINK_ERRORS
            if (count := self._link_error(queries, handle, link, kind)) is not None
        ]
        if not found:
            self._without_links.add(uuid)
            return None
        return sum(found)

    @staticmethod
    def _link_error(queries: Queries, handle: Any, link: int, kind: int) -> int | None:
        return queries.ask(None, "nvmlDeviceGetNvLinkErrorCounter", handle, link, kind)
