"""Sign-in with OpenID Connect: a real provider process, pool and browser; mapping of identities to users."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from browsers import Chromium
from e2e_pool import RealPool, eventually, folder_for_pool
from playwright.sync_api import Page

from free_ports import free_port

PEOPLE: list[dict[str, Any]] = [
    {"sub": "1", "preferred_username": "Ada", "email": "ada@lab.example", "email_verified": True, "groups": ["gpu"]},
    {"sub": "2", "preferred_username": "grace", "email": "grace@lab.example", "email_verified": True},
    {"sub": "3", "preferred_username": "linus", "email": "linus@evil.example", "email_verified": True},
    {"sub": "4", "preferred_username": "root", "email": "root@lab.example", "email_verified": True},
    {"sub": "5", "preferred_username": "ada", "email": "other@lab.example", "email_verified": True, "groups": ["gpu"]},
]


class Provider:
    """A provider as a process of its own."""

    def __init__(self) -> None:
        self.port = free_port()
        self.issuer = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        people = [word for person in PEOPLE for word in ("--user-claims", json.dumps(person))]
        command = [sys.executable, "-m", "oidc_provider_mock", "-p", str(self.port), "-n", "true", *people]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert eventually(self._answers)

    def _answers(self) -> bool:
        with closing(socket.socket()) as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Place:
    """A pool whose dashboard people sign in to with the provider."""

    def __init__(self, pool: RealPool, provider: Provider, url: str) -> None:
        self.pool = pool
        self.provider = provider
        self.url = url

    def sign_in(self, page: Page, sub: str, path: str = "/sessions") -> str:
        page.goto(f"{self.url}{path}")
        page.get_by_role("link", name="Sign in with Example University").click()
        page.get_by_role("button", name=sub, exact=True).first.click()
        page.wait_for_url(f"{self.url}/**")
        return page.inner_text("body")


def forget_session(page: Page) -> None:
    """Sign out in the browser. An open page would notice it and reload itself, and so abort the next navigation."""
    page.goto("about:blank")
    page.context.clear_cookies()


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    provider, port = Provider(), free_port()
    provider.start()
    try:
        with folder_for_pool() as folder:
            pool = RealPool(folder, "1xT4")
            file = folder / "oidc.toml"
            file.write_text(settings(provider.issuer, f"http://127.0.0.1:{port}"))
            file.chmod(0o600)
            try:
                pool.up("--dashboard", f"127.0.0.1:{port}", "--oidc", str(file))
                yield Place(pool, provider, f"http://127.0.0.1:{port}")
            finally:
                pool("down", "--stop-jobs", ok=False)
    finally:
        provider.stop()


def settings(issuer: str, public_url: str) -> str:
    return f"""
issuer = "{issuer}"
client_id = "gpupool"
client_secret = "a secret of the pool"
public_url = "{public_url}"
name = "Example University"
allowed_domains = ["lab.example"]
make_users = true
default_role = "viewer"

[[roles]]
claim = "groups"
value = "gpu"
role = "manager"
"""


@pytest.fixture
def page(chromium: Chromium) -> Iterator[Page]:
    context = chromium.new_context()
    yield context.new_page()
    chromium.close(context)


def test_provider_sign_in_maps_users_by_rules(place: Place, page: Page) -> None:
    said = place.sign_in(page, "1", "/sessions?sort=-user")
    assert page.url == f"{place.url}/sessions?sort=-user"  # where they wanted to go, without a code in the address
    assert re.search(r"ada\s+manager", said)
    users = {user["name"]: user for user in place.pool.json("user", "list")["users"]}
    assert (users["ada"]["role"], users["ada"]["email"]) == ("manager", "ada@lab.example")
    forget_session(page)
    assert re.search(r"grace\s+viewer", place.sign_in(page, "2"))
    cookies = {cookie["name"].rpartition("-")[2]: cookie for cookie in page.context.cookies()}
    assert "oidc" not in cookies  # its work is done
    assert cookies["session"]["httpOnly"]


@pytest.mark.parametrize(
    ("sub", "why"),
    [
        ("3", "domain is not allowed to sign in"),
        ("4", "root administers the machine"),
        ("5", "There is a user ada here|bound to you"),
    ],
)
def test_sign_in_refused_by_rules_has_a_reason(place: Place, page: Page, sub: str, why: str) -> None:
    if sub == "5":
        place.sign_in(page, "1")
        place.pool("user", "set", "ada", "--role", "admin")
        forget_session(page)
    said = place.sign_in(page, sub)
    assert re.search(why, said), said
    assert "FORBIDDEN" in said
    assert not [c for c in page.context.cookies() if c["name"].endswith("session")]


def test_sign_in_request_and_answer_are_validated(place: Place, page: Page) -> None:
    """State, nonce and PKCE are there and new each time; an answer without them, or a second time, is refused."""
    seen: list[dict[str, str]] = []
    page.on("request", lambda request: seen.append(_query(request.url)) if request.method == "GET" else None)
    place.sign_in(page, "2")
    forget_session(page)
    place.sign_in(page, "2")
    first, second = [query for query in seen if "code_challenge" in query][:2]
    for name in ("state", "nonce", "code_challenge"):
        assert len(first[name]) >= 43
        assert first[name] != second[name]
    assert first["code_challenge_method"] == "S256"
    assert first["redirect_uri"] == f"{place.url}/login/oidc/callback"
    forget_session(page)
    for forged in ("?code=x&state=y", f"?code=x&state={second['state']}", "?error=access_denied", ""):
        page.goto(f"{place.url}/login/oidc/callback{forged}")
        assert "UNAUTHENTICATED" in page.inner_text("main")


def test_provider_answer_works_once_in_the_same_browser(place: Place) -> None:
    """An attacker who sends a user the end of an own sign-in cannot make that user work in the attacker's name."""
    with httpx2.Client(base_url=place.url) as asked, httpx2.Client(base_url=place.url) as victim:
        to_provider = asked.get("/login/oidc").headers["location"]
        back = httpx2.post(to_provider, data={"sub": "2"}).headers["location"]
        victim.get("/login/oidc")
        for stranger in (victim, httpx2.Client()):
            answer = stranger.get(back)
            assert answer.status_code == 401
            assert "started" in answer.text
            assert not any(name.endswith("session") for name in stranger.cookies)
        way = dict(asked.cookies)
        assert asked.get(back).headers["location"] == "/home"
        assert asked.get("/sessions").status_code == 200
        for name, value in way.items():
            asked.cookies.set(name, value)
        assert asked.get(back).status_code == 401  # the provider takes no code twice


def test_token_sign_in_works_without_the_provider(place: Place, page: Page) -> None:
    place.provider.stop()
    try:
        place.pool.kill_child("control-plane")  # nothing is remembered of the provider
        page.goto(f"{place.url}/login")
        page.get_by_role("link", name="Sign in with").click()
        assert "Example University cannot be reached" in page.inner_text("main")
        page.get_by_role("textbox", name="Token").fill(str(place.pool.json("token", "create")["secret"]))
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{place.url}/home")
    finally:
        place.provider.start()


def _query(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
