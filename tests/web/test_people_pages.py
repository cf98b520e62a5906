"""Users and tokens: visibility of users, and changes allowed for each role."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import structlog
from pool_world import ADMIN, ANN, world_in
from web_harness import Site, words

from gpupool.domain.people.access import Role, User

MEMBER_UID = 4711
ANN_UID = 1001


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a pool: ann holds half a GPU; eve is another member; vic only reads."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path_factory.mktemp("people")) as world:

        async def story() -> None:
            access = world.services.access
            await access.put_user(ADMIN, "ann", {"uid": ANN_UID, "email": "ann@example.org"})
            await access.put_user(ADMIN, "eve", {"uid": MEMBER_UID, "email": "eve@example.org"})
            await access.put_user(ADMIN, "vic", {"uid": 4712, "role": Role.VIEWER})
            await world.submit(ANN, gpus={"fraction": 0.5})

        world.do(story())
        yield Site(world)


def user(site: Site, name: str) -> User | None:
    found = site.world.do(site.world.services.access.users())
    return next((one for one in found if one.name == name), None)


def test_administrator_sees_all_users_and_others_see_themselves(site: Site) -> None:
    said = words(site.get("/users").text)
    assert "ann member ● active ann@example.org" in said
    assert "eve@example.org" in said
    own = words(site.get("/users", ANN_UID).text)
    assert "ann@example.org" in own
    assert "eve@" not in own
    for path in ("/users/eve", "/users/nobody"):
        hidden = site.get(path, ANN_UID)
        assert (hidden.status_code, "eve@example.org" in hidden.text) == (404, False)
    assert "eve@example.org" not in site.get("/users?format=csv&table=users", ANN_UID).text


def test_user_page_shows_leases(site: Site) -> None:
    said = words(site.get("/users/ann").text)
    assert "default 0.5" in said
    assert "Save" in said


def test_administrator_creates_and_changes_users(site: Site) -> None:
    fields = {"role": "manager", "email": "new@example.org", "gpu_limit": "1.5", "account": ""}
    assert site.post("/users", name="newcomer", **fields).headers["location"] == "/users/newcomer"
    assert user(site, "newcomer") == User("newcomer", Role.MANAGER, None, 1500, email="new@example.org")
    assert site.post("/users", name="newcomer", **fields).status_code == 422
    assert site.post("/users/newcomer", **{**fields, "disabled": "on", "gpu_limit": ""}).status_code == 303
    changed = user(site, "newcomer")
    assert changed == User("newcomer", Role.MANAGER, None, None, disabled=True, email="new@example.org")
    for wrong in ({"email": "nowhere"}, {"account": "-1"}, {"gpu_limit": "many"}, {"role": "king"}):
        answer = site.post("/users/newcomer", **{**fields, **wrong})
        assert (answer.status_code, next(iter(wrong.values())) in answer.text) == (422, True), wrong
    assert user(site, "newcomer") == changed


def test_member_changes_only_own_address(site: Site) -> None:
    page = site.get("/users/ann", ANN_UID).text.partition("<main")[2]
    assert "/users/ann/email" in page
    assert 'action="/users/ann"' not in page
    assert site.post("/users/ann/email", ANN_UID, email="ann@lab.example.org").status_code == 303
    assert site.post("/users/ann/email", ANN_UID, email="not one").status_code == 422
    known = user(site, "ann")
    assert known is not None
    assert (known.email, known.role) == ("ann@lab.example.org", Role.MEMBER)
    assert site.post("/users/ann", ANN_UID, role="admin", email="ann@lab.example.org", account="0").status_code == 403
    assert "set-cookie" in site.post("/users/eve/email", ANN_UID, email="ann@example.org").headers
    eve = user(site, "eve")
    assert eve is not None
    assert eve.email == "eve@example.org"
    assert site.post("/users", ANN_UID, name="mine", role="admin").status_code == 403
    assert user(site, "ann") == known
    assert user(site, "mine") is None
    assert 'method="post"' not in site.get("/users/vic", 4712).text.partition("<main")[2], "a viewer only reads"
    assert site.post("/users/vic/email", 4712, email="vic@example.org").status_code == 403


def secret_of(html: str) -> str:
    found = re.search(r"gpt_[0-9a-f]{8}_[A-Za-z0-9_-]+", html)
    assert found
    return found[0]


def test_token_is_shown_once_listed_without_secret_and_revoked(site: Site) -> None:
    made = site.post("/tokens", user="ann", role="member", expires="7d", note="laptop")
    assert made.status_code == 200
    assert "no-store" in made.headers["cache-control"]
    secret = secret_of(made.text)
    token_id = secret.split("_")[1]
    actor = site.world.do(site.world.services.access.actor_for_token(secret))
    assert (actor.user, actor.role) == ("ann", Role.MEMBER)
    for path in ("/tokens", "/users/ann", "/tokens?format=csv&table=tokens"):
        shown = site.get(path).text
        assert token_id in shown
        assert secret not in shown
    assert token_id not in site.get("/tokens", MEMBER_UID).text
    foreign = site.post(f"/tokens/{token_id}/revoke", MEMBER_UID, page="/tokens")
    assert "UNKNOWN_TOKEN" in str(foreign.headers.get("set-cookie", "")) or foreign.status_code in {303, 404}
    assert site.world.do(site.world.services.access.actor_for_token(secret)).user == "ann", "it is good still"
    assert site.post(f"/tokens/{token_id}/revoke", of="ann").headers["location"] == "/users/ann"
    assert "revoked" in words(site.get("/users/ann").text)


def test_token_scope_is_limited_by_role_of_user(site: Site) -> None:
    own = site.post("/tokens", ANN_UID, role="member", expires="1h", note="")
    assert secret_of(own.text)
    for fields in ({"role": "admin"}, {"user": "eve", "role": "member"}):
        assert site.post("/tokens", ANN_UID, expires="1h", **fields).status_code == 403, fields
    page = site.get("/tokens", ANN_UID).text
    assert 'value="admin"' not in page
    for wrong in ("", "400d", "soon"):
        assert site.post("/tokens", ANN_UID, role="member", expires=wrong).status_code == 422, wrong
