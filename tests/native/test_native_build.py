"""The package finds what was built for it, and says what to do where that was not possible."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest
from native_harness import NATIVE, ROOT, generator

from gpupool.node import native


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpupool_hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the package looks."""
    monkeypatch.setattr(native, "FOLDER", tmp_path / "_native")
    return tmp_path / "_native"


def test_the_package_looks_for_exactly_what_is_built(hook: ModuleType, native_out: Path) -> None:
    assert set(hook.PRODUCTS) == set(native.Product)
    assert [product for product in native.Product if not (native_out / product).is_file()] == []


def test_what_was_built_is_installed_and_found(hook: ModuleType, native_out: Path, folder: Path) -> None:
    hook.install(native_out, folder, {"reason": "", "products": list(hook.PRODUCTS)})
    assert native.missing() is None
    assert os.access(native.Product.ARBITER.path, os.X_OK)


def test_without_a_compiler_the_package_says_what_to_do(
    hook: ModuleType, native_out: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.install(native_out, folder, {"reason": "", "products": list(hook.PRODUCTS)})
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    note = hook.build(NATIVE, tmp_path / "out")
    assert note["products"] == []
    hook.install(tmp_path / "out", folder, note)
    said = native.missing()
    assert said is not None
    assert "share/libcuda.so.1" in said
    assert "there was no C compiler when gpupool was installed. Install a C compiler and make" in said


def test_a_note_that_cannot_be_read_is_no_reason_to_fail(folder: Path) -> None:
    folder.mkdir()
    for note in ("", "[]", '{"reason": 7}', "\x00"):
        (folder / "BUILD.json").write_text(note)
        said = native.missing()
        assert said is not None
        assert "they were not built when gpupool was installed. Install gpupool again." in said


def test_the_hash_of_the_sources_follows_them(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "share/a.c").write_text("int a;")
    before = generator().sources_hash(tmp_path)
    (tmp_path / "share/a.c").write_text("int b;")
    assert generator().sources_hash(tmp_path) != before


def test_this_installation_was_built_from_a_known_state() -> None:
    """An installation without native parts must at least know why."""
    note = json.loads((Path(native.__file__).parents[1] / "_native/BUILD.json").read_text())
    assert note["products"] or note["reason"]
