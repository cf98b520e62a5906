"""Rights of tokens, visibility of events for others, and repeated requests."""

from __future__ import annotations

import importlib
import pkgutil
import uuid
from collections.abc import Iterator

import httpx2
import pytest
from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from live_pool import NOBODY, Json, LivePool, shell
from starlette.routing import BaseRoute

from gpupool.api import routes
from gpupool.api.deps import CALLER_CHECKS
from gpupool.api.scopes import SCOPES
from gpupool.client.transport.endpoint import TlsEndpoint
from gpupool.domain.people.access import Scope

ACTS = {"attach"}  # a WebSocket route authenticates in its own body


def code_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def all_routes() -> Iterator[BaseRoute]:
    for module in pkgutil.walk_packages(routes.__path__, f"{routes.__name__}."):
        loaded = importlib.import_module(module.name)
        for router in {id(r): r for r in vars(loaded).values() if isinstance(r, APIRouter)}.values():
            yield from router.routes


def asks_who(dependant: Dependant) -> bool:
    return dependant.call in CALLER_CHECKS or any(asks_who(part) for part in dependant.dependencies)


def test_every_authenticated_route_has_a_scope() -> None:
    found = set()
    for route in all_routes():
        path, name = getattr(route, "path", ""), getattr(route, "name", "")
        methods = getattr(route, "methods", None) or {"WEBSOCKET"}
        if asks_who(route.dependant) or name in ACTS:  # type: ignore[attr-defined]  # all are routes of FastAPI
            found |= {f"{method} {path}" for method in methods}
    assert found == set(SCOPES)


def made(pool: LivePool, **wanted: object) -> Json:
    token: Json = pool.token(**wanted)
    return token


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        (Scope.METRICS, {"GET /metrics"}),
        (Scope.READ, {"GET /metrics", "GET /v1/pool", "GET /v1/events"}),
        (Scope.SUBMIT, {"GET /metrics", "GET /v1/pool", "GET /v1/events", "POST /v1/workloads"}),
    ],
)
def test_token_allows_exactly_its_scope(pool: LivePool, scope: str, allowed: set[str]) -> None:
    token = made(pool, scope=scope)
    assert token["scope"] == scope
    asked = {
        "GET /metrics": None,
        "GET /v1/pool": None,
        "GET /v1/events": None,
        "POST /v1/workloads": shell("true"),
        "POST /v1/tokens": {},
        "POST /v1/login-codes": {},
        "POST /v1/dashboard/links": {},
        "PUT /v1/users/root": {"email": "a@example.org"},
        "PATCH /v1/policy": {},
        "POST /v1/nodes/n1/uncordon": None,
    }
    with pool.remote(token["secret"]) as http:
        for address, body in asked.items():
            method, path = address.split()
            answer = http.request(method, path, json=body)
            if address in allowed:
                assert answer.is_success, (address, answer.text)
            else:
                assert code_of(answer) == (403, "FORBIDDEN"), address
                assert str(scope) in answer.json()["error"]["message"]


def test_terminal_needs_scope_submit(pool: LivePool) -> None:
    from websockets.sync.client import connect

    context = TlsEndpoint(pool.url, "", ca_file=str(pool.tls.certificate)).context()
    headers = {"authorization": f"Bearer {made(pool, scope='read')['secret']}"}
    url = f"wss://127.0.0.1:{pool.port}/v1/workloads/x/attach"
    with connect(url, ssl=context, additional_headers=headers) as terminal, pytest.raises(Exception, match="4403"):
        terminal.recv(timeout=30)


def test_child_tokens_end_with_their_parent(pool: LivePool) -> None:
    parent = made(pool, expires_in_s=600)
    with pool.remote(parent["secret"]) as http:
        child = http.post("/v1/tokens", json={"expires_in_s": 86400 * 300}).json()
        code = http.post("/v1/login-codes", json={"expires_in_s": 86400}).json()["code"]
        late = http.post("/v1/login-codes", json={"expires_in_s": 86400}).json()["code"]
        by_code = http.post("/v1/logins", json={"code": code}).json()
    with pool.remote(child["secret"]) as http:
        grandchild = http.post("/v1/tokens", json={}).json()
    assert [token["parent"] for token in (child, by_code, grandchild)] == [parent["id"], parent["id"], child["id"]]
    for token in (child, by_code, grandchild):
        assert token["expires_at"] <= parent["expires_at"]
        with pool.remote(token["secret"]) as http:
            assert http.get("/v1/whoami").status_code == 200
    with pool.http() as owner:
        assert owner.delete(f"/v1/tokens/{parent['id']}").status_code == 204
    for token in (parent, child, by_code, grandchild):
        with pool.remote(token["secret"]) as http:
            assert code_of(http.get("/v1/whoami")) == (401, "UNAUTHENTICATED")
    with pool.remote() as http:
        assert code_of(http.post("/v1/logins", json={"code": late})) == (401, "UNAUTHENTICATED")


def test_token_without_parent_has_requested_lifetime(pool: LivePool) -> None:
    token = made(pool, expires_in_s=86400 * 300)
    assert token["parent"] == ""
    assert token["scope"] == "full"
    assert token["expires_at"] - token["created_at"] == pytest.approx(86400 * 300)


# What others may see


def events_of(http: httpx2.Client, path: str, **query: str) -> list[Json]:
    found: list[Json] = http.get(path, params={"limit": 1000, **query}).json()["events"]
    return found


def test_members_see_own_events_and_managers_their_projects(pool: LivePool) -> None:
    assert pool.as_uid(NOBODY, "GET", "/v1/whoami")[0] == 200
    with pool.person("ada", "member") as ada, pool.person("max", "manager") as boss, pool.http() as owner:
        assert owner.post("/v1/projects", json={"name": "seen", "members": ["ada", "max"]}).status_code == 201
        mine = ada.post("/v1/workloads", json=shell("true", project="seen")).json()
        theirs = owner.post("/v1/workloads", json=shell("true")).json()
        for ref in (mine["id"], theirs["id"]):
            owner.get(f"/v1/workloads/{ref}/wait")
        for path, query in (("/v1/audit", {}), ("/v1/events", {"newest": "true"})):
            seen = {
                name: events_of(http, path, **query) for name, http in (("ada", ada), ("boss", boss), ("owner", owner))
            }
            works = {name: {event["workload"] for event in events} for name, events in seen.items()}
            assert mine["id"] in works["ada"] & works["boss"] & works["owner"]
            assert theirs["id"] in works["owner"]
            assert theirs["id"] not in works["ada"] | works["boss"]
            actors = {event["actor"] for event in seen["ada"]}
            targets = {event["target"] for event in seen["ada"] if event["actor"] == "pool"}
            assert actors <= {"ada", "pool", *(e["actor"] for e in seen["ada"] if e["target"] == "user ada")}
            assert all(target.startswith("node ") for target in targets - {"", "user ada"})
        assert events_of(owner, "/v1/audit", target="user max")
        assert events_of(ada, "/v1/audit", target="user max") == []


# Repeated requests


def test_reused_request_id_with_other_body_is_refused(pool: LivePool) -> None:
    first = shell("true", request_id=str(uuid.uuid4()), env={"A": "1", "B": "2", "PATH": "/bin:/usr/bin"})
    again = {**first, "env": dict(reversed(list(first["env"].items())))}
    with pool.http() as http:
        made_first = http.post("/v1/workloads", json=first)
        assert made_first.status_code == 201
        repeated = http.post("/v1/workloads", json=again)
        assert (repeated.status_code, repeated.json()["id"]) == (200, made_first.json()["id"])
        for change in ({"command": ["false"]}, {"gpus": {"fraction": 0.2}}, {"name": "other"}):
            answer = http.post("/v1/workloads", json={**first, **change})
            assert code_of(answer) == (409, "REQUEST_ID_REUSED")
            assert made_first.json()["name"] in answer.json()["error"]["message"]
