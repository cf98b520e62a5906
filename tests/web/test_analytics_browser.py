"""Charts, analytics and reports in a browser: drawn, read aloud, as tables, as files."""

from __future__ import annotations

import re
import time

from e2e_pool import eventually
from playwright.sync_api import Locator, Page, expect
from web_harness import Visit, WebPool, check_accessible, check_fits, picture


def fetched(page: Page, link: Locator) -> str:
    """Return the file behind a link; a download would lack the token that identifies this browser."""
    text: str = page.evaluate("url => fetch(url).then(answer => answer.text())", link.get_attribute("href"))
    return text


def hour_with_a_lease(page: Page, pool: WebPool) -> Locator:
    """The chart of GPUs of an hour, in the last second of which one is held: 61 minutes, the first and last in part."""
    pool("submit", "trainer", "--", "sleep", "600")
    assert eventually(lambda: "trainer" in pool.text("ps", "--state", "running"))
    held = int(time.time()) + 1  # charts are of whole seconds
    until = held + (held % 60 == 0)
    assert eventually(lambda: time.time() >= until)
    page.goto(f"/analytics?since={until - 3600}&until={until}")
    return page.locator("#chart-gpus")


def test_charts_are_drawn_and_accessible(browser_page: Page, web_pool: WebPool) -> None:
    page, gpus = browser_page, hour_with_a_lease(browser_page, web_pool)
    expect(gpus.locator("canvas")).to_be_visible()
    expect(gpus.get_by_role("button", name=re.compile("held"))).to_have_attribute("aria-pressed", "true")
    gpus.locator(".chart-area").focus()
    page.keyboard.press("End")
    expect(gpus.locator(".chart-values-read")).to_contain_text(re.compile(r"held: [0-9.]+ GPUs"))
    gpus.get_by_text("As a table").click()
    expect(gpus.locator("tbody tr")).to_have_count(61)
    gpus.get_by_role("button", name=re.compile("computing")).click()
    expect(gpus.get_by_role("button", name=re.compile("computing"))).to_have_attribute("aria-pressed", "false")
    assert fetched(page, gpus.get_by_role("link", name="CSV")).startswith("time,epoch_s,held (GPUs)")
    axis = "splits => import(document.querySelector('[data-module]').dataset.module).then(m => m.ticks(splits, 'MiB'))"
    assert page.evaluate(axis, [0, 256, 512]) == ["0 MiB", "256 MiB", "512 MiB"]
    assert page.evaluate(axis, [0, 512, 1024]) == ["0 GiB", "0.5 GiB", "1 GiB"], "an axis has one unit"
    small = axis.replace("MiB", "%")
    assert page.evaluate(small, [0, 0.02, 0.04]) == ["0 %", "0.02 %", "0.04 %"], "ticks differ"
    assert page.evaluate(small, [0, 50, 100]) == ["0 %", "50 %", "100 %"]
    check_accessible(page)
    picture(page, "analytics")


def test_layout_is_stable_when_focus_moves(browser_page: Page, web_pool: WebPool) -> None:
    """The legend stops reading a moment when the focus leaves the figure, not between press and release of a button."""
    page, gpus = browser_page, hour_with_a_lease(browser_page, web_pool)
    expect(gpus.locator("canvas")).to_be_visible()
    legend, table = gpus.locator(".chart-legend"), gpus.get_by_text("As a table")
    at_rest = legend.inner_text()
    gpus.locator(".chart-area").focus()
    page.keyboard.press("Home")
    expect(legend).not_to_have_text(at_rest)
    reads = legend.inner_text()
    table.scroll_into_view_if_needed()
    where = table.bounding_box()
    assert where is not None
    page.mouse.move(where["x"] + 5, where["y"] + 5)
    page.mouse.down()
    assert (table.bounding_box(), legend.inner_text()) == (where, reads)
    page.mouse.up()
    expect(gpus.locator("tbody tr")).to_have_count(61)
    page.get_by_role("link", name="Week", exact=True).focus()
    expect(legend).to_have_text(at_rest)


def test_period_and_grouping_are_in_the_url(browser_page: Page, web_pool: WebPool) -> None:
    web_pool("submit", "trainer", "--", "sleep", "600")
    page = browser_page
    page.goto("/analytics")
    page.get_by_role("link", name="Week", exact=True).click()
    expect(page).to_have_url(re.compile("range=7d"))
    expect(page.get_by_role("link", name="Week", exact=True)).to_have_attribute("aria-current", "true")
    page.get_by_label("Group GPUs by").get_by_role("link", name="Project").click()
    expect(page).to_have_url(re.compile("range=7d&by=project"))
    expect(page.locator("#chart-held-project .chart-area")).not_to_contain_text("Loading")
    check_fits(page)


def test_report_is_selected_shown_and_downloaded(visit: Visit, web_pool: WebPool) -> None:
    web_pool("submit", "trainer", "--", "true")
    web_pool("wait", "trainer")
    page = visit(user="vera", role="viewer")
    page.goto("/reports")
    page.get_by_label("Time", exact=True).select_option("7d")
    page.get_by_label("Group by").select_option("user")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("period=7d.*by=user"))
    expect(page.locator("#table-report")).to_be_visible()
    assert "GPU use by user" in fetched(page, page.get_by_role("link", name="HTML", exact=True))
    check_accessible(page)
    picture(page, "reports")
    check_fits(page)
    page.set_viewport_size({"width": 1366, "height": 768})
    tops = [one.bounding_box()["y"] for one in page.locator(".report-form :is(input, select, button)").all()]
    assert max(tops) - min(tops) < 30, "the form takes one row on a laptop"


def test_analytics_fit_a_phone(visit: Visit, web_pool: WebPool) -> None:
    with web_pool.client as client:
        client.submit(["sleep", "1000"], name="holder", gpus=2)
        client.submit(["true"], name="waits-for-bert-base-uncased-finetune-squad2-seed1-long", gpus=2)
    page = visit(width=390, height=844, is_mobile=True, has_touch=True)
    page.goto("/analytics")
    page.get_by_role("link", name="waits-for").wait_for()
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    inside = page.locator(".grid .card").evaluate_all(
        "cards => cards.every(card => card.scrollWidth <= card.clientWidth)"
    )
    assert inside
