"""Recent refusals because of a limit, by limit and client, for status, doctor and metrics."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpupool.domain.units import format_duration

WINDOW_S = 600.0
MAX_CLIENTS = 256
MAX_NAMED = 3
_SLICE_S = 60.0


class RefusalReason(StrEnum):
    """The limit that was reached."""

    RATE = "rate"  # requests of a client in a second
    CONNECTIONS = "connections"  # connections of a client, or of all


@dataclass(slots=True)
class _Recent:
    last_at: float = 0.0
    by_slice: Counter[int] = field(default_factory=Counter)


class Refusals:
    """Counts refusals by reason and client over the last ten minutes; remembers a bounded number of clients."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._recent: OrderedDict[tuple[RefusalReason, str], _Recent] = OrderedDict()
        self.totals: Counter[RefusalReason] = Counter(dict.fromkeys(RefusalReason, 0))

    def note(self, reason: RefusalReason, client: str) -> None:
        """Count one refusal of a request or connection of ``client`` (``uid 1000``, ``user ann``, an address)."""
        now = self._clock()
        found = self._recent.setdefault((reason, client), _Recent())
        self._recent.move_to_end((reason, client))
        while len(self._recent) > MAX_CLIENTS:
            self._recent.popitem(last=False)
        found.last_at = now
        found.by_slice[int(now // _SLICE_S)] += 1
        _forget(found, now)
        self.totals[reason] += 1

    def sentences(self, names: Mapping[str, str]) -> list[str]:
        """Return one sentence for each limit that was reached; ``names`` translates clients to names of users."""
        now = self._clock()
        found = []
        for reason in RefusalReason:
            clients = [(name, one) for (of, name), one in self._recent.items() if of is reason]
            counted = [
                (sum(one.by_slice.values()), one.last_at, name) for name, one in clients if not _forget(one, now)
            ]
            if counted:
                found.append(_sentence(reason, sorted(counted, reverse=True), names, now))
        return found


def _forget(one: _Recent, now: float) -> bool:
    """Drop counts that are older than the window; return True if none is left."""
    for number in [number for number in one.by_slice if (number + 1) * _SLICE_S <= now - WINDOW_S]:
        del one.by_slice[number]
    return not one.by_slice


def _sentence(
    reason: RefusalReason, counted: list[tuple[int, float, str]], names: Mapping[str, str], now: float
) -> str:
    what = "requests" if reason is RefusalReason.RATE else "connections"
    limit = "too many requests per second" if reason is RefusalReason.RATE else "too many open connections"
    named = ", ".join(f"{names.get(name, name)} ({number:,})" for number, _, name in counted[:MAX_NAMED])
    total = sum(number for number, _, _ in counted)
    last_s = now - max(at for _, at, _ in counted)
    ago = "now" if last_s < 1 else f"{format_duration(last_s)} ago"
    were = f"{what[:-1]} was" if total == 1 else f"{what} were"
    others = len(counted) - MAX_NAMED
    more = f" and {others} more {'client' if others == 1 else 'clients'}" if others > 0 else ""
    return (
        f"{total:,} {were} refused in the last {WINDOW_S / 60:.0f} minutes because of {limit}: {named}{more}; "
        f"the last one {ago}"
    )
