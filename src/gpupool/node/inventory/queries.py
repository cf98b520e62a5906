"""Asking NVML one thing at a time, so that one failing query never costs the rest of a scan."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

T = TypeVar("T")


class NvmlCode(IntEnum):
    """Return codes of NVML that mean something here (``nvmlReturn_t`` in nvml.h)."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    VERSION_MISMATCH = 25


# The card or the driver does not have the thing: nothing to tell anybody.
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
# The card no longer works, whatever was asked.
_FATAL = frozenset({NvmlCode.GPU_IS_LOST, NvmlCode.RESET_REQUIRED, NvmlCode.UNINITIALIZED, NvmlCode.DRIVER_NOT_LOADED})


class Queries:
    """Guarded queries about one thing (``GPU 0``): a failure gives the default and a warning.

    ``warnings`` is the list of the whole scan; ``fatal`` is filled once an answer says that the card is lost.
    """

    def __init__(self, nvml: Any, label: str, warnings: list[str]) -> None:
        self.nvml = nvml
        self.warnings = warnings
        self.fatal = ""
        self._label = label

    def ask(self, default: T, function: str, *args: Any, silent: frozenset[int] = frozenset(), **kwargs: Any) -> T:
        """What the NVML function returns, or ``default``; codes in ``silent`` and "not supported" warn nobody."""
        try:
            answer: T = getattr(self.nvml, function)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - NVML, ctypes and decoding errors all mean "no answer"
            self._note(function, error, silent)
            return default
        return answer

    def _note(self, function: str, error: Exception, silent: frozenset[int]) -> None:
        code = getattr(error, "value", None)
        if code in _FATAL and not self.fatal:
            self.fatal = f"the driver says: {error}"
        missing = isinstance(error, AttributeError) and function in str(error)  # an older nvidia-ml-py
        if code in _SILENT or code in silent or missing:
            return
        self.warn(f"{function} failed: {str(error) or type(error).__name__}")

    def warn(self, sentence: str) -> None:
        """Add a warning about this thing, once per scan."""
        text = f"{self._label}: {sentence}"
        if text not in self.warnings:
            self.warnings.append(text)


def as_text(value: Any) -> str:
    """A string of NVML, which older bindings return as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
