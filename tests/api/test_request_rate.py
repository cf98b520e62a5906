"""A limit on requests: each user and address has its own, administrators a larger one, and clients try again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from live_pool import LivePool, live_pool

from gpupool.api.server.request_rate import MAX_BUCKETS, RequestRates
from gpupool.client.transport.connection import ApiCall, PoolConnection
from gpupool.client.transport.endpoint import TlsEndpoint
from gpupool.domain.errors import GpupoolError
from gpupool.services.refusals import MAX_CLIENTS, RefusalReason, Refusals


class Meter:
    """Buckets with a clock that stands still."""

    def __init__(self, per_second: int = 10) -> None:
        self.now = 1000.0
        self.refusals = Refusals(lambda: self.now)
        self.rates = RequestRates(lambda: per_second, lambda _client: None, lambda: self.now)

    def taken(self, client: str, wanted: int, *, privileged: bool = False) -> int:
        """Return the number of accepted requests."""
        count = 0
        for _ in range(wanted):
            with contextlib.suppress(GpupoolError):
                self.rates.take(client, privileged=privileged)
                count += 1
        return count


def test_bucket_holds_five_seconds_of_requests_and_refills() -> None:
    meter = Meter()
    assert meter.taken("user ann", 500) == 50
    meter.now += 3
    assert meter.taken("user ann", 500) == 30
    meter.now += 3600
    assert meter.taken("user ann", 500) == 50


def test_clients_have_separate_buckets_and_administrators_larger_ones() -> None:
    meter = Meter()
    assert meter.taken("user ann", 200) == 50
    assert meter.taken("10.0.0.1", 200) == 50
    assert meter.taken("uid 0", 2000, privileged=True) == 500
    meter.rates.note_administrator("uid 7")
    assert meter.taken("uid 7", 2000) == 500


def test_number_of_buckets_is_limited() -> None:
    meter = Meter()
    for number in range(MAX_BUCKETS + 100):
        meter.rates.take(f"10.0.{number // 256}.{number % 256}", privileged=False)
    assert len(meter.rates._buckets) == MAX_BUCKETS


def test_refusals_are_reported_with_names_and_numbers_once() -> None:
    meter = Meter()
    for number, client in enumerate(("uid 1000", "10.0.0.1", "user ann", "user bob")):
        for _ in range(1000 * (number + 1)):
            meter.refusals.note(RefusalReason.RATE, client)
    meter.refusals.note(RefusalReason.CONNECTIONS, "uid 1000")
    meter.now += 65
    assert meter.refusals.sentences({"uid 1000": "mia", "user ann": "ann", "user bob": "bob"}) == [
        (
            "10,000 requests were refused in the last 10 minutes because of too many requests per second: bob (4,000), "
            "ann (3,000), 10.0.0.1 (2,000) and 1 more client; the last one 1m05s ago"
        ),
        (
            "1 connection was refused in the last 10 minutes because of too many open connections: mia (1); "
            "the last one 1m05s ago"
        ),
    ]
    meter.now += 700
    assert meter.refusals.sentences({}) == []
    assert meter.refusals.totals[RefusalReason.RATE] == 10_000
    for number in range(2 * MAX_CLIENTS):
        meter.refusals.note(RefusalReason.RATE, f"10.0.0.{number}")
    assert len(meter.refusals._recent) == MAX_CLIENTS


@pytest.fixture(scope="module")
def strict() -> Iterator[LivePool]:
    """Yield a pool that accepts ten requests of a user in a second, and fifty at once."""
    with live_pool() as made:
        with made.http() as http:
            assert http.patch("/v1/policy", json={"max_requests_per_second": 10}).status_code == 200
        yield made


def flood(client: httpx2.Client, requests: int) -> list[httpx2.Response]:
    with ThreadPoolExecutor(10) as threads:
        return list(threads.map(lambda _: client.get("/v1/whoami"), range(requests)))


def empty(pool: LivePool, client: str, missing: float = 10_000) -> None:
    """Leave a bucket as very many requests at once would: on a slow machine they would take too long."""
    assert pool.app is not None
    rates: RequestRates = pool.app.state.request_rates
    rates._buckets[client] = (-missing, time.monotonic())


def test_only_the_member_above_the_rate_is_refused(strict: LivePool) -> None:
    with strict.person("fast", "member") as fast, strict.person("slow", "member") as slow, strict.http() as owner:
        assert fast.get("/v1/whoami").status_code == 200
        empty(strict, "user fast")
        for answer in flood(fast, 20):
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], answer.headers["retry-after"]) == (429, "RATE_LIMITED", "1")
            assert error["message"] == "Too many requests come from fast: the limit is 10 a second."
        assert slow.get("/v1/whoami").status_code == 200
        assert {answer.status_code for answer in flood(owner, 300)} == {200}
        pool = owner.get("/v1/pool").json()
        assert pool["refused"] == [sentence for sentence in pool["warnings"] if "requests were refused" in sentence]
        assert "fast (20)" in pool["refused"][0]
        assert 'gpupool_refused_total{limit="rate"} 20.0' in owner.get("/metrics").text


def test_unauthenticated_clients_are_limited_by_address_only(strict: LivePool) -> None:
    with strict.remote() as stranger, strict.person("calm", "member") as member:
        assert stranger.get("/v1/whoami").status_code == 401
        empty(strict, "127.0.0.1")
        assert stranger.get("/v1/health").json()["error"]["code"] == "RATE_LIMITED"
        assert {answer.status_code for answer in flood(stranger, 20)} == {429}
        assert member.get("/v1/whoami").status_code == 200
        empty(strict, "127.0.0.1", -50)


def test_administrator_by_role_has_the_larger_limit(strict: LivePool) -> None:
    with strict.person("ada", "admin") as ada:
        assert {answer.status_code for answer in flood(ada, 300)} == {200}


def test_client_retries_until_accepted(strict: LivePool) -> None:
    with strict.http() as owner:
        assert owner.put("/v1/users/busy", json={"role": "member"}).status_code == 200
    secret = strict.token(user="busy", role="member")["secret"]
    connection = PoolConnection(TlsEndpoint(strict.url, secret, str(strict.tls.certificate)))
    try:
        empty(strict, "user busy")
        with strict.remote(secret) as other:
            assert other.get("/v1/whoami").status_code == 429
            empty(strict, "user busy", 12)  # for 1.3 seconds
            assert connection.send(ApiCall("PUT", "/v1/users/busy", json={"email": ""})).status == 200
    finally:
        connection.close()
