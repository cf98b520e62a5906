"""``gpupool dashboard`` as people use it, and the pages before sign-in in a real browser."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsers import Chromium
from e2e_pool import eventually
from playwright.sync_api import Error, Page
from web_harness import WebPool, check_accessible, check_fits, picture


@pytest.fixture
def page(chromium: Chromium) -> Iterator[Page]:
    context = chromium.new_context(ignore_https_errors=True)
    page = context.new_page()
    page.set_default_timeout(20_000)
    yield page
    chromium.close(context)


def test_dashboard_command_opens_signed_in_browser(web_pool: WebPool, page: Page, tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    env = {**web_pool.env, "BROWSER": str(browser)}
    said = web_pool("dashboard", env=env)
    assert b"opened in your browser" in said.stderr
    assert not said.stdout  # the link is nobody else's business
    assert eventually(lambda: opened.exists() and opened.read_text().endswith("\n"))
    page.goto(opened.read_text().strip())
    assert page.url == f"{web_pool.json('status')['pool']['dashboard']}/home"
    assert "code" not in page.evaluate("document.referrer")
    assert page.get_by_role("heading", level=1).inner_text()
    page.go_back()
    assert page.url == "about:blank"  # the link is not in the history


def test_sessions_are_listed_and_ended(web_pool: WebPool, page: Page) -> None:
    page.goto(web_pool.text("dashboard", "--no-open").strip())
    newest = web_pool.json("dashboard", "--sessions")["sessions"][0]
    assert newest["local"]
    assert newest["id"] in web_pool.text("dashboard", "--sessions")
    web_pool("dashboard", "--end", newest["id"])
    with contextlib.suppress(Error):  # the page has noticed by itself and is on its way
        page.reload()
    page.wait_for_url("**/login**")
    assert b"NOT_FOUND" in web_pool("dashboard", "--end", newest["id"], ok=False).stderr


def test_button_signs_out(web_pool: WebPool, page: Page) -> None:
    page.goto(web_pool.text("dashboard", "--no-open").strip())
    page.goto(page.url.removesuffix("home") + "sessions")
    check_accessible(page)
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login**")
    page.go_back()
    page.wait_for_url("**/login**")  # pages are not kept


def test_dashboard_command_over_network_prints_link_with_confirmation(web_pool: WebPool, page: Page) -> None:
    away = {k: v for k, v in web_pool.env.items() if not k.startswith("GPUPOOL_")}
    away |= {"GPUPOOL_URL": web_pool.url, "GPUPOOL_TOKEN": web_pool.token("grace", "viewer")}
    away |= {"GPUPOOL_CA": str(web_pool.state / "tls" / "cert.pem"), "BROWSER": "false"}
    link = web_pool.text("dashboard", env=away).strip()
    assert link.startswith(f"{web_pool.url}/login/link?code=")
    page.goto("data:text/html,<a id=a>go</a>")
    page.evaluate("url => { document.getElementById('a').href = url }", link)
    page.click("#a")
    page.get_by_role("button", name="Sign in as grace").click()
    page.wait_for_url(f"{web_pool.url}/home")
    assert "grace viewer" in " ".join(page.inner_text("header").split())


def test_sign_in_page_accepts_token(web_pool: WebPool, page: Page) -> None:
    problems: list[str] = []
    page.on("console", lambda said: problems.append(said.text) if "Security" in said.text else None)
    page.goto(f"{web_pool.url}/queue?sort=-age")
    check_accessible(page)
    picture(page, "sign-in")
    page.get_by_role("textbox", name="Token").fill("gpt_wrong")
    page.get_by_role("button", name="Sign in").click()
    assert "token is unknown" in page.get_by_role("alert").inner_text()
    check_fits(page)
    page.get_by_role("textbox", name="Token").fill(web_pool.token())
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{web_pool.url}/queue?sort=-age")
    assert not problems


def test_status_prints_the_dashboard_url(web_pool: WebPool) -> None:
    said = web_pool.text("status")
    assert f"http://127.0.0.1:{web_pool.json('status')['pool']['dashboard'].rpartition(':')[2]}" in said
    assert f"https://127.0.0.1:{web_pool.port}" in said
    assert os.stat(web_pool.state / "config.json").st_mode & 0o777 == 0o600  # noqa: PTH116 - a string
