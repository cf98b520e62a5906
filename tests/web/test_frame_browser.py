"""The frame of all pages in a browser: keyboard, theme, phone, live updates, accessibility."""

from __future__ import annotations

import re
import sys

import pytest
from browsers import Chromium
from e2e_pool import PATIENCE_S, eventually
from playwright.sync_api import Page, Route, expect
from web_harness import Visit, WebPool, check_accessible, check_fits, picture

from gpupool.web.rendering import NAV

LONG = ("sh", "-c", "sleep 300")
HELD = {"notebook": {"fraction": 0.25}, "trial": {"fraction": 0.5}, "resnet": {"count": 1}}
# Computes half of the time, on the driver that simulates the emulated GPUs.
WORK = """
import time
from cuda.bindings import driver as d
def ok(answer):
    assert answer[0] == 0, answer
    return answer[1] if len(answer) > 1 else None
ok(d.cuInit(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0))))))
spin = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(b"any\\0")), b"spin_50ms"))
while True:
    ok(d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
    ok(d.cuCtxSynchronize())
    time.sleep(0.05)
"""


@pytest.fixture
def busy(web_pool: WebPool) -> WebPool:
    """Start two slices of one GPU, a whole GPU, and a workload that waits."""
    with web_pool.client as client:
        held = [client.submit(LONG, name=name, gpus=gpus) for name, gpus in HELD.items()]
        client.submit(LONG, name="waits", gpus={"count": 2})
        assert eventually(lambda: all(job.refresh().status == "running" for job in held))
    return web_pool


def test_overview_is_accessible_fits_a_phone_and_shows_slices(browser_page: Page, busy: WebPool) -> None:
    page = browser_page
    page.goto("/")
    expect(page.locator(".slices .edge")).to_have_count(3)
    check_accessible(page)
    box = page.locator(".slices").first.bounding_box()
    widths = [edge.bounding_box() for edge in page.locator(".slices").first.locator(".edge").all()]
    assert box is not None
    parts = sorted(round(edge["width"] / box["width"], 2) for edge in widths if edge is not None)
    assert parts in ([0.25, 0.5], [1.0]), parts
    page.goto("/?view=table")
    expect(page.locator("#table-gpus tbody tr")).to_have_count(2)
    check_accessible(page)
    page.goto("/")
    check_fits(page)


def test_page_updates_without_reload(browser_page: Page, web_pool: WebPool) -> None:
    page = browser_page
    page.goto("/")
    expect(page.get_by_text("No workloads")).to_be_visible()
    page.evaluate("() => { window.sameDocument = true }")
    with web_pool.client as client:
        job = client.submit(LONG, name="appears")
        expect(page.locator(".slices .edge")).to_have_count(1)
        job.cancel(force=True)
    expect(page.locator(".slices .edge")).to_have_count(0)
    assert page.evaluate("() => window.sameDocument")
    expect(page.locator("[data-live-state]")).to_have_text("● Live")


def test_change_during_page_load_is_not_missed(browser_page: Page, web_pool: WebPool) -> None:
    page = browser_page

    def in_between(route: Route) -> None:
        with web_pool.client as client:
            client.submit(LONG, name="in-between")
        route.continue_()

    page.route("**/live**", in_between, times=1)
    page.goto("/workloads")
    expect(page.get_by_role("link", name="in-between")).to_be_visible()


def test_page_that_cannot_be_read_again_is_not_live(chromium: Chromium, web_pool: WebPool) -> None:
    headers = {"authorization": f"Bearer {web_pool.token()}"}
    context = chromium.new_context(base_url=web_pool.url, ignore_https_errors=True, extra_http_headers=headers)
    page, broken = context.new_page(), [True]

    def answer(route: Route) -> None:
        if broken[0] and route.request.headers.get("x-live"):
            route.fulfill(status=500, body="wrong")
        else:
            route.continue_()

    page.route("**/workloads", answer)
    page.goto("/workloads")
    expect(page.locator("[data-live-state]")).to_have_text("● Live")
    with web_pool.client as client:
        client.submit(LONG, name="unseen")
    expect(page.locator("[data-live-state]")).to_have_text("○ Not connected")
    broken[0] = False
    with web_pool.client as client:
        client.submit(LONG, name="seen-again")
    expect(page.get_by_role("link", name="seen-again")).to_be_visible()
    expect(page.locator("[data-live-state]")).to_have_text("● Live")
    context.close()


def test_windows_of_one_browser_share_a_stream(browser_page: Page, web_pool: WebPool) -> None:
    streams: list[str] = []
    context = browser_page.context
    context.on("request", lambda request: streams.append(request.url) if "/live?" in request.url else None)
    pages = [browser_page, *(context.new_page() for _ in range(7))]  # a browser has six connections to a server
    for page in pages:
        page.goto("/workloads")
    with web_pool.client as client:
        client.submit(LONG, name="for-all")
    for page in pages:
        expect(page.get_by_role("link", name="for-all")).to_be_visible()
    assert len(streams) == 1
    pages[0].close()
    with web_pool.client as client:
        client.submit(LONG, name="for-the-rest")
    for page in pages[1:]:
        expect(page.get_by_role("link", name="for-the-rest")).to_be_visible()
    assert len(streams) == 2, "another of them listens now"


@pytest.mark.needs("native")
def test_gpu_use_of_a_program_is_shown_in_its_slice(browser_page: Page, web_pool: WebPool) -> None:
    pytest.importorskip("cuda.bindings")
    with web_pool.client as client:
        job = client.submit((sys.executable, "-c", WORK), name="computes", fraction=0.5)
        page = browser_page
        page.goto("/")
        slice_ = page.locator(f'.slices a[href="/workloads/{job.id}"]')
        expect(slice_.locator(".use")).to_have_count(1, timeout=PATIENCE_S * 1000)
        expect(slice_.locator("title")).to_contain_text(re.compile(r"computes.*0\.5 GPU, uses [1-9]", re.DOTALL))
        expect(page.locator("#overview-tiles")).to_contain_text("mean of all GPUs")


def test_user_input_survives_an_update(browser_page: Page, web_pool: WebPool) -> None:
    page = browser_page
    page.goto("/?view=table")
    page.locator("[data-find]").first.fill("half a wo")
    page.evaluate(
        """() => {
            const main = document.querySelector('main');
            main.insertAdjacentHTML('beforeend', '<div id="mine" data-keep>chart</div>');
            main.querySelector('table').classList.add('seen');
        }"""
    )
    with web_pool.client as client:
        client.submit(LONG, name="change")
    expect(page.locator("#table-gpus tbody")).to_contain_text("default")
    expect(page.locator("[data-find]").first).to_have_value("half a wo")
    expect(page.locator("[data-find]").first).to_be_focused()
    expect(page.locator("#mine")).to_have_text("chart")


def test_hidden_page_closes_its_stream(browser_page: Page) -> None:
    page = browser_page
    # The page says "Live" before it has asked for the stream.
    with page.expect_response(lambda response: "/live?" in response.url):
        page.goto("/")
    expect(page.locator("[data-live-state]")).to_have_text("● Live")
    with page.expect_event("requestfailed", lambda request: "/live?" in request.url):
        page.evaluate(
            """() => {
                Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true});
                window.away = true;
                document.dispatchEvent(new Event('visibilitychange'));
            }"""
        )
    with page.expect_request("**/live**"):
        page.evaluate("() => { window.away = false; document.dispatchEvent(new Event('visibilitychange')) }")


def test_all_pages_are_reachable_by_keyboard(browser_page: Page) -> None:
    page = browser_page
    page.goto("/?view=table")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("?")
    expect(page.locator("#shortcuts")).to_be_visible()
    check_accessible(page)
    picture(page, "shortcuts")
    page.keyboard.press("Escape")
    expect(page.locator("#shortcuts")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("[data-find]").first).to_be_focused()
    page.keyboard.type("g?")
    expect(page.locator("[data-find]").first).to_have_value("g?")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(page.locator("#table-gpus tbody tr a").first).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.wait_for_url(re.compile(r"/$"))


def test_theme_is_selected_and_stored(visit: Visit) -> None:
    page = visit(color_scheme="light")
    page.goto("/")
    button = page.locator("[data-theme-switch]")
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    button.click()
    button.click()
    expect(button).to_have_text("Theme: dark")
    dark = page.evaluate(background)
    assert dark != light
    page.goto("/")
    assert page.evaluate(background) == dark
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_navigation_collapses_on_a_phone(visit: Visit) -> None:
    page = visit(width=360, height=740)
    page.goto("/")
    queue = page.get_by_role("link", name="Queue", exact=True)
    expect(queue).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    expect(queue).to_be_visible()
    check_accessible(page)
    queue.click()
    page.wait_for_url(re.compile(r"/queue$"))
    expect(queue).to_be_hidden()


def test_error_page_has_a_link_to_continue(browser_page: Page) -> None:
    page = browser_page
    page.goto("/nothing-here")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
    check_accessible(page)
    check_fits(page)
    page.get_by_role("link", name="Go to overview").click()
    page.wait_for_url(re.compile(r"/$"))


def test_first_page_works_without_scripts(visit: Visit, busy: WebPool) -> None:
    page = visit(java_script_enabled=False)
    page.goto("/?view=table")
    expect(page.locator("#table-gpus tbody tr")).to_have_count(2)
    page.get_by_role("searchbox").fill("nothing like this")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("#table-gpus tbody")).to_contain_text("Nothing matches.")
    expect(page.locator("[data-menu]")).to_be_hidden()
    expect(page.locator("[data-theme-switch]")).to_be_hidden()
    page.get_by_role("link", name="Queue", exact=True).click()
    page.wait_for_url(re.compile(r"/queue$"))


def test_every_navigation_page_has_the_frame_and_fits_a_phone(browser_page: Page, busy: WebPool) -> None:
    page = browser_page
    for item in [item for _, items in NAV for item in items]:
        page.set_viewport_size({"width": 1280, "height": 800})
        answer = page.goto(item.href)
        assert answer is not None
        assert answer.status == 200, item.href
        expect(page.locator(f'nav a[href="{item.href}"]')).to_have_attribute("aria-current", "page")
        expect(page.locator("h1")).to_have_count(1)
        check_fits(page)
