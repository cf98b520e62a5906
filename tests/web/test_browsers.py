"""A browser that hangs does not hang the tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from browsers import Chromium
from playwright.sync_api import sync_playwright


@pytest.fixture
def chromium() -> Iterator[Chromium]:
    with sync_playwright() as playwright:
        browser = Chromium(playwright, closes_s=1.0)
        yield browser
        browser.end()


def test_browser_that_does_not_close_is_replaced(chromium: Chromium) -> None:
    context = chromium.new_context()
    context.new_page().goto("data:text/html,<title>first</title>")
    first = set(chromium.processes())
    assert first
    for pid in first:
        os.kill(pid, signal.SIGSTOP)
    with pytest.warns(UserWarning, match="did not close"):
        chromium.close(context)
    page = chromium.new_context().new_page()
    page.goto("data:text/html,<title>second</title>")
    assert page.title() == "second"
    assert not first & set(chromium.processes())
