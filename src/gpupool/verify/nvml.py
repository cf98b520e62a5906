"""NVML through ctypes: the facts and the health of a GPU, without Python packages."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p

NOT_FOUND, GPU_IS_LOST, NOT_SUPPORTED = 6, 15, 3  # nvmlReturn_t
GONE = frozenset({NOT_FOUND, GPU_IS_LOST})
_TEXT_BYTES = 96
_EVENT_XID = 8
_UNCORRECTED, _SINCE_DRIVER_LOAD = 1, 0
_TEMPERATURE_GPU, _CLOCK_SM = 0, 1

SOFTWARE_THERMAL = "software thermal slowdown"  # normal for some cards under full load
# nvmlClocksEventReasons of nvml.h: those that mean a problem of cooling or power.
SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: SOFTWARE_THERMAL,
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class NvmlError(Exception):
    """A call of NVML failed."""

    def __init__(self, function: str, code: int, text: str) -> None:
        super().__init__(f"{function} failed: {text or code}")
        self.code = code


class _Event(ctypes.Structure):
    """``nvmlEventData_t``."""

    _fields_ = (
        ("device", c_void_p),
        ("event_type", c_ulonglong),
        ("event_data", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


class Nvml:
    """The loaded NVML. Raises OSError if there is none, ``NvmlError`` if it does not start."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._library.nvmlErrorString.restype = c_char_p
        self.call("nvmlInit_v2")

    def call(self, function: str, *arguments: object) -> None:
        """Call a function. Raises ``NvmlError`` unless it succeeds."""
        found = getattr(self._library, function, None)
        code = int(found(*arguments)) if found is not None else NOT_SUPPORTED
        if code:
            text = self._library.nvmlErrorString(c_int(code)) or b""
            raise NvmlError(function, code, text.decode(errors="replace"))

    def text(self, function: str, *arguments: object) -> str:
        """Return the text that a function writes to a buffer."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(function, *arguments, buffer, c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    @property
    def count(self) -> int:
        """Return the number of GPUs of the node."""
        number = c_uint()
        self.call("nvmlDeviceGetCount_v2", byref(number))
        return number.value

    def device(self, index: int) -> Device:
        """Return a GPU by its index. Raises ``NvmlError``."""
        handle = c_void_p()
        self.call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
        return Device(self, handle)

    def device_of(self, uuid: str) -> Device:
        """Return a GPU or MIG instance by its UUID. Raises ``NvmlError``."""
        handle = c_void_p()
        self.call("nvmlDeviceGetHandleByUUID", c_char_p(uuid.encode()), byref(handle))
        return Device(self, handle)


class Device:
    """One GPU. A number that it does not have is None; every other failure raises ``NvmlError``."""

    def __init__(self, nvml: Nvml, handle: c_void_p) -> None:
        self._nvml = nvml
        self._handle = handle

    @property
    def uuid(self) -> str:
        """Return the UUID, like ``GPU-…``."""
        return self._nvml.text("nvmlDeviceGetUUID", self._handle)

    @property
    def model(self) -> str:
        """Return the name of the model."""
        return self._nvml.text("nvmlDeviceGetName", self._handle)

    @property
    def index(self) -> int:
        """Return its index on the node."""
        return self.number("nvmlDeviceGetIndex") or 0

    def number(self, function: str, *arguments: object) -> int | None:
        """Return the unsigned number of a function; None if the GPU does not have it."""
        value = c_uint()
        return value.value if self.query(function, *arguments, byref(value)) else None

    def query(self, function: str, *arguments: object) -> bool:
        """Call a function; return whether it succeeded. Raises ``NvmlError`` if the GPU is gone."""
        try:
            self._nvml.call(function, self._handle, *arguments)
        except NvmlError as error:
            if error.code in GONE:
                raise
            return False
        return True

    @property
    def temperature_c(self) -> int | None:
        """Return the temperature."""
        return self.number("nvmlDeviceGetTemperature", c_uint(_TEMPERATURE_GPU))

    @property
    def sm_clock_mhz(self) -> int | None:
        """Return the present clock of the multiprocessors."""
        return self.number("nvmlDeviceGetClockInfo", c_uint(_CLOCK_SM))

    @property
    def power_mw(self) -> int | None:
        """Return the present power."""
        return self.number("nvmlDeviceGetPowerUsage")

    @property
    def slowdowns(self) -> list[str] | None:
        """Return why the clocks are lowered, without idle and configured limits; None: unknown."""
        reasons = c_ulonglong()
        for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if self.query(function, byref(reasons)):
                return [name for bit, name in SLOWDOWNS.items() if reasons.value & bit]
        return None

    @property
    def ecc_enabled(self) -> bool | None:
        """Return whether ECC is on; None if the GPU has none."""
        current, pending = c_uint(), c_uint()
        return current.value != 0 if self.query("nvmlDeviceGetEccMode", byref(current), byref(pending)) else None

    @property
    def uncorrected_errors(self) -> int | None:
        """Return the uncorrected memory errors since the driver was loaded."""
        count = c_ulonglong()
        kind = (c_uint(_UNCORRECTED), c_uint(_SINCE_DRIVER_LOAD))
        return count.value if self.query("nvmlDeviceGetTotalEccErrors", *kind, byref(count)) else None

    @property
    def remapping(self) -> tuple[bool, bool]:
        """Return whether a row waits to be remapped, and whether remapping failed."""
        rows = [c_uint() for _ in range(4)]  # corrected, uncorrected, pending, failed
        self.query("nvmlDeviceGetRemappedRows", *map(byref, rows))
        return rows[2].value != 0, rows[3].value != 0


class XidRecorder:
    """The XIDs that GPUs report from now on."""

    def __init__(self, nvml: Nvml, devices: Sequence[Device]) -> None:
        self._nvml = nvml
        self._set = c_void_p()
        nvml.call("nvmlEventSetCreate", byref(self._set))
        for device in devices:
            device.query("nvmlDeviceRegisterEvents", c_ulonglong(_EVENT_XID), self._set)

    def read(self) -> dict[str, list[int]]:
        """Return the XIDs since the last call by the UUID of their GPU."""
        found: dict[str, list[int]] = {}
        event = _Event()
        while True:
            try:
                self._nvml.call("nvmlEventSetWait_v2", self._set, byref(event), c_uint(0))
            except NvmlError:  # no further event
                return found
            uuid = self._nvml.text("nvmlDeviceGetUUID", c_void_p(event.device))
            found.setdefault(uuid, []).append(int(event.event_data))
