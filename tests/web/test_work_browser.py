"""The pages of work in a browser, over a real pool with real jobs: submit, watch, type, stop, run again."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect
from web_harness import Visit, WebPool, check_accessible, check_fits, picture

from gpupool.specs.request import parse_request
from gpupool.web.pages.submit.account import DEFAULT_PATH

COUNT = 'i=0; while true; do i=$((i+1)); echo "epoch $i"; sleep 0.2; done'


def start(pool: WebPool, name: str, line: str = "sleep 1000", **asked: Any) -> None:
    """Submit a line of shell, on half a GPU unless asked otherwise."""
    body: dict[str, Any] = {"name": name, "gpus": {"fraction": 0.5}}
    if asked.get("kind") != "lease":
        env = {"PATH": DEFAULT_PATH, "TERM": "xterm-256color"}
        body |= {"command": ["sh", "-c", line], "workdir": "/tmp", "env": env}
    with pool.client as client:
        client.submit(parse_request(body | {"tty": asked.get("kind") == "interactive"} | asked))


def fill_form(page: Page, **values: str) -> None:
    for name, value in values.items():
        field = page.locator(f"[name={name}]")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)


def press(page: Page, label: str) -> None:
    """Choose one of the page's actions, and confirm it."""
    page.locator(".page-actions").get_by_role("button", name=label, exact=True).click()
    page.locator("[data-confirm-yes]").click()


def screen(page: Page) -> str:
    """Return the text of the terminal."""
    rows = page.locator("gpupool-terminal .xterm-rows > div").all_inner_texts()
    return "\n".join(row.replace("\xa0", " ").rstrip() for row in rows)


def shows(page: Page, text: str) -> None:
    """Wait until the terminal shows something."""
    page.wait_for_function(
        """text => [...document.querySelectorAll('gpupool-terminal .xterm-rows > div')]
            .some(row => row.textContent.replaceAll('\\u00a0', ' ').includes(text))""",
        arg=text,
    )


def wait_for_foreground(argument: bytes, timeout_s: float = 20.0) -> None:
    """Wait until a process with this argument is in the foreground of its terminal (proc(5): ``pgrp`` is ``tpgid``)."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if argument in (process / "cmdline").read_bytes().split(b"\0"):
                    fields = (process / "stat").read_text().rpartition(")")[2].split()
                    if fields[2] == fields[5]:
                        return
            except OSError:  # it has ended
                continue
        time.sleep(0.05)
    raise AssertionError(f"no process with {argument!r} came to the foreground")


def test_job_is_submitted_watched_stopped_and_resubmitted(visit: Visit) -> None:
    page = visit()
    page.goto("/submit")
    fill_form(page, command=COUNT, name="counter", gpus="0.5", max_time="2h")
    page.locator("[name=shell]").check()
    expect(page.locator("#command-line")).to_contain_text("gpupool submit counter -g 0.5 --max-time 2h -- sh -c")
    page.get_by_test_id("ask-plan").click()
    expect(page.get_by_test_id("plan")).to_contain_text("starts now")
    picture(page, "submit")
    page.get_by_test_id("submit").click()
    expect(page).to_have_url(re.compile(r"/workloads/w"))
    expect(page.locator("h1")).to_contain_text("running")
    output = page.locator("gpupool-output pre")
    expect(output).to_contain_text("epoch 1\nepoch 2\nepoch 3", use_inner_text=True)
    expect(page.locator(".lane-bars rect.phase-running")).to_have_count(1)
    file = page.get_by_role("link", name="Download").get_attribute("href")
    saved = page.evaluate("async file => (await fetch(file)).text()", file)
    assert saved.startswith("epoch 1\nepoch 2\nepoch 3\n")
    picture(page, "workload")
    press(page, "Stop")
    expect(page.locator("h1")).to_contain_text("stopped")
    expect(page.locator("gpupool-output")).to_contain_text("Complete")
    page.get_by_role("link", name="Run again").click()
    expect(page.locator("[name=command]")).to_have_value(COUNT)
    fill_form(page, gpus="0.25", name="counter-2")
    page.get_by_test_id("submit").click()
    expect(page.locator("h1")).to_contain_text("counter-2")
    expect(page.locator(".facts")).to_contain_text("0.25")


def test_confirmed_action_is_the_one_that_was_asked_about(visit: Visit, web_pool: WebPool) -> None:
    start(web_pool, "asked")
    page = visit()
    page.goto("/workloads/asked")
    expect(page.locator("h1")).to_contain_text("running")
    page.locator(".page-actions").get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator("#confirm-question")).to_have_text("Stop asked?")
    button = page.locator(".page-actions .danger").element_handle()
    with web_pool.client as client:
        client.suspend("asked")
    expect(page.locator("h1")).to_contain_text("suspended")  # behind the question; the page's actions are others now
    assert button is not None
    assert button.evaluate("button => button.isConnected && button.textContent") == "Stop"
    page.locator("[data-confirm-yes]").click()
    expect(page.locator("h1")).to_contain_text("stopped")


def test_terminal_accepts_input_interrupts_resizes_and_reconnects(visit: Visit, web_pool: WebPool) -> None:
    start(web_pool, "session", "exec sh", kind="interactive")
    page = visit()
    page.goto("/workloads/session")
    expect(page.locator("gpupool-terminal")).to_contain_text("Connected")
    page.locator("gpupool-terminal .xterm-helper-textarea").focus()
    page.keyboard.type("PS1=; echo typed-$((40+2))\n")
    shows(page, "typed-42")
    page.keyboard.type("sleep 1000.25; echo interrupted\n")
    wait_for_foreground(b"1000.25")  # before that, Ctrl-C reaches the shell, which ignores it
    page.keyboard.press("Control+c")
    page.keyboard.type("echo after-$((1+1))\n")
    shows(page, "after-2")
    assert "\ninterrupted" not in screen(page)
    page.keyboard.type("stty size\n")
    wide = page.evaluate("() => document.querySelector('gpupool-terminal').terminal.cols")
    shows(page, f" {wide}")
    page.set_viewport_size({"width": 700, "height": 800})
    page.wait_for_function("wide => document.querySelector('gpupool-terminal').terminal.cols < wide", arg=wide)
    narrow = page.evaluate("() => document.querySelector('gpupool-terminal').terminal.cols")
    page.keyboard.type("stty size\n")
    shows(page, f" {narrow}")
    page.set_viewport_size({"width": 1280, "height": 800})
    picture(page, "terminal")
    page.keyboard.press("Shift+Escape")
    assert page.evaluate("() => !document.activeElement.closest('gpupool-terminal')")
    page.reload()
    shows(page, "after-2")
    assert web_pool.state_of("session") == "running"
    page.locator("gpupool-terminal .xterm-helper-textarea").focus()
    page.keyboard.type("exit 3\n")
    expect(page.locator("gpupool-terminal")).to_contain_text("ended with status 3")
    expect(page.locator("h1")).to_contain_text("failed")


def test_terminal_reconnects_after_lost_connection(visit: Visit, web_pool: WebPool) -> None:
    start(web_pool, "survivor", "exec sh", kind="interactive")
    page = visit()
    opened: list[WebSocketRoute] = []

    def between(socket: WebSocketRoute) -> None:
        opened.append(socket)
        socket.connect_to_server()

    page.route_web_socket(re.compile("/terminal"), between)
    page.goto("/workloads/survivor")
    page.locator("gpupool-terminal .xterm-helper-textarea").focus()
    page.keyboard.type("PS1=; echo before-$((1+1))\n")
    shows(page, "before-2")
    opened[0].close(code=1001)
    expect(page.locator("gpupool-terminal")).to_contain_text("reconnecting")
    expect(page.locator("gpupool-terminal")).to_contain_text("Connected")
    shows(page, "before-2")
    page.keyboard.type("echo again-$((1+1))\n")
    shows(page, "again-2")
    assert len(opened) == 2


def test_shell_is_opened_next_to_a_program(visit: Visit, web_pool: WebPool) -> None:
    start(web_pool, "host")
    page = visit()
    page.goto("/workloads/host")
    page.get_by_role("button", name="Open a shell").click()
    expect(page.locator(".facts")).to_contain_text("those of host")
    page.locator("gpupool-terminal .xterm-helper-textarea").focus()
    page.keyboard.type("echo gpu-$CUDA_VISIBLE_DEVICES-$((1+1))\n")
    page.wait_for_function(
        """() => [...document.querySelectorAll('gpupool-terminal .xterm-rows > div')]
            .some(row => /^gpu-.+-2/.test(row.textContent))"""
    )


def test_output_and_terminal_of_another_user_are_inaccessible(visit: Visit, web_pool: WebPool) -> None:
    start(web_pool, "hers", "echo open-sesame; exec sh", kind="interactive")
    page = visit("eve", "member")
    page.goto("/workloads/hers")
    expect(page.locator("main")).to_contain_text("visible to root")
    assert "sesame" not in page.content()
    assert page.locator("gpupool-terminal, gpupool-output").count() == 0
    reached = page.evaluate(
        """async () => {
            const id = document.querySelector('#facts-title ~ dl div:last-child code').textContent;
            const base = `/ui/workloads/${id}/`;
            const status = async path => (await fetch(base + path)).status;
            const closed = await new Promise(resolve => {
                const socket = new WebSocket(new URL(base + 'terminal', location.href.replace(/^http/, 'ws')));
                socket.onclose = event => resolve([event.code, event.reason]);
            });
            return [await status('output'), await status('output.txt'), ...closed];
        }"""
    )
    assert reached[:3] == [403, 403, 4403]
    assert reached[3].startswith("FORBIDDEN: ")


def test_queue_page_updates_automatically(visit: Visit, web_pool: WebPool) -> None:
    start(web_pool, "hog", gpus={"count": 2}, max_time="1h")
    start(web_pool, "waits", gpus={"count": 2})
    start(web_pool, "urgent", gpus={"count": 1}, priority="high")
    page = visit()
    page.goto("/queue")
    names = page.locator("#table-queue tbody td:nth-child(2) a")
    expect(names).to_have_text(["urgent", "waits"])
    expect(page.locator("#table-queue")).to_contain_text("Needs 2 GPUs")
    page.get_by_text("waits Needs").click()
    picture(page, "queue")
    page.get_by_role("link", name="waits", exact=True).click()
    expect(page.locator("#why")).to_contain_text("urgent of root: priority 100 over 0")
    page.go_back()
    with web_pool.client as client:
        client.stop("urgent")
    expect(names).to_have_text(["waits"])
    with web_pool.client as client:
        client.stop("hog", force=True)
    expect(page.locator("main")).to_contain_text("The queue is empty")


def test_lease_is_created_extended_and_released_on_page(visit: Visit) -> None:
    page = visit(reduced_motion="reduce")
    page.goto("/leases")
    page.get_by_role("link", name="Hold GPUs").click()
    expect(page.locator("[name=command]")).to_be_hidden()
    fill_form(page, name="mine", gpus="0.5", lifetime="1h")
    expect(page.locator("#command-line")).to_have_text("gpupool request_gpus --name mine -g 0.5 --for 1h")
    page.get_by_test_id("submit").click()
    expect(page.locator("h1")).to_contain_text("running")
    page.goto("/leases")
    ends = page.locator("#table-leases tbody td:nth-child(8) time")
    before = float(ends.get_attribute("data-when") or 0)
    page.get_by_role("button", name="Extend").click()
    expect(page.get_by_role("status").first).to_contain_text("extended by 1h00m")
    assert float(ends.get_attribute("data-when") or 0) == before + 3600
    picture(page, "leases")
    page.get_by_role("button", name="Release").click()
    page.locator("[data-confirm-yes]").click()
    expect(page.locator("main")).to_contain_text("No leases")


def test_work_pages_are_accessible_and_fit_a_phone(visit: Visit, web_pool: WebPool) -> None:
    start(web_pool, "term", "exec sh", kind="interactive")
    start(web_pool, "held", kind="lease", lifetime="1h")
    start(web_pool, "sweep", sweep={"grid": {"lr": [0.1, 0.01]}}, gpus={"count": 2})
    page = visit(reduced_motion="reduce")  # colours that are on their way would be judged
    for path in ("/workloads/term", "/queue", "/leases", "/submit"):
        page.goto(path)
        page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true })")
        check_accessible(page)
        check_fits(page)
        page.set_viewport_size({"width": 1280, "height": 800})


def test_terminal_keeps_up_with_bulk_output(visit: Visit, web_pool: WebPool) -> None:
    start(web_pool, "bulk", "exec sh", kind="interactive")
    page = visit()
    page.goto("/workloads/bulk")
    expect(page.locator("gpupool-terminal")).to_contain_text("Connected")
    page.locator("gpupool-terminal .xterm-helper-textarea").focus()
    page.keyboard.type("yes 0123456789abcdefghijklmnopqrstuvwxyz | head -c 8000000; echo end-$((1+1))\n")
    shows(page, "end-2")
    page.keyboard.type("yes flood\n")
    shows(page, "flood")
    page.keyboard.press("Control+c")
    page.keyboard.type("echo again-$((1+1))\n")
    shows(page, "again-2")


LOG = r"""printf '\033[1;31mred\033[0m plain \033[38;5;208morange\033[0m\n'; echo '<b>no markup</b>'
seq 1 30; echo 'Traceback (most recent call last):'; seq 31 60; echo 'ValueError: wrong'; seq 61 90; echo done 88"""


def test_output_has_colours_search_times_and_errors(visit: Visit, web_pool: WebPool) -> None:
    start(web_pool, "coloured", LOG, kind="training")
    page = visit()
    page.goto("/workloads/coloured")
    output = page.locator("gpupool-output")
    expect(output).to_contain_text("Complete")
    expect(output.locator(".sgr-bold.fg-1")).to_have_text("red")
    assert output.get_by_text("orange").evaluate("e => getComputedStyle(e).color") == "rgb(255, 135, 0)"
    expect(output.locator("b")).to_have_count(0)
    output.get_by_label("Search the output").fill("88")
    expect(output).to_contain_text("2 matches")
    output.get_by_role("button", name="Next", exact=True).click()
    expect(output.locator(".hit-now")).to_have_text("88")
    output.get_by_role("button", name="Next", exact=True).click()
    expect(output.locator(".hit-now")).to_have_text("done 88")
    expect(output).to_contain_text("2 of 2 matches")
    output.get_by_role("button", name="Next error").click()
    expect(output.locator(".hit-now")).to_contain_text("Traceback")
    output.get_by_role("button", name="Next error").click()
    expect(output.locator(".hit-now")).to_have_text("ValueError: wrong")
    output.get_by_label("Times").check()
    shown = output.locator(".line").first.evaluate("line => getComputedStyle(line, '::before').content")
    assert re.fullmatch(r'"\d{1,2}:\d\d:\d\d"', shown)
    check_accessible(page)
    check_fits(page)


def test_whole_output_is_shown_on_request(visit: Visit, web_pool: WebPool) -> None:
    start(web_pool, "long-log", "echo first-line; seq 1 9000; echo last-line", kind="training")
    page = visit()
    page.goto("/workloads/long-log")
    output = page.locator("gpupool-output")
    expect(output).to_contain_text("last-line")
    assert "first-line" not in output.locator("pre").inner_text()
    output.get_by_role("button", name="Whole output").click()
    expect(output).to_contain_text("Complete")
    expect(output.locator(".line")).to_have_count(9002)
    expect(output.locator(".line").first).to_have_text("first-line")


def test_whole_output_says_that_older_output_was_deleted(visit: Visit, web_pool: WebPool) -> None:
    script = "for i in 1 2 3 4; do head -c 400000 /dev/zero | tr '\\0' a; echo; sleep 0.2; done; echo last-line"
    start(web_pool, "cut-log", script, kind="training", log_limit="1M")
    page = visit()
    page.goto("/workloads/cut-log")
    output = page.locator("gpupool-output")
    expect(output).to_contain_text("last-line")
    output.get_by_role("button", name="Whole output").click()
    expect(output.locator(".line").first).to_have_text("Older output was deleted: the log reached its size limit.")
    expect(output).to_contain_text("last-line")


def test_workloads_page_shows_25_rows_on_a_laptop_and_changes_selected_ones(visit: Visit, web_pool: WebPool) -> None:
    for number in range(30):
        start(web_pool, f"many-{number}", "exit 3", kind="training", restart="never", gpus={"fraction": 0.02})
    page = visit()
    page.set_viewport_size({"width": 1366, "height": 768})
    page.goto("/workloads?name=many")
    expect(page.locator("#table-workloads tbody tr")).to_have_count(30)
    expect(page.locator("#table-workloads")).to_contain_text("exited with status 3")
    count = page.evaluate(
        """() => [...document.querySelectorAll('#table-workloads tbody tr')]
            .filter(row => row.getBoundingClientRect().bottom <= innerHeight).length"""
    )
    assert count >= 25
    assert page.get_by_label("Select many-3", exact=True).bounding_box()["x"] < 1366, "in view without scrolling"
    command = page.locator('#table-workloads td[data-label="Command"]').first
    assert command.bounding_box()["width"] > 120
    assert "exit 3" in (command.get_attribute("title") or command.inner_text())
    check_accessible(page)
    check_fits(page)
    page.get_by_label("Select many-3", exact=True).check()
    page.get_by_label("Select many-4", exact=True).check()
    page.locator("#bulk").get_by_role("button", name="Delete").click()
    page.locator("[data-confirm-yes]").click()
    expect(page.locator("#table-workloads tbody tr")).to_have_count(28)
    expect(page.locator("body")).to_contain_text("Delete: 2 of 2 workloads.")
    page.get_by_label("Select all on this page").check()
    page.locator("#bulk").get_by_role("button", name="Delete").click()
    page.locator("[data-confirm-yes]").click()
    expect(page.locator("body")).to_contain_text("Delete: 28 of 28 workloads.")


@pytest.mark.parametrize("address", ["/nodes?find=vm", "/audit?reason=STARTED", "/queue?find=x", "/leases?sort=-held"])
def test_view_of_a_list_is_saved_and_deleted(browser_page: Page, web_pool: WebPool, address: str) -> None:
    start(web_pool, "viewed", "sleep 60")
    page = browser_page
    page.goto(address)
    page.get_by_label("Save this view as").fill("mine")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("link", name="mine", exact=True)).to_have_attribute("aria-current", "true")
    check_accessible(page)
    check_fits(page)
    page.get_by_role("button", name="Delete view").click()
    expect(page.get_by_role("link", name="mine", exact=True)).to_have_count(0)


def test_home_page_fits_and_is_accessible(visit: Visit, web_pool: WebPool) -> None:
    start(web_pool, "at-home")
    start(web_pool, "wrong-at-home", "exit 3", kind="training", restart="never", gpus={"fraction": 0.1})
    page = visit()
    for width in (1366, 390):
        page.set_viewport_size({"width": width, "height": 768})
        page.goto("/home")
        expect(page.locator("#main")).to_contain_text("at-home")
        expect(page.locator("#main")).to_contain_text("exited with status 3")
        check_accessible(page)
        check_fits(page)
        picture(page, f"home-{width}")


def test_view_is_saved_opened_and_deleted_on_a_phone(visit: Visit, web_pool: WebPool) -> None:
    start(web_pool, "kept")
    page = visit(width=390, height=844)
    page.goto("/workloads?state=live&name=kept")
    expect(page.locator("#table-workloads tbody tr")).to_have_count(1)
    page.get_by_label("Save this view as").fill("My kept work")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("body")).to_contain_text("View My kept work saved.")
    page.goto("/workloads")
    page.get_by_role("link", name="My kept work").click()
    expect(page).to_have_url(re.compile(r"state=live&name=kept"))
    check_fits(page, 390)
    check_accessible(page)
    page.get_by_role("button", name="Delete view").click()
    expect(page.get_by_role("link", name="My kept work")).to_have_count(0)


def test_new_pages_fit_a_phone_and_are_accessible(visit: Visit, web_pool: WebPool) -> None:
    with web_pool.client as client:
        client.submit(["sleep", "600"], name="tuned", gpus={"fraction": 0.1}, sweep={"grid": {"lr": [0.1, 0.2]}})
    page = visit()
    for path in ("/workloads/tuned/results", "/reference"):
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(path)
        expect(page.locator("h1")).to_have_count(1)
        check_fits(page, 390)
        check_accessible(page)


def test_times_have_seconds_and_their_age(visit: Visit, web_pool: WebPool) -> None:
    with web_pool.client as client:
        client.submit(["true"], name="short", gpus=1).wait()
    page = visit()
    page.goto("/workloads/short")
    shown = page.locator("#table-events time")
    assert shown.count() >= 3
    for index in range(shown.count()):
        assert re.search(r"\d\d:\d\d:\d\d$", shown.nth(index).inner_text())
        assert re.search(r", \d+s ago$", shown.nth(index).get_attribute("title") or "")
    check_accessible(page)
