"""What an administrator decides about scheduling, apart from projects and their quotas."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Placement
from gpupool.domain.units import MAX_DURATION_S
from gpupool.scheduling.order import Order
from gpupool.scheduling.usage import Decay
from gpupool.scheduling.values import Settings

SHORTEST_HALF_LIFE_S = 60.0
SHORTEST_TURN_S = 60.0
SHORTEST_LOST_S = 20.0  # a silence is noticed after half of that
MOST_USAGE_WEIGHT = 100.0
_CHOICES: dict[str, type[Order | Placement]] = {"order": Order, "placement": Placement}


@dataclass(frozen=True, slots=True)
class Policy:
    """How the pool is shared over time. Times in seconds.

    ``min_runtime_s``: training is not evicted sooner after its start. ``reserve_after_s``: who needs whole GPUs and
    waits longer gets a reservation. ``consolidate_after_s``: for who waits longer for space that is free in pieces
    others are moved together; None: nobody is moved. ``stale_gang_s``: a gang with too few members left for longer
    goes back to the queue. ``half_life_s`` and ``usage_weight``: how use is forgotten, and how much it weighs in fair
    shares (0: not at all). ``order``: who is first among equals in a project. ``turn_s``: training that has run for so
    long makes way for work that has not had a turn; None: it does not. ``placement``: of work that does not say.
    ``node_lost_after_s``: a node that has been silent for so long ends what can be run again elsewhere, and then that
    is; None: never.
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

    def __post_init__(self) -> None:
        for name in ("min_runtime_s", "reserve_after_s", "consolidate_after_s", "stale_gang_s", "turn_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_DURATION_S:
                raise _impossible(name, value, "Give a time such as 5m.")
        if self.turn_s is not None and self.turn_s < SHORTEST_TURN_S:
            raise _impossible("turn_s", self.turn_s, "Give a minute or more, for example 2h.")
        if self.node_lost_after_s is not None and not SHORTEST_LOST_S <= self.node_lost_after_s <= MAX_DURATION_S:
            raise _impossible("node_lost_after_s", self.node_lost_after_s, "Give 20s or more, for example 5m.")
        if not SHORTEST_HALF_LIFE_S <= self.half_life_s <= MAX_DURATION_S:
            raise _impossible("half_life_s", self.half_life_s, "Give a minute or more, for example 1d.")
        if not 0 <= self.usage_weight <= MOST_USAGE_WEIGHT:
            raise _impossible("usage_weight", self.usage_weight, f"Give 0 (not at all) to {MOST_USAGE_WEIGHT:g}.")

    def settings(self, base: Settings) -> Settings:
        """The settings of a scheduler under this policy; what it says nothing about stays as in ``base``."""
        moves = self.consolidate_after_s is not None
        return replace(
            base,
            min_runtime_s=self.min_runtime_s,
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
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Policy:
        """The inverse of ``to_dict``; unknown keys (of a newer version) are dropped."""
        known = {field.name: document[field.name] for field in fields(cls) if field.name in document}
        chosen = {name: kind(known[name]) for name, kind in _CHOICES.items() if name in known}
        return cls(**{**known, **chosen})


def _impossible(name: str, value: float, hint: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, f"{name}: {value:g} is not possible.", hint)
