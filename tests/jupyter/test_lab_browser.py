"""JupyterLab in a real browser: notebooks whose kernels run on slices, and kernels that wait for one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsers import Chromium, started_chromium
from e2e_pool import RealPool, eventually
from kernels import kernel_on_slices
from playwright.sync_api import Locator, Page, expect
from servers import TOKEN, JupyterServer, jupyter_server
from web_harness import picture

import gpupool

pytestmark = [pytest.mark.needs("jupyterlab"), pytest.mark.needs("chromium"), pytest.mark.timeout(600)]
PATIENCE_MS = 120_000  # on a busy machine; it only bounds a failing test


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with started_chromium() as browser:
        yield browser


@pytest.fixture
def lab(pool: RealPool, tmp_path: Path) -> Iterator[JupyterServer]:
    settings = pool.home / "config/lab/user-settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps({"fetchNews": "false"}))
    with jupyter_server(pool, tmp_path / "notebooks", module="jupyterlab") as server:
        yield server


@pytest.fixture
def page(chromium: Chromium) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1000, "height": 520})
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    chromium.close(context)


def open_notebook(page: Page, lab: JupyterServer, kernel: str, code: str = "") -> None:
    """Open a new notebook, as a user who clicks on its file."""
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None, "source": code}
    about = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    notebook = {"cells": [cell], "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    (lab.folder / "a.ipynb").write_text(json.dumps(notebook))
    page.goto(f"{lab.url}/lab/tree/a.ipynb?token={TOKEN}&reset")
    expect(page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(1, timeout=PATIENCE_MS)


def status(page: Page, text: str) -> None:
    """Wait until the status bar shows a state of the kernel."""
    expect(page.locator("#jp-main-statusbar")).to_contain_text(f"| {text}", timeout=PATIENCE_MS)


def message(page: Page) -> Locator:
    """Return the text of the notification about the kernel."""
    return page.locator(".Toastify__toast", has_text="a.ipynb: ")


def kernels(pool: RealPool) -> list[str]:
    """Return the ids of the live workloads of kernels."""
    with pool.client as client:
        return [job.id for job in client.list() if job.name.startswith("kernel-")]


def occupy(pool: RealPool) -> None:
    pool("submit", "training", "-n", "2", "--", "sleep", "600")
    assert pool.becomes("training", "running")


def test_notebook_runs_on_its_slice_and_says_why_it_ended(pool: RealPool, lab: JupyterServer, page: Page) -> None:
    with kernel_on_slices("tenth") as name:
        open_notebook(page, lab, name, "import os; print(os.environ['GPUPOOL_GPU_SHARE'], 6 * 7)")
        status(page, "Idle")
        page.locator(".jp-CodeCell .cm-content").click()
        page.keyboard.press("Shift+Enter")
        expect(page.locator(".jp-OutputArea-output")).to_have_text("0.10 42\n", timeout=PATIENCE_MS)
        (kernel,) = kernels(pool)
        pool("stop", kernel)
        expect(message(page)).to_contain_text("The pool ended this kernel: ", timeout=PATIENCE_MS)
        expect(message(page)).to_contain_text("[STOPPED_BY_USER]. Restart it to get a new slice.")
        status(page, "Disconnected")
        picture(page, "notebook-ended")
        message(page).get_by_role("button", name="Restart kernel").click()
        status(page, "Idle")
        expect(message(page)).to_have_count(0)


def test_wait_is_shown_and_its_page_may_be_loaded_again(pool: RealPool, lab: JupyterServer, page: Page) -> None:
    occupy(pool)
    with kernel_on_slices("tenth") as name:
        open_notebook(page, lab, name)
        expect(message(page)).to_contain_text("Waiting for a GPU: needs 0.10 GPU; 0.00 free", timeout=PATIENCE_MS)
        (first,) = kernels(pool)
        picture(page, "notebook-waiting")
        page.reload()
        assert eventually(lambda: kernels(pool) not in ([], [first]))
        assert eventually(lambda: len(kernels(pool)) == 1), "the kernel of the page that has gone is cancelled"
        expect(message(page)).to_contain_text("Waiting for a GPU: ", timeout=PATIENCE_MS)
        pool("stop", "--force", "training")
        status(page, "Idle")
        expect(message(page)).to_have_count(0)
        page.close()
        assert len(lab.kernels()) == len(kernels(pool)) == 1, "a kernel that runs stays"


def test_closed_page_cancels_the_wait(pool: RealPool, lab: JupyterServer, page: Page) -> None:
    occupy(pool)
    with kernel_on_slices("tenth") as name:
        open_notebook(page, lab, name)
        assert eventually(lambda: len(kernels(pool)) == 1)
        page.close()
        assert eventually(lambda: not kernels(pool))
        assert eventually(lambda: "its page was closed" in lab.said())
        assert lab.kernels() == []


def test_extension_has_the_version_of_the_package() -> None:
    package = json.loads((Path(gpupool.__file__).parent / "jupyter/lab/package.json").read_text())
    assert package["version"] == gpupool.__version__
