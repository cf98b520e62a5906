"""Every address under random requests, good and bad: no internal error, and nothing that the description omits."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from http.cookiejar import DefaultCookiePolicy
from typing import Any, cast

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from live_pool import LivePool, live_pool, shell
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.python._constants.orchestrator import make_constants_value_source
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gpupool.api.app import create_app
from gpupool.services.pool import PoolServices

EXAMPLES = int(os.environ.get("GPUPOOL_API_EXAMPLES", "12"))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
KNOWN = {"ref": ("queued", "stopped"), "name": ("known", "n1")}
COUNTS = ("completions", "parallelism")
# They take the description of a job, with 1,900 limits of its fields to try: their cases are sent in several tests.
LARGE = {"POST /v1/workloads", "POST /v1/plan", "POST /v1/services", "POST /v1/services/{service}/update"}
PARTS = 4
Json = dict[str, Any]


@pytest.fixture(scope="module")
def quiet_pool() -> Iterator[LivePool]:
    """Yield a pool of its own that starts nothing, with a workload and a project to address."""
    with live_pool() as made:
        with made.http() as http:
            http.post("/v1/nodes/n1/cordon", json={"reason": "random requests"})
            http.post("/v1/projects", json={"name": "known"})
            for name in ("queued", "stopped"):
                http.post("/v1/workloads", json=shell("true", name=name))
            http.post("/v1/workloads/stopped/stop", json={})
        yield made


schema = schemathesis.openapi.from_dict(create_app(cast("PoolServices", None)).openapi())
OPERATIONS = [found.ok() for found in schema.exclude(path="/v1/events/stream").get_all_operations()]


@schema.hook
def map_query(_context: Any, query: Json | None) -> Json | None:
    """Limit waits, and disable endless streams."""
    if query and _is_long(query.get("timeout_s")):
        query["timeout_s"] = 0.01
    if query:
        query.pop("follow", None)
    return query


@schema.hook
def map_path_parameters(_context: Any, parameters: Json | None) -> Json | None:
    """Address existing objects in half of the requests."""
    for key, names in KNOWN.items():
        value = (parameters or {}).get(key)
        if isinstance(value, str) and len(value) % 2 and parameters:
            parameters[key] = names[len(value) % 4 // 2]
    return parameters


@schema.hook
def map_body(_context: Any, body: Any) -> Any:
    """Limit counts, because large ones have their own tests and take time."""
    if isinstance(body, dict):
        body.pop("sweep", None)
        body.update({key: 3 for key in COUNTS if isinstance(body.get(key), int) and body[key] > 3})
    return body


@pytest.fixture(scope="module")
def token(quiet_pool: LivePool) -> str:
    return str(quiet_pool.token()["secret"])


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """Yield a session that keeps its connection: a TLS handshake takes longer than most requests."""
    with requests.Session() as made:
        made.trust_env = False
        made.headers.clear()  # schemathesis would send them instead of its own
        made.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        yield made


def _is_long(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value <= 60


def _parts() -> Iterator[Any]:
    """Yield the operations with the remainders of the numbers of their cases by a divisor: all cases, or a part."""
    for operation in OPERATIONS:
        if operation.label not in LARGE:
            yield pytest.param(operation, 0, 1, id=operation.label)
            continue
        for part in range(PARTS):
            yield pytest.param(operation, part, PARTS, id=f"{operation.label} part {part + 1} of {PARTS}")


@pytest.mark.timeout(400)  # it only bounds a failing test: 470 cases take a minute on a busy machine
@pytest.mark.parametrize(("operation", "part", "parts"), list(_parts()))
def test_no_request_breaks_the_api(
    operation: Any, part: int, parts: int, quiet_pool: LivePool, token: str, session: requests.Session
) -> None:
    """Make the operation's cases here: ``schema.parametrize()`` makes all of them whenever tests are collected."""
    headers = {"authorization": f"Bearer {token}"}
    where = {"base_url": quiet_pool.url, "verify": str(quiet_pool.tls.certificate)}
    numbers = itertools.count()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def assert_answer_is_described(case: Any) -> None:
        if next(numbers) % parts != part:
            return  # another test sends it: the cases are the same each time
        case.call_and_validate(checks=CHECKS, headers=headers, timeout=30, session=session, **where)

    load_all_checks()
    feedback = FeedbackSources(constants_value_source=make_constants_value_source(schema))
    build_operation_test(
        config=schema.config,
        operation=operation,
        test_func=assert_answer_is_described,
        given_kwargs={},
        feedback=feedback,
    )()
