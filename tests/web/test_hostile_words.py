"""Words that people choose, on every page and in every CSV: only words."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser

import pytest
from fastapi.routing import APIRoute
from pool_world import ANN
from signin_harness import OWNER, token, user
from web_harness import Site

from gpupool.domain.people.access import Department
from gpupool.web.install import ROUTERS

MARKUP = "<script>alert(1)</script>"
IN_ATTRIBUTES = '" autofocus onfocus=alert(2) x="'
TEMPLATE = "{{ 6 * 111 }}"
FORMULA = "=HYPERLINK(evil)"
OUTPUT = "/ui/workloads/{ref}/output"  # a stream, which lasts as long as the program runs
WORDS = f"{FORMULA} {MARKUP} {IN_ATTRIBUTES} {TEMPLATE} javascript:alert(3) \u202e"


class Dangers(HTMLParser):
    """Finds code that a browser would run in a page, other than our own files."""

    def __init__(self) -> None:
        super().__init__()
        self.dangers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        bad = [name for name in given if name.startswith("on") or name in {"style", "srcdoc"}]
        bad += [v for name, v in given.items() if name in {"href", "src", "action", "formaction"} and _leads_away(v)]
        if bad or (tag == "script" and not given.get("src", "").startswith("/static/")) or tag in {"iframe", "object"}:
            self.dangers.append(f"<{tag} {given}>")


def _leads_away(url: str) -> bool:
    return not re.match(r"[/?#]|$|[\w./-]+(\?|#|$)", url) or url.startswith("//")


@pytest.fixture
def site_of_words(site: Site) -> tuple[Site, dict[str, str]]:
    """Create objects with such texts in all fields that users can set."""
    world = site.world
    user(world, "ann", uid=1001)
    services = world.services
    world.do(services.access.change_project(OWNER, "default", {"note": WORDS}))
    world.do(services.departments.create(OWNER, Department("physics", note=WORDS)))
    token(world, "ann", note=WORDS)
    work = {
        "command": ["sh", "-c", WORDS],
        "env": {"A": WORDS},
        "labels": {"label": WORDS[:63]},
        "workdir": f"/{WORDS}",
    }
    made = world.do(world.submit(ANN, **work))
    world.do(world.submit(ANN, **work, gpus={"count": 2}))
    node = next(iter(world.do(services.nodes.nodes()))).name
    world.do(services.nodes.cordon(OWNER, node, WORDS))
    world.do(world.settle())
    return site, {"ref": made.id, "name": "default", "node": node, "index": "0", "form": "html"}


def test_no_page_interprets_text_as_markup(site_of_words: tuple[Site, dict[str, str]]) -> None:
    site, there = site_of_words
    shown = 0
    for router in ROUTERS:
        for route in router.routes:
            if not isinstance(route, APIRoute) or "GET" not in route.methods or route.path in {"/live", OUTPUT}:
                continue
            there["name"] = {"/nodes": there["node"], "/users": "ann", "/depar": "physics"}.get(
                route.path[:6], "default"
            )
            path = re.sub(r"\{(\w+)[^}]*\}", lambda part: there.get(part[1], "x"), route.path)
            answer = site.get(f"{path}?find={MARKUP.replace('/', '%2F')}" if path == "/queue" else path)
            kind = answer.headers.get("content-type", "")
            if not kind.startswith("text/html"):
                assert "x-content-type-options" in answer.headers
                continue
            found = Dangers()
            found.feed(answer.text)
            assert not found.dangers, path
            assert "666" not in re.sub(r"[0-9a-f]{6,}", "", answer.text), path
            shown += "&lt;script&gt;alert" in answer.text
    assert shown >= 5


def test_output_is_sent_as_no_page(site_of_words: tuple[Site, dict[str, str]]) -> None:
    site, there = site_of_words
    world = site.world
    workload = world.do(world.get(there["ref"]))
    world.agent.output[world.program(workload)] = WORDS.encode()
    world.do(world.end(workload))
    answer = site.get(OUTPUT.format(ref=there["ref"]))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "event: chunk" in answer.text
    assert "event: end" in answer.text
    assert MARKUP not in answer.text


def test_no_csv_cell_is_a_formula(site_of_words: tuple[Site, dict[str, str]]) -> None:
    site, there = site_of_words
    paths = ["/workloads", "/queue", "/projects", "/tokens", "/nodes", "/audit", "/sessions", "/leases"]
    paths.append(f"/workloads/{there['ref']}")
    with_words = 0
    for path in paths:
        answer = site.get(f"{path}?format=csv")
        if not answer.headers["content-type"].startswith("text/csv"):
            continue
        cells = [cell for row in csv.reader(io.StringIO(answer.text)) for cell in row]
        assert not [cell for cell in cells if cell[:1] in "=+@\t\r" and cell], path
        assert not [cell for cell in cells if cell.startswith("-") and not re.fullmatch(r"-[\d.]+", cell)], path
        with_words += any("HYPERLINK" in cell for cell in cells)
    assert with_words
