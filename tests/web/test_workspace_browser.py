"""Workspaces in a browser, over a real pool: create, start, open, snapshot, restore, delete, and ports of a session."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from e2e_pool import eventually
from playwright.sync_api import expect
from web_harness import Visit, WebPool, look, say_yes

SERVE = "import http.server as h; h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler).serve_forever()"


@pytest.fixture
def pool(web_pool: WebPool) -> Iterator[WebPool]:
    """Delete the workspaces that a test leaves."""
    yield web_pool
    web_pool.clear()
    with web_pool.client as client:
        for row in client.workspaces():
            assert eventually(lambda row=row: client.workspace(row.id).state == "stopped")
            client.delete_workspace(row.id)


def in_home(pool: WebPool, command: str) -> str:
    return pool.text("exec", "bob", "--", "sh", "-c", command)


def test_workspace_is_created_started_copied_and_deleted(visit: Visit, pool: WebPool) -> None:
    page = visit(reduced_motion="reduce")
    page.goto("/workspaces")
    expect(page.locator("main")).to_contain_text("No workspaces")
    page.get_by_text("New workspace").click()
    page.locator("[name=name]").fill("bob")
    page.locator("[name=gpus]").fill("0.25")
    page.get_by_role("button", name="Create workspace").click()
    expect(page.locator(".notice")).to_contain_text("Workspace bob created")
    expect(page.locator("h1")).to_contain_text("stopped")

    page.get_by_label("GPUs", exact=True).fill("0.5")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("h1")).to_contain_text("running")
    assert sorted(pool.free_permille()) == [500, 1000]
    in_home(pool, "echo first > data")
    with pool.client as client:
        client.stop_workspace("bob")
    expect(page.locator("h1")).to_contain_text("stopped")

    page.get_by_label("Snapshot name").fill("clean")
    page.get_by_role("button", name="Save a snapshot").click()
    expect(page.locator("#table-snapshots")).to_contain_text("clean")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("h1")).to_contain_text("running")
    in_home(pool, "echo second > data")
    look(page)
    page.get_by_role("button", name="Stop", exact=True).click()
    say_yes(page)
    expect(page.locator("h1")).to_contain_text("stopped")
    page.get_by_text("Delete this workspace").click()
    look(page, "workspace")
    page.get_by_role("button", name="Restore").click()
    expect(page.locator("#confirm-question")).to_contain_text("The present files are lost")
    say_yes(page)
    expect(page.locator(".notice")).to_contain_text("bob restored from clean")

    page.goto("/workspaces")
    look(page, "workspaces")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("h1")).to_contain_text("running")
    assert in_home(pool, "cat data") == "first\n"
    page.get_by_role("button", name="Stop", exact=True).click()
    say_yes(page)
    expect(page.locator("h1")).to_contain_text("stopped")
    page.get_by_text("Delete this workspace").click()
    expect(page.locator("#delete")).to_contain_text(re.compile(r"its home and 1 snapshot \(.* on "))
    page.get_by_label("Type bob to confirm").fill("bob")
    page.get_by_role("button", name="Delete", exact=True).last.click()
    expect(page.locator(".notice")).to_contain_text("Workspace bob deleted")
    expect(page.locator("main")).to_contain_text("No workspaces")


def test_shell_of_a_workspace_starts_in_its_home(visit: Visit, pool: WebPool) -> None:
    with pool.client as client:
        client.create_workspace("bob", 0)
        client.start_workspace("bob")
    page = visit()
    page.goto("/workspaces")
    page.get_by_role("button", name="Open a shell").click()
    expect(page.locator("gpupool-terminal")).to_contain_text("Connected")
    page.locator("gpupool-terminal .xterm-helper-textarea").focus()
    page.keyboard.type("[ $PWD = $HOME ] && [ $HOME = $GPUPOOL_WORKSPACE_HOME ] && echo at-$((40+2))\n")
    page.wait_for_function(
        """() => [...document.querySelectorAll('gpupool-terminal .xterm-rows > div')]
            .some(row => row.textContent.includes('at-42'))"""
    )


def test_port_of_a_session_is_shown_with_the_command_that_opens_it(visit: Visit, pool: WebPool) -> None:
    with pool.client as client:
        client.create_workspace("bob", 0)
        session = client.start_workspace("bob").session
        assert eventually(lambda: client.workspace("bob").state == "running")
        page = visit(reduced_motion="reduce", permissions=["clipboard-read", "clipboard-write"])
        page.goto(f"/workloads/{session}")
        assert page.locator("#ports").count() == 0
        client.submit(("python3", "-c", SERVE), kind="exec", on=session)
    row = page.locator("#ports li")
    expect(row).to_contain_text(re.compile(r"python3 on port [0-9]+\s+gpupool open bob [0-9]+"))
    row.get_by_role("button", name="Copy the command").click()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    look(page, "ports")
    tunnel = pool.begin(*copied.split()[1:], "--no-browser")
    try:
        assert tunnel.stdout is not None
        address = tunnel.stdout.readline().decode().strip()
        other = visit()
        other.set_extra_http_headers({})
        answer = other.goto(address)
        assert answer is not None
        assert answer.ok
        expect(other.locator("h1")).to_contain_text("Directory listing")
        other.close()  # before the end of the tunnel, which it would report as an error
    finally:
        tunnel.terminate()
        tunnel.communicate(timeout=60)
    stranger = visit("eve", "member")
    stranger.goto(f"/workloads/{session}")
    expect(stranger.locator("h1")).to_contain_text("bob")
    assert stranger.locator("#ports").count() == 0
    stranger.goto("/workspaces")
    expect(stranger.locator("main")).to_contain_text("No workspaces")
