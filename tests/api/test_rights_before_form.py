"""Rights are checked before the form of a request: a refusal without rights does not describe the request."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx2
import pytest
from live_pool import LivePool
from test_token_rights import ACTS, all_routes, asks_who

from gpupool.api.login_limit import FailedAttempts

# A member is refused at every other address that changes something, also with an invalid body.
OF_MEMBERS = {
    "POST /v1/workloads",
    "POST /v1/workloads/{ref}/stop",
    "POST /v1/workloads/{ref}/suspend",
    "POST /v1/workloads/{ref}/restart",
    "POST /v1/workloads/{ref}/resume",
    "POST /v1/workloads/{ref}/signal",
    "POST /v1/workloads/{ref}/extend",
    "POST /v1/workloads/{ref}/priority",
    "DELETE /v1/workloads/{ref}",
    "POST /v1/workloads/{ref}/ports/{port}/open",
    "POST /v1/plan",
    "POST /v1/apply",
    "POST /v1/files/held",
    "PUT /v1/files/blobs/{sha256}",
    "POST /v1/files/pack",
    "POST /v1/files/trees",
    "POST /v1/workspaces",
    "POST /v1/workspaces/{workspace}/start",
    "POST /v1/workspaces/{workspace}/stop",
    "POST /v1/workspaces/{workspace}/gpus",
    "POST /v1/workspaces/{workspace}/imported",
    "POST /v1/workspaces/{workspace}/clone",
    "POST /v1/workspaces/{workspace}/snapshots",
    "DELETE /v1/workspaces/{workspace}/snapshots/{snapshot}",
    "POST /v1/workspaces/{workspace}/snapshots/{snapshot}/share",
    "POST /v1/workspaces/{workspace}/restore",
    "DELETE /v1/workspaces/{workspace}",
    "POST /v1/services",
    "POST /v1/services/{service}/scale",
    "POST /v1/services/{service}/update",
    "POST /v1/services/{service}/undo",
    "POST /v1/services/{service}/stop",
    "POST /v1/services/{service}/tokens",
    "DELETE /v1/services/{service}/tokens",
    "DELETE /v1/services/{service}",
}
OF_VIEWERS = {
    "POST /v1/tokens",  # of one's own
    "DELETE /v1/tokens/{token_id}",
    "POST /v1/login-codes",
    "POST /v1/dashboard/links",
    "DELETE /v1/sessions/{session_id}",
}
BROKEN = (b"{", b'{"no_such_field": [}', b"[]", b'{"no_such_field": 1}', b"")


def changing_addresses() -> list[str]:
    found = set()
    for route in all_routes():
        if route.name not in ACTS and asks_who(route.dependant):  # type: ignore[attr-defined]
            found |= {f"{method} {route.path}" for method in route.methods - {"GET"}}  # type: ignore[attr-defined]
    return sorted(found)


@pytest.fixture(scope="module")
def clients(pool: LivePool) -> Iterator[dict[str, httpx2.Client]]:
    with pool.person("mia", "member") as member, pool.person("vic", "viewer") as viewer, pool.remote() as stranger:
        yield {"member": member, "viewer": viewer, "stranger": stranger}
    assert pool.app is not None
    pool.app.state.attempts = FailedAttempts()


def codes(client: httpx2.Client, address: str) -> set[tuple[int, str]]:
    method, _, path = address.partition(" ")
    where = re.sub(r"\{\w+\}", "x", path)
    answers = [
        client.request(method, where, content=body, headers={"content-type": "application/json"}) for body in BROKEN
    ]
    return {(answer.status_code, answer.json()["error"]["code"]) for answer in answers}


@pytest.mark.parametrize("address", changing_addresses())
def test_forbidden_request_is_refused_before_its_body_is_read(clients: dict[str, httpx2.Client], address: str) -> None:
    forbidden = {(403, "FORBIDDEN")}
    assert codes(clients["stranger"], address) <= {(401, "UNAUTHENTICATED"), (429, "TOO_MANY_ATTEMPTS")}
    assert (codes(clients["member"], address) == forbidden) == (address not in OF_MEMBERS | OF_VIEWERS)
    assert (codes(clients["viewer"], address) == forbidden) == (address not in OF_VIEWERS)


def test_invalid_body_of_permitted_user_is_explained(http: httpx2.Client) -> None:
    for body in BROKEN[:4]:
        answer = http.request("PATCH", "/v1/policy", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
