"""Projects, users, tokens, nodes and usage over HTTP, for those who may and those who may not."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import httpx2
import pytest
from live_pool import NOBODY, LivePool, shell

from gpupool.api.server.proxies import TrustedProxies


def code_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture
def member(pool: LivePool) -> Iterator[httpx2.Client]:
    with pool.person("ordinary", "member") as client:
        yield client


def test_health_needs_no_token_and_other_routes_do(pool: LivePool) -> None:
    with pool.remote() as nobody:
        health = nobody.get("/v1/health")
        assert (health.status_code, health.json()["status"]) == (200, "ok")
        for path in (
            "/v1/pool",
            "/v1/heads",
            "/v1/whoami",
            "/v1/workloads",
            "/v1/events",
            "/v1/events/stream",
            "/v1/tokens",
        ):
            answer = nobody.get(path)
            assert code_of(answer) == (401, "UNAUTHENTICATED")
            assert answer.headers["www-authenticate"] == "Bearer"


def test_pool_with_one_possible_leader_lists_no_heads(http: httpx2.Client) -> None:
    assert http.get("/v1/heads").json() == {"heads": []}


def test_owner_on_the_socket_is_administrator(http: httpx2.Client) -> None:
    me = http.get("/v1/whoami").json()
    assert (me["role"], me["via"].partition(" ")[0]) == ("admin", "uid")
    assert "default" in me["projects"]


@pytest.mark.root
def test_other_account_on_the_socket_is_member(pool: LivePool) -> None:
    status, me = pool.as_uid(NOBODY, "GET", "/v1/whoami")
    assert (status, me["role"], me["uid"]) == (200, "member", NOBODY)
    status, refused = pool.as_uid(NOBODY, "POST", "/v1/projects", {"name": "mine"})
    assert (status, refused["error"]["code"]) == (403, "FORBIDDEN")


@pytest.mark.root
def test_other_account_cannot_access_work(pool: LivePool, http: httpx2.Client) -> None:
    made = http.post("/v1/workloads", json=shell("echo secret; sleep 60"), params={"wait": "started"}).json()
    status, seen = pool.as_uid(NOBODY, "GET", f"/v1/workloads/{made['id']}")
    assert (status, seen["command"], seen["env"]) == (200, None, None)
    assert seen["replicas"][0]["attach_path"] == ""
    for method, path, body in (
        ("GET", "logs", None),
        ("POST", "stop", {}),
        ("POST", "signal", {"signal": 9}),
    ):
        status, refused = pool.as_uid(NOBODY, method, f"/v1/workloads/{made['id']}/{path}", body)
        assert (status, refused["error"]["code"]) == (403, "FORBIDDEN")
    assert http.post(f"/v1/workloads/{made['id']}/stop", json={"force": True}).status_code == 200


def test_projects_are_made_changed_and_removed(http: httpx2.Client) -> None:
    name = f"p-{uuid.uuid4().hex[:8]}"
    made = http.post("/v1/projects", json={"name": name, "quota_permille": 500, "note": "first"})
    assert made.status_code == 201
    assert made.json()["quota_permille"] == 500
    assert code_of(http.post("/v1/projects", json={"name": name})) == (409, "NAME_TAKEN")
    changed = http.patch(f"/v1/projects/{name}", json={"quota_permille": None, "members": []}).json()
    assert (changed["quota_permille"], changed["note"]) == (None, "first")
    assert name in [p["name"] for p in http.get("/v1/projects").json()["projects"]]
    assert http.delete(f"/v1/projects/{name}").status_code == 204
    assert code_of(http.delete(f"/v1/projects/{name}")) == (404, "UNKNOWN_PROJECT")
    assert code_of(http.delete("/v1/projects/default")) == (409, "WRONG_STATE")
    assert code_of(http.patch("/v1/projects/none-such", json={})) == (404, "UNKNOWN_PROJECT")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "no spaces"},
        {"name": "w0123456789"},
        {"name": "x", "quota_permille": -1},
        {"name": "x", "quota_permille": 1.5},
        {"name": "x", "colour": "blue"},
        {"name": "x", "note": "a\0b"},
        {"name": "x", "max_time_s": 0},
    ],
)
def test_bad_projects_are_refused(http: httpx2.Client, body: dict[str, object]) -> None:
    status, code = code_of(http.post("/v1/projects", json=body))
    assert status == 400
    assert code in {"INVALID_REQUEST", "INVALID_NAME"}


@pytest.mark.parametrize(
    "body", [b'{"\\ud800": 1}', b'{"name": "x", "note": "\\ud800"}', b"[" * 100_000, b"\xff", b"NaN"]
)
def test_invalid_unicode_is_refused_and_answer_is_valid_text(http: httpx2.Client, body: bytes) -> None:
    answer = http.post("/v1/projects", content=body, headers={"content-type": "application/json"})
    assert code_of(answer) == (400, "INVALID_REQUEST")


def test_members_may_not_administer(member: httpx2.Client) -> None:
    for method, path, body in (
        ("POST", "/v1/projects", {"name": "mine"}),
        ("PATCH", "/v1/projects/default", {"note": "x"}),
        ("DELETE", "/v1/projects/default", None),
        ("PUT", "/v1/users/ordinary", {"role": "admin"}),
        ("POST", "/v1/tokens", {"user": "root"}),
        ("POST", "/v1/tokens", {"role": "admin"}),
        ("POST", "/v1/nodes/n1/cordon", {"reason": "x"}),
        ("POST", "/v1/nodes/n1/uncordon", None),
        ("POST", "/v1/nodes/n1/sharing", {"mode": "mps"}),
    ):
        assert code_of(member.request(method, path, json=body)) == (403, "FORBIDDEN"), path


def test_members_see_themselves_and_their_own_tokens(member: httpx2.Client, http: httpx2.Client) -> None:
    assert [u["name"] for u in member.get("/v1/users").json()["users"]] == ["ordinary"]
    assert {t["user"] for t in member.get("/v1/tokens").json()["tokens"]} == {"ordinary"}
    assert len(http.get("/v1/users").json()["users"]) > 1
    assert member.get("/v1/whoami").json()["user"] == "ordinary"


def test_viewers_may_read_but_not_submit(pool: LivePool) -> None:
    with pool.person("watcher", "viewer") as viewer:
        assert viewer.get("/v1/workloads").status_code == 200
        assert code_of(viewer.post("/v1/workloads", json=shell("true"))) == (403, "FORBIDDEN")


def test_users_are_changed_and_disabled(pool: LivePool, http: httpx2.Client) -> None:
    with pool.person("leaver", "member") as leaver:
        assert leaver.get("/v1/whoami").status_code == 200
        changed = http.put("/v1/users/leaver", json={"disabled": True, "gpu_limit_permille": 250}).json()
        assert (changed["disabled"], changed["gpu_limit_permille"], changed["role"]) == (True, 250, "member")
        assert code_of(leaver.get("/v1/whoami")) == (403, "FORBIDDEN")
    assert http.put("/v1/users/leaver", json={"email": "leaver@example.org"}).json()["email"] == "leaver@example.org"
    assert code_of(http.put("/v1/users/leaver", json={"email": "nowhere"})) == (400, "INVALID_REQUEST")
    assert code_of(http.put("/v1/users/leaver", json={"role": "king"})) == (400, "INVALID_REQUEST")
    assert code_of(http.put("/v1/users/leaver", json={"role": None})) == (400, "INVALID_REQUEST")
    assert code_of(http.put("/v1/users/leaver", json={"uid": -1})) == (400, "INVALID_REQUEST")


def test_token_is_shown_once_and_works_until_revoked(pool: LivePool, http: httpx2.Client) -> None:
    made = pool.token(note="laptop")
    assert made["secret"].startswith(f"gpt_{made['id']}_")
    assert made["secret"] not in http.get("/v1/tokens").text
    with pool.remote(made["secret"]) as remote:
        assert remote.get("/v1/whoami").json()["via"] == f"token {made['id']}"
        assert http.delete(f"/v1/tokens/{made['id']}").status_code == 204
        assert code_of(remote.get("/v1/whoami")) == (401, "UNAUTHENTICATED")
    assert code_of(http.delete("/v1/tokens/nothing")) == (404, "UNKNOWN_TOKEN")


def test_expired_token_does_not_work(pool: LivePool) -> None:
    made = pool.token(expires_in_s=0.2)
    with pool.remote(made["secret"]) as remote:
        while time.time() <= made["expires_at"]:
            time.sleep(0.02)
        assert code_of(remote.get("/v1/whoami")) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize("body", [{"expires_in_s": 0}, {"expires_in_s": 367 * 86400}, {"role": "king"}, {"user": ""}])
def test_bad_tokens_are_refused(http: httpx2.Client, body: dict[str, object]) -> None:
    assert code_of(http.post("/v1/tokens", json=body)) == (400, "INVALID_REQUEST")


def test_wrong_tokens_are_limited_and_valid_tokens_of_same_address_are_not(pool: LivePool) -> None:
    assert pool.app is not None
    good = pool.token()["secret"]
    pool.app.state.attempts.forget("127.0.0.1")
    try:
        with pool.remote("gpt_00000000_wrong") as guesser:
            codes = [guesser.get("/v1/whoami").status_code for _ in range(12)]
            assert codes == [401] * 10 + [429] * 2
            refused = guesser.get("/v1/whoami")
            assert code_of(refused) == (429, "TOO_MANY_ATTEMPTS")
            assert refused.headers["retry-after"] == "60"
        with pool.remote(good) as neighbour:
            assert neighbour.get("/v1/whoami").status_code == 200
        with pool.remote("gpt_11111111_wrong") as mistaken:
            assert code_of(mistaken.get("/v1/whoami")) == (401, "UNAUTHENTICATED")
        with pool.http() as local:
            assert local.get("/v1/whoami").status_code == 200
    finally:
        pool.app.state.attempts.forget("127.0.0.1")


@pytest.mark.parametrize("header", ["", "Basic eHg6eQ==", "Bearer", "Bearer " + "x" * 2000, "Bearer \xe9"])
def test_malformed_credentials_are_refused(pool: LivePool, header: str) -> None:
    assert pool.app is not None
    pool.app.state.attempts.forget("127.0.0.1")
    with pool.remote() as nobody:
        answer = nobody.get("/v1/whoami", headers=[(b"authorization", header.encode("latin-1"))])
        assert code_of(answer) == (401, "UNAUTHENTICATED")
    pool.app.state.attempts.forget("127.0.0.1")


def test_nodes_and_gpus_are_listed(http: httpx2.Client) -> None:
    [node] = http.get("/v1/nodes").json()["nodes"]
    assert (node["name"], node["state"], len(node["gpus"])) == ("n1", "up", 1)
    assert http.get("/v1/nodes/n1").json()["gpus"][0]["uuid"] == node["gpus"][0]["uuid"]
    assert code_of(http.get("/v1/nodes/n2")) == (404, "UNKNOWN_NODE")
    cordoned = http.post("/v1/nodes/n1/cordon", json={"reason": "repair"}).json()
    assert (cordoned["state"], cordoned["cordon_reason"]) == ("cordoned", "repair")
    assert http.post("/v1/nodes/n1/uncordon").json()["state"] == "up"
    assert code_of(http.post("/v1/nodes/n2/uncordon")) == (404, "UNKNOWN_NODE")


def test_usage_is_reported(http: httpx2.Client) -> None:
    made = http.post("/v1/workloads", json=shell("true")).json()
    http.get(f"/v1/workloads/{made['id']}/wait")
    found = http.get("/v1/usage").json()
    assert found["since"] < found["until"]
    assert all(row["gpu_seconds"] >= 0 and row["leases"] >= 1 for row in found["rows"])
    assert "default" in {row["project"] for row in found["rows"]}
    assert code_of(http.get("/v1/usage", params={"since": 10, "until": 5})) == (400, "INVALID_REQUEST")
    assert code_of(http.get("/v1/usage", params={"since": "nan"})) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/workloads/", 404),
        ("GET", "/docs", 404),
        ("DELETE", "/v1/pool", 405),
        ("PUT", "/v1/workloads", 405),
    ],
)
def test_unknown_paths_and_methods_are_errors(http: httpx2.Client, method: str, path: str, status: int) -> None:
    answer = http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == ("NOT_FOUND" if status == 404 else "INVALID_REQUEST")
    assert (status == 405) == ("allow" in answer.headers)


def test_wrong_tokens_behind_trusted_proxy_count_for_named_client(pool: LivePool) -> None:
    assert pool.app is not None
    before, pool.app.state.trusted_proxies = pool.app.state.trusted_proxies, TrustedProxies(["127.0.0.1/32"])
    try:
        with pool.remote("gpt_22222222_wrong") as guesser:
            for client, codes in (("198.51.100.1", [401] * 10 + [429]), ("198.51.100.2", [401])):
                headers = {"x-forwarded-for": f"203.0.113.9, {client}"}
                assert [guesser.get("/v1/whoami", headers=headers).status_code for _ in codes] == codes
    finally:
        pool.app.state.trusted_proxies = before
        for client in ("198.51.100.1", "198.51.100.2"):
            pool.app.state.attempts.forget(client)
