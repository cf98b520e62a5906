"""What typical work asks for, learnt from what was submitted: the usual kinds and how large a part of all each is.

The most frequent kinds first, until they make up nearly all of the submissions: the FGD paper (USENIX ATC 2023) takes
95 % of a finished trace; here the past fades, and before anything is known a few plain kinds stand in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpupool.domain.gpu import GpuRequest

COVER = 0.99  # of what was submitted is of a typical kind
MOST_KINDS = 256
HALF_LIFE = 3_500  # submissions after which one counts half
LEARN_FIRST, LEARN_LAST = 8, 1_000  # look again after half as many as are known, within these
HALF_TRUSTED = 100  # submissions
_LEARN_PART = 0.5
_MOST_KNOWN = 4_096
_GROWTH = 2.0 ** (1 / HALF_LIFE)
_OVERFLOW = 1e100

KindKey = tuple[GpuRequest, int]
BEFOREHAND: tuple[tuple[GpuRequest, int], ...] = (  # request, and how many submissions it counts as
    (GpuRequest(1), 4),
    (GpuRequest(1, 500), 1),
    (GpuRequest(1, 250), 1),
    (GpuRequest(2), 1),
    (GpuRequest(4), 1),
    (GpuRequest(8), 1),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """Work of one kind: its request without labels, mode or placement, CPU in thousandths, its part of all work."""

    request: GpuRequest
    cpu_milli: int
    part: float


class TypicalWork:
    """A fading histogram of what was submitted. The same submissions in the same order give the same kinds."""

    def __init__(self) -> None:
        self._weights: dict[KindKey, float] = {(request, 0): float(n) for request, n in BEFOREHAND}
        self._one = 1.0  # what a submission weighs now; the past fades because this grows
        self._known = self._fresh = 0
        self.version = 0

    def submitted(self, request: GpuRequest, cpu_milli: int) -> None:
        """One more replica asked for this."""
        plain = request
        if request.sharing is not None or request.labels or request.placement is not None:
            plain = replace(request, sharing=None, labels=(), placement=None)
        key = (plain, cpu_milli)
        self._one *= _GROWTH
        self._weights[key] = self._weights.get(key, 0.0) + self._one
        self._known += 1
        self._fresh += 1
        if len(self._weights) > _MOST_KNOWN or self._one > _OVERFLOW:
            self._tidy()

    def learn(self) -> int:
        """The version of what is known; it grows when enough came that it is worth a look."""
        if self._fresh >= min(LEARN_LAST, max(LEARN_FIRST, _LEARN_PART * self._known)):
            self._fresh = 0
            self.version += 1
        return self.version

    @property
    def trust(self) -> float:
        """How far what is known can be relied on: 0 before anything came, near 1 after some hundreds."""
        return self._known / (self._known + HALF_TRUSTED)

    def known(self) -> tuple[Kind, ...]:
        """All kinds that are remembered, the most frequent first."""
        total = sum(self._weights.values())
        ranked = sorted(self._weights.items(), key=lambda item: (-item[1], _order(item[0])))
        return tuple(Kind(request, cpu, weight / total) for (request, cpu), weight in ranked)

    def _tidy(self) -> None:
        kept = sorted(self._weights.items(), key=lambda item: (-item[1], _order(item[0])))[: _MOST_KNOWN // 2]
        self._weights = {key: weight / self._one for key, weight in kept}
        self._one = 1.0


def usual(known: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """The first kinds that make up ``COVER`` of all, at most ``MOST_KINDS``, their parts adding up to 1."""
    chosen: list[Kind] = []
    covered = 0.0
    for kind in known[:MOST_KINDS]:
        if covered >= COVER:
            break
        chosen.append(kind)
        covered += kind.part
    return tuple(replace(kind, part=kind.part / covered) for kind in chosen)


def _order(key: KindKey) -> tuple[int, int, int, tuple[str, ...], int]:
    request, cpu_milli = key
    return (request.count, request.permille, request.memory_mib or 0, request.models, cpu_milli)
