"""JupyterLab in a real browser through the gateway, at an origin of its own: no tunnel, and no way to the dashboard."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from browsers import Chromium, started_chromium
from e2e_pool import RealPool, eventually
from playwright.sync_api import BrowserContext, Error, Page, expect
from test_notebook import tunnel

pytestmark = [pytest.mark.needs("jupyterlab"), pytest.mark.needs("chromium"), pytest.mark.timeout(600)]
PATIENCE_MS = 120_000  # on a busy machine; it only bounds a failing test
CELL = {
    "cell_type": "code",
    "id": "a",
    "metadata": {},
    "outputs": [],
    "execution_count": None,
    "source": "print(6 * 7)",
}
NOTEBOOK = {
    "cells": [CELL],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}
ATTACK = """async ([dashboard, workload]) => {
    const read = await fetch(dashboard + '/home', {credentials: 'include'}).then(() => 'read', () => 'refused')
    const post = {method: 'POST', mode: 'no-cors', credentials: 'include', body: new URLSearchParams({force: '1'})}
    await fetch(`${dashboard}/workloads/${workload}/stop`, post).catch(() => null)
    const socket = new WebSocket(dashboard.replace('http', 'ws') + `/ui/workloads/${workload}/terminal?index=0`)
    const opened = await new Promise(resolve => {
        socket.onopen = () => resolve('open')
        socket.onerror = () => resolve('refused')
    })
    return [read, opened, document.cookie]
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with started_chromium() as browser:
        yield browser


@pytest.fixture
def context(chromium: Chromium) -> Iterator[BrowserContext]:
    made = chromium.new_context(viewport={"width": 1000, "height": 620})
    made.set_default_timeout(PATIENCE_MS)
    yield made
    chromium.close(made)


@pytest.fixture
def lab(pool: RealPool) -> str:
    """Start JupyterLab in the pool, end its tunnel, and return its id."""
    (pool.work / "a.ipynb").write_text(json.dumps(NOTEBOOK))
    with tunnel(pool, "notebook", "--name", "lab", "-p", "0.1", "--no-browser") as made:
        made.interrupt()
    return str(pool.json("describe", "lab")["id"])


def sign_in(pool: RealPool, context: BrowserContext) -> Page:
    page = context.new_page()
    page.goto(pool.text("dashboard", "--no-open").strip())
    page.wait_for_url("**/home")
    return page


def run_cell(page: Page, origin: str) -> None:
    """Run the notebook's cell: the code and its output go over a WebSocket."""
    page.goto(f"{origin}/lab/tree/a.ipynb?reset")
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=PATIENCE_MS)
    page.locator(".jp-CodeCell .cm-content").click()
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-OutputArea-output")).to_have_text("42\n", timeout=PATIENCE_MS)


def test_click_in_the_dashboard_opens_jupyterlab_which_cannot_act_there(
    pool: RealPool, lab: str, context: BrowserContext
) -> None:
    dashboard = sign_in(pool, context)
    own = "{0.scheme}://{0.netloc}".format(urlsplit(dashboard.url))
    dashboard.goto(f"{own}/workloads/{lab}")
    with context.expect_page() as opening:
        dashboard.get_by_role("link", name="Open port").click()
    page = opening.value
    page.wait_for_url("**/lab**")
    place = urlsplit(page.url)
    assert (place.hostname or "").startswith(f"{lab}-0-")
    assert (place.hostname or "").endswith(".localhost")
    assert "gpupool_token" not in place.query
    run_cell(page, f"{place.scheme}://{place.netloc}")
    read, opened, cookies = page.evaluate(ATTACK, [own, lab])
    assert (read, opened) == ("refused", "refused")
    assert "gpupool" not in cookies
    assert pool.state_of(lab) == "running"
    names = {cookie["name"] for cookie in context.cookies() if str(cookie["domain"]).endswith(".localhost")}
    assert "gpupool-service" in names
    pool("stop", "--force", "lab")

    def closed() -> bool:
        try:
            page.goto(f"{place.scheme}://{place.netloc}/lab")
        except Error:  # the gateway ends with its last route
            return True
        return "not open" in page.content()

    assert eventually(closed)


def test_command_prints_a_link_that_opens_without_a_tunnel(pool: RealPool, lab: str, context: BrowserContext) -> None:
    link = pool.text("open", "lab", "--gateway", "--no-browser").strip()
    assert parse_qs(urlsplit(link).query).keys() == {"gpupool_token", "token"}
    page = context.new_page()
    page.goto(link)
    page.wait_for_url("**/lab**")
    request = urllib.request.Request(
        f"http://127.0.0.1:{urlsplit(link).port}/api/status", headers={"Host": urlsplit(link).netloc}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 401  # nobody else has the ticket
