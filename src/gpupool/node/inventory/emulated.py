"""GPUs that are not there: a machine without any still runs everything but CUDA."""

from __future__ import annotations

import hashlib
import re
from typing import ClassVar, Self

from gpupool import __version__
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Gpu, NodeReport
from gpupool.domain.units import parse_memory_mib
from gpupool.node.inventory.host import clean_node_name, read_host
from gpupool.node.inventory.models import CardModel, find_model, known_models

DEFAULT_EMULATION = "1xT4"
MAX_EMULATED_GPUS = 64  # on a real node
MAX_SIMULATED_GPUS = 10_000  # for a simulation that asks for more
_MAX_SPEC_LENGTH = 2000
_MAX_CARD_MEMORY_MIB = 16 * 1024 * 1024
_PART = re.compile(
    r"(?:(?P<count>\d{1,9})\s*[x*]\s*)?(?P<name>[a-z0-9][a-z0-9 ._+-]{0,62})(?::(?P<size>[^:]{1,20}))?", re.IGNORECASE
)


def parse_emulation(spec: str, limit: int = MAX_EMULATED_GPUS) -> tuple[CardModel, ...]:
    """One card per GPU in ``4xT4,2xV100``, ``T4``, ``H100:80GiB`` or ``2xMyCard:24G``; empty means one T4.

    A card that is not known needs its memory. ``limit`` is the most GPUs, itself at most 10,000.
    Raises ``GpupoolError(INVALID_REQUEST)`` that names the part that is wrong.
    """
    if len(spec) > _MAX_SPEC_LENGTH:
        raise _bad(spec[:40] + "…", f"it is longer than {_MAX_SPEC_LENGTH} characters")
    cards: list[CardModel] = []
    most = min(limit, MAX_SIMULATED_GPUS)
    for part in (spec.strip() or DEFAULT_EMULATION).split(","):
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
    return count, _card(part, match["name"].strip(), match["size"])


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
    return CardModel(known.name if known else name, memory)


def _bad(part: str, reason: str) -> GpupoolError:
    shown = "".join(c if c.isprintable() else "?" for c in part.strip()[:80])
    return GpupoolError(
        ErrorCode.INVALID_REQUEST,
        f"Cannot emulate '{shown}': {reason}.",
        f"Write it like 4xT4,2xV100 or MyCard:24G. Known models: {', '.join(known_models())}.",
    )


def emulated_uuid(node_name: str, index: int) -> str:
    """The UUID of an emulated GPU: always the same for the same node name and index."""
    digest = hashlib.sha256(f"{node_name}/{index}".encode()).hexdigest()
    return f"GPU-EMULATED-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


class EmulatedInventory:
    """An inventory of cards that only exist on paper; the processors and memory of its report are real.

    ``warnings`` go into every report: they say why GPUs are emulated when nobody asked for it.
    """

    name: ClassVar[str] = "emulated"

    def __init__(self, node_name: str | None, cards: tuple[CardModel, ...], warnings: tuple[str, ...] = ()) -> None:
        self._host = read_host(node_name)
        self._warnings = warnings
        self._gpus = emulated_gpus(self._host.name, cards)

    @classmethod
    def open(cls, node_name: str, options: str) -> Self:
        """Build one from a text like ``4xT4,2xV100``; raises ``GpupoolError(INVALID_REQUEST)`` for a bad one."""
        return cls(node_name, parse_emulation(options))

    def report(self) -> NodeReport:
        """The machine with its emulated GPUs."""
        return NodeReport(
            name=self._host.name,
            cpus=self._host.cpus,
            memory_mib=self._host.memory_mib,
            gpus=self._gpus,
            emulated=True,
            boot_id=self._host.boot_id,
            agent_version=__version__,
            warnings=self._warnings,
        )

    def gpus(self, pool_pids: frozenset[int]) -> tuple[Gpu, ...]:  # noqa: ARG002 - no process can be on a card of paper
        """The same GPUs every time: always healthy, never used by anybody else."""
        return self._gpus


def emulated_gpus(node_name: str, cards: tuple[CardModel, ...]) -> tuple[Gpu, ...]:
    """The GPUs of a node with these cards, in order."""
    name = clean_node_name(node_name)
    return tuple(
        Gpu(uuid=emulated_uuid(name, i), index=i, model=card.name, memory_mib=card.memory_mib, emulated=True)
        for i, card in enumerate(cards)
    )
