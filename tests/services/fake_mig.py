"""A card in MIG mode of the fake agent: slices are counted, their places are not."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Gpu
from gpupool.domain.nodes.mig import MigCard, MigProfile

CARD, MODEL, FIRST_INDEX = "GPU-mig", "NVIDIA A100-SXM4-80GB", 900
SLICES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 3, "7g.80gb": 7}


@dataclass
class FakeMig:
    """The instances of the card by UUID, and the requests that it got; ``error`` is the answer to all of them."""

    instances: dict[str, str] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    error: GpupoolError | None = None

    def room(self) -> int:
        return 7 - sum(SLICES[profile] for profile in self.instances.values())

    def card(self) -> MigCard:
        profiles = (MigProfile(p, n, n * 10_240, 7 // n, self.room() // n) for p, n in SLICES.items())
        return MigCard(CARD, FIRST_INDEX // 100 - 1, MODEL, tuple(profiles))

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(
            Gpu(
                uuid,
                FIRST_INDEX + place,
                f"{MODEL} MIG {profile}",
                SLICES[profile] * 10_240,
                mig_profile=profile,
                parent_uuid=CARD,
                on_demand=uuid in self.own,
            )
            for place, (uuid, profile) in enumerate(self.instances.items())
        )

    def create(self, card: str, profile: str) -> None:
        self.asked.append(f"create {profile}")
        assert card == CARD
        if self.error is not None:
            raise self.error
        if self.room() < SLICES[profile]:
            raise GpupoolError(ErrorCode.WRONG_STATE, "no room", "")
        uuid = f"MIG-{len(self.asked)}"
        self.instances[uuid] = profile
        self.own.add(uuid)

    def remove(self, uuid: str) -> None:
        self.asked.append(f"remove {self.instances[uuid]}")
        if self.error is not None:
            raise self.error
        assert uuid in self.own
        del self.instances[uuid]
