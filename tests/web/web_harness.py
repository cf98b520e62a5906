"""Pages without a browser (``Site``), real pools for browsers, and the checks that every page's browser test calls."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any, ClassVar

import httpx2
from axe_playwright_python.sync_playwright import Axe
from e2e_pool import RealPool
from playwright.sync_api import Page
from pool_world import World
from starlette.routing import BaseRoute

from free_ports import free_port
from gpupool.api.app import create_app
from gpupool.api.server.peer import PEER_UID
from gpupool.web import install
from gpupool.web.deps import form_token
from gpupool.web.kit.response_cache import ResponseCache

Visit = Callable[..., Page]
IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
# Without the windows of the browser, pages take about half of the CPU time.
CHROMIUM = shutil.which("chromium-headless-shell") or "/usr/bin/chromium"
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


# Without a browser


class Site:
    """The dashboard over a world with a fake agent; visitors are accounts of this machine (``uid`` 0: an admin)."""

    _routes: ClassVar[list[BaseRoute]] = []  # know nothing of a world, and take longest to make

    def __init__(self, world: World) -> None:
        self.world = world
        self.app = create_app(world.services)
        install.install(self.app, world.services)
        Site._routes = Site._routes or list(self.app.router.routes)
        self.app.router.routes = list(Site._routes)

    def get(self, path: str, uid: int = 0, **headers: str) -> httpx2.Response:
        """Send a GET; header names are given with underscores."""
        return self._ask("GET", path, uid, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def post(self, path: str, uid: int = 0, *, token: str | None = None, page: str = "/", **fields: Any) -> Any:
        """Send a form as from the page ``page``, with the token that pages of this visitor carry (or another)."""
        sent = {"form_token": self.token(uid) if token is None else token, **fields}
        return self._ask("POST", path, uid, data=sent, headers={"referer": f"http://localhost{page}"})

    def token(self, uid: int = 0) -> str:
        return form_token(self.world.do(self.world.services.access.actor_for_uid(uid)))

    def forget(self) -> None:
        """Expire answers that were cached for other viewers, so that a test does not wait."""
        self.app.state.response_cache = ResponseCache[Any]()

    def _ask(self, method: str, path: str, uid: int, **options: Any) -> httpx2.Response:
        async def as_peer(scope: Any, receive: Any, send: Any) -> None:
            await self.app({**scope, "extensions": {PEER_UID: uid}}, receive, send)

        async def ask() -> httpx2.Response:
            transport = httpx2.ASGITransport(as_peer)
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return await http.request(method, path, **options)

        self.forget()
        answer = self.world.do(ask())
        self.world.do(self.world.settle())
        return answer


def words(html: str) -> str:
    """Return the text of a page with single spaces, without markup."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


# In a browser


class WebPool(RealPool):
    """A real pool whose dashboard a browser can open."""

    def __init__(self, folder: Path, emulate: str) -> None:
        super().__init__(folder, emulate)
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._tokens: dict[tuple[str, str], str] = {}

    def start(self) -> None:
        self.up("--listen", f"127.0.0.1:{self.port}", "--tls-self-signed")

    def token(self, user: str = "", role: str = "") -> str:
        """Return a token of the pool's owner, or of another user (created with this role); one for all tests."""
        if (user, role) not in self._tokens:
            whom = () if not user else ("--user", user, "--role", role or "member")
            if user:
                self("user", "set", user, "--role", role or "member")
            self._tokens[user, role] = str(self.json("token", "create", *whom)["secret"])
        return self._tokens[user, role]


# What every page's browser test calls


def check_accessible(page: Page) -> None:
    """Check that axe finds no violation of WCAG 2.2 A and AA; in dark mode only the colours are checked."""
    page.emulate_media(reduced_motion="reduce")  # else colours are measured on their way from one theme to the other
    for theme, rules in (("light", WCAG), ("dark", {"type": "rule", "values": ["color-contrast"]})):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        found = Axe().run(page, options={"runOnly": rules})
        told = [
            f"{theme}: {violation['id']}: {node['html'][:300]}\n  {node.get('failureSummary', '')}"
            for violation in found.response["violations"]
            for node in violation["nodes"][:3]
        ]
        assert not told, "\n".join(told)
    page.evaluate("() => { document.documentElement.dataset.theme = 'auto' }")


def check_fits(page: Page, width: int = 360) -> None:
    """Check that no element is wider than a phone."""
    page.set_viewport_size({"width": width, "height": 740})
    wide = page.evaluate(
        """() => document.documentElement.scrollWidth > innerWidth
            ? [...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)
                .slice(0, 5).map(e => e.outerHTML.slice(0, 160)) : null"""
    )
    assert wide is None, wide


def look(page: Page, name: str = "") -> None:
    """Check the accessibility and a narrow screen; ``name`` is that of the picture, without the notice."""
    if name:
        page.locator("[data-dismiss]").evaluate_all("all => all.forEach(one => one.click())")
        picture(page, name)
    check_accessible(page)
    check_fits(page)
    page.set_viewport_size({"width": 1280, "height": 800})


def say_yes(page: Page) -> None:
    """Confirm in the dialog of an action."""
    page.locator("[data-confirm-yes]").click()


def picture(page: Page, name: str, *, full: bool = False) -> None:
    """Take a screenshot for the documentation, only when GPUPOOL_SCREENSHOTS=1 is set."""
    if os.environ.get("GPUPOOL_SCREENSHOTS") != "1":
        return
    IMAGES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=IMAGES / f"{name}.png", full_page=full, animations="disabled", caret="hide")
