"""What NVML measures of a device from second to second, as cheaply as it can be asked."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, TypeVar

from gpupool.domain.telemetry import GpuSample
from gpupool.node.inventory.queries import NvmlCode
from gpupool.node.ports import GpuLook

T = TypeVar("T")
_MIB = 1024 * 1024
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2 of nvml.h: its "used" leaves out what the driver reserves
_TEMPERATURE_GPU, _CLOCK_SM, _CLOCK_MEMORY = 0, 1, 2  # of nvml.h
_LACKING = frozenset({NvmlCode.NOT_SUPPORTED, NvmlCode.FUNCTION_NOT_FOUND, NvmlCode.VERSION_MISMATCH})


class UseReader:
    """Looks at devices through one NVML module; what a device does not have is not asked for again."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._lacking: set[tuple[str, str]] = set()
        self._seen_us: dict[str, int] = {}  # the newest of a device's measurements of processes

    def look(self, uuid: str, handle: Any) -> GpuLook:
        """One device now; parts that cannot be read are None or nothing."""
        sample = GpuSample(uuid, self._utilisation(uuid, handle), self._memory_mib(uuid, handle))
        memory = self._processes(uuid, handle)
        return GpuLook(replace(sample, processes=len(memory)), memory, self._shares(uuid, handle))

    def physics(self, handle: Any, look: GpuLook) -> GpuLook:
        """The same look with what only real cards have: power, temperature, clocks."""
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
        """Percent of the device's time by process since the last look; None where the driver does not tell."""
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
        """What the function answers, ``none`` when there is nothing to tell, ``default`` when it cannot."""
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
