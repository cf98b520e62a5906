"""The package finds what was built for it, and says what to do where that was not possible."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from native_harness import NATIVE, ROOT, generator

from gpupool.node.host import native
from requires import native_builder, require


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
    """Return the folder where the package looks."""
    monkeypatch.setattr(native, "FOLDER", tmp_path / "_native")
    return tmp_path / "_native"


def test_package_looks_for_exactly_the_built_files(native_out: Path) -> None:
    builder = native_builder()
    assert set(builder.PRODUCTS) - {builder.COMMAND} == set(native.Product)
    assert [product for product in native.Product if not (native_out / product).is_file()] == []


def test_built_files_are_installed_and_found(hook: ModuleType, native_out: Path, folder: Path) -> None:
    products = native_builder().PRODUCTS
    hook.install(native_out, folder, {"reason": "", "products": list(products)}, products)
    assert native.missing() is None
    assert os.access(native.Product.ARBITER.path, os.X_OK)


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a PATH without a C compiler, and hide the package ziglang."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("GPUPOOL_BUILD_NATIVE", raising=False)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_package_without_compiler_gives_advice(
    hook: ModuleType, folder: Path, tmp_path: Path, no_compiler: None
) -> None:
    products = native_builder().PRODUCTS
    (tmp_path / "old/share").mkdir(parents=True)
    (tmp_path / "old/share/libcuda.so.1").write_bytes(b"of an earlier installation")
    hook.install(tmp_path / "old", folder, {"reason": "", "products": ["share/libcuda.so.1"]}, products)
    note = hook.build(native_builder(), tmp_path / "out")
    assert note["products"] == []
    hook.install(tmp_path / "out", folder, note, products)
    assert not (folder / "share/libcuda.so.1").exists()
    said = native.missing()
    assert said is not None
    assert "there was no C compiler that works when gpupool was installed. Install a C compiler (Debian" in said


def test_without_a_compiler_the_build_asks_for_one_from_pypi(
    hook: ModuleType, no_compiler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native_builder().zig_fits():
        pytest.skip("Zig builds nothing that would run on this machine")
    (tmp_path / "native").symlink_to(NATIVE)
    assert requirements(hook, tmp_path) == [native_builder().ZIG_REQUIREMENT]
    monkeypatch.setenv("GPUPOOL_BUILD_NATIVE", "0")
    assert requirements(hook, tmp_path) == []


def test_release_wheel_is_for_its_architecture_and_old_glibc(
    hook: ModuleType, native_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUPOOL_BUILD_TARGET", raising=False)
    (tmp_path / "native").symlink_to(NATIVE)
    builder = native_builder()
    hook.install(native_out, tmp_path / hook.TARGET, hook.note_of(builder), builder.PRODUCTS)
    monkeypatch.setenv("GPUPOOL_BUILD_TARGET", "aarch64")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not hook.is_current(tmp_path, builder)  # files for this machine are not those of a release
    assert hook.platform_tag(builder) == "manylinux_2_17_aarch64"
    assert builder.find_compiler(tmp_path) is None  # only Zig builds a release, not the compiler of this machine
    assert requirements(hook, tmp_path) == [builder.ZIG_REQUIREMENT]


def test_installed_compiler_is_used(hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("cc")
    monkeypatch.delenv("CC", raising=False)
    (tmp_path / "native").symlink_to(NATIVE)
    assert requirements(hook, tmp_path) == []


def test_compiler_without_headers_is_not_used(
    hook: ModuleType, no_compiler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's gcc without libc6-dev is such a compiler."""
    (tmp_path / "cc").write_text("#!/bin/sh\necho 'fatal error: stdio.h: No such file or directory' >&2\nexit 1\n")
    (tmp_path / "cc").chmod(0o755)
    assert not native_builder().can_link(["cc"])
    assert hook.build(native_builder(), tmp_path / "out")["products"] == []


def test_product_that_does_not_compile_is_reported_and_others_are_built(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("cc")
    shutil.copytree(NATIVE, tmp_path / "native", ignore=shutil.ignore_patterns("build", "__pycache__"))
    with (tmp_path / "native/arbiter/main.c").open("a") as source:
        source.write("int broken(void) { return nothing_of_that_name; }\n")
    builder = hook.load_builder(tmp_path)
    monkeypatch.setattr(builder, "PRODUCTS", ("share/libnvidia-ml.so.1", "gpupool-arbiter"))
    note = hook.build(builder, tmp_path / "out")
    assert note["products"] == ["share/libnvidia-ml.so.1"]
    assert "arbiter/main.c" in note["reason"]
    assert "nothing_of_that_name" in note["reason"]


def test_built_files_are_reused_by_next_installation(
    hook: ModuleType, native_out: Path, tmp_path: Path, no_compiler: None
) -> None:
    """The second of two commands installs on a machine without its own compiler."""
    shutil.copytree(NATIVE, tmp_path / "native", ignore=shutil.ignore_patterns("build", "__pycache__"))
    builder = hook.load_builder(tmp_path)
    hook.install(native_out, tmp_path / hook.TARGET, hook.note_of(builder) | {"compiler": "zig"}, builder.PRODUCTS)
    assert hook.is_current(tmp_path, builder)
    assert requirements(hook, tmp_path) == []
    with (tmp_path / "native/share/gate.c").open("a") as source:
        source.write("/* changed */\n")
    assert not hook.is_current(tmp_path, builder)
    assert requirements(hook, tmp_path) == [builder.ZIG_REQUIREMENT]


def requirements(hook: ModuleType, checkout: Path) -> list[str]:
    """Return the requirements that pip gets before it builds gpupool."""
    return hook.NativeBuildHook(str(checkout), {}, None, None, "", "wheel").dependencies()


@pytest.mark.parametrize("is_native", [True, False])
def test_command_is_native_or_the_script_of_python(hook: ModuleType, native_out: Path, is_native: bool) -> None:
    builder = native_builder()
    note = {"products": [builder.COMMAND] if is_native else []}
    scripts = hook.command_scripts(ROOT, note, builder)
    assert set(scripts.values()) == ({"gpupool", "gpupool-python"} if is_native else {"gpupool"})
    (script,) = (Path(path) for path in scripts if path.endswith("gpupool-python"))
    assert script.read_bytes().startswith(b"#!python\n")  # the installer puts its interpreter there
    assert os.access(script, os.X_OK)
    assert os.access(native_out / builder.COMMAND, os.X_OK)


def test_unreadable_note_is_no_failure(folder: Path) -> None:
    folder.mkdir()
    for note in ("", "[]", '{"reason": 7}', "\x00"):
        (folder / "BUILD.json").write_text(note)
        said = native.missing()
        assert said is not None
        assert "they were not built when gpupool was installed. Install gpupool again and restart the pool." in said


def test_hash_follows_the_sources(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "share/a.c").write_text("int a;")
    before = generator().sources_hash(tmp_path)
    (tmp_path / "share/a.c").write_text("int b;")
    assert generator().sources_hash(tmp_path) != before


def test_installation_was_built_from_known_state() -> None:
    """An installation without native parts must at least know why."""
    note = json.loads((native.FOLDER / "BUILD.json").read_text())
    assert note["products"] or note["reason"]
