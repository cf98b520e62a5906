"""Workspaces in images of R and Python on one base, with and without a GPU.

The images have files of this machine. On request they are also built from the Containerfiles of examples/images, on a
Debian root that debootstrap makes, because an image registry is not reachable everywhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_images import add_python, add_r, import_image, podman
from container_pools import container_pool
from e2e_pool import RealPool, eventually

from requires import ROOT, require

BASE = "localhost/debian:1"
SCRIPTS = {
    "python": ("python3", "-c", "import numpy; print(int((numpy.arange(1000) ** 2).sum()))"),
    "r": ("Rscript", "-e", "cat(sum((0:999)^2), '\\n')"),
}
RESULT = "332833500"
R_PACKAGE = (
    "printf 'Package: kept\\nVersion: 1.0\\n' > kept/DESCRIPTION && "
    "printf 'export(one)\\n' > kept/NAMESPACE && echo 'one <- function() 1' > kept/R/one.R"
)
R_INSTALL = 'install.packages("kept", repos = NULL, type = "source")'


CONTAINERFILES = pytest.param(
    "containerfiles",
    marks=[
        pytest.mark.slow,
        pytest.mark.timeout(1800),  # of downloads; it only bounds a failing test
        pytest.mark.skipif(
            os.environ.get("GPUPOOL_TEST_IMAGES") != "1",
            reason="downloads packages for four minutes: GPUPOOL_TEST_IMAGES=1",
        ),
    ],
)


@pytest.fixture(scope="module", params=["machine", CONTAINERFILES])
def images(request: pytest.FixtureRequest, container_store: Path) -> dict[str, str]:
    """Build the images of both languages on the same base: from files of this machine, or from examples/images."""
    build = build_from_machine if request.param == "machine" else build_containerfiles
    build(container_store)
    return {language: f"localhost/{language}:1" for language in SCRIPTS}


def build_from_machine(container_store: Path) -> None:
    require("r-kernel")
    add = {"python": lambda tree: add_python(tree, "numpy", "ipykernel"), "r": add_r}
    for language, fill in add.items():
        context = container_store / language
        fill(context / "tree")
        (context / "Containerfile").write_text("FROM localhost/tiny:1\nCOPY tree /\nENV PYTHONPATH=/packages\nCMD []\n")
        build_image(container_store, language, context)
        shutil.rmtree(context)


def build_containerfiles(container_store: Path) -> None:
    require("root", "podman", "debootstrap", "debian-mirror")
    root = container_store / "debian"
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    words = ["debootstrap", "--variant=minbase", release["VERSION_CODENAME"], str(root)]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    import_image(container_store / "store", root, BASE)
    for language in SCRIPTS:
        build_image(container_store, language, ROOT / "examples/images" / language, "--build-arg", f"BASE={BASE}")


def build_image(container_store: Path, language: str, context: Path, *words: str) -> None:
    build = ("build", "--isolation", "chroot", "--network", "host", *words, "--tag", f"localhost/{language}:1")
    try:
        podman(container_store / "store", *build, str(context))
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{language}: {error.stdout[-2000:]!r} {error.stderr[-2000:]!r}")


@pytest.fixture(scope="module")
def pool(container_store: Path, images: dict[str, str]) -> Iterator[RealPool]:
    """Yield a pool with one GPU, and a stopped workspace for each image."""
    with container_pool(container_store) as made:
        for language, image in images.items():
            made("workspace", "create", language, "-n", "0", "--image", image)
        yield made


def stop(pool: RealPool, name: str) -> None:
    pool("workspace", "stop", name, "--force")
    with pool.client as client:
        assert eventually(lambda: client.workspace(name).state == "stopped")


@pytest.mark.parametrize("language", SCRIPTS)
def test_same_script_has_the_same_result_on_cpu_and_slice(pool: RealPool, language: str) -> None:
    shares = []
    for size in (("-n", "0"), ("-p", "0.1")):
        pool("workspace", "start", language, *size)
        assert pool.text("exec", language, "--", *SCRIPTS[language]).strip() == RESULT
        shares.append(pool.text("exec", language, "--", "sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]").strip() == "[]")
        stop(pool, language)
    assert shares == [True, False]


def test_gpu_moves_from_one_workspace_to_the_other_while_stopped(pool: RealPool) -> None:
    pool("workspace", "assign", "r", "-g", "1")
    pool("workspace", "start", "r")
    assert b"it must be stopped for 'assign'" in pool("workspace", "unassign", "r", ok=False).stderr
    refused = pool("workspace", "start", "python", "-g", "1", "--wait", "0", ok=False)
    assert refused.returncode != 0
    assert b"did not start" in refused.stderr
    with pool.client as client:
        assert eventually(lambda: client.workspace("python").state == "stopped")
    stop(pool, "r")
    pool("workspace", "unassign", "r")
    pool("workspace", "assign", "python", "-g", "1")
    for name in ("python", "r"):
        pool("workspace", "start", name)
        assert pool.text("exec", name, "--", *SCRIPTS[name]).strip() == RESULT
    assert pool.free_permille() == [0]
    for name in ("python", "r"):
        stop(pool, name)


def test_installed_packages_stay_in_the_home(pool: RealPool, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["images"] == "machine":
        pytest.skip("these images lack the tools that install packages")
    steps = {
        "python": (
            "python3 -m venv --system-site-packages ~/.venv && touch ~/.venv/kept",
            "test -e ~/.venv/kept && ~/.venv/bin/python -c 'import numpy; print(1)'",
        ),
        "r": (
            f"mkdir -p kept/R && {R_PACKAGE} && Rscript -e '{R_INSTALL}'",
            "Rscript -e 'cat(kept::one())' && test -d ~/.local/lib/R/kept",
        ),
    }
    for name, (install, use) in steps.items():
        pool("workspace", "unassign", name)
        pool("workspace", "start", name)
        pool("exec", name, "--", "sh", "-c", install)
        stop(pool, name)
        pool("workspace", "start", name)
        assert pool.text("exec", name, "--", "sh", "-c", use).strip() == "1"
        stop(pool, name)


def test_r_image_has_a_kernel_for_jupyter(pool: RealPool) -> None:
    pool("workspace", "start", "r", "-n", "0")
    shown = pool.text("exec", "r", "--", "Rscript", "-e", "cat(class(IRkernel::main))")
    assert shown.strip() == "function"
    stop(pool, "r")
