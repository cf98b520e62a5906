"""What leases that are over held, decayed, so that fair shares survive a control plane that starts again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpupool.domain.workload import Lease
from gpupool.scheduling.scheduler import PastUse
from gpupool.scheduling.usage import Decay, Usage
from gpupool.services.ports import PastLease

HALF_LIVES = 10.0  # what is older counts for less than a thousandth


class UseBook:
    """The decayed use of every user in every project, by leases that are over."""

    def __init__(self, decay: Decay, leases: Iterable[PastLease] = ()) -> None:
        self.decay = decay
        self._usage = Usage(decay)
        self._numbers: dict[tuple[str, str], int] = {}
        for lease in leases:
            self._add(lease.project, lease.user, lease.permille, lease.granted_at, lease.released_at)

    def add(self, lease: Lease) -> None:
        """A lease is over; one that is not is ignored."""
        if lease.released_at is not None:
            self._add(lease.project, lease.user, lease.permille, lease.granted_at, lease.released_at)

    def _add(self, project: str, user: str, permille: int, start: float, end: float) -> None:
        number = self._numbers.setdefault((project, user), len(self._numbers))
        self._usage.remember(number, self.decay.lease_use(permille, start, max(start, end), end), end)

    def events(self, now: float) -> Iterator[PastUse]:
        """What a scheduler that begins at ``now`` has to know."""
        for (project, user), number in self._numbers.items():
            permille_s = self._usage.average_of(number, 0, now) * self.decay.weight_s
            yield PastUse(project, user, permille_s, now)
