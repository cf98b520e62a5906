"""Memory and time of the processes on GPUs, as the driver's NVML reports them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable

_UNKNOWN = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_UUID_ROOM = 96
_TEXT_ROOM = 96  # of a driver version (80) and of a name (96)
_MOST = 4096
_SUCCESS = 0
_MIG_ENABLED = 1
_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE
_NOT_FOUND = 6  # NVML_ERROR_NOT_FOUND
_FIRST_WINDOW_S = 1.0


class _ProcessInfo(ctypes.Structure):
    """The struct nvmlProcessInfo_v2_t, which version 3 of the call also fills."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _UtilizationSample(ctypes.Structure):
    """The struct nvmlProcessUtilizationSample_t: percent of the time since the driver's previous sample."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("time_us", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


class GpuProcesses:
    """A client of one NVML library. Calls block; an unusable library reports no processes."""

    def __init__(self, library: str) -> None:
        self._path = library
        self._nvml: ctypes.CDLL | None = None
        self._handles: dict[str, ctypes.c_void_p] = {}
        self._models: dict[str, str] = {}
        self._seen_us: dict[str, int] = {}

    def busy(self, uuid: str) -> dict[int, float] | None:
        """Return the percentage of the GPU's time by pid since the last call; None if NVML does not report it.

        NVML keeps several samples of each process. It reports NOT_FOUND if there is no newer one.
        """
        room, handle = 64, self._handles.get(uuid)
        since = self._seen_us.setdefault(uuid, int((time.time() - _FIRST_WINDOW_S) * 1e6))
        while self._nvml is not None and handle is not None and room <= _MOST:
            count, samples = ctypes.c_uint(room), (_UtilizationSample * room)()
            question = (handle, samples, ctypes.byref(count), ctypes.c_ulonglong(since))
            answer = self._nvml.nvmlDeviceGetProcessUtilization(*question)
            if answer == _NOT_FOUND:
                return {}
            if answer == _SUCCESS:
                return self._mean(uuid, samples[: count.value])
            if answer != _TOO_SMALL:
                return None
            room = max(room * 2, count.value + 16)
        return None

    def _mean(self, uuid: str, samples: Iterable[_UtilizationSample]) -> dict[int, float]:
        by_pid: dict[int, list[int]] = {}
        for sample in samples:
            self._seen_us[uuid] = max(self._seen_us[uuid], sample.time_us)
            by_pid.setdefault(sample.pid, []).append(sample.sm)
        return {pid: sum(values) / len(values) for pid, values in by_pid.items()}

    def model(self, uuid: str) -> str:
        """Return driver version and model of a GPU that ``used`` has found; empty if NVML does not report it."""
        return self._models.get(uuid, "")

    def used(self, uuids: Iterable[str]) -> dict[str, dict[int, int]]:
        """Return bytes by pid of these GPUs (or MIG instances) and of all GPUs without MIG.

        GPUs for which NVML fails are omitted.
        """
        if not self._open():
            return {}
        for uuid in uuids:
            self._find(uuid)
        found = {uuid: self._processes(handle) for uuid, handle in self._handles.items()}
        return {uuid: used for uuid, used in found.items() if used is not None}

    def _open(self) -> bool:
        if self._nvml is not None:
            return True
        try:
            nvml = ctypes.CDLL(self._path)
            if nvml.nvmlInit_v2() != _SUCCESS:
                return False
        except (OSError, AttributeError):
            return False
        self._nvml = nvml
        self._list(nvml)
        return True

    def _list(self, nvml: ctypes.CDLL) -> None:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
            return
        for index in range(count.value):
            handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_ROOM)
            if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != _SUCCESS:
                continue
            if _has_mig(nvml, handle):
                continue
            if nvml.nvmlDeviceGetUUID(handle, text, ctypes.c_uint(_UUID_ROOM)) == _SUCCESS:
                self._add(nvml, text.value.decode(errors="replace"), handle)

    def _find(self, uuid: str) -> None:
        """Add a MIG instance, which is not in the device list but can be opened by UUID."""
        handle = ctypes.c_void_p()
        if uuid in self._handles or self._nvml is None:
            return
        if self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == _SUCCESS:
            self._add(self._nvml, uuid, handle)

    def _add(self, nvml: ctypes.CDLL, uuid: str, handle: ctypes.c_void_p) -> None:
        self._handles[uuid] = handle
        version, name = ctypes.create_string_buffer(_TEXT_ROOM), ctypes.create_string_buffer(_TEXT_ROOM)
        if (
            nvml.nvmlSystemGetDriverVersion(version, ctypes.c_uint(_TEXT_ROOM)) == _SUCCESS
            and nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(_TEXT_ROOM)) == _SUCCESS
        ):
            self._models[uuid] = f"{version.value.decode(errors='replace')} {name.value.decode(errors='replace')}"

    def _processes(self, handle: ctypes.c_void_p) -> dict[int, int] | None:
        room = 64
        while room <= _MOST and self._nvml is not None:
            count, infos = ctypes.c_uint(room), (_ProcessInfo * room)()
            answer = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), infos)
            if answer == _SUCCESS:
                return {int(i.pid): int(i.used) for i in infos[: count.value] if i.used != _UNKNOWN}
            if answer != _TOO_SMALL:
                return None
            room = max(room * 2, count.value + 16)
        return None


def _has_mig(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> bool:
    """Return True if MIG is on: such a GPU lists the processes of all its instances."""
    now, later = ctypes.c_uint(), ctypes.c_uint()
    answer = nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(now), ctypes.byref(later))
    return bool(answer == _SUCCESS and now.value == _MIG_ENABLED)
