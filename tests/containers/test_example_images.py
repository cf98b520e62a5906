"""The Containerfiles of examples/images: built from one Debian base, and used by workspaces with and without a GPU.

The base is a Debian root that debootstrap makes, because an image registry is not reachable everywhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_images import import_image, podman

from requires import ROOT, require

sys.path.append(str(Path(__file__).parents[1] / "e2e"))

from e2e_pool import RealPool, eventually, folder_for_pool

if os.environ.get("GPUPOOL_TEST_IMAGES") != "1":
    pytest.skip("downloads packages for four minutes: GPUPOOL_TEST_IMAGES=1", allow_module_level=True)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # of downloads; it only bounds a failing test

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


@pytest.fixture(scope="module")
def images(container_store: Path) -> dict[str, str]:
    """The images of both languages, built from the same base."""
    require("root", "podman", "debootstrap", "debian-mirror")
    store, root = container_store / "store", container_store / "debian"
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    words = ["debootstrap", "--variant=minbase", release["VERSION_CODENAME"], str(root)]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    import_image(store, root, BASE)
    for language in SCRIPTS:
        folder = ROOT / "examples/images" / language
        build = ("build", "--isolation", "chroot", "--network", "host", "--build-arg", f"BASE={BASE}")
        try:
            podman(store, *build, "--tag", f"localhost/{language}:1", str(folder))
        except subprocess.CalledProcessError as error:
            pytest.fail(f"{language}: {error.stdout[-2000:]!r} {error.stderr[-2000:]!r}")
    return {language: f"localhost/{language}:1" for language in SCRIPTS}


@pytest.fixture(scope="module")
def pool(container_store: Path, images: dict[str, str]) -> Iterator[RealPool]:
    """One GPU, and a stopped workspace for each image."""
    with folder_for_pool() as folder:
        made = RealPool(folder, "1xT4")
        made.env["GPUPOOL_CONTAINER_STORE"] = str(container_store / "store")
        made.up()
        try:
            for language, image in images.items():
                made("workspace", "create", language, "-n", "0", "--image", image)
            yield made
        finally:
            made.down("--stop-jobs")


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


def test_installed_packages_stay_in_the_home(pool: RealPool) -> None:
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
