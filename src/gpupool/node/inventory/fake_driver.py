"""The fake driver of emulated GPUs: its configuration folder, and its NVML for the agent.

``native/fake`` has a libcuda and an libnvidia-ml that simulate the GPUs described in ``gpus.conf`` and keep their state
in files next to it. The folder is kept while the machine runs, so that programs survive a restart of the agent.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupool.domain.nodes.gpu import Gpu
from gpupool.node.inventory.models import CardModel, mig_slices

VARIABLE = "GPUPOOL_FAKE_GPUS"  # the configuration folder of a program's fake driver
_FOLDER = "fake-gpus"
CONF = "gpus.conf"
MIG_CONF = "mig.conf"  # the MIG instances after the first change, see native/fake/mig.c
EMULATED = " (emulated)"  # ends the names of cards in the fake NVML
_COPY = "gpupool_pynvml_of_the_fake_driver"
_MIB = 1024 * 1024
_CONTEXT_BYTES = 128 * _MIB  # size of a context on a simulated card; at most a sixteenth of its memory


@dataclass(frozen=True, slots=True)
class FakeCards:
    """The simulated cards, their UUIDs, and the reported GPUs, including MIG instances."""

    cards: Sequence[CardModel]
    uuids: Sequence[str]
    gpus: Sequence[Gpu]


def write_fake_driver(run_folder: Path, fakes: FakeCards, *, shared: bool) -> Path:
    """Write the description of these cards; return the folder. ``shared``: other users can reach it.

    An unchanged description is not written again. If it changed, old state files are deleted. Raises OSError.
    """
    folder = run_folder / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o711 if shared else 0o700)
    text = "".join(_lines(fakes))
    conf = folder / CONF
    if conf.is_file() and conf.read_text() == text:
        return folder
    for state in [*folder.glob("*.state"), *folder.glob("*.alive"), folder / MIG_CONF]:
        state.unlink(missing_ok=True)
    new = folder / f".{CONF}"
    new.write_text(text)
    new.chmod(0o644)
    new.replace(conf)
    return folder


def _lines(fakes: FakeCards) -> Iterator[str]:
    """Yield lines in the format of ``native/fake/gpus.h``."""
    for card, uuid in zip(fakes.cards, fakes.uuids, strict=True):
        memory = card.memory_mib * _MIB
        context = min(_CONTEXT_BYTES, memory // 16)
        yield f"{uuid} {memory} {card.multiprocessors} {card.capability} {context} {card.name}\n"
        if card.mig_mode and not card.mig:
            yield "mig on\n"
        for gpu in fakes.gpus:
            if gpu.parent_uuid == uuid:
                processors = max(1, card.multiprocessors * mig_slices(gpu.mig_profile) // 7)
                yield f"mig {gpu.uuid} {gpu.memory_mib * _MIB} {processors} {gpu.mig_profile}\n"


def fake_nvml(library: Path, folder: Path, gpus: Sequence[Gpu]) -> Any:
    """Return a copy of the module pynvml that uses the fake NVML with that folder; None if not possible.

    A copy, because pynvml keeps the library that it loaded, which may be the real driver's. The fake NVML reads its
    description once per process: None if it knows other GPUs than ``gpus``.
    """
    nvml = _copy_of_pynvml() if library.is_file() else None
    if nvml is None:
        return None
    try:
        nvml.nvmlLib = ctypes.CDLL(str(library))
        with _variable(str(folder)):
            return nvml if _knows(nvml, gpus) else None
    except (OSError, nvml.NVMLError):
        return None


def _copy_of_pynvml() -> Any:
    original = importlib.util.find_spec("pynvml")
    if original is None or original.origin is None:
        return None
    spec = importlib.util.spec_from_file_location(_COPY, original.origin)
    if spec is None or spec.loader is None:
        return None
    copy = sys.modules[_COPY] = importlib.util.module_from_spec(spec)  # the module looks itself up there
    spec.loader.exec_module(copy)
    return copy


def _knows(nvml: Any, gpus: Sequence[Gpu]) -> bool:
    """Return True if it has all GPUs; this also opens their state, found through the environment."""
    nvml.nvmlInit()
    for gpu in gpus:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        if nvml.nvmlDeviceGetMemoryInfo(handle).total != gpu.memory_mib * _MIB:
            return False
    return True


@contextmanager
def _variable(value: str) -> Iterator[None]:
    """Set the variable in this process for a short time; child processes of the agent must not inherit it."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
