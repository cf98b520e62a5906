"""The settings of a cycle, and the policy that administrators set, except for projects and their quotas."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Placement, SpreadRule
from gpupool.domain.units import MAX_DURATION_S
from gpupool.scheduling.state.decayed_usage import Decay
from gpupool.scheduling.state.user_order import Order

MIN_HALF_LIFE_S = 60.0
MIN_TURN_S = 60.0
MIN_LOST_S = 20.0  # a silent node is detected after half of that
MAX_QUEUED = 200_000
MAX_USAGE_WEIGHT = 100.0
MAX_LEVELS = 8
_LEVEL = re.compile(r"(?!node$)[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?")
MIN_REQUESTS, MAX_REQUESTS = 10, 100_000
MIN_VERIFY_S = 60.0
MAX_VERIFY_LEVEL = 3
BOUNDS: dict[str, tuple[float, float, str]] = {
    **dict.fromkeys(
        ("min_runtime_s", "unsaved_after_s", "reserve_after_s", "consolidate_after_s", "stale_gang_s"),
        (0, MAX_DURATION_S, "Give a time such as 5m."),
    ),
    "turn_s": (MIN_TURN_S, MAX_DURATION_S, "Give at least 1m, for example 2h."),
    "node_lost_after_s": (MIN_LOST_S, MAX_DURATION_S, "Give at least 20s, for example 5m."),
    "half_life_s": (MIN_HALF_LIFE_S, MAX_DURATION_S, "Give at least 1m, for example 1d."),
    "verify_idle_s": (MIN_VERIFY_S, MAX_DURATION_S, "Give at least 1m, for example 24h."),
    "verify_level": (1, MAX_VERIFY_LEVEL, "Give 1 (seconds), 2 (minutes) or 3 (with load)."),
    "max_queued_per_user": (1, MAX_QUEUED, f"Give 1 to {MAX_QUEUED}."),
    "max_requests_per_second": (MIN_REQUESTS, MAX_REQUESTS, f"Give {MIN_REQUESTS} to {MAX_REQUESTS}."),
    "usage_weight": (0, MAX_USAGE_WEIGHT, f"Give 0 (off) to {MAX_USAGE_WEIGHT:g}."),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds and delays of a cycle; times in seconds.

    ``order``: the order of equal priorities in a project. ``turn_s``: training that has run this long is evicted for
    work that has not; None: never.
    """

    min_runtime_s: float = 60.0  # minimum run time before an eviction
    # later, work without checkpoints is evicted only for a configured quota or priority
    unsaved_after_s: float = 60.0
    reserve_after_s: float = 300.0  # a replica that needs whole GPUs and waits longer gets a reservation
    max_reservations: int = 4
    reserved_part: float = 1 / 16  # of the pool: bound on GPUs held by reservations after the first
    max_grants: int = 2_000  # per cycle; then ``Decisions.more``
    max_looks: int = 100  # victim searches per cycle, each over a thousand pieces of work at most
    max_nodes_searched: int = 32  # nodes checked in detail in one search
    max_backfills: int = 64  # tries per cycle to backfill a replica
    placement: Placement = Placement.PACK  # the default placement
    stale_gang_s: float = 60.0  # a gang with too few members for longer goes back to the queue
    consolidate_after_s: float = 60.0  # after this wait for GPUs that are free in pieces, others are moved together
    max_consolidations: int = 4  # replicas per cycle for which others are moved; 0: never
    max_moves: int = 16  # replicas moved for one
    decay: Decay = field(default_factory=Decay)  # how past usage loses weight
    usage_weight: float = 1.0  # weight of recent usage in fair shares; 0: ignored
    order: Order = Order.FAIR
    turn_s: float | None = None
    topology: tuple[str, ...] = ()  # node labels, the largest domains first


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings for sharing the pool over time. Times are in seconds.

    - ``min_runtime_s``: training is not evicted earlier after its start.
    - ``reserve_after_s``: a workload that needs whole GPUs and waits longer gets a reservation; see ``holds.windows``.
    - ``unsaved_after_s``: training without checkpoints that has run longer is evicted only for a configured quota,
      higher priority or a reservation of nodes; None: it is not protected.
    - ``consolidate_after_s``: for a workload that waits longer for GPUs that are free in pieces, others are moved
      together; None: never.
    - ``stale_gang_s``: a gang with too few members for longer goes back to the queue.
    - ``half_life_s`` and ``usage_weight``: the half-life of past usage, and its weight in fair shares (0: ignored).
    - ``order``: the order of equal priorities in a project.
    - ``turn_s``: training that has run this long is evicted for work that has not; None: never.
    - ``placement``: the default placement.
    - ``node_lost_after_s``: replicas on a node that is silent for this long are ended and retried on other nodes if
      possible; None: never.
    - ``max_queued_per_user``: the maximum number of waiting replicas of one user.
    - ``max_requests_per_second``: the maximum request rate of one user; bursts may be five times as large.
    - ``topology``: the node labels that describe where nodes are, the largest domains first (``block``, ``rack``).
      Members of gangs are placed in the smallest domain with enough room.
    - ``spread``: whether workloads may request this placement; the rules of a project take precedence.
    - ``verify_idle_s``: idle GPUs whose last check is older are checked; None: never. ``verify_level``: how thoroughly,
      as ``gpupool verify --level``.
    """

    min_runtime_s: float = 60.0
    reserve_after_s: float = 300.0
    consolidate_after_s: float | None = 60.0
    stale_gang_s: float = 60.0
    half_life_s: float = 86_400.0
    usage_weight: float = 1.0
    order: Order = Order.FAIR
    turn_s: float | None = None
    placement: Placement = Placement.PACK
    node_lost_after_s: float | None = 300.0
    max_queued_per_user: int = 10_000
    unsaved_after_s: float | None = 60.0
    max_requests_per_second: int = 100
    verify_idle_s: float | None = None
    verify_level: int = 1
    topology: tuple[str, ...] = ()
    spread: SpreadRule = SpreadRule.ALLOW

    def __post_init__(self) -> None:
        for name, (least, most, hint) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise _impossible(name, value, hint)

        labels = self.topology
        if len(set(labels)) < len(labels) or len(labels) > MAX_LEVELS or not all(map(_LEVEL.fullmatch, labels)):
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                "The topology must be different node labels, the largest domains first.",
                f"Give up to {MAX_LEVELS} labels, for example block,rack. A node is always a domain.",
            )

    def settings(self, base: Settings) -> Settings:
        """Return the settings of a scheduler under this policy; all other values come from ``base``."""
        moves = self.consolidate_after_s is not None
        return replace(
            base,
            min_runtime_s=self.min_runtime_s,
            unsaved_after_s=math.inf if self.unsaved_after_s is None else self.unsaved_after_s,
            reserve_after_s=self.reserve_after_s,
            stale_gang_s=self.stale_gang_s,
            consolidate_after_s=base.consolidate_after_s
            if self.consolidate_after_s is None
            else self.consolidate_after_s,
            max_consolidations=Settings().max_consolidations if moves else 0,
            decay=Decay(self.half_life_s, base.decay.entry_s),
            usage_weight=self.usage_weight,
            order=self.order,
            turn_s=self.turn_s,
            placement=self.placement,
            topology=self.topology,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def _impossible(name: str, value: float, hint: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, f"{name}: {value:g} is out of range.", hint)
