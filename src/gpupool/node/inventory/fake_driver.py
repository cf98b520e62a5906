"""The fake driver of emulated GPUs: the folder that describes them to it, and its NVML as the agent sees it.

``native/fake`` has a libcuda and an libnvidia-ml that simulate the GPUs described in ``gpus.conf`` and keep what goes
on on them in state files beside it. The folder stays as it is while the agent and the machine live, so that programs
outlive an agent here too.
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

from gpupool.domain.gpu import Gpu
from gpupool.node.inventory.models import CardModel, mig_slices

VARIABLE = "GPUPOOL_FAKE_GPUS"  # tells a program's fake driver where its folder is
_FOLDER = "fake-gpus"
_CONF = "gpus.conf"
_COPY = "gpupool_pynvml_of_the_fake_driver"
_MIB = 1024 * 1024
_CONTEXT_BYTES = 128 * _MIB  # what a context takes of a simulated card, or a sixteenth of a small one


@dataclass(frozen=True, slots=True)
class FakeCards:
    """What is to be simulated: cards, their UUIDs, and the GPUs reported of them, MIG instances among these."""

    cards: Sequence[CardModel]
    uuids: Sequence[str]
    gpus: Sequence[Gpu]


def write_fake_driver(run_folder: Path, fakes: FakeCards, *, shared: bool) -> Path:
    """Describe these cards; returns the folder. ``shared``: programs of other users find their way to it.

    An unchanged description is left alone; with another one the state files of the old are removed. Raises OSError.
    """
    folder = run_folder / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o711 if shared else 0o700)
    text = "".join(_lines(fakes))
    conf = folder / _CONF
    if conf.is_file() and conf.read_text() == text:
        return folder
    for state in [*folder.glob("*.state"), *folder.glob("*.alive")]:
        state.unlink(missing_ok=True)
    new = folder / f".{_CONF}"
    new.write_text(text)
    new.chmod(0o644)
    new.replace(conf)
    return folder


def _lines(fakes: FakeCards) -> Iterator[str]:
    """The language of ``native/fake/gpus.h``."""
    for card, uuid in zip(fakes.cards, fakes.uuids, strict=True):
        memory = card.memory_mib * _MIB
        context = min(_CONTEXT_BYTES, memory // 16)
        yield f"{uuid} {memory} {card.multiprocessors} {card.capability} {context} {card.name}\n"
        for gpu in fakes.gpus:
            if gpu.parent_uuid == uuid:
                processors = max(1, card.multiprocessors * mig_slices(gpu.mig_profile) // 7)
                yield f"mig {gpu.uuid} {gpu.memory_mib * _MIB} {processors} {gpu.mig_profile}\n"


def fake_nvml(library: Path, folder: Path, gpus: Sequence[Gpu]) -> Any:
    """A copy of the module pynvml that talks to the fake NVML about that folder; None where that cannot be.

    A copy, because pynvml keeps the library it has loaded, and that may be the real driver's. The fake one reads its
    description once in the life of a process: where it then knows other GPUs than ``gpus``, this folder came too late.
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
    copy = sys.modules[_COPY] = importlib.util.module_from_spec(spec)  # it looks itself up there
    spec.loader.exec_module(copy)
    return copy


def _knows(nvml: Any, gpus: Sequence[Gpu]) -> bool:
    """Whether it has all of them; opens their state, for which it looks at the environment."""
    nvml.nvmlInit()
    for gpu in gpus:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        if nvml.nvmlDeviceGetMemoryInfo(handle).total != gpu.memory_mib * _MIB:
            return False
    return True


@contextmanager
def _variable(value: str) -> Iterator[None]:
    """The variable for this process, only as long as it takes: it is no concern of what the agent starts."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
