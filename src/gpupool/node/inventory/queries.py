"""Guarded NVML queries, so that one failing query does not break a scan."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

T = TypeVar("T")


class NvmlCode(IntEnum):
    """Return codes of NVML that are handled here (``nvmlReturn_t`` in nvml.h)."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    IN_USE = 19
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    VERSION_MISMATCH = 25


# The GPU or the driver does not have the feature: no warning.
_SILENT = frozenset(
    {
        NvmlCode.NOT_SUPPORTED,
        NvmlCode.NOT_FOUND,
        NvmlCode.FUNCTION_NOT_FOUND,
        NvmlCode.NO_DATA,
        NvmlCode.TIMEOUT,
        NvmlCode.VGPU_ECC_NOT_SUPPORTED,
        NvmlCode.VERSION_MISMATCH,
    }
)
# The GPU no longer works.
_FATAL = frozenset({NvmlCode.GPU_IS_LOST, NvmlCode.RESET_REQUIRED, NvmlCode.UNINITIALIZED, NvmlCode.DRIVER_NOT_LOADED})


class Queries:
    """Guarded queries about one object (``GPU 0``): a failure returns the default and adds a warning.

    ``warnings`` is the list of the whole scan; ``fatal`` is set once an answer says that the GPU is lost.
    """

    def __init__(self, nvml: Any, label: str, warnings: list[str]) -> None:
        self.nvml = nvml
        self.warnings = warnings
        self.fatal = ""
        self._label = label

    def ask(self, default: T, function: str, *args: Any, silent: frozenset[int] = frozenset(), **kwargs: Any) -> T:
        """Return the result of the NVML function, or ``default``; "not supported" and ``silent`` codes do not warn."""
        try:
            answer: T = getattr(self.nvml, function)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - NVML, ctypes and decoding errors all mean "no answer"
            self._note(function, error, silent)
            return default
        return answer

    def check_present(self, handle: Any) -> None:
        """Set ``fatal`` if the driver no longer knows a GPU, which can happen without an XID."""
        try:
            self.nvml.nvmlDeviceGetUUID(handle)
        except Exception as error:  # noqa: BLE001 - as in ``ask``
            if getattr(error, "value", None) == NvmlCode.NOT_FOUND and not self.fatal:
                self.fatal = f"the driver reports: {error}"

    def _note(self, function: str, error: Exception, silent: frozenset[int]) -> None:
        code = getattr(error, "value", None)
        if code in _FATAL and not self.fatal:
            self.fatal = f"the driver reports: {error}"
        missing = isinstance(error, AttributeError) and function in str(error)  # an older nvidia-ml-py
        if code in _SILENT or code in silent or missing:
            return
        self.warn(f"{function} failed: {str(error) or type(error).__name__}")

    def warn(self, sentence: str) -> None:
        """Add a warning about this object, once per scan."""
        text = f"{self._label}: {sentence}"
        if text not in self.warnings:
            self.warnings.append(text)


def as_text(value: Any) -> str:
    """Return a string from NVML, which older bindings return as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
