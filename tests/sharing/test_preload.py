"""Preloaded libraries: programs of all users can load them, also from an installation in a closed folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpupool.node.host import native
from gpupool.node.host.native import Product
from gpupool.node.inventory.emulated import EmulatedInventory
from gpupool.node.ports import SharingHost
from gpupool.node.sharing.preload import Libraries, libraries

PRODUCTS = (Product.SHARE_CUDA, Product.SHARE_NVML)


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a folder that all users can pass, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="gpupool-preload-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def closed(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an installation that only its owner can read, like one below /root."""
    folder = place / "home/gpupool/_native"
    for product in PRODUCTS:
        (folder / product).parent.mkdir(parents=True, exist_ok=True)
        (folder / product).write_text(f"{product}, first release")
    (place / "home").chmod(0o700)
    monkeypatch.setattr(native, "FOLDER", folder)
    return folder


def host(place: Path, *, shared: bool) -> SharingHost:
    for name in ("run", "state"):
        (place / name).mkdir(exist_ok=True)
        (place / name).chmod(0o711)
    inventory = EmulatedInventory.open("n1", "1xT4")
    return SharingHost(place / "run", inventory, shared, lambda *_: None, lambda *_: None, place / "state")


def others_can_read(path: Path) -> bool:
    real = path.resolve()
    passable = all(folder.stat().st_mode & 0o001 for folder in (*path.parents, *real.parents))
    return passable and bool(real.stat().st_mode & 0o004)


def test_private_installation_is_copied_to_readable_place(place: Path, closed: Path) -> None:
    found = libraries(host(place, shared=True), PRODUCTS)
    assert isinstance(found, Libraries), found
    for product, name in zip(PRODUCTS, found.names, strict=True):
        assert name == str(place / "run/native" / product), "containers know the run folder"
        assert others_can_read(Path(name))
        assert Path(name).read_text() == f"{product}, first release"


def test_upgrade_replaces_copy_and_running_programs_keep_old_file(place: Path, closed: Path) -> None:
    libraries(host(place, shared=True), PRODUCTS)
    copy = place / "state/native" / Product.SHARE_CUDA
    with copy.open() as mapped:
        (closed / Product.SHARE_CUDA).write_text("second release")
        libraries(host(place, shared=True), PRODUCTS)
        assert mapped.read() == f"{Product.SHARE_CUDA}, first release"
    assert copy.read_text() == "second release"
    before = copy.stat().st_ino
    libraries(host(place, shared=True), PRODUCTS)
    assert copy.stat().st_ino == before


def test_user_pool_uses_installation_itself(place: Path, closed: Path) -> None:
    found = libraries(host(place, shared=False), PRODUCTS)
    assert found == Libraries(tuple(str(closed / product) for product in PRODUCTS))


def test_private_pool_folder_is_reported_with_reason(place: Path, closed: Path) -> None:
    made = host(place, shared=True)
    (place / "state").chmod(0o700)
    said = libraries(made, PRODUCTS)
    assert isinstance(said, str)
    assert said.startswith(f"{place}/home is closed to other users: install gpupool where all can read ")
