"""The pages of administrators in a browser, over a real pool with real jobs: each page and each action, by roles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from e2e_pool import eventually
from playwright.sync_api import Page, expect
from web_harness import Visit, WebPool, check_accessible, check_fits, picture, say_yes

LONG = ("sh", "-c", "sleep 300")


@pytest.fixture
def api(web_pool: WebPool) -> Iterator[httpx2.Client]:
    """Return the client of the pool's owner on the unix socket."""
    with httpx2.Client(
        transport=httpx2.HTTPTransport(uds=str(web_pool.run / "api.sock")), base_url="http://p/v1"
    ) as http:
        yield http


@pytest.fixture
def node(api: httpx2.Client) -> str:
    return str(api.get("nodes").json()["nodes"][0]["name"])


def submit(api: httpx2.Client, name: str, gpus: float, *, runs: bool = True, **more: Any) -> None:
    asked = {"count": int(gpus)} if gpus >= 1 else {"fraction": gpus}
    body = {"name": name, "kind": "training", "command": LONG, "gpus": asked, "workdir": "/tmp", **more}
    assert api.post("workloads", json=body).status_code == 201
    assert not runs or eventually(lambda: state(api, name) == "running")


def state(api: httpx2.Client, name: str) -> str:
    return str(api.get(f"workloads/{name}").json()["state"])


def fill(page: Page, within: str, **values: str) -> None:
    for name, value in values.items():
        field = page.locator(f"{within} [name={name}]")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)


def send(page: Page, label: str, *, within: str = "main") -> None:
    page.locator(within).get_by_role("button", name=label, exact=True).click()


def said(page: Page, text: str) -> None:
    expect(page.locator(".notice")).to_contain_text(text)


def looked_over(page: Page, name: str = "", *, like_others: bool = False) -> None:
    """Check a page, whose picture gets the ``name``; ``like_others``: axe has checked the same parts already."""
    if name:
        picture(page, name)
    if not like_others:
        check_accessible(page)
    check_fits(page)
    page.set_viewport_size({"width": 1280, "height": 800})


def test_project_is_created_changed_and_deleted_in_browser(
    browser_page: Page, web_pool: WebPool, api: httpx2.Client
) -> None:
    page = browser_page
    page.goto("/projects")
    page.get_by_text("New department").click()
    fill(page, "[action='/departments']", name="research", quota="2", weight="2")
    send(page, "Create department")
    said(page, "Department research created.")
    looked_over(page, like_others=True)

    page.goto("/projects")
    page.get_by_text("New project").click()
    fill(page, "[action='/projects']", name="vision", department="research", quota="0.5", note="of the lab")
    send(page, "Create project")
    said(page, "Project vision created.")

    submit(api, "train", 1, project="vision")
    submit(api, "wants", 2, project="vision", runs=False)
    page.goto("/projects")
    drawing = page.locator(".shares li", has_text="vision").locator("svg.share")
    expect(drawing).to_have_attribute("aria-label", re.compile(r"holds 1.00 GPU, 0.50 of it over quota, 2.00 waiting"))
    looked_over(page, "projects")

    page.get_by_role("link", name="vision").first.click()
    form = "[action='/projects/vision']"
    fill(page, form, quota="two", windows="nights")
    send(page, "Save")
    expect(page.locator("#f-quota-error")).to_contain_text("'two' is not a number of GPUs.")
    expect(page.locator(f"{form} [name=windows]")).to_have_value("nights")
    fill(page, form, quota="1.5", windows="", max_time="12h")
    page.locator(f"{form} [name=compute_allowed][value=cap]").check()
    send(page, "Save")
    said(page, "Saved.")
    expect(page.locator(".history")).to_contain_text("changed: compute_allowed, max_time_s, quota_permille")
    looked_over(page)

    send(page, "Delete")
    say_yes(page)
    said(page, "has live work")
    web_pool.clear()
    send(page, "Delete")
    say_yes(page)
    said(page, "Project vision deleted")
    page.goto("/departments/research")
    send(page, "Delete")
    say_yes(page)
    said(page, "Department research deleted.")


def test_node_is_cordoned_drained_labelled_and_uncordoned(browser_page: Page, api: httpx2.Client, node: str) -> None:
    submit(api, "train", 1)
    submit(api, "notebook", 0.25, kind="interactive")
    page = browser_page
    page.goto("/nodes")
    expect(page.locator("#table-nodes tbody tr")).to_contain_text("1.25")
    looked_over(page, like_others=True)
    send(page, "Cordon")
    say_yes(page)
    said(page, "cordoned")
    expect(page.locator("h2 .state")).to_have_text("◐ cordoned")
    page.locator(".page-actions").get_by_role("button", name="Uncordon").click()
    said(page, "uncordoned")

    running = page.locator("#table-running")
    expect(running.locator("tr", has_text="train")).to_contain_text("evicted and queued again")
    expect(running.locator("tr", has_text="notebook")).to_contain_text("continues (protected)")
    expect(page.locator("figure.chart").first).to_be_visible()
    looked_over(page)
    fill(page, "[action$='/labels']", labels="pool=t4\nrack=7")
    send(page, "Save labels")
    said(page, "Saved.")
    expect(page.locator(".facts")).to_contain_text("rack=7")
    fill(page, "[action$='/sharing']", mode="advisory")
    send(page, "Save mode")
    said(page, "Running workloads keep their mode")

    page.locator("[action$='/cordon'] [name=drain]").check()
    fill(page, "[action$='/cordon']", reason="new fans")
    send(page, "Cordon")
    say_yes(page)
    said(page, "is draining")
    expect(page.locator("main")).to_contain_text("Cordoned: new fans.")
    assert eventually(lambda: state(api, "train") == "queued")
    assert state(api, "notebook") == "running"
    expect(running).not_to_contain_text("train")  # without loading the page again
    page.locator(".page-actions").get_by_role("button", name="Uncordon").click()
    assert eventually(lambda: state(api, "train") == "running")
    fill(page, "[action$='/labels']", labels="")
    send(page, "Save labels")
    fill(page, "[action$='/sharing']", mode="")
    send(page, "Save mode")
    said(page, "Saved")


def test_gpu_page_shows_slices_and_sets_sharing_mode(browser_page: Page, api: httpx2.Client, node: str) -> None:
    submit(api, "a", 0.25)
    submit(api, "b", 0.5)
    index = next(gpu["index"] for gpu in api.get("gpus").json()["gpus"] if gpu["allocated_permille"])
    page = browser_page
    page.goto(f"/nodes/{node}")
    page.locator("#table-gpus").get_by_role("link", name=str(index), exact=True).click()
    expect(page.locator("h1")).to_have_text(f"GPU {index} of {node}")
    bar, parts = page.locator(".gpu-bar").bounding_box(), page.locator(".gpu-bar .part")
    expect(parts).to_have_count(2)
    boxes = [part.bounding_box() for part in parts.all()]
    assert bar is not None
    assert sorted(round(box["width"] / bar["width"], 2) for box in boxes if box is not None) == [0.25, 0.5]
    expect(page.locator("main")).to_contain_text("0.75 of 1 GPU")
    looked_over(page, "gpu")
    fill(page, "[action$='/sharing']", mode="whole")
    send(page, "Save mode")
    said(page, "Running workloads keep their mode")
    fill(page, "[action$='/sharing']", mode="")
    with page.expect_event("framenavigated"):
        send(page, "Save mode")
    expect(page.locator("[action$='/sharing'] [name=mode]")).to_have_value("")


def test_reservation_is_created_shown_and_cancelled(browser_page: Page, node: str) -> None:
    page = browser_page
    page.goto("/bookings")
    expect(page.locator(".empty")).to_contain_text("gpupool reserve")
    page.get_by_text("New reservation").click()
    fill(page, "[action='/bookings']", name="CS101", nodes=node, length="2h", projects="nowhere")
    send(page, "Create reservation")
    said(page, "There is no project 'nowhere'.")
    fill(page, "[action='/bookings']", projects="default")
    send(page, "Create reservation")
    said(page, f"{node} reserved for CS101.")
    expect(page.locator(".timeline li")).to_contain_text("CS101")
    looked_over(page)
    send(page, "Cancel", within=".listing")
    say_yes(page)
    said(page, "Reservation cancelled.")
    expect(page.locator(".timeline")).to_have_count(0)


def test_users_and_tokens_are_managed_in_browser(browser_page: Page, visit: Visit) -> None:
    page = browser_page
    page.goto("/users")
    page.get_by_text("New user").click()
    fill(page, "[action='/users']", name="ida", role="manager", email="ida@example.org", gpu_limit="2")
    send(page, "Create user")
    said(page, "User ida created.")
    looked_over(page, like_others=True)
    fill(page, "[action='/users/ida']", role="member")
    send(page, "Save")
    said(page, "Saved.")
    page.goto("/users")
    expect(page.get_by_role("row", name="ida member")).to_contain_text("ida@example.org")
    looked_over(page, like_others=True)

    page.goto("/tokens")
    page.get_by_text("New token").click()
    fill(page, "[action='/tokens']", user="ida", role="member", expires="1d", note="laptop")
    send(page, "Create token")
    secret = page.get_by_test_id("secret").inner_text()
    assert secret.startswith("gpt_")
    page.get_by_role("link", name="Done").click()
    assert secret not in page.content()
    row = page.locator("tr", has_text="laptop")
    expect(row).to_contain_text("active")
    looked_over(page, like_others=True)
    row.get_by_role("button", name="Revoke").click()
    say_yes(page)
    said(page, "revoked")
    expect(page.locator("tr", has_text="laptop")).to_contain_text("revoked")


def test_disk_use_is_shown_on_any_screen(browser_page: Page) -> None:
    page = browser_page
    page.goto("/settings")
    page.get_by_role("link", name="Disk use").click()
    expect(page.locator("#table-files")).to_contain_text("output of ended programs")
    looked_over(page, like_others=True)


def test_settings_are_changed_and_audited(browser_page: Page) -> None:
    page = browser_page
    page.goto("/settings")
    looked_over(page, like_others=True)
    before = page.locator("[name=turn_s]").input_value()
    fill(page, "main", turn_s="1s")
    send(page, "Save policy")
    say_yes(page)
    said(page, "is out of range")
    fill(page, "main", turn_s="2h")
    send(page, "Save policy")
    say_yes(page)
    said(page, "Policy saved.")
    fill(page, "main", currency="EUR", default_rate="1.25", rates="t4=0.4")
    send(page, "Save rates")
    said(page, "Rates saved")
    fill(page, "main", webhook_url="http://127.0.0.1:9/hook", before="5m")
    send(page, "Save warnings")
    said(page, "Warning settings saved")
    expect(page.locator("main")).to_contain_text("Set: http://127.0.0.1/...")
    send(page, "Send a test")
    said(page, "webhook")
    page.locator("[name=delete_webhook_url]").check()
    send(page, "Save warnings")
    said(page, "Warning settings saved")
    fill(page, "main", default_rate="", rates="", currency="")
    send(page, "Save rates")
    said(page, "Rates saved")
    fill(page, "main", turn_s=before)
    send(page, "Save policy")
    say_yes(page)
    said(page, "Policy saved.")

    page.goto("/audit")
    fill(page, "main", target="policy")
    send(page, "Filter")
    looked_over(page)
    rows = page.locator("#table-audit tbody tr")
    expect(rows.first).to_contain_text("turn_s None")
    expect(rows.nth(1)).to_contain_text("turn_s 7200.0")
    table = page.get_by_role("link", name="CSV").get_attribute("href")
    text = page.evaluate("async url => (await fetch(url)).text()", table)
    assert text.startswith("at,actor,reason,concerns,message,id")
    assert text.count("turn_s") == 2
    rows.first.get_by_role("link", name="policy").click()
    expect(page).to_have_url(re.compile("/settings$"))


POLICY = {
    "min_runtime_s": "9h",
    "unsaved_after_s": "9h",
    "reserve_after_s": "9h",
    "consolidate_after_s": "never",
    "stale_gang_s": "9h",
    "node_lost_after_s": "never",
    "half_life_s": "9h",
    "usage_weight": "0",
    "max_queued_per_user": "9",
    "max_requests_per_second": "90",
    "verify_idle_s": "9h",
    "verify_level": "2",
    "turn_s": "never",
}
MEASURED = {"utilisation_percent", "memory_used_mib", "last_used_at"}
FORMS: dict[str, tuple[dict[str, str], str]] = {
    "/projects": ({"name": "mine", "weight": "1"}, "projects"),
    "/projects/default": ({"quota": "9", "weight": "1"}, "projects"),
    "/projects/default/delete": ({}, "projects"),
    "/departments": ({"name": "mine", "weight": "1"}, "departments"),
    "/bookings": ({"name": "mine", "gpus": "1", "starts": "now", "length": "1h", "maintenance": "on"}, "bookings"),
    "/users": ({"name": "mine", "role": "admin"}, "users"),
    "/users/linus": ({"role": "admin"}, "users"),
    "/tokens": ({"user": "root", "role": "admin", "expires": "1d"}, "tokens"),
    "/nodes/NODE/cordon": ({"reason": "mine", "drain": "on"}, "nodes"),
    "/nodes/NODE/labels": ({"labels": "pool=mine"}, "nodes"),
    "/nodes/NODE/sharing": ({"mode": "whole"}, "nodes"),
    "/settings/policy": (POLICY, "policy"),
    "/settings/rates": ({"default_rate": "9"}, "policy"),
    "/settings/warnings": ({"webhook_url": "http://elsewhere.example.org"}, "warnings"),
}


def test_member_sees_no_buttons_and_forged_forms_are_refused(visit: Visit, api: httpx2.Client, node: str) -> None:
    page = visit("linus", "member")
    pages = (
        "/projects",
        "/projects/default",
        "/nodes",
        f"/nodes/{node}",
        f"/nodes/{node}/gpus/0",
        "/bookings",
        "/settings",
    )
    for path in pages:
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
        assert page.locator("main form[method=post]").count() == 0, path
    page.goto("/users/linus")
    expect(page.get_by_label("Your e-mail address")).to_be_visible()
    fill(page, "[action='/users/linus/email']", email="linus@example.org")
    send(page, "Save")
    said(page, "Saved.")

    own = page.locator("input[name=form_token]").first.input_value()
    before = {shown: api.get(shown).json() for _, shown in FORMS.values()}
    for path, (fields, _) in FORMS.items():
        for token in (own, ""):
            status = page.evaluate(
                """async ([path, fields]) =>
                    (await fetch(path, {method: 'POST', body: new URLSearchParams(fields)})).status""",
                [path.replace("NODE", node), {**fields, "form_token": token}],
            )
            assert status == 403, (path, token)
    for shown, was in before.items():
        assert _lasting(api.get(shown).json()) == _lasting(was), shown


def _lasting(shown: object) -> object:
    """Return the shown values without those that are measured each time."""
    if isinstance(shown, dict):
        return {key: _lasting(value) for key, value in shown.items() if key not in MEASURED}
    return [_lasting(value) for value in shown] if isinstance(shown, list) else shown
