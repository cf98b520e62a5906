"""Build native/ into src/gpupool/_native/ when a wheel is made or the package is installed.

With a C compiler the wheel contains the libraries and its tag names the platform. Without one, the build first gets the
Zig compiler from PyPI (the package ziglang, about 100 MB to download, removed after the build). GPUPOOL_BUILD_NATIVE=0
builds nothing: the wheel is then pure Python, and `gpupool.node.host.native.missing()` returns what to do about it.
GPUPOOL_BUILD_TARGET=x86_64 or aarch64 builds a wheel of a release, for that machine and glibc 2.17.
"""

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "GPUPOOL_BUILD_NATIVE"
INSTALL_COMPILER = "Install a C compiler (Debian and Ubuntu: apt install gcc libc6-dev)"
READ_LOG = "Read what the compiler says: run native/build.py /tmp/native in a checkout"
FLAGS = ("-g0", "-Wl,-S")  # installations are not debugged
LOG_LINES = 20
TARGET = Path("src/gpupool/_native")
NOTE = "BUILD.json"


def load_builder(root: Path) -> ModuleType:
    """Return native/build.py as a module."""
    spec = importlib.util.spec_from_file_location("gpupool_native_build", root / "native/build.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(root / "native/build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for the module there
    spec.loader.exec_module(module)
    return module


class NativeBuildHook(BuildHookInterface[Any]):
    """Builds the native libraries and stores them, with a note about them, in the package."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return the packages from PyPI that the build needs: a compiler if this machine has none."""
        builder = load_builder(Path(self.root))
        if os.environ.get(SWITCH) == "0" or not builder.zig_fits() or is_current(Path(self.root), builder):
            return []
        with tempfile.TemporaryDirectory() as cache:
            return [] if builder.find_compiler(Path(cache)) else [builder.ZIG_REQUIREMENT]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the native libraries; `version` is "standard" or "editable". Hatchling calls this first."""
        del version
        root = Path(self.root)
        builder = load_builder(root)
        if is_current(root, builder):
            note = read_note(root)
        else:
            with tempfile.TemporaryDirectory() as made:
                note = build(builder, Path(made))
                install(Path(made), root / TARGET, note, builder.PRODUCTS)
        if note["reason"] and note["release"]:
            raise RuntimeError(f"The native parts of a release are missing: {note['reason']}")
        if note["reason"]:
            self.app.display_warning(f"gpupool: GPU slices are not enforced by this installation: {note['reason']}")
        build_data["shared_scripts"] = command_scripts(root, note, builder)
        if note["products"]:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag(builder)}"


def command_scripts(root: Path, note: dict[str, Any], builder: ModuleType) -> dict[str, str]:
    """Return the files that are installed as commands, with their names.

    The native command starts the Python script next to it, whose first line names the interpreter. Without a compiler
    this script is the command.
    """
    script = str(root / "native/command/gpupool-python")
    if builder.COMMAND not in note["products"]:
        return {script: "gpupool"}
    return {str(root / TARGET / builder.COMMAND): "gpupool", script: "gpupool-python"}


def read_note(root: Path) -> dict[str, Any]:
    """Return the note of the last build in this folder; empty if there was none."""
    try:
        note = json.loads((root / TARGET / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def is_current(root: Path, builder: ModuleType) -> bool:
    """Return whether everything was built from the present sources, so that a second installation is quick."""
    note, wanted = read_note(root), note_of(builder)
    there = all((root / TARGET / product).is_file() for product in builder.PRODUCTS)
    return there and {key: note.get(key) for key in wanted} == wanted


def note_of(builder: ModuleType) -> dict[str, Any]:
    """Return the note of a complete build, except its compiler."""
    return {
        "reason": "",
        "remedy": "",
        "products": list(builder.PRODUCTS),
        "machine": builder.target_machine(),
        "release": builder.TARGET_SWITCH in os.environ,
        "flags": " ".join(FLAGS),
        "sources": builder.generator().sources_hash(),
    }


def platform_tag(builder: ModuleType) -> str:
    """Return the platform in the name of a wheel: linux_x86_64, or manylinux_2_17_x86_64 for a release."""
    system = f"manylinux_{builder.ZIG_GLIBC.replace('.', '_')}" if builder.TARGET_SWITCH in os.environ else "linux"
    return f"{system}_{builder.target_machine()}"


def build(builder: ModuleType, out: Path) -> dict[str, Any]:
    """Build into a folder; return the products, the compiler, the reason for missing products, and a remedy."""
    note = note_of(builder) | {"products": []}
    if sys.platform != "linux":
        return note | {"reason": f"they are for Linux and this is {sys.platform}", "remedy": "Use a Linux machine"}
    if os.environ.get(SWITCH) == "0":
        return note | {"reason": f"{SWITCH}=0 was set when gpupool was installed", "remedy": INSTALL_COMPILER}
    with tempfile.TemporaryDirectory() as cache:
        compiler = builder.find_compiler(Path(cache))
        if compiler is None:
            reason = "there was no C compiler that works when gpupool was installed"
            return note | {"reason": reason, "remedy": INSTALL_COMPILER}
        failures = builder.build(out, compiler, FLAGS)
    if failures:
        sys.stderr.write("\n".join("\n".join(failures.values()).splitlines()[-LOG_LINES:]) + "\n")
        note |= {"reason": f"native/ could not be built ({builder.reason_of(failures)})", "remedy": READ_LOG}
    products = [product for product in builder.PRODUCTS if (out / product).is_file()]
    return note | {"compiler": compiler.name, "products": products}


def install(made: Path, target: Path, note: dict[str, Any], products: tuple[str, ...]) -> None:
    """Replace each file as a whole, because running programs have the old ones mapped."""
    for product in products:
        (target / product).parent.mkdir(parents=True, exist_ok=True)
        if product in note["products"]:
            fresh = target / f"{product}.{os.getpid()}"
            shutil.copy2(made / product, fresh)
            fresh.replace(target / product)
        else:
            (target / product).unlink(missing_ok=True)
    fresh = target / f"{NOTE}.{os.getpid()}"
    fresh.write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
    fresh.replace(target / NOTE)
