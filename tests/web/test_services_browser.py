"""Services in a browser, over a real pool and its gateway: list, replicas, requests, revisions, and all buttons."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_pool import eventually
from playwright.sync_api import expect
from web_harness import Visit, WebPool, look, say_yes

SERVER = Path(__file__).parents[2] / "examples" / "services" / "openai_server.py"
QUESTION = {"model": "echo", "messages": [{"role": "user", "content": " ".join("abcdefgh" * 5)}]}


@pytest.fixture
def pool(web_pool: WebPool) -> Iterator[WebPool]:
    """Stop and delete the services that a test leaves; else they would start their replicas again."""
    yield web_pool
    with web_pool.client as client:
        for row in client.services():
            client.stop_service(row.id)
        for row in client.services():
            assert eventually(lambda row=row: not client.service(row.id).replicas)
            assert eventually(lambda row=row: web_pool("service", "delete", row.id, "--yes", ok=False).returncode == 0)


def serve(pool: WebPool, name: str, *options: str, server: tuple[str, ...] = ()) -> None:
    pool(
        "serve", name, "-p", "0.1", "--access", "public", "--drain", "1s", *options, "--",
        sys.executable, str(SERVER), "--port", "{port}", *server,
    )  # fmt: skip


def ask(pool: WebPool, name: str) -> int:
    port = json.loads((pool.run / "gateway.json").read_text())["port"]
    insecure = ssl.create_default_context()
    insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
    link = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=insecure)
    try:
        link.request("POST", f"/s/default/{name}/v1/chat/completions", json.dumps(QUESTION))
        answer = link.getresponse()
        answer.read()
        return answer.status
    finally:
        link.close()


def test_service_is_shown_with_requests_and_latency_and_is_scaled_undone_stopped_and_deleted(
    visit: Visit, pool: WebPool
) -> None:
    page = visit(reduced_motion="reduce")
    page.goto("/services")
    expect(page.locator("main")).to_contain_text("No services")
    serve(pool, "echo", "--ready", "/health", "-e", "VERSION=1", server=("--load-s", "2", "--token-s", "0.2"))
    page.goto("/services")
    row = page.locator("#table-services tbody tr")
    expect(row).to_contain_text("echo")
    expect(row).to_contain_text("1 of 1")
    expect(row).to_contain_text("ready")
    look(page, "services")
    page.get_by_role("link", name="echo").click()
    expect(page.locator("h1")).to_contain_text("ready")
    facts = page.locator(".facts")
    expect(facts).to_contain_text("1 of 1 ready, limits 1")
    expect(page.locator("#table-replicas")).to_contain_text("echo-r1-0")
    expect(page.locator("#table-replicas")).to_contain_text("yes")

    asking = threading.Thread(target=ask, args=(pool, "echo"))
    asking.start()
    expect(facts).to_contain_text("1 in flight, 0 held")
    asking.join()
    expect(facts).to_contain_text("0 in flight, 0 held")
    expect(facts).to_contain_text("median, 99th percentile")

    pool("service", "update", "echo", "-e", "VERSION=2")
    expect(facts).to_contain_text("1, changing to 2")
    expect(page.locator("#table-replicas")).to_contain_text("echo-r2-0")
    expect(facts).not_to_contain_text("changing to")
    expect(page.locator("#table-revisions tbody tr")).to_have_count(2)
    look(page, "service")

    page.locator("#replicas").fill("2")
    page.get_by_role("button", name="Scale").click()
    expect(page.locator(".notice")).to_contain_text("echo has 2 replicas")
    expect(facts).to_contain_text("2 of 2 ready")
    page.locator("#replicas").fill("many")
    page.get_by_role("button", name="Scale").click()
    expect(page.locator(".notice")).to_contain_text("'many' is not a number of replicas")
    page.get_by_role("button", name="Undo").click()
    say_yes(page)
    expect(page.locator(".notice")).to_contain_text("echo changes to revision 1")
    expect(page.locator("#table-replicas")).to_contain_text("echo-r1-")
    expect(page.locator("h1")).to_contain_text("ready")

    page.get_by_role("button", name="Stop", exact=True).click()
    say_yes(page)
    expect(page.locator("h1")).to_contain_text("stopped")
    expect(page.locator("main")).to_contain_text("None now.")
    page.get_by_role("button", name="Delete").click()
    say_yes(page)
    expect(page.locator(".notice")).to_contain_text("Service echo deleted")
    expect(page.locator("main")).to_contain_text("No services")


def test_held_requests_and_a_replica_that_is_not_ready_are_shown(visit: Visit, pool: WebPool) -> None:
    page = visit(reduced_motion="reduce")
    serve(pool, "slow", "--ready", "/nothing")
    page.goto("/services")
    page.get_by_role("link", name="slow").click()
    expect(page.locator("h1")).to_contain_text("starting")
    expect(page.locator("#table-replicas")).to_contain_text("/nothing answered 404")
    statuses: list[int] = []
    asking = threading.Thread(target=lambda: statuses.append(ask(pool, "slow")))
    asking.start()
    expect(page.locator(".facts")).to_contain_text("0 in flight, 1 held")
    page.goto("/services")
    expect(page.locator("#table-services tbody tr")).to_contain_text("0 of 1")
    with pool.client as client:
        definition = client.service("slow").definition
        assert definition is not None
        definition["service"]["ready"] = {"http": "/health"}
        client.update_service("slow", definition)
    asking.join()
    assert statuses == [200]


def test_member_sees_a_service_of_another_without_buttons(visit: Visit, pool: WebPool) -> None:
    serve(pool, "echo", "--ready", "/health")
    page = visit("eve", "member")
    page.goto("/services")
    page.get_by_role("link", name="echo").click()
    expect(page.locator("h1")).to_contain_text("echo")
    for name in ("Scale", "Undo", "Stop", "Delete"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
