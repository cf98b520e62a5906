"""Nodes, GPUs and shares of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpupool.domain.nodes.mig import MigCard, MigProfile
from gpupool.domain.nodes.sharing import Sharing, traits_of
from gpupool.domain.units import WHOLE_GPU

# XIDs that a faulty program causes on a healthy GPU (the set that NVIDIA's Kubernetes device plugin skips).
XID_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
# XIDs after which the GPU still works: a remapped row, many corrected errors, an error contained in one program.
XID_DEGRADED = frozenset({63, 92, 94})


class GpuHealth(StrEnum):
    """Health of a GPU: whether it may be allocated."""

    OK = "ok"
    DEGRADED = "degraded"  # works, but reports errors (corrected ECC, pending page retirement)
    FAILED = "failed"  # XID or uncorrected ECC error: never allocated


class NodeState(StrEnum):
    """State of a node: whether it accepts new work."""

    UP = "up"
    CORDONED = "cordoned"  # keeps its running work, accepts nothing new
    DOWN = "down"  # its agent does not respond


class Placement(StrEnum):
    """The preference among several possible placements."""

    PACK = "pack"  # keep free GPUs in pieces that typical requests can use
    SPREAD = "spread"  # the node and the GPU with the lowest load


class SpreadRule(StrEnum):
    """The rule for requests of the placement spread, which leaves less room for large workloads."""

    ALLOW = "allow"
    REFUSE = "refuse"


LOOPBACK = "127.0.0.1"  # address of a machine that no other machine needs to reach


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """A process on a GPU that the pool did not start."""

    pid: int
    user: str
    name: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node as its inventory reports it: a card, or a MIG instance on one.

    A card that is divided into MIG instances is not reported; each of its instances is. An instance has its own UUID,
    ``memory_mib`` and ``model`` (``NVIDIA A100-SXM4-80GB MIG 3g.40gb``), its ``mig_profile`` and the card's
    ``parent_uuid``. Its ``index`` is 100 for each card up to its own plus its position on the card (``102``: the third
    on the first card). ``on_demand``: the pool created the instance, not an administrator.

    ``links`` maps the index of another GPU of the node to the connection between them: ``NV4`` (four NVLinks), ``PIX``,
    ``PHB``, ``NODE``, ``SYS``, as ``nvidia-smi topo -m`` prints them. ``foreign`` lists processes that the pool did not
    start; such a GPU is not allocated.
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
    on_demand: bool = False
    foreign: tuple[ForeignProcess, ...] = ()
    memory_used_mib: int = 0
    utilisation_percent: int = 0

    @property
    def available(self) -> bool:
        """Return whether the GPU itself allows new work."""
        return self.health is not GpuHealth.FAILED and not self.foreign


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The report of a node's agent about its machine; ``boot_id`` changes when the machine restarts.

    ``sharing`` names the modes that it can use for shares of GPUs, its default first, and the mode of MIG instances if
    it has any; empty: unknown. ``address`` is the IP address by which other machines of the pool reach it. ``fences``:
    it ends programs with a fence limit when it has no contact with the control plane. ``last_epoch`` is the highest
    epoch that it has seen. ``mig_cards`` are its cards in MIG mode.
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
    last_epoch: int = 0
    mig_cards: tuple[MigCard, ...] = ()


POOL_LABEL = "pool"  # the label that names the node pool of a node
MIG_LABEL, MIG_ON_DEMAND = "mig", "on-demand"  # the label that allows the pool to create MIG instances on a node
NODE_LABEL, ADDRESS_LABEL, DRIVER_LABEL, CUDA_LABEL = "node", "address", "driver", "cuda"
ALTERNATIVE = "|"  # separates the accepted values of a required label
NODE_POLICY = ""  # in ``Node.sharing``: the key for all GPUs of the node without an own policy


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the pool stores it: its last report and the administrator's decisions.

    ``sharing`` has the modes chosen for shares of GPUs: by the UUID of a GPU, and under ``NODE_POLICY`` for the others.
    ``labels`` are the administrator's; they override those that the machine reports. ``cordoned_gpus`` has the reason
    of each cordoned GPU by its UUID, or by that of the card of a MIG instance.
    """

    report: NodeReport
    state: NodeState = NodeState.UP
    cordon_reason: str = ""
    sharing: dict[str, Sharing] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    cordoned_gpus: dict[str, str] = field(default_factory=dict)

    @property
    def all_labels(self) -> dict[str, str]:
        """Return the reported labels, overridden by the administrator's."""
        return {**self.report.labels, **self.labels}

    def has_label(self, label: str, wanted: str) -> bool:
        """Return whether a label has the wanted value, or one of ``gpu1|gpu2``.

        Every node also has the labels node, address, driver and cuda, unless others of these names are set.
        """
        value = self.all_labels.get(label)
        if value is None:
            report = self.report
            own = {NODE_LABEL: report.name, ADDRESS_LABEL: report.address}
            own |= {DRIVER_LABEL: report.driver_version, CUDA_LABEL: report.cuda_version}
            value = own.get(label)
        return value is not None and (value == wanted or value in wanted.split(ALTERNATIVE))

    @property
    def name(self) -> str:
        """Return the node's name, which is unique in the pool."""
        return self.report.name

    def cordon_of(self, gpu: Gpu) -> str:
        """Return the reason why a GPU is cordoned; empty: it is not."""
        return self.cordoned_gpus.get(gpu.uuid) or self.cordoned_gpus.get(gpu.parent_uuid, "")

    def accepts(self, gpu: Gpu) -> bool:
        """Return whether a GPU may get new work, if its node may."""
        return gpu.available and not self.cordon_of(gpu)

    @property
    def creates_mig(self) -> bool:
        """Return whether the administrator allows the pool to create MIG instances on the node."""
        return self.all_labels.get(MIG_LABEL) == MIG_ON_DEMAND

    def mig_choices(self, request: GpuRequest) -> list[tuple[MigCard, MigProfile]]:
        """Return the smallest profile of each card in MIG mode that a request for one instance accepts."""
        if request.count != 1 or not any(map(mentions_mig, request.models)):
            return []
        best = ((card, request.mig_profile(card)) for card in self.report.mig_cards)
        return [(card, profile) for card, profile in best if profile is not None]

    def policy_of(self, gpu_uuid: str) -> Sharing | None:
        """Return the mode that the administrator chose for shares of a GPU."""
        return self.sharing.get(gpu_uuid) or self.sharing.get(NODE_POLICY)


@dataclass(frozen=True, slots=True)
class GpuShare:
    """A share of one GPU for one holder: ``permille`` thousandths and ``memory_mib`` of its memory."""

    gpu_uuid: str
    gpu_index: int
    permille: int
    memory_mib: int

    @property
    def whole(self) -> bool:
        """Return whether the share is the whole GPU."""
        return self.permille == WHOLE_GPU


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPUs that a replica requests: ``count`` GPUs of one node with the same share of each; count 0: none.

    The share is ``permille`` (exact) or, with ``memory_mib``, the thousandths that this memory needs on the chosen
    model. ``models`` empty: any model (``t4`` names ``Tesla T4``) except MIG instances. Those must be requested by
    their profile (``3g.40gb``) or by the word ``mig``. ``sharing`` is the required mode; None: the GPU's own.
    ``placement`` is the preferred placement; None: the pool's default. ``gpu_uuid`` is the only GPU that satisfies it.
    """

    count: int = 1
    permille: int = WHOLE_GPU
    memory_mib: int | None = None
    models: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    sharing: Sharing | None = None
    placement: Placement | None = None
    gpu_uuid: str = ""

    @property
    def whole(self) -> bool:
        """Return whether the request is for whole GPUs by definition."""
        return self.memory_mib is None and self.permille == WHOLE_GPU

    @property
    def exceeds_mode(self) -> bool:
        """Return whether the request is for several GPUs in a mode for one."""
        return self.sharing is not None and self.count > 1 and traits_of(self.sharing).single_gpu

    def permille_on(self, gpu_memory_mib: int) -> int:
        """Return the thousandths needed of a GPU with this much memory; above 1000 if the GPU is too small."""
        if self.memory_mib is None:
            return self.permille
        return -(-self.memory_mib * WHOLE_GPU // gpu_memory_mib)

    def memory_on(self, gpu_memory_mib: int) -> int:
        """Return the MiB granted of a GPU with this much memory."""
        if self.memory_mib is not None:
            return self.memory_mib
        return gpu_memory_mib * self.permille // WHOLE_GPU

    def accepts_model(self, model: str) -> bool:
        """Return whether a GPU model satisfies ``models``; see ``model_matches``."""
        if is_mig(model):
            return any(_names_instance(wanted, model) for wanted in self.models)
        return not self.models or any(model_matches(wanted, model) for wanted in self.models)

    def mig_profile(self, card: MigCard) -> MigProfile | None:
        """Return the smallest profile of a card that the request accepts."""
        fits = [
            profile
            for profile in card.profiles
            if self.accepts_model(card.model_of(profile)) and self.permille_on(profile.memory_mib) <= WHOLE_GPU
        ]
        return min(fits, key=lambda profile: (profile.slices, profile.memory_mib, len(profile.name)), default=None)


_MIG_WORD = re.compile(r"mig|[1-9]g|[1-9]g[0-9]+gb")
_COMPUTE_INSTANCE = re.compile(r"[1-9]c")  # 1c.3g.40gb: a third of the compute, shared memory


def is_mig(model: str) -> bool:
    """Return whether a GPU model is a MIG instance, like ``NVIDIA A30 MIG 1g.6gb``."""
    return "mig" in _words(model)


def _names_instance(wanted: str, model: str) -> bool:
    """Return whether a text names a MIG model; it must mention MIG, and the compute instance if there is one."""
    parts = {word for word in _words(model) if _COMPUTE_INSTANCE.fullmatch(word)}
    return mentions_mig(wanted) and parts <= set(_words(wanted)) and model_matches(wanted, model)


def mentions_mig(wanted: str) -> bool:
    """Return whether a user's model name means a MIG instance: ``3g.40gb``, ``a100 mig``."""
    return any(_MIG_WORD.fullmatch(word) for word in _words(wanted))


def model_matches(wanted: str, model: str) -> bool:
    """Return whether a user's text names a GPU model; case, spaces and dashes do not matter.

    Either all its words are words of the model (``a100-80gb`` for ``NVIDIA A100-SXM4-80GB``), or it is several adjacent
    words written together (``rtx3090``). A part of a word is not enough: ``a10`` is not an ``A100``.
    """
    asked, words = _words(wanted), _words(model)
    if not asked:
        return False
    runs = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    return set(asked) <= set(words) or "".join(asked) in runs


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() else " " for c in text.lower()).split()


def missing_pools_text(wanted: Iterable[str], node_labels: Iterable[Mapping[str, str]]) -> str:
    """Return a sentence that names the node pools that no node is in; empty if there are none."""
    known = sorted({labels[POOL_LABEL] for labels in node_labels if POOL_LABEL in labels})
    missing = [f"'{pool}'" for pool in dict.fromkeys(wanted) if pool not in known]
    if not missing:
        return ""
    pools = f"node pools: {', '.join(known)}" if known else f"no node has the label '{POOL_LABEL}'"
    return f"No node is in the node pool {', '.join(missing)} ({pools})."
