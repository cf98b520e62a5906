"""Pictures of the overview for the documentation: made when GPUPOOL_SCREENSHOTS=1 is set, of a pool with real work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from browsers import Chromium
from e2e_pool import PATIENCE_S, eventually, folder_for_pool
from playwright.sync_api import expect
from web_harness import WebPool, picture

pytestmark = pytest.mark.skipif(os.environ.get("GPUPOOL_SCREENSHOTS") != "1", reason="makes pictures, tests nothing")

WORK = """
import sys, time
from cuda.bindings import driver as d
def ok(answer):
    assert answer[0] == 0, answer
    return answer[1] if len(answer) > 1 else None
ok(d.cuInit(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0))))))
spin = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(b"any\\0")), b"spin_50ms"))
pause = 0.05 / float(sys.argv[1]) - 0.05
while True:
    ok(d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
    ok(d.cuCtxSynchronize())
    time.sleep(pause)
"""
# Project, name, GPUs, the part of each, and how much of the time it computes (0: it sleeps).
HELD = (
    ("vision", "resnet50-bs256", 1, 1.0, 0.92),
    ("vision", "detector", 1, 0.5, 0.4),
    ("class", "lesson-3", 1, 0.1, 0.05),
    ("class", "lesson-4", 1, 0.1, 0.0),
    ("class", "homework", 1, 0.1, 0.08),
    ("speech", "whisper-tune", 1, 0.6, 0.5),
    ("speech", "align", 1, 0.25, 0.1),
    ("robotics", "policy-search", 1, 1.0, 0.7),
    ("default", "notebook", 1, 0.2, 0.0),
)


@pytest.fixture
def pool() -> Iterator[WebPool]:
    with folder_for_pool() as folder:
        made = WebPool(folder, "4xA100")
        try:
            made.start()
            for project in sorted({project for project, *_ in HELD} - {"default"}):
                made("project", "create", project)
            yield made
        finally:
            made("down", "--stop-jobs", ok=False)


def test_screenshots_of_the_overview_are_taken(pool: WebPool, chromium: Chromium) -> None:
    with pool.client as client:
        jobs = []
        for project, name, count, part, busy in HELD:
            program = (sys.executable, "-c", WORK, str(busy)) if busy else ("sleep", "600")
            jobs.append(client.submit(program, name=name, project=project, gpus={"count": count, "fraction": part}))
        client.submit(("true",), name="pretrain", project="speech", gpus={"count": 4})
        assert eventually(lambda: all(job.refresh().status == "running" for job in jobs))
    context = chromium.new_context(
        base_url=pool.url,
        ignore_https_errors=True,
        extra_http_headers={"authorization": f"Bearer {pool.token()}"},
        viewport={"width": 1280, "height": 700},
        color_scheme="light",
    )
    page = context.new_page()
    page.goto("/")
    busy = sum(1 for *_, busy in HELD if busy)
    expect(page.locator(".slices .use")).to_have_count(busy, timeout=PATIENCE_S * 1000)
    picture(page, "overview")
    page.emulate_media(color_scheme="dark")
    picture(page, "overview-dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 360, "height": 760})
    picture(page, "overview-phone")
    chromium.close(context)
