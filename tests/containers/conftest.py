from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "node"))

from container_images import import_image, make_tree, podman
from node_harness import Node, fresh_node

from requires import require


@pytest.fixture(scope="session")
def container_store() -> Iterator[Path]:
    """A folder for images and containers of these tests, with the image ``localhost/tiny:1`` in it."""
    require("root", "podman", "busybox", "cc")
    folder = Path(tempfile.mkdtemp(prefix="gpc", dir="/tmp"))
    folder.chmod(0o711)
    before = os.environ.get("GPUPOOL_CONTAINER_STORE")
    os.environ["GPUPOOL_CONTAINER_STORE"] = str(folder / "store")
    try:
        make_tree(folder / "tree")
        import_image(folder / "store", folder / "tree", "localhost/tiny:1", "CMD=/bin/greet")
        yield folder
    finally:
        if before is None:
            del os.environ["GPUPOOL_CONTAINER_STORE"]
        else:
            os.environ["GPUPOOL_CONTAINER_STORE"] = before
        with contextlib.suppress(subprocess.CalledProcessError):  # what a failed test left would stay mounted
            podman(folder / "store", "rm", "--all", "--force", "--time", "0")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def node(container_store: Path) -> Iterator[Node]:
    """One agent for all tests of a module that do not harm it."""
    with fresh_node() as made:
        yield made
