"""Nodes, GPUs and shares of GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from gpupool.domain.units import WHOLE_GPU


class GpuHealth(StrEnum):
    """Whether a GPU may be handed out."""

    OK = "ok"
    DEGRADED = "degraded"  # works, but shows errors worth a look (corrected ECC, retired pages pending)
    FAILED = "failed"  # XID or uncorrected ECC: never handed out


class NodeState(StrEnum):
    """Whether a node takes new work."""

    UP = "up"
    CORDONED = "cordoned"  # keeps what runs, takes nothing new
    DOWN = "down"  # its agent does not answer


class ComputePolicy(StrEnum):
    """What a part of a GPU means for its time."""

    GUARANTEE = "guarantee"  # your share of compute when others want the GPU, all of it when nobody does
    CAP = "cap"  # never more than the share
    NONE = "none"  # memory only: the hardware shares time


class Sharing(StrEnum):
    """How a program is kept to its part of a GPU; ``docs/sharing.md`` says what each guarantees."""

    WHOLE = "whole"  # nobody else is on the GPU
    SHARE = "share"  # the share library: memory limit and time leases
    MPS = "mps"  # NVIDIA's Multi-Process Service: memory limit and a bound on the processors used at a time
    MIG = "mig"  # a MIG instance that the administrator made
    ADVISORY = "advisory"  # the program is told its part; nothing enforces it


class Placement(StrEnum):
    """What is wanted of a place where several would do."""

    PACK = "pack"  # leave what is free in pieces that the usual work can use
    SPREAD = "spread"  # the node and the GPU with the least load


LOOPBACK = "127.0.0.1"  # the address of a machine that no other one has to reach


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """A process on a GPU that the pool did not start."""

    pid: int
    user: str
    name: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node as its inventory reports it: a card, or a MIG instance that its administrator made on one.

    A card that is cut into MIG instances is not reported, each of its instances is: with a UUID, ``memory_mib`` and a
    ``model`` (``NVIDIA A100-SXM4-80GB MIG 3g.40gb``) of its own, its ``mig_profile``, the card's ``parent_uuid``, and
    as ``index`` a hundred for each card up to its own and then its place on it (``102``: the third on the first card).

    ``links`` maps the index of another GPU of the node to how they reach each other: ``NV4`` (four NVLinks), ``PIX``,
    ``PHB``, ``NODE``, ``SYS`` as ``nvidia-smi topo -m`` prints them. ``foreign`` lists processes the pool did not
    start; such a GPU is not handed out.
    """

    uuid: str
    index: int
    model: str
    memory_mib: int
    emulated: bool = False
    pci_bus_id: str = ""
    health: GpuHealth = GpuHealth.OK
    health_note: str = ""
    links: dict[int, str] = field(default_factory=dict)
    mig_profile: str = ""
    parent_uuid: str = ""
    foreign: tuple[ForeignProcess, ...] = ()
    memory_used_mib: int = 0
    utilisation_percent: int = 0

    @property
    def available(self) -> bool:
        """Whether new work may be placed here as far as the card itself is concerned."""
        return self.health is not GpuHealth.FAILED and not self.foreign


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node's agent says of its machine; ``boot_id`` changes when the machine restarts.

    ``sharing`` names the modes that it can use for parts of GPUs, its default first; empty: it does not say.
    ``address`` is the IP address by which other machines of the pool reach it. ``fences``: it ends programs that are
    to end when it has been out of contact with the control plane.
    """

    name: str
    cpus: float
    memory_mib: int
    gpus: tuple[Gpu, ...]
    emulated: bool
    boot_id: str
    agent_version: str
    driver_version: str = ""
    cuda_version: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    sharing: tuple[str, ...] = ()
    address: str = LOOPBACK
    fences: bool = False


POOL_LABEL = "pool"  # the label whose value names the pool of nodes that a node is in
NODE_POLICY = ""  # in ``Node.sharing``: all GPUs of the node that have none of their own


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the pool keeps it: the last report and what the administrator decided.

    ``sharing`` has the modes chosen for parts of GPUs: by the UUID of a GPU, and under ``NODE_POLICY`` for the others.
    ``labels`` are the administrator's, and go before those that the machine reports.
    """

    report: NodeReport
    state: NodeState = NodeState.UP
    cordon_reason: str = ""
    sharing: dict[str, Sharing] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def all_labels(self) -> dict[str, str]:
        """The labels it reports, with the administrator's put over them."""
        return {**self.report.labels, **self.labels}

    @property
    def name(self) -> str:
        """The node's name, unique in the pool."""
        return self.report.name

    def policy_of(self, gpu_uuid: str) -> Sharing | None:
        """The mode that the administrator chose for parts of a GPU."""
        return self.sharing.get(gpu_uuid) or self.sharing.get(NODE_POLICY)


@dataclass(frozen=True, slots=True)
class GpuShare:
    """A part of one GPU given to one holder: ``permille`` thousandths and ``memory_mib`` of its memory."""

    gpu_uuid: str
    gpu_index: int
    permille: int
    memory_mib: int

    @property
    def whole(self) -> bool:
        """Whether nobody else can be on this GPU."""
        return self.permille == WHOLE_GPU


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What GPUs a replica asks for: ``count`` GPUs of one node, the same part of each; none when it is 0.

    The part is ``permille`` (exact) or, when ``memory_mib`` is set, as many thousandths as that memory needs on
    whichever model is chosen. ``models`` empty means any (``t4`` names ``Tesla T4``) but a MIG instance: those must be
    asked for, by their profile (``3g.40gb``) or by the word ``mig``. ``sharing`` is the mode that it insists on; None:
    the GPU's own. ``placement`` says which place is the best of several; None: what the pool does.
    """

    count: int = 1
    permille: int = WHOLE_GPU
    memory_mib: int | None = None
    models: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    sharing: Sharing | None = None
    placement: Placement | None = None

    @property
    def whole(self) -> bool:
        """Whether it is for whole GPUs by definition."""
        return self.memory_mib is None and self.permille == WHOLE_GPU

    def permille_on(self, gpu_memory_mib: int) -> int:
        """Thousandths needed of a GPU with that much memory; above 1000 when it is too small."""
        if self.memory_mib is None:
            return self.permille
        return -(-self.memory_mib * WHOLE_GPU // gpu_memory_mib)

    def memory_on(self, gpu_memory_mib: int) -> int:
        """MiB granted of a GPU with that much memory."""
        if self.memory_mib is not None:
            return self.memory_mib
        return gpu_memory_mib * self.permille // WHOLE_GPU

    def accepts_model(self, model: str) -> bool:
        """Whether a GPU model satisfies ``models``: see ``names_model``."""
        if is_mig(model):
            return any(_names_instance(wanted, model) for wanted in self.models)
        return not self.models or any(names_model(wanted, model) for wanted in self.models)


_MIG_WORD = re.compile(r"mig|[1-9]g|[1-9]g[0-9]+gb")
_COMPUTE_INSTANCE = re.compile(r"[1-9]c")  # 1c.3g.40gb: a third of the compute, all of the memory shared with the rest


def is_mig(model: str) -> bool:
    """Whether a GPU model is that of a MIG instance, like ``NVIDIA A30 MIG 1g.6gb``."""
    return "mig" in _words(model)


def _names_instance(wanted: str, model: str) -> bool:
    """As ``names_model``, but it must speak of MIG, and of a compute instance where the model is one."""
    parts = {word for word in _words(model) if _COMPUTE_INSTANCE.fullmatch(word)}
    return speaks_of_mig(wanted) and parts <= set(_words(wanted)) and names_model(wanted, model)


def speaks_of_mig(wanted: str) -> bool:
    """Whether a model that somebody typed means a MIG instance: ``3g.40gb``, ``a100 mig``."""
    return any(_MIG_WORD.fullmatch(word) for word in _words(wanted))


def names_model(wanted: str, model: str) -> bool:
    """Whether what somebody typed names a GPU model; case, spaces and dashes do not matter.

    All its words are words of the model (``a100-80gb`` of ``NVIDIA A100-SXM4-80GB``), or it is some neighbouring words
    of it written together (``rtx3090``). A part of a word is not enough: ``a10`` is not an ``A100``.
    """
    asked, words = _words(wanted), _words(model)
    if not asked:
        return False
    runs = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    return set(asked) <= set(words) or "".join(asked) in runs


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() else " " for c in text.lower()).split()
