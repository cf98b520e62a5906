"""The reference page shows every operation, WebSocket, schema and error code, and its links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
import structlog
from pool_world import world_in
from web_harness import Site

from gpupool.domain.errors import ErrorCode

MEMBER_UID = 4711


class Anchors(HTMLParser):
    """Collects ids and links within the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if str(found.get("href", "")).startswith("#"):
            self.links.add(str(found["href"])[1:])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path_factory.mktemp("reference")) as world:
        yield Site(world)


def test_reference_page_is_complete(site: Site) -> None:
    answer = site.get("/reference", MEMBER_UID)
    assert answer.status_code == 200
    anchors = Anchors(answer.text)
    document = site.app.openapi()
    operations = {operation["operationId"] for item in document["paths"].values() for operation in item.values()}
    schemas = {f"schema-{name}" for name in document["components"]["schemas"]}
    assert operations | schemas | {str(code) for code in ErrorCode} <= set(anchors.ids)
    assert len(set(anchors.ids)) == len(anchors.ids)
    assert anchors.links <= set(anchors.ids)
    assert "/v1/workloads/{ref}/attach" in answer.text
    assert "HELLO" in answer.text


def test_type_of_a_problem_leads_to_its_code(site: Site) -> None:
    problem = site.get("/v1/workloads/none").json()
    path, _, anchor = problem["type"].partition("#")
    assert re.search(rf'id="{anchor}"', site.get(path).text)
