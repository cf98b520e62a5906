"""Emulated GPUs: a machine without GPUs can run everything except CUDA."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from gpupool import __version__
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Gpu, NodeReport
from gpupool.domain.units import parse_memory_mib
from gpupool.node.host.native import Product
from gpupool.node.inventory.fake_driver import FakeCards, fake_nvml, write_fake_driver
from gpupool.node.inventory.host import clean_node_name, read_host
from gpupool.node.inventory.mig import mig_index
from gpupool.node.inventory.models import (
    CardModel,
    find_model,
    is_mig_profile,
    known_models,
    mig_memory_mib,
    mig_slices,
)
from gpupool.node.inventory.nvml import NvmlInventory
from gpupool.node.ports import GpuUsageSample

DEFAULT_EMULATION = "1xT4"
MAX_EMULATED_GPUS = 64  # on a real node
MAX_SIMULATED_GPUS = 10_000  # in a simulation
_MAX_SPEC_LENGTH = 2000
_MAX_CARD_MEMORY_MIB = 16 * 1024 * 1024
_PART = re.compile(
    r"(?:(?P<count>\d{1,9})\s*[x*]\s*)?(?P<name>[a-z0-9][a-z0-9 ._+-]{0,62})(?::(?P<size>[^:[]{1,20}))?"
    r"(?:\[(?P<mig>[^][]{1,200})\])?",
    re.IGNORECASE,
)
_COMMA_BETWEEN_CARDS = re.compile(r",(?![^[]*\])")
_MIG_SLICES_PER_GPU = 7
MIG_ON = "mig"


def parse_emulation(spec: str, limit: int = MAX_EMULATED_GPUS) -> tuple[CardModel, ...]:
    """Parse ``4xT4,2xV100``, ``T4``, ``H100:80GiB`` or ``2xMyCard:24G`` to one card per GPU; empty: one T4.

    ``A100-80GB[3g.40gb,2g.20gb]`` is a card with MIG instances, ``A100-80GB[mig]`` one in MIG mode without instances.
    An unknown card needs its memory. ``limit`` is the maximum number of GPUs, itself at most 10,000. Raises
    ``GpupoolError(INVALID_REQUEST)`` with the invalid part.
    """
    if len(spec) > _MAX_SPEC_LENGTH:
        raise _bad(spec[:40] + "…", f"it is longer than {_MAX_SPEC_LENGTH} characters")
    cards: list[CardModel] = []
    most = min(limit, MAX_SIMULATED_GPUS)
    for part in _COMMA_BETWEEN_CARDS.split(spec.strip() or DEFAULT_EMULATION):
        count, card = _parse_part(part.strip())
        if len(cards) + count > most:
            raise _bad(part, f"a node emulates at most {most} GPUs")
        cards.extend([card] * count)
    return tuple(cards)


def _parse_part(part: str) -> tuple[int, CardModel]:
    match = _PART.fullmatch(part)
    if match is None:
        raise _bad(part, "it is not of the form 4xT4 or 2xMyCard:24G")
    count = int(match["count"] or 1)
    if count == 0:
        raise _bad(part, "the number of GPUs is zero")
    card = _card(part, match["name"].strip(), match["size"])
    return count, card if match["mig"] is None else _with_mig(part, card, match["mig"])


def _with_mig(part: str, card: CardModel, profiles: str) -> CardModel:
    """Return the card with these MIG instances; raise if they do not fit."""
    if profiles.strip().lower() == MIG_ON:
        return replace(card, mig_mode=True)
    mig = tuple(profile.strip().lower() for profile in profiles.split(","))
    wrong = next((profile for profile in mig if not is_mig_profile(profile)), None)
    if wrong is not None:
        raise _bad(part, f"'{wrong[:20]}' is not a MIG profile such as 3g.40gb")
    if sum(map(mig_slices, mig)) > _MIG_SLICES_PER_GPU or sum(map(mig_memory_mib, mig)) > card.memory_mib:
        raise _bad(part, "the MIG instances do not fit on the card")
    return replace(card, mig=mig, mig_mode=True)


def _card(part: str, name: str, size: str | None) -> CardModel:
    known = find_model(name)
    if size is None:
        if known is None:
            raise _bad(part, f"'{name}' is not a known model")
        return known
    try:
        memory = parse_memory_mib(size)
    except (GpupoolError, OverflowError) as error:
        raise _bad(part, f"'{size}' is not an amount of memory") from error
    if memory > _MAX_CARD_MEMORY_MIB:
        raise _bad(part, f"'{size}' is more than 16 TiB")
    return replace(known, memory_mib=memory) if known else CardModel(name, memory)


def _bad(part: str, reason: str) -> GpupoolError:
    shown = "".join(c if c.isprintable() else "?" for c in part.strip()[:80])
    return GpupoolError(
        ErrorCode.INVALID_REQUEST,
        f"Cannot emulate '{shown}': {reason}.",
        f"Write it like 4xT4,2xV100, MyCard:24G or A100-80GB[3g.40gb]. Known models: {', '.join(known_models())}.",
    )


def emulated_uuid(node_name: str, index: int) -> str:
    """Return the UUID of an emulated GPU: always the same for a node name and index."""
    return f"GPU-EMULATED-{_digits(f'{node_name}/{index}')}"


def _digits(text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


class EmulatedInventory:
    """An inventory of emulated GPUs; CPUs and memory in its report are real.

    ``warnings`` are added to every report; they say why GPUs are emulated if that was not requested. After the first
    call of ``fake_driver_folder``, and if the native libraries are installed, the fake driver simulates the GPUs, and
    their use by programs is reported as on real ones.
    """

    name: ClassVar[str] = "emulated"

    def __init__(self, node_name: str | None, cards: tuple[CardModel, ...], warnings: tuple[str, ...] = ()) -> None:
        self._host = read_host(node_name)
        self._warnings = warnings
        self._cards = cards
        self._gpus = emulated_gpus(self._host.name, cards)
        self._pool_pids: frozenset[int] | None = None
        self._simulated: NvmlInventory | None = None

    @classmethod
    def open(cls, node_name: str, options: str) -> Self:
        """Create an inventory from ``4xT4,2xV100``; raise ``GpupoolError(INVALID_REQUEST)`` if invalid."""
        return cls(node_name, parse_emulation(options))

    def fake_driver_folder(self, run_folder: Path, *, shared: bool = False) -> Path:
        """Return the folder that describes the GPUs to the fake driver; create it in ``run_folder``.

        ``shared``: programs of other users can read it too. Raises OSError.
        """
        uuids = [emulated_uuid(self._host.name, index) for index in range(len(self._cards))]
        folder = write_fake_driver(run_folder, FakeCards(self._cards, uuids, self._gpus), shared=shared)
        if self._simulated is None:
            nvml = fake_nvml(Product.FAKE_NVML.path, folder, self._gpus)
            self._simulated = None if nvml is None else NvmlInventory(self._host.name, nvml, simulated=True)
        return folder

    def nvml(self, run_folder: Path, *, shared: bool) -> Any:
        """Return the fake NVML, which can create MIG instances; None without cards in MIG mode. Raises OSError."""
        if not any(card.mig_mode for card in self._cards):
            return None
        self.fake_driver_folder(run_folder, shared=shared)
        return None if self._simulated is None else self._simulated.nvml(run_folder, shared=shared)

    def report(self) -> NodeReport:
        """Return the machine with its emulated GPUs."""
        return NodeReport(
            name=self._host.name,
            cpus=self._host.cpus,
            memory_mib=self._host.memory_mib,
            gpus=self._seen(),
            emulated=True,
            boot_id=self._host.boot_id,
            agent_version=__version__,
            warnings=self._warnings,
        )

    def gpus(self, pool_pids: frozenset[int]) -> tuple[Gpu, ...]:
        """Return the same GPUs, always healthy; simulated ones with their use and foreign processes."""
        self._pool_pids = pool_pids
        return self._seen()

    def look(self) -> tuple[GpuUsageSample, ...]:
        """Return samples of simulated GPUs; empty if the GPUs are not simulated."""
        return () if self._simulated is None else self._simulated.look()

    def _seen(self) -> tuple[Gpu, ...]:
        has_mig = any(card.mig_mode for card in self._cards)
        if self._simulated is None or (self._pool_pids is None and not has_mig):
            return self._gpus
        now = {gpu.uuid: gpu for gpu in self._simulated.gpus(self._pool_pids or frozenset())}
        described = [gpu for gpu in self._gpus if not gpu.mig_profile or gpu.uuid in now]
        known = {gpu.uuid for gpu in self._gpus}
        created = [self._created(gpu) for gpu in now.values() if gpu.mig_profile and gpu.uuid not in known]
        gpus = sorted([*described, *created], key=lambda gpu: gpu.index)
        if self._pool_pids is None:
            return tuple(gpus)
        return tuple(_with_use(gpu, now.get(gpu.uuid, gpu)) for gpu in gpus)

    def _created(self, gpu: Gpu) -> Gpu:
        """Return a MIG instance that was created on the fake driver, like those of the description."""
        card = next(at for at in range(len(self._cards)) if emulated_uuid(self._host.name, at) == gpu.parent_uuid)
        return Gpu(
            uuid=gpu.uuid,
            index=gpu.index,
            model=f"{self._cards[card].name} MIG {gpu.mig_profile}",
            memory_mib=gpu.memory_mib,
            emulated=True,
            mig_profile=gpu.mig_profile,
            parent_uuid=gpu.parent_uuid,
        )


def _with_use(gpu: Gpu, now: Gpu) -> Gpu:
    return replace(
        gpu,
        foreign=now.foreign,
        memory_used_mib=now.memory_used_mib,
        utilisation_percent=now.utilisation_percent,
    )


def emulated_gpus(node_name: str, cards: tuple[CardModel, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs of a node with these cards, in order; for a card with MIG, its instances."""
    name = clean_node_name(node_name)
    return tuple(gpu for index, card in enumerate(cards) for gpu in _gpus_of(name, index, card))


def _gpus_of(node_name: str, index: int, card: CardModel) -> Iterator[Gpu]:
    uuid = emulated_uuid(node_name, index)
    if not card.mig_mode:
        yield Gpu(uuid=uuid, index=index, model=card.name, memory_mib=card.memory_mib, emulated=True)
    for place, profile in enumerate(card.mig):
        yield Gpu(
            uuid=f"MIG-EMULATED-{_digits(f'{node_name}/{index}/{place}')}",
            index=mig_index(index, place),
            model=f"{card.name} MIG {profile}",
            memory_mib=mig_memory_mib(profile),
            emulated=True,
            mig_profile=profile,
            parent_uuid=uuid,
        )
