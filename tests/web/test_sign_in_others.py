"""Other users, accounts and sites see of a user's work only that it exists."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from e2e_pool import eventually
from fastapi.routing import APIRoute
from web_harness import WebPool
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from gpupool.api.deps import query_names
from gpupool.client.transport.endpoint import TlsEndpoint
from gpupool.web.install import ROUTERS

NOBODY = 65534
SECRETS = ("word-in-the-environment", "word-in-the-command", "word-in-the-output")
Json = dict[str, Any]


@dataclass
class Person:
    """A user in a browser over the network."""

    pool: WebPool
    token: str
    http: httpx2.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx2.Client(base_url=self.pool.url, verify=trusting(self.pool), timeout=60)
        answer = self.http.post("/login", data={"token": self.token}, headers={"origin": self.pool.url})
        assert answer.status_code == 303, answer.text

    def api(self, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx2.request(method, f"{self.pool.url}{path}", headers=headers, verify=trusting(self.pool), **options)

    def form_token(self) -> str:
        found = re.search(r'name="form_token" value="(\w+)"', self.http.get("/sessions").text)
        assert found
        return found[1]

    def send(self, path: str, origin: str = "", **fields: str) -> httpx2.Response:
        sent = {"form_token": self.form_token(), **fields}
        return self.http.post(path, data=sent, headers={"origin": origin or self.pool.url})

    def terminal(self, ref: str, origin: str | None, leave: str = "") -> str:
        """Return the state of a terminal: ``open``, or the status of its refusal or end; ``leave``: a form."""
        cookies = "; ".join(f"{name}={value}" for name, value in self.http.cookies.items())
        address = f"wss://127.0.0.1:{self.pool.port}/ui/workloads/{ref}/terminal"
        options: Json = {"additional_headers": {"cookie": cookies}, "ssl": trusting(self.pool), "origin": origin}
        try:
            with connect(address, **options, proxy=None) as socket:
                if leave:
                    self.send(leave)
                socket.recv(timeout=20 if leave else 1)
        except TimeoutError:
            return "open"
        except InvalidStatus as refused:
            return str(refused.response.status_code)
        except ConnectionClosed as closed:
            return str(closed.rcvd.code if closed.rcvd else 0)
        return "talks"


def trusting(pool: WebPool) -> ssl.SSLContext:
    return TlsEndpoint(pool.url, "", ca_file=str(pool.state / "tls" / "cert.pem")).context()


@dataclass
class Scene:
    """A program with secrets, its owner, and another user."""

    owner: Person
    other: Person
    manager: Person
    ref: str


@pytest.fixture(scope="module")
def scene(shared_web_pool: WebPool) -> Iterator[Scene]:
    pool = shared_web_pool
    pool("user", "set", "ada.in", "--uid", str(NOBODY))
    owner, other, manager = (
        Person(pool, pool.token(name, role))
        for name, role in (("ada.in", "member"), ("grace.in", "member"), ("linus.in", "manager"))
    )
    submission = {
        "command": ["sh", "-c", f"echo {SECRETS[2][:8]}''{SECRETS[2][8:]}; read x; true {SECRETS[1]}"],
        "env": {"PATH": os.environ["PATH"], "PASSWORD": SECRETS[0]},
        "workdir": "/tmp",
        "gpus": {"fraction": 0.1},
        "kind": "interactive",
        "tty": True,
    }
    made = owner.api("POST", "/v1/workloads", json=submission)
    assert made.status_code == 201, made.text
    ref = made.json()["id"]
    assert eventually(lambda: SECRETS[2] in owner.http.get(f"/ui/workloads/{ref}/output.txt").text)
    yield Scene(owner, other, manager, ref)
    owner.api("POST", f"/v1/workloads/{ref}/stop", json={"force": True})


def test_owner_sees_all_details(scene: Scene) -> None:
    page = scene.owner.http.get(f"/workloads/{scene.ref}").text
    assert SECRETS[1] in page
    assert scene.owner.terminal(scene.ref, scene.owner.pool.url) == "open"


def test_no_page_shows_secrets_of_other_users(scene: Scene) -> None:
    """Check every address that answers GET, from the table of routes, with existing objects filled in."""
    there = {"ref": scene.ref, "name": "ada.in", "index": "0", "form": "csv", "uuid": "x", "version": "x"}
    seen = 0
    for router in ROUTERS:
        for route in router.routes:
            if not isinstance(route, APIRoute) or "GET" not in route.methods or route.path == "/live":
                continue
            path = re.sub(r"\{(\w+)[^}]*\}", lambda part: there.get(part[1], "x"), route.path)
            known = query_names([route.dependant, *route.dependant.dependencies]) - {"*", "format"}
            words = {"from": scene.ref, "table": "replicas&format=csv", "replica": "0", "index": "0", "attempt": "1"}
            queries = [f"?{name}={words.get(name, 'word-in')}" for name in known]
            for query in ("", *queries, "?format=csv"):
                answer = _begun(scene.other.http, path + query)
                assert not [secret for secret in SECRETS if secret in answer], path + query
                seen += 1
    assert seen > 60


def _begun(http: httpx2.Client, path: str) -> str:
    """Return an answer, or the beginning of an endless one."""
    with http.stream("GET", path) as answer:
        if "event-stream" in answer.headers.get("content-type", ""):
            return ""
        return str(answer.read().decode(errors="replace"))


@pytest.mark.parametrize("who", ["other", "manager"])
def test_output_and_terminal_of_another_user_are_refused(scene: Scene, who: str) -> None:
    person: Person = getattr(scene, who)  # a manager of other projects is nobody here
    for path in ("output", "output.txt"):
        assert person.http.get(f"/ui/workloads/{scene.ref}/{path}").status_code == 403
    assert person.terminal(scene.ref, person.pool.url) == "4403"


@pytest.mark.parametrize("origin", [None, "https://evil.example", "null", "http://127.0.0.1:9000"])
def test_other_site_cannot_open_terminal_with_cookie(scene: Scene, origin: str | None) -> None:
    assert scene.owner.terminal(scene.ref, origin) == "403"


def test_forms_of_another_user_change_nothing(scene: Scene) -> None:
    for verb in ("stop", "suspend", "extend", "delete", "shell"):
        answer = scene.other.send(f"/workloads/{scene.ref}/{verb}", by="1h")
        assert answer.status_code >= 400, verb
    assert scene.owner.api("GET", f"/v1/workloads/{scene.ref}").json()["state"] == "running"


def test_other_site_cannot_send_forms_of_the_owner(scene: Scene) -> None:
    for origin in ("https://evil.example", "null"):
        assert scene.owner.send(f"/workloads/{scene.ref}/stop", origin).status_code == 403
    assert scene.owner.send(f"/workloads/{scene.ref}/stop", form_token="0" * 32).status_code == 403
    assert scene.owner.send(f"/workloads/{scene.ref}/stop", form_token=scene.other.form_token()).status_code == 403
    assert scene.owner.api("GET", f"/v1/workloads/{scene.ref}").json()["state"] == "running"


def test_terminal_closes_when_its_session_ends(scene: Scene) -> None:
    again = Person(scene.owner.pool, scene.owner.token)
    assert again.terminal(scene.ref, again.pool.url, leave="/logout") == "4401"


_AS_ANOTHER = """
import encodings.idna, http.client, json, os, sys
address, path, cookie = json.loads(sys.argv[1])
os.setgroups([])
os.setgid(UID)
os.setuid(UID)
connection = http.client.HTTPConnection(address, timeout=20)
headers = {"cookie": cookie, "x-live": "1"} if cookie else {"sec-fetch-site": "none"}
connection.request("GET", path, headers=headers)
answer = connection.getresponse()
print(json.dumps([answer.status, answer.getheader("set-cookie") or "", answer.read().decode()]))
"""


def as_account(uid: int, base: str, path: str, cookie: str = "") -> tuple[int, str, str]:
    """Return the answer that a program of another account of this machine gets."""
    asked = json.dumps([base.removeprefix("http://"), path, cookie])
    command = [sys.executable, "-I", "-c", _AS_ANOTHER.replace("UID", str(uid)), asked]
    status, given, text = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return status, given, text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other accounts")
def test_browser_user_is_identified_by_the_kernel(shared_web_pool: WebPool) -> None:
    """Another account that has seen a link and a cookie cannot use them; the owner's session continues."""
    pool = shared_web_pool
    link = pool.json("dashboard")["url"]
    base, _, query = link.partition("/login")
    path = f"/login{query}"
    assert as_account(NOBODY, base, path)[0] == 401
    status, cookie, _ = as_account(0, base, path)
    assert status == 303
    cookie = cookie.partition(";")[0]
    assert as_account(0, base, "/sessions", cookie)[0] == 200
    status, _, text = as_account(NOBODY, base, "/sessions", cookie)
    assert status == 401
    assert "root" not in text
    assert as_account(NOBODY, base, "/v1/pool", cookie)[0] == 404
    assert as_account(NOBODY, base, "/login")[0] == 200
