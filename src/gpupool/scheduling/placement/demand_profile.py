"""Typical work: the usual kinds of requests, learnt from submissions, and the part of each kind in all work.

The most frequent kinds come first, until they make up nearly all submissions. The FGD paper (USENIX ATC 2023) takes 95
% of a finished trace. Here old submissions lose weight, and a few plain kinds are assumed before any submission.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpupool.domain.nodes.gpu import GpuRequest

COVER = 0.99  # the part of the submissions that typical kinds cover
MAX_KINDS = 256
HALF_LIFE = 3_500  # after this many submissions one has half the weight
LEARN_FIRST, LEARN_LAST = 8, 1_000  # learn again after half as many as are known, within these bounds
HALF_TRUSTED = 100  # submissions after which the trust is 0.5
_LEARN_PART = 0.5
_MAX_KNOWN = 4_096
_GROWTH = 2.0 ** (1 / HALF_LIFE)
_OVERFLOW = 1e100

KindKey = tuple[GpuRequest, int]
DEFAULT_KINDS: tuple[tuple[GpuRequest, int], ...] = (  # request, and the number of submissions that it counts as
    (GpuRequest(1), 4),
    (GpuRequest(1, 500), 1),
    (GpuRequest(1, 250), 1),
    (GpuRequest(2), 1),
    (GpuRequest(4), 1),
    (GpuRequest(8), 1),
)


@dataclass(frozen=True, slots=True)
class ProfiledRequest:
    """Work of one kind: its request without labels, mode or placement, CPU in thousandths, its part of all work."""

    request: GpuRequest
    cpu_milli: int
    part: float


class TypicalWork:
    """A histogram of submissions in which old ones lose weight; the same submissions in order give the same kinds."""

    def __init__(self) -> None:
        self._weights: dict[KindKey, float] = {(request, 0): float(n) for request, n in DEFAULT_KINDS}
        self._one = 1.0  # weight of a submission now; it grows, so the past loses weight
        self._known = self._fresh = 0
        self.version = 0

    def submitted(self, request: GpuRequest, cpu_milli: int) -> None:
        """Record the request of one more replica."""
        plain = request
        if request.sharing is not None or request.labels or request.placement is not None or request.gpu_uuid:
            plain = replace(request, sharing=None, labels=(), placement=None, gpu_uuid="")
        key = (plain, cpu_milli)
        self._one *= _GROWTH
        self._weights[key] = self._weights.get(key, 0.0) + self._one
        self._known += 1
        self._fresh += 1
        if len(self._weights) > _MAX_KNOWN or self._one > _OVERFLOW:
            self._tidy()

    def learn(self) -> int:
        """Return the version of the profile; it grows when enough new submissions came to learn again."""
        if self._fresh >= min(LEARN_LAST, max(LEARN_FIRST, _LEARN_PART * self._known)):
            self._fresh = 0
            self.version += 1
        return self.version

    @property
    def trust(self) -> float:
        """Return the reliability of the profile: 0 without submissions, 0.5 after ``HALF_TRUSTED``, 1 in the limit."""
        return self._known / (self._known + HALF_TRUSTED)

    def known(self) -> tuple[ProfiledRequest, ...]:
        """Return all kinds that are remembered, the most frequent first."""
        total = sum(self._weights.values())
        ranked = sorted(self._weights.items(), key=lambda item: (-item[1], _order(item[0])))
        return tuple(ProfiledRequest(request, cpu, weight / total) for (request, cpu), weight in ranked)

    def _tidy(self) -> None:
        kept = sorted(self._weights.items(), key=lambda item: (-item[1], _order(item[0])))[: _MAX_KNOWN // 2]
        self._weights = {key: weight / self._one for key, weight in kept}
        self._one = 1.0


def frequent_kinds(known: tuple[ProfiledRequest, ...]) -> tuple[ProfiledRequest, ...]:
    """Return the first kinds that make up ``COVER`` of all, at most ``MAX_KINDS``, with parts that add up to 1."""
    chosen: list[ProfiledRequest] = []
    covered = 0.0
    for kind in known[:MAX_KINDS]:
        if covered >= COVER:
            break
        chosen.append(kind)
        covered += kind.part
    return tuple(replace(kind, part=kind.part / covered) for kind in chosen)


def _order(key: KindKey) -> tuple[int, int, int, tuple[str, ...], int]:
    request, cpu_milli = key
    return (request.count, request.permille, request.memory_mib or 0, request.models, cpu_milli)
