"""Sign-in, sessions, and protection against pages of other sites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog
from fastapi.routing import APIRoute
from pool_world import ADMIN, world_in
from signin_harness import LOCAL, OWNER, Browser, token, user
from web_harness import Site, words

from gpupool.api.login_limit import FailedAttempts
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.people.access import Actor, Project, Role
from gpupool.domain.people.identity import Identity, ProviderSettings
from gpupool.domain.people.sessions import LINK_LIFE_S, SESSION_IDLE_S, SESSION_LIFE_S, BrowserClient
from gpupool.services.ports.store import EventFilter
from gpupool.web.install import ROUTERS
from gpupool.web.pages.sign_in import own_path

ADA = Actor("ada", Role.MEMBER, "uid 1001", 1001)


@pytest.fixture(scope="module")
def one_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path_factory.mktemp("site")) as world:
        yield Site(world)


@pytest.fixture
def people(one_site: Site) -> Site:
    """Create three users without sessions and without failed sign-ins."""
    world = one_site.world
    for name, uid, role in (("root", 0, Role.ADMIN), ("ada", 1001, Role.MEMBER), ("grace", 1002, Role.MEMBER)):
        user(world, name, uid=uid, role=role, disabled=False)
    world.clock.at += SESSION_LIFE_S
    world.do(world.services.sessions.sweep())
    one_site.app.state.attempts = FailedAttempts()
    return one_site


def events(site: Site, *reasons: Reason) -> list[str]:
    """Return the events since the test began, which is the last change of the time."""
    found = site.world.do(site.world.services.history.events(OWNER, EventFilter(reasons=reasons, limit=1000)))
    found = [event for event in found if event.at == site.world.clock.at]
    return [f"{event.actor}: {event.message}" for event in found]


# Links


def test_sign_in_link_works_once(people: Site) -> None:
    first, second = Browser(people, 1001), Browser(people, 1001)
    link = first.link(ADA)
    assert first.get(link).headers["location"] == "/home"
    assert first.is_in
    late = second.get(link)
    assert late.status_code == 401
    assert "no longer valid" in words(late.text)
    assert not second.is_in


def test_sign_in_link_is_bound_to_its_account(people: Site) -> None:
    owner = Browser(people, 1001)
    link = owner.link(ADA)
    for uid in (1002, -1):  # -1: the kernel does not say who it is
        thief = Browser(people, uid)
        assert thief.get(link).status_code == 401
        assert not thief.is_in
    assert owner.get(link).status_code == 303
    with_sudo = Browser(people, 1002)
    assert with_sudo.get(with_sudo.link(OWNER, browser_uid=1002)).status_code == 303
    assert "root admin" in words(with_sudo.get("/sessions").text)


def test_sign_in_link_expires_after_a_minute(people: Site) -> None:
    browser = Browser(people, 1001)
    link = browser.link(ADA)
    people.world.clock.at += LINK_LIFE_S
    assert browser.get(link).status_code == 401


def test_sign_in_link_over_network_needs_confirmation(people: Site) -> None:
    browser = Browser(people)
    token_id, _ = token(people.world, "ada")
    link = browser.link(Actor("ada", Role.MEMBER, f"token {token_id}", 1001, token_id=token_id))
    asked = browser.get(link, sec_fetch_site="cross-site")
    assert "signs this browser in as ada" in words(asked.text)
    assert not browser.is_in
    assert browser.post("/login/link", code=link.partition("code=")[2]).status_code == 303
    assert browser.is_in


# Cookies


def test_cookies_have_the_strictest_possible_attributes(people: Site) -> None:
    local, remote = Browser(people, 0).follow(), Browser(people)
    remote.show_token(token(people.world)[1])
    name, _, rest = local.set_cookie.partition("=")
    assert people.world.services.info.pool_id in name
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(rest.split("; "))
    name, _, rest = remote.set_cookie.partition("=")
    assert name.startswith("__Host-")
    assert {"HttpOnly", "SameSite=lax", "Path=/", "Secure"} <= set(rest.split("; "))
    assert "domain" not in rest.lower()


def test_cookie_is_bound_to_account_and_connection(people: Site) -> None:
    owner = Browser(people, 1001).follow(ADA)
    secret = next(iter(owner.cookies.values()))
    for thief in (Browser(people, 1002), Browser(people, 0), Browser(people, -1), Browser(people)):
        thief.cookies = dict.fromkeys(owner.cookies, secret)
        thief.cookies |= {f"__Host-{name}": secret for name in owner.cookies}
        assert not thief.is_in
    assert owner.is_in


def test_sign_in_ends_the_earlier_session_of_the_browser(people: Site) -> None:
    browser = Browser(people, 1001).follow(ADA)
    before = dict(browser.cookies)
    browser.follow(ADA)
    assert browser.cookies != before
    browser.cookies = before
    assert not browser.is_in


# Without a session


def test_without_session_only_sign_in_is_served(people: Site) -> None:
    browser = Browser(people, 1001)
    open_to_all = {"/login", "/login/link", "/static/{version}/{name:path}", "/favicon.ico"}
    open_to_all |= {"/login/oidc", "/login/oidc/callback"}
    checked = 0
    for router in ROUTERS:
        for route in router.routes:
            if not isinstance(route, APIRoute) or route.path in open_to_all:
                continue
            for method in route.methods & {"GET", "POST", "PUT", "PATCH", "DELETE"}:
                answer = browser.ask(method, _filled(route.path), headers={"origin": LOCAL})
                told = (answer.status_code, answer.headers.get("location", ""))
                assert told[0] in {401, 403} or told[1].startswith("/login"), (method, route.path, told)
                checked += 1
    assert checked > 10
    assert browser.get("/queue?sort=name").headers["location"] == "/login?next=%2Fqueue%3Fsort%3Dname"
    assert browser.get("/queue?misspelt=1").headers["location"] == "/login?next=%2Fqueue%3Fmisspelt%3D1"
    assert browser.get("/queue", x_live="1").status_code == 401


def _filled(path: str) -> str:
    parts = path.split("/")
    return "/".join("1" if part.startswith("{") else part for part in parts)


def test_api_is_not_served_to_local_browsers(people: Site) -> None:
    browser = Browser(people, 0).follow()
    for path in ("/v1/health", "/v1/pool", "/v1/openapi.json"):
        assert browser.get(path).status_code == 404


def test_api_ignores_cookies_over_tls(people: Site) -> None:
    browser = Browser(people)
    browser.show_token(token(people.world)[1])
    assert browser.is_in
    assert browser.get("/v1/pool").status_code == 401


# Pages of others


OTHER_ORIGINS = [
    {"origin": "http://evil.example"},
    {"origin": "http://127.0.0.1:9000"},
    {"origin": "null"},
    {"origin": "", "sec-fetch-site": "cross-site"},
]


def test_form_of_other_origin_is_refused_with_valid_token(people: Site) -> None:
    browser = Browser(people, 1001).follow(ADA)
    form = browser.form_token()
    for headers in OTHER_ORIGINS:
        for path in ("/logout", "/login", "/login/link", "/sessions/abc/end"):
            assert browser.post(path, headers, form_token=form).status_code == 403, (headers, path)
    assert browser.is_in


def test_form_needs_the_token_of_its_session(people: Site) -> None:
    ada, again, grace = (Browser(people, uid) for uid in (1001, 1001, 1002))
    ada.follow(ADA)
    again.follow(ADA)
    grace.follow(Actor("grace", Role.MEMBER, "uid 1002", 1002))
    for wrong in ("", "x" * 32, again.form_token(), grace.form_token()):
        assert ada.post("/logout", form_token=wrong).status_code == 403
    assert ada.is_in
    assert ada.post("/logout", form_token=ada.form_token()).headers["location"] == "/login"
    assert not ada.is_in


def test_unknown_host_name_is_refused(people: Site) -> None:
    browser = Browser(people, 0).follow()
    for host in ("evil.example", "evil.example:8470", "127.0.0.1.evil.example", "", "0.0.0.0:8470", "[::1"):
        for path in ("/", "/login", "/static/x/app.css"):
            assert browser.get(path, host=host).status_code == 403, (host, path)
        assert people.get("/", host=host).status_code == 403, host  # behind a forwarded unix socket
    for host in ("127.0.0.1:8470", "localhost:9999", "[::1]:8470", "LOCALHOST"):
        assert Browser(people, 0).get("/login", host=host).status_code == 200, host


@pytest.mark.parametrize(
    ("wanted", "leads"),
    [
        ("/queue?sort=-age", "/queue?sort=-age"),
        ("https://evil.example/", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("\\\\evil.example", "/"),
        ("/\t/evil.example", "/"),
        ("///evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/login?next=//evil.example", "/"),
        ("/logout", "/"),
        ("queue", "/"),
        ("/a\r\nset-cookie: x=1", "/"),
        ("", "/"),
    ],
)
def test_redirects_lead_only_to_own_paths(wanted: str, leads: str) -> None:
    assert own_path(wanted) == leads


def test_redirect_to_other_site_is_refused(people: Site) -> None:
    _, secret = token(people.world)
    for wanted, leads in {"//evil.example/": "/", "https://evil.example": "/", "/queue?a=1": "/queue?a=1"}.items():
        assert Browser(people, 0).show_token(secret, next=wanted).headers["location"] == leads
        signed_in = Browser(people, 0).follow()
        assert signed_in.ask("GET", "/login", params={"next": wanted}).headers["location"] == leads


def test_every_answer_has_security_headers(people: Site) -> None:
    css = Browser(people, 0).get("/login").text.split('rel="stylesheet" href="')[1].split('"')[0]
    browser = Browser(people, 0).follow()
    answers = [browser.get(path) for path in ("/", "/login", "/nothing", "/sessions?format=csv", css, "/v1/pool")]
    answers += [browser.get("/", host="evil.example"), browser.post("/logout"), Browser(people, 0).get("/queue")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store" or str(answer.url).endswith(css)


# Staying in


def test_session_ends_when_idle_despite_open_page(people: Site) -> None:
    browser, watched = Browser(people, 1001).follow(ADA), Browser(people, 1001).follow(ADA)
    for _ in range(3):
        people.world.clock.at += SESSION_IDLE_S / 2
        assert watched.get("/sessions").status_code == 200
        browser.get("/sessions", x_live="1")
    assert watched.is_in
    assert not browser.is_in


def test_session_ends_after_a_week(people: Site) -> None:
    browser = Browser(people, 1001).follow(ADA)
    for _ in range(int(SESSION_LIFE_S / SESSION_IDLE_S)):
        assert browser.get("/sessions").status_code == 200
        people.world.clock.at += SESSION_IDLE_S - 1
    assert browser.is_in
    people.world.clock.at += SESSION_LIFE_S / SESSION_IDLE_S
    assert not browser.is_in


def test_disabled_user_is_signed_out_at_once(people: Site) -> None:
    browser = Browser(people, 1001).follow(ADA)
    user(people.world, "ada", disabled=True)
    assert not browser.is_in
    user(people.world, "ada", disabled=False)
    assert not browser.is_in
    user(people.world, "ada", disabled=True)
    assert browser.get(browser.link(ADA)).status_code == 401


def test_session_ends_with_its_token(people: Site) -> None:
    token_id, secret = token(people.world, "ada")
    _, brief = token(people.world, "ada", expires_in_s=60.0)
    by_token, by_brief, by_link = Browser(people), Browser(people), Browser(people)
    by_token.show_token(secret)
    by_brief.show_token(brief)
    caller = Actor("ada", Role.MEMBER, f"token {token_id}", 1001, token_id=token_id)
    by_link.follow(caller)
    unused = by_link.link(caller)
    assert by_token.is_in
    assert by_brief.is_in
    assert by_link.is_in
    people.world.clock.at += 60
    assert not by_brief.is_in
    assert by_token.is_in
    people.world.do(people.world.services.access.revoke_token(OWNER, token_id))
    assert not by_token.is_in
    assert not by_link.is_in
    assert by_link.get(unused, sec_fetch_site="none").status_code == 401


def test_changed_role_applies_to_next_request_within_token_scope(people: Site) -> None:
    user(people.world, "grace", role=Role.ADMIN)
    _, weak = token(people.world, "grace", Role.VIEWER)
    admin, viewer = Browser(people, 1002).follow(Actor("grace", Role.ADMIN, "uid 1002", 1002)), Browser(people)
    viewer.show_token(weak)
    assert "grace admin" in words(admin.get("/sessions").text)
    assert "grace viewer" in words(viewer.get("/sessions").text)
    user(people.world, "grace", role=Role.MEMBER)
    assert "grace member" in words(admin.get("/sessions").text)
    user(people.world, "grace", role=Role.MANAGER)
    assert "grace manager" in words(admin.get("/sessions").text)
    assert "grace viewer" in words(viewer.get("/sessions").text)


def test_sessions_survive_the_control_plane(site: Site) -> None:
    world = site.world
    user(world, "ada", uid=1001)
    browser, by_token, by_revoked = Browser(site, 1001).follow(ADA), Browser(site), Browser(site)
    by_token.show_token(token(world, "ada")[1])
    token_id, secret = token(world, "ada")
    by_revoked.show_token(secret)
    world.do(world.services.access.revoke_token(OWNER, token_id))
    world.do(world.crash())
    world.do(world.boot())
    fresh = Site(world)
    browser.site = by_token.site = by_revoked.site = fresh
    assert browser.is_in
    assert by_token.is_in
    assert not by_revoked.is_in


def test_least_recently_used_session_ends_at_session_limit(people: Site) -> None:
    browsers = [Browser(people, 1001).follow(ADA) for _ in range(20)]
    people.world.clock.at += 10
    browsers[0].get("/sessions")
    Browser(people, 1001).follow(ADA)
    assert browsers[0].is_in
    assert not browsers[1].is_in
    assert browsers[2].is_in


# Seeing and ending sessions


def test_users_see_and_end_only_own_sessions(people: Site) -> None:
    ada = Browser(people, 1001).follow(ADA)
    grace = Browser(people, 1002).follow(Actor("grace", Role.MEMBER, "uid 1002", 1002))
    admin = Browser(people, 0).follow()
    sessions = people.world.services.sessions
    ids = {session.user: session.id for session in sessions.sessions(OWNER)}
    assert "grace" not in words(ada.get("/sessions").text)
    ada.post(f"/sessions/{ids['grace']}/end", form_token=ada.form_token())
    assert grace.is_in
    assert "grace" in words(admin.get("/sessions").text)
    admin.post(f"/sessions/{ids['grace']}/end", form_token=admin.form_token())
    assert not grace.is_in
    assert ada.is_in


def test_user_agent_is_shown_as_text(people: Site) -> None:
    browser = Browser(people, 0)
    browser.get(browser.link(), user_agent='<script>alert(1)</script>"=cmd()')
    page = browser.get("/sessions")
    assert "<script>alert" not in page.text
    assert "&lt;script&gt;alert" in page.text


# Guessing


def test_wrong_tokens_are_limited_and_valid_token_still_signs_in(people: Site) -> None:
    _, secret = token(people.world)
    guesser, owner = Browser(people, 1002), Browser(people, 0)
    for _ in range(10):
        assert guesser.show_token("gpt_00000000_wrong").status_code == 401
    assert guesser.show_token("gpt_00000000_wrong").status_code == 429
    assert guesser.show_token(secret).status_code == 303
    assert owner.show_token(secret).status_code == 303


def test_invalid_token_is_refused_with_a_message(people: Site) -> None:
    for wrong in ("", "x", "gpt_" + "x" * 5000, "gpt_ü", "gpt_\0", "' or 1=1 --"):
        answer = Browser(people, 0).show_token(wrong)
        assert answer.status_code == 401
        assert "UNAUTHENTICATED" in answer.text


def test_sign_ins_are_audited_and_floods_of_guesses_are_not(people: Site) -> None:
    token_id, secret = token(people.world, "ada")
    browser = Browser(people, 1001).follow(ADA)
    browser.show_token(secret)
    browser.post("/logout", form_token=browser.form_token())
    assert events(people, Reason.SIGNED_IN) == ["ada: by a one-time link", f"ada: by token {token_id}"]
    assert events(people, Reason.SIGNED_OUT) == ["ada: signed out", "ada: signed out"]
    for uid in range(2000, 2008):
        for _ in range(5):
            Browser(people, uid).show_token("gpt_wrong\nforged: line")
    failed = events(people, Reason.SIGN_IN_FAILED)
    assert len(failed) == 20
    assert failed[0] == "pool: The token is unknown. (uid 2000)"


def test_unknown_sessions_are_refused(people: Site) -> None:
    with pytest.raises(GpupoolError) as refused:
        people.world.do(people.world.services.sessions.end(ADA, "0" * 12))
    assert refused.value.code is ErrorCode.NOT_FOUND


# People of a provider


def test_provider_identity_maps_to_one_user(people: Site) -> None:
    world, place = people.world, BrowserClient(None)
    settings = ProviderSettings("https://login.example", "gpupool", "https://gpu1.example:8443", make_users=True)

    def admit(key: str, name: str, named: bool = False, role: Role | None = None, **changes: Any) -> str:
        identity = Identity(key, name, named, role, "")
        admitted = world.services.identities.admit(identity, replace(settings, **changes), place)
        return world.do(admitted)[1].user

    def refused(*args: Any, **changes: Any) -> str:
        with pytest.raises(GpupoolError) as error:
            admit(*args, **changes)
        assert error.value.code is ErrorCode.FORBIDDEN
        return error.value.message

    assert admit("one-1", "ada") == "ada"  # a user that an administrator made
    assert admit("one-1", "renamed") == "ada"
    assert "bound to you" in refused("one-2", "ada")
    assert admit("two-9", "ada") == "ada"  # another provider says it too: the administrator has changed over
    assert admit("one-3", "margaret") == "margaret"
    assert "does not create one" in refused("one-4", "karen", make_users=False)
    assert "bound to you" in refused("one-5", "grace", match_users=False)
    user(world, "grace", role=Role.ADMIN)
    assert "bound to you" in refused("one-5", "grace")
    assert admit("one-5", "grace", named=True) == "grace"
    assert "administers the machine" in refused("one-6", "root", named=True)
    assert admit("one-3", "margaret", role=Role.MANAGER) == "margaret"
    assert [u.role for u in world.do(world.services.access.users()) if u.name == "margaret"] == [Role.MANAGER]
    user(world, "margaret", disabled=True)
    with pytest.raises(GpupoolError, match="disabled"):
        admit("one-3", "margaret")


def test_groups_of_the_provider_are_members_of_projects(people: Site) -> None:
    world, place = people.world, BrowserClient(None)
    settings = ProviderSettings("https://login.example", "gpupool", "https://gpu1.example:8443", make_users=True)
    user(world, "keeper")
    for name, members in (("vision", ("keeper",)), ("nlp", ("keeper",)), ("open", ())):
        world.do(world.services.access.create_project(ADMIN, Project(name, members=members)))

    def members_after(member_of: set[str], not_member_of: set[str]) -> dict[str, tuple[str, ...]]:
        inside, outside = frozenset(member_of), frozenset(not_member_of)
        identity = Identity(
            "groups-1", "dorothy", role=None, named=False, email="", member_of=inside, not_member_of=outside
        )
        world.do(world.services.identities.admit(identity, settings, place))
        names = ("vision", "nlp", "open")
        return {name: world.services.access.project(name).members for name in names}

    joined = members_after({"vision", "unknown"}, {"nlp"})
    assert joined == {"vision": ("keeper", "dorothy"), "nlp": ("keeper",), "open": ()}
    moved = members_after({"nlp"}, {"vision"})
    assert moved == {"vision": ("keeper",), "nlp": ("keeper", "dorothy"), "open": ()}
    world.do(world.services.access.change_project(ADMIN, "nlp", {"members": ("dorothy",)}))
    left = members_after(set(), {"vision", "nlp"})
    assert left["nlp"] == ("dorothy",), "a project without members is open to all, so the last one stays"
