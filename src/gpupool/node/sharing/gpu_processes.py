"""Who uses how much memory of which GPU, as NVML says: of the real driver, or of the fake one.

The inventory's NVML module is one to a process and its own; this opens the library by its path, so that the fake
driver's works the same. Facts of nvml.h used here are part of its binary interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

_UNKNOWN = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_UUID_ROOM = 96
_MOST = 4096
_SUCCESS = 0
_MIG_ENABLED = 1
_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v2_t, which version 3 of the call also fills."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class GpuProcesses:
    """Asks one NVML library. Calls block; a library that cannot be used knows of nobody."""

    def __init__(self, library: str) -> None:
        self._path = library
        self._nvml: ctypes.CDLL | None = None
        self._handles: dict[str, ctypes.c_void_p] = {}

    def used(self, uuids: Iterable[str]) -> dict[str, dict[int, int]]:
        """Bytes by pid of these GPUs (or MIG instances) and of all cards that are not cut; silent ones are left out."""
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
            if _cut(nvml, handle):
                continue
            if nvml.nvmlDeviceGetUUID(handle, text, ctypes.c_uint(_UUID_ROOM)) == _SUCCESS:
                self._handles[text.value.decode(errors="replace")] = handle

    def _find(self, uuid: str) -> None:
        """A MIG instance is not among the devices of the machine but has a handle all the same."""
        handle = ctypes.c_void_p()
        if uuid in self._handles or self._nvml is None:
            return
        if self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == _SUCCESS:
            self._handles[uuid] = handle

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


def _cut(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> bool:
    """Whether MIG is on: such a card lists the processes of all its instances."""
    now, later = ctypes.c_uint(), ctypes.c_uint()
    answer = nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(now), ctypes.byref(later))
    return bool(answer == _SUCCESS and now.value == _MIG_ENABLED)
