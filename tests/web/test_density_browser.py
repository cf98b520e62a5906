"""Lists fit the screen in a browser: 25 rows on a laptop, short rows on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page
from web_harness import Visit, WebPool, check_accessible, check_fits

ROWS = 25
MAX_PHONE_ROW = 260  # pixels: the name, the sentence and the values take two or three lines each
LAPTOP = {"width": 1440, "height": 900}
NAME = "bert-base-uncased-finetune-squad2-seed"
COMMAND = ["python3", "train.py", "--data", "/datasets/imagenet/ilsvrc2012/train", "--epochs", "90", "--lr", "0.1"]


def fill(pool: WebPool, count: int) -> None:
    """Hold one GPU with small slices, and let as many workloads wait for two whole GPUs."""
    with pool.client as client:
        for index in range(count):
            client.submit(["sleep", "1000"], name=f"slice-of-{NAME}{index}", gpus=1, fraction=0.02)
        for index in range(count):
            client.submit(COMMAND, name=f"{NAME}{index}", gpus=2)


def visible_rows(page: Page) -> int:
    """Return the number of rows of the table that are within the first screen."""
    return int(
        page.evaluate(
            """() => [...document.querySelectorAll('.listing tbody tr')]
                .filter(row => row.getBoundingClientRect().bottom <= innerHeight).length"""
        )
    )


@pytest.fixture(scope="module")
def web_pool(shared_web_pool: WebPool) -> Iterator[WebPool]:
    """Yield the shared pool with full lists: the tests of this file only look at them."""
    fill(shared_web_pool, 26)
    yield shared_web_pool
    shared_web_pool.clear()


@pytest.mark.parametrize("path", ["/workloads", "/queue", "/leases", "/audit"])
def test_list_has_25_rows_on_a_laptop(visit: Visit, path: str) -> None:
    page = visit(**LAPTOP)
    page.goto(path)
    page.wait_for_function("rows => document.querySelectorAll('.listing tbody tr').length >= rows", arg=ROWS)
    assert visible_rows(page) >= ROWS
    check_accessible(page)


CUT = """row => [...row.querySelectorAll('td, td a')].filter(e => e.scrollWidth > e.clientWidth + 1
    && !e.closest('.row-actions') && getComputedStyle(e).display !== 'inline').map(e => e.textContent)"""


@pytest.mark.parametrize(
    ("path", "width"),
    [("/workloads", 1440), ("/workloads", 1366), ("/queue", 1440), ("/queue", 1366), ("/leases", 1180)],
)
def test_cut_texts_are_shown_to_the_keyboard(visit: Visit, path: str, width: int) -> None:
    page = visit(width=width, height=768)
    page.goto(path)
    row = page.locator(".listing tbody tr").filter(has_text=f"{NAME}1").first
    assert row.evaluate(CUT), "a test of texts that are cut needs some"
    page.keyboard.press("j")
    row.get_by_role("link").first.focus()
    assert row.evaluate(CUT) == []
    check_accessible(page)
    page.evaluate("document.activeElement.blur()")
    page.locator("tr.at").evaluate_all("rows => rows.forEach(row => row.classList.remove('at'))")
    assert row.evaluate(CUT)


@pytest.mark.parametrize("path", ["/workloads", "/queue", "/leases"])
def test_cut_texts_are_shown_to_a_finger(visit: Visit, path: str) -> None:
    page = visit(width=1180, height=820, has_touch=True)
    page.goto(path)
    row = page.locator(".listing tbody tr").filter(has_text=f"{NAME}1").first
    assert row.evaluate(CUT), "a test of texts that are cut needs some"
    row.locator("td[data-label=GPUs]").tap()
    assert row.evaluate(CUT) == []
    assert page.url.endswith(path)


def test_click_does_not_move_the_link(visit: Visit) -> None:
    page = visit(**LAPTOP)
    page.goto("/queue")
    link = page.locator(".listing tbody tr").nth(1).get_by_role("link").first
    box = link.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + 10)
    page.mouse.down()
    assert link.bounding_box() == box
    page.mouse.up()
    page.wait_for_url(re.compile("/workloads/w"))


@pytest.mark.parametrize("path", ["/home", "/workloads", "/queue", "/leases", "/audit"])
def test_rows_are_short_on_a_phone(visit: Visit, path: str) -> None:
    page = visit(width=390, height=844, is_mobile=True, has_touch=True)
    page.goto(path)
    heights = page.locator("main tbody tr").evaluate_all("rows => rows.map(row => row.getBoundingClientRect().height)")
    assert sorted(heights)[len(heights) // 2] < MAX_PHONE_ROW
    cut = page.locator("main tbody a").evaluate_all(
        "links => links.filter(link => link.getBoundingClientRect().right > innerWidth).map(link => link.textContent)"
    )
    assert not cut
    check_fits(page)


def test_workloads_fit_a_narrow_window(visit: Visit) -> None:
    page = visit(width=1100, height=800)
    page.goto("/workloads")
    page.locator("#table-workloads time").first.wait_for()
    assert page.locator("#table-workloads").evaluate("table => table.scrollWidth <= table.clientWidth")
