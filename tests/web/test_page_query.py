"""Query parameters of pages: an unknown one is an error, and links and forms of pages have only known ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import urlencode, urljoin, urlsplit

import pytest
import structlog
from fastapi.routing import APIRoute
from pool_world import ANN, world_in
from signin_harness import OWNER, token, user
from web_harness import Site, words

from gpupool.domain.people.access import Department
from gpupool.web.install import ROUTERS

ACCEPTS_ALL = "/login/oidc/callback"  # the provider decides what it sends
ENDLESS = {"/live", "/ui/workloads/{ref}/output"}


class Addresses(HTMLParser):
    """Collects the addresses of a page to which its links and its forms with the method GET lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.page, self.found = page, set[str]()
        self._form = ""
        self._fields: dict[str, str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._add(given.get("href", "") or given.get("data-chart", ""))
        if tag == "form" and given.get("method", "get") == "get":
            self._form, self._fields = given.get("action", self.page), {}
        elif self._fields is not None and tag in {"input", "select"} and "name" in given:
            self._fields[given["name"]] = given.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form" and self._fields is not None:
            self._add(f"{self._form.partition('?')[0]}?{urlencode(self._fields)}")
            self._fields = None

    def _add(self, address: str) -> None:
        whole = urljoin(self.page, address).partition("#")[0]
        if "?" in whole and not urlsplit(whole).scheme:
            self.found.add(whole)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path_factory.mktemp("queries")) as world:
        yield Site(world)


@pytest.fixture(scope="module")
def addresses(site: Site) -> list[str]:
    """Return the address of every page and file, with existing objects."""
    world = site.world
    user(world, "ann", uid=1001)
    token(world, "ann")
    world.do(world.services.departments.create(OWNER, Department("physics")))
    made = world.do(world.submit(ANN, labels={"team": "vision"}, completions=60))
    world.do(world.settle())
    node = next(iter(world.do(world.services.nodes.nodes()))).name
    there = {"ref": made.id, "index": "0", "form": "html"}
    names = {"/nodes": node, "/users": "ann", "/depar": "physics", "/ui/se": node}
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    found = []
    for path in sorted({route.path for route in routes if "GET" in route.methods} - ENDLESS):
        there["name"] = names.get(path[:6], "default")
        found.append(re.sub(r"\{(\w+)[^}]*\}", lambda part: there.get(part[1], "x"), path))
    return found


def test_unknown_parameter_is_an_error_on_every_page(site: Site, addresses: list[str]) -> None:
    refused = 0
    for address in addresses:
        answer = site.get(f"{address}?misspelt=1")
        if address == ACCEPTS_ALL:
            assert "misspelt" not in answer.text
            continue
        assert answer.status_code == 400, address
        assert "no query parameter 'misspelt'" in re.sub("&#39;", "'", answer.text), address
        refused += 1
    assert refused > 40


def test_misspelt_filter_names_the_right_one(site: Site) -> None:
    shown = words(site.get("/workloads?stat=failed").text)
    assert "This path has no query parameter 'stat'. Did you mean 'state'?" in shown
    assert "It has find, format, label, name, page, project, rows, sort, state, table, user." in shown


def test_known_parameters_lead_to_pages(site: Site, addresses: list[str]) -> None:
    seen = set[str]()
    for address in addresses:
        answer = site.get(address)
        if answer.headers.get("content-type", "").startswith("text/html"):
            page = Addresses(address)
            page.feed(answer.text)
            seen |= page.found
    for address in sorted(seen):
        answer = site.get(address)
        assert "no query parameter" not in answer.text, address
    found = {(urlsplit(address).path, name) for address in seen for name in re.findall(r"[?&]([^=&]+)=", address)}
    assert {("/workloads", "state"), ("/audit", "actor"), ("/projects", "d-find"), ("/reports", "period")} <= found
    assert len(seen) > 150
