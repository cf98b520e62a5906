"""Rate limit for the requests of each user and address: a token bucket, and a larger one for administrators."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.requests import HTTPConnection

from gpupool.domain.errors import ErrorCode, GpupoolError

BURST_S = 5.0  # seconds of requests that a full bucket holds
PRIVILEGED_FACTOR = 10
MAX_BUCKETS = 4096
RETRY_AFTER_S = 1


class RequestRates:
    """One bucket for each client; ``per_second`` returns the current limit, ``refused`` is called for each refusal."""

    def __init__(
        self,
        per_second: Callable[[], int],
        refused: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_second = per_second
        self._note_refused = refused
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # requests left, time of that count
        self._administrators: OrderedDict[str, None] = OrderedDict()

    def note_administrator(self, client: str) -> None:
        """Give a client the larger bucket, because its user is an administrator."""
        self._administrators[client] = None
        while len(self._administrators) > MAX_BUCKETS:
            self._administrators.popitem(last=False)

    def take(self, client: str, *, privileged: bool, cost: float = 1.0) -> None:
        """Count a request. Raises ``GpupoolError(RATE_LIMITED)`` if the client's bucket has less than ``cost`` left."""
        larger = privileged or client in self._administrators
        rate = self._per_second() * (PRIVILEGED_FACTOR if larger else 1)
        now, most = self._clock(), rate * BURST_S
        left, at = self._buckets.pop(client, (most, now))
        left = min(most, left + (now - at) * rate)
        self._buckets[client] = (left - cost if left >= cost else left, now)
        while len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if left < cost:
            self._note_refused(client)
            raise GpupoolError(
                ErrorCode.RATE_LIMITED,
                f"Too many requests come from {client.removeprefix('user ')}: the limit is {rate} a second.",
                f"Wait {RETRY_AFTER_S} second, then try again. Administrators change the limit: "
                "`gpupool policy set --max-requests-per-second`.",
            )


def request_rates(connection: HTTPConnection) -> RequestRates | None:
    """Return the request limits; None where requests are not limited, as on a standby."""
    rates: RequestRates | None = getattr(connection.app.state, "request_rates", None)
    return rates
