"""Fixtures of pages: ``site`` without a browser, ``browser_page`` and ``visit`` in one over ``web_pool``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

sys.path.insert(0, str(Path(__file__).parent.parent / "services"))
sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))

from browsers import Chromium, started_chromium
from e2e_pool import folder_for_pool
from playwright.sync_api import BrowserContext, Page, expect
from pool_world import world_in
from web_harness import Site, Visit, WebPool

from shared_pools import SharedPools

PATIENCE_MS = 20_000  # on a busy machine; it only bounds a failing test
expect.set_options(timeout=PATIENCE_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests in a browser last: Playwright's event loop stays in this thread, and no other can run there then."""
    items.sort(key=lambda item: "chromium" in getattr(item, "fixturenames", ()))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path) as world:
        yield Site(world)


@contextmanager
def started_web_pool() -> Iterator[WebPool]:
    with folder_for_pool() as folder:
        pool = WebPool(folder, "2xT4")
        try:
            pool.start()
            yield pool
        finally:
            pool("down", "--stop-jobs", ok=False)


@pytest.fixture(scope="module")
def shared_web_pool(shared_pools: SharedPools) -> Iterator[WebPool]:
    with shared_pools.use("web", started_web_pool) as made:
        yield made


@pytest.fixture
def web_pool(shared_web_pool: WebPool) -> Iterator[WebPool]:
    """Yield two free emulated GPUs of the shared pool; afterwards stop workloads and delete projects of the test."""
    yield shared_web_pool
    shared_web_pool.clear()
    shared_web_pool.delete_projects()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """Yield a browser for each module: while Playwright runs, its event loop counts as running and no other may run."""
    with started_chromium() as browser:
        yield browser


@pytest.fixture
def visit(chromium: Chromium, web_pool: WebPool) -> Iterator[Visit]:
    """Return ``visit(user="", role="", width=1280, height=800, ...)``: a page that is signed in as a user.

    A test fails at its end when any of its pages logged an error: a script that broke, or what the CSP forbids.
    """
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def open_as(user: str = "", role: str = "", width: int = 1280, height: int = 800, **options: Any) -> Page:
        context = chromium.new_context(
            base_url=web_pool.url,
            ignore_https_errors=True,
            extra_http_headers={"authorization": f"Bearer {web_pool.token(user, role)}"},
            viewport={"width": width, "height": height},
            **options,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        return page

    yield open_as
    chromium.close(*contexts)
    unexpected = [problem for problem in problems if "status of 4" not in problem]  # asked for in a test
    assert not unexpected, unexpected


@pytest.fixture
def browser_page(visit: Visit) -> Page:
    """Return a page of a desktop browser signed in as the pool's owner; ``page.goto("/queue")``."""
    return visit()
