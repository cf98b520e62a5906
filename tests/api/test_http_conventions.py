"""Conventions of all routes: problem documents, unknown parameters, pages, methods, Location, ETag and If-Match."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any, cast

import httpx2
import pytest
from live_pool import Json, LivePool, shell

from gpupool.api.app import create_app

PROBLEM = "application/problem+json"
LISTS = {
    "/v1/nodes": "nodes",
    "/v1/gpus": "gpus",
    "/v1/images": "images",
    "/v1/join-tokens": "join_tokens",
    "/v1/bookings": "bookings",
    "/v1/workspaces": "workspaces",
    "/v1/services": "services",
    "/v1/projects": "projects",
    "/v1/users": "users",
    "/v1/tokens": "tokens",
    "/v1/departments": "departments",
    "/v1/sessions": "sessions",
    "/v1/telemetry": "nodes",
}


@pytest.fixture(scope="module")
def description() -> Json:
    return create_app(cast("Any", None)).openapi()


# Errors


@pytest.mark.parametrize("value", [["b!d"], {"b": "d"}, []])
@pytest.mark.parametrize("field", ["memory", "log_limit", "service.replicas", "service.body"])
def test_errors_do_not_quote_lists(http: httpx2.Client, field: str, value: object) -> None:
    outer, _, inner = field.partition(".")
    answer = http.post("/v1/workloads", json={"command": ["true"], outer: {inner: value} if inner else value})
    assert answer.status_code == 400
    assert re.fullmatch(rf"'{field}' must be [^'\"]+\.", answer.json()["detail"])


def test_form_errors_end_with_one_full_stop(http: httpx2.Client) -> None:
    answer = http.post("/v1/workspaces", json={"name": "w", "gpus": {"count": "many"}})
    assert answer.json()["detail"] == "gpus.count: must be a whole number from 0 to 1024."


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/workloads/none", None, 404, "UNKNOWN_WORKLOAD"),
        ("GET", "/v1/no-such-path", None, 404, "NOT_FOUND"),
        ("GET", "/v2/pool", None, 404, "NOT_FOUND"),
        ("PUT", "/v1/pool", {}, 405, "INVALID_REQUEST"),
        ("POST", "/v1/projects", {"nam": "x"}, 400, "INVALID_REQUEST"),
        ("GET", "/v1/nodes?limit=0", None, 400, "INVALID_REQUEST"),
        ("POST", "/v1/workloads", {"command": ["true"], "gpus": {"count": 500}}, 422, None),
    ],
)
def test_each_error_is_a_problem_document(
    http: httpx2.Client, method: str, path: str, body: Json | None, status: int, code: str | None
) -> None:
    answer = http.request(method, path, json=body)
    problem = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
    assert problem["status"] == status
    assert code is None or problem["code"] == code
    assert problem["type"] == f"/reference#{problem['code']}"
    assert problem["title"]
    assert problem["error"] == {"code": problem["code"], "message": problem["detail"], "hint": problem["hint"]}


@pytest.mark.parametrize(
    ("method", "path", "body", "message", "hint"),
    [
        ("POST", "/v1/projects", {"name": "a b"}, "name: 'a b' cannot be used.", "Use up to 63 letters"),
        (
            "POST",
            "/v1/workspaces",
            {"name": "a", "environment": "python:2.7"},
            "'python:2.7'",
            "Write python, python:3.11",
        ),
        ("GET", "/v1/workloads/a b", None, "ref: 'a b'", "Use up to 63 letters"),
        ("GET", "/v1/nodes/a b", None, "name: 'a b'", "Use letters, digits"),
        ("GET", "/v1/services/a b", None, "service: 'a b'", "PROJECT:NAME"),
        ("DELETE", "/v1/workspaces/ann%2Fhome", None, "No name has a '/'.", "Check the name."),
    ],
)
def test_names_are_refused_with_what_to_write_instead_of_a_pattern(
    http: httpx2.Client, method: str, path: str, body: Json | None, message: str, hint: str
) -> None:
    problem = http.request(method, path, json=body).json()
    assert message in problem["detail"]
    assert hint in problem["hint"]


def test_request_that_is_not_http_gets_a_problem_document(pool: LivePool) -> None:
    context = ssl.create_default_context(cafile=pool.tls.certificate)
    with (
        socket.create_connection(("127.0.0.1", pool.port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        sock.sendall(b"NONSENSE\r\n\r\n")
        received = b""
        while piece := sock.recv(65536):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in head
    assert json.loads(body)["code"] == "MALFORMED_REQUEST"


def test_unknown_query_parameter_is_refused_with_a_suggestion(http: httpx2.Client) -> None:
    answer = http.get("/v1/gpus", params={"modl": "t4"})
    assert answer.status_code == 400
    assert answer.json()["detail"] == "This path has no query parameter 'modl'. Did you mean 'model'?"
    assert "model" in answer.json()["hint"]
    assert http.post("/v1/workloads?dry=1", json=shell("true")).status_code == 400
    assert http.get("/v1/gpus", params={"model": "none such"}).json()["gpus"] == []


def test_unknown_query_parameter_does_not_precede_the_credentials(pool: LivePool) -> None:
    with pool.remote() as stranger, pool.person("conventional", "viewer") as viewer:
        assert stranger.get("/v1/gpus?modl=t4").status_code == 401
        assert viewer.patch("/v1/policy?x=1", json={}).status_code == 403


def test_every_get_route_refuses_unknown_parameters(http: httpx2.Client, description: Json) -> None:
    for path, item in description["paths"].items():
        if "get" in item and "{" not in path and path != "/metrics":
            assert http.get(path, params={"no_such_parameter": "1"}).status_code == 400, path


def test_metrics_accept_the_parameters_of_a_scrape_configuration(http: httpx2.Client) -> None:
    assert http.get("/metrics", params={"module": "any"}).status_code == 200


# HEAD, OPTIONS, servers, operation ids


def test_head_answers_like_get_without_a_body(http: httpx2.Client) -> None:
    shown, head = http.get("/v1/projects"), http.head("/v1/projects")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == shown.headers["content-type"]
    assert http.head("/v1/no-such-path").status_code == 404
    assert http.head("/v1/events/stream").headers["content-type"].startswith("text/event-stream")
    assert http.get("/v1/health").json()["status"] == "ok"  # the connection is usable afterwards


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/projects", "GET, POST, HEAD, OPTIONS"),
        ("/v1/projects/none", "GET, PATCH, DELETE, HEAD, OPTIONS"),
        ("/v1/workloads/none/stop", "POST, OPTIONS"),
        ("/v1/openapi.json", "GET, HEAD, OPTIONS"),
    ],
)
def test_options_answers_with_all_methods_of_the_path(http: httpx2.Client, path: str, allowed: str) -> None:
    asked = {"origin": "https://other.example", "access-control-request-method": "GET"}
    answer = http.options(path, headers=asked)
    assert (answer.status_code, answer.content, answer.headers["allow"]) == (204, b"", allowed)
    assert [name for name in answer.headers if name.startswith("access-control-")] == []
    assert http.options("/v1/no-such-path").status_code == 404
    refused = http.request("TRACE", path)
    assert (refused.status_code, refused.headers["allow"]) == (405, allowed)


def test_description_names_servers(description: Json) -> None:
    assert [server["url"] for server in description["servers"]] == ["/", "https://{head}:{port}"]


def test_operation_ids_are_unique_names(description: Json) -> None:
    ids = [operation["operationId"] for item in description["paths"].values() for operation in item.values()]
    assert len(set(ids)) == len(ids)
    assert [one for one in ids if not re.fullmatch(r"[a-z]+(_[a-z0-9]+)*", one) or "v1" in one] == []


# Lists


def names_in(page: Json, key: str) -> list[str]:
    return [row.get("id") or row.get("uuid") or row.get("name") or row["node"] for row in page[key]]


@pytest.mark.parametrize(("path", "key"), LISTS.items())
def test_pages_of_a_list_add_up_to_the_whole(http: httpx2.Client, path: str, key: str) -> None:
    if path == "/v1/projects":
        for name in ("page-a", "page-b", "page-c"):
            http.post(path, json={"name": name})
    if path == "/v1/tokens":
        for _ in range(3):
            http.post(path, json={})
    whole = http.get(path).json()
    assert whole["next_cursor"] is None
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = http.get(path, params={"limit": 2, **cursor}).json()
        assert len(page[key]) <= 2
        found += names_in(page, key)
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert found == names_in(whole, key)
    assert http.get(path, params={"cursor": "nonsense"}).status_code == 400


def test_every_list_has_pages_and_filters(description: Json) -> None:
    """A list is a GET whose schema has an array of objects and a cursor, or that has a limit."""
    for path in LISTS:
        names = {parameter["name"] for parameter in description["paths"][path]["get"]["parameters"]}
        assert {"limit", "cursor"} < names, path


def test_filters_select_rows(http: httpx2.Client) -> None:
    http.post("/v1/departments", json={"name": "filters"})
    http.post("/v1/projects", json={"name": "filtered", "department": "filters"})
    http.put("/v1/users/filtered-user", json={"role": "viewer"})

    def names(path: str, key: str, **query: str) -> list[str]:
        return names_in(http.get(path, params=query).json(), key)

    assert names("/v1/projects", "projects", department="filters") == ["filtered"]
    assert names("/v1/projects", "projects", search="ILTER") == ["filtered"]
    assert "filtered-user" in names("/v1/users", "users", role="viewer")
    assert "filtered-user" not in names("/v1/users", "users", role="admin")
    assert names("/v1/departments", "departments", search="filt") == ["filters"]
    assert names("/v1/nodes", "nodes", state="up") == ["n1"]
    assert names("/v1/nodes", "nodes", state="down") == []
    assert names("/v1/gpus", "gpus", node="other") == []
    assert names("/v1/tokens", "tokens", user="nobody-here") == []


# Created and changed objects


@pytest.fixture
def created(http: httpx2.Client) -> Iterator[list[httpx2.Response]]:
    now = http.get("/v1/pool").json()["started_at"]
    booking = {"name": "b", "starts_at": now + 90_000, "ends_at": now + 93_600, "nodes": ["n1"], "maintenance": True}
    made = [
        http.post("/v1/workloads", json=shell("true")),
        http.post("/v1/projects", json={"name": "located"}),
        http.post("/v1/departments", json={"name": "located"}),
        http.post("/v1/tokens", json={}),
        http.post("/v1/bookings", json=booking),
        http.post("/v1/workspaces", json={"name": "located"}),
    ]
    yield made
    for answer in made[1:]:
        http.delete(answer.headers.get("location", "/v1/none"))


def test_location_of_a_created_object_returns_it(http: httpx2.Client, created: list[httpx2.Response]) -> None:
    for answer in created:
        assert answer.status_code == 201, answer.text
        found = http.get(answer.headers["location"])
        assert found.status_code == 200
        key = "id" if "id" in answer.json() else "name"
        assert found.json()[key] == answer.json()[key]


TAGGED = {
    "/v1/projects/tagged": ({"note": "one"}, {"note": "two"}),
    "/v1/departments/tagged": ({"note": "one"}, {"note": "two"}),
    "/v1/policy": ({"max_requests_per_second": 90.0}, {"max_requests_per_second": 91.0}),
    "/v1/usage/rates": ({"default": 1.0}, {"default": 2.0}),
    "/v1/warnings": ({"before_s": 900.0}, {"before_s": 901.0}),
    "/v1/backups": ({"keep": 5}, {"keep": 6}),
}


@pytest.mark.parametrize("path", TAGGED)
def test_change_with_an_old_etag_is_refused(http: httpx2.Client, path: str) -> None:
    if path.endswith("/tagged"):
        http.post(path.removesuffix("/tagged"), json={"name": "tagged"})
    first, second = TAGGED[path]
    old = http.get(path).headers["etag"]
    changed = http.patch(path, json=first, headers={"if-match": old})
    assert changed.status_code == 200, changed.text
    assert changed.headers["etag"] not in {old, ""}
    assert changed.headers["etag"] == http.get(path).headers["etag"]
    refused = http.patch(path, json=second, headers={"if-match": old})
    assert (refused.status_code, refused.json()["code"]) == (412, "PRECONDITION_FAILED")
    assert http.get(path).headers["etag"] == changed.headers["etag"]
    assert http.patch(path, json=second, headers={"if-match": f'"x", {changed.headers["etag"]}'}).status_code == 200
    assert http.patch(path, json=first, headers={"if-match": "*"}).status_code == 200


def test_if_match_of_users_and_of_deletions(http: httpx2.Client) -> None:
    path = "/v1/users/tagged-user"
    assert http.put(path, json={}, headers={"if-match": "*"}).status_code == 412  # it does not exist
    old = http.put(path, json={"role": "member"}).headers["etag"]
    new = http.put(path, json={"role": "viewer"}, headers={"if-match": old}).headers["etag"]
    assert http.put(path, json={"role": "admin"}, headers={"if-match": old}).status_code == 412
    assert http.get(path).json()["role"] == "viewer"
    assert http.get(path).headers["etag"] == new
    made = http.post("/v1/projects", json={"name": "doomed"})
    http.patch("/v1/projects/doomed", json={"note": "changed"})
    headers = {"if-match": made.headers["etag"]}
    assert http.delete("/v1/projects/doomed", headers=headers).status_code == 412
    assert http.delete("/v1/projects/doomed").status_code == 204


def test_concurrent_changes_with_the_same_etag_change_once(pool: LivePool, http: httpx2.Client) -> None:
    """The condition is checked while nothing else is written, so that exactly one of them wins."""
    from concurrent.futures import ThreadPoolExecutor

    tag = http.post("/v1/projects", json={"name": "contested"}).headers["etag"]

    def change(number: int) -> int:
        with pool.http() as own:
            headers = {"if-match": tag}
            answer = own.patch("/v1/projects/contested", json={"note": f"n{number}"}, headers=headers)
            return int(answer.status_code)

    with ThreadPoolExecutor(8) as threads:
        statuses = sorted(threads.map(change, range(8)))
    assert statuses == [200] + [412] * 7
