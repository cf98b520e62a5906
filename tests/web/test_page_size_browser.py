"""The number of rows of a page, chosen in a browser."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect
from web_harness import Visit, WebPool, check_accessible, check_fits

WAITING = 60


def rows(page: Page) -> int:
    return page.locator("#table-queue tbody tr").count()


def test_number_of_rows_is_chosen_and_kept(visit: Visit, web_pool: WebPool) -> None:
    with web_pool.client as client:
        client.submit(["sleep", "1000"], name="holder", gpus=2)
        for index in range(WAITING):
            client.submit(["true"], name=f"waits-{index}", gpus=2)
    page = visit()
    page.goto("/queue?sort=-waits")
    sizes = page.get_by_role("navigation", name="Rows per page of queue")
    expect(sizes.get_by_role("link")).to_have_text(["25", "50", "100", "200"])
    expect(sizes.locator("[aria-current]")).to_have_text("50")
    assert rows(page) == 50
    check_accessible(page)

    sizes.get_by_role("link", name="25").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"[?&]rows=25"))
    assert rows(page) == 25
    page.get_by_role("link", name="Next").click()
    page.wait_for_url(re.compile(r"[?&]page=2"))
    assert rows(page) == 25
    expect(page.get_by_text("Page 2 of 3")).to_be_visible()
    page.locator("#table-queue thead").get_by_role("link", name="Workload").click()
    page.wait_for_url(re.compile(r"sort=name"))
    assert rows(page) == 25
    page.get_by_label("Find in queue").fill("waits")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"find=waits"))
    assert rows(page) == 25

    sizes.get_by_role("link", name="200").click()
    page.wait_for_url(re.compile(r"[?&]rows=200"))
    assert rows(page) == WAITING
    expect(sizes.locator("[aria-current]")).to_have_text("200")
    check_accessible(page)
    check_fits(page)


def test_short_tables_have_no_choice(visit: Visit, web_pool: WebPool) -> None:
    page = visit()
    page.goto("/nodes?rows=25")
    page.locator("#table-nodes tbody tr").first.wait_for()
    expect(page.get_by_role("navigation", name="Rows per page of nodes")).to_have_count(0)
