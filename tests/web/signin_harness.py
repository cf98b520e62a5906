"""Browsers without windows, on this machine or over the network, each with its cookies."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from pool_world import World
from web_harness import Site

from gpupool.api.server.peer import LOOPBACK_UID
from gpupool.domain.people.access import Actor, Role

OWNER = Actor("root", Role.ADMIN, "uid 0", 0)
LOCAL = "http://127.0.0.1:8470"
REMOTE = "https://gpu1.example:8443"


class Browser:
    """A browser of an account of the pool's machine; of another machine when ``uid`` is None."""

    def __init__(self, site: Site, uid: int | None = None) -> None:
        self.site = site
        self.uid = uid
        self.base = REMOTE if uid is None else LOCAL
        self.cookies: dict[str, str] = {}
        self.set_cookie = ""

    @property
    def world(self) -> World:
        return self.site.world

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return self.ask("GET", path, headers=_dashed(headers))

    def post(self, path: str, headers: dict[str, str] | None = None, /, **fields: Any) -> httpx2.Response:
        return self.ask("POST", path, data=fields, headers={"origin": self.base, **(headers or {})})

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen = {} if self.uid is None else {LOOPBACK_UID: self.uid}
            await self.site.app({**scope, "extensions": seen}, receive, send)

        async def ask() -> httpx2.Response:
            transport = httpx2.ASGITransport(app)
            cookies = dict(self.cookies)
            async with httpx2.AsyncClient(transport=transport, base_url=self.base, cookies=cookies) as http:
                answer = await http.request(method, path, **options)
            self._take(answer)
            return answer

        answer = self.world.do(ask())
        self.world.do(self.world.settle())
        return answer

    def _take(self, answer: httpx2.Response) -> None:
        for line in answer.headers.get_list("set-cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            if "max-age=0" in line.lower():
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value
                self.set_cookie = line if "session" in name else self.set_cookie

    # Ways in

    def link(self, actor: Actor = OWNER, **options: Any) -> str:
        code, _ = self.world.do(self.world.services.sessions.create_link(actor, **options))
        return f"/login/link?code={code}"

    def follow(self, actor: Actor = OWNER) -> Browser:
        """Sign in by a link."""
        answer = self.get(self.link(actor), sec_fetch_site="none")
        assert (answer.status_code, answer.headers["location"]) == (303, "/home"), answer.text
        return self

    def show_token(self, secret: str, **fields: Any) -> httpx2.Response:
        return self.post("/login", token=secret, **fields)

    @property
    def is_in(self) -> bool:
        return self.get("/sessions", x_live="1").status_code == 200

    def form_token(self) -> str:
        """Return the token in this browser's pages."""
        return self.get("/sessions").text.split('name="form_token" value="')[1].split('"')[0]


def token(world: World, user: str = "root", role: Role | None = None, **wanted: Any) -> tuple[str, str]:
    """Create a token; return its id and its secret."""
    options = {"expires_in_s": 3600.0, **wanted}
    made, secret = world.do(world.services.access.create_token(OWNER, user=user, role=role, **options))
    return made.id, secret


def user(world: World, name: str, **changes: Any) -> None:
    world.do(world.services.access.put_user(OWNER, name, changes))


def query(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


def _dashed(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
