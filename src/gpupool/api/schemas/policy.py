"""The scheduling policy of the pool."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpupool.api.schemas.base import Body, View
from gpupool.domain.gpu import Placement
from gpupool.scheduling.order import Order

Seconds = Annotated[float, Field(ge=0, le=31_622_400, allow_inf_nan=False)]


class PolicyView(View):
    """How the pool is shared over time; times in seconds, see ``gpupool policy --help``."""

    min_runtime_s: float
    reserve_after_s: float
    consolidate_after_s: float | None
    stale_gang_s: float
    half_life_s: float
    usage_weight: float
    order: Order
    turn_s: float | None
    placement: Placement
    node_lost_after_s: float | None


class PolicyChange(Body):
    """What to change of it; what is left out stays."""

    min_runtime_s: Seconds = 0
    reserve_after_s: Seconds = 0
    consolidate_after_s: Seconds | None = None
    stale_gang_s: Seconds = 0
    half_life_s: Seconds = 0
    usage_weight: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0
    order: Order = Order.FAIR
    turn_s: Seconds | None = None
    placement: Placement = Placement.PACK
    node_lost_after_s: Seconds | None = None
