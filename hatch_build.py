"""Builds native/ into src/gpupool/_native/ when a wheel is made or the package is installed.

With a C compiler and make the wheel carries the libraries and its tag names the platform. Without them everything else
is installed all the same: the wheel is pure Python, and `gpupool.node.native.missing()` says what to do about it.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILERS = ("cc", "gcc", "clang")
PRODUCTS = (
    "share/libcuda.so.1",
    "share/libcuda.so",
    "share/libnvidia-ml.so.1",
    "fake/libcuda.so.1",
    "fake/libnvidia-ml.so.1",
    "gpupool-arbiter",
)
INSTALL_COMPILER = "Install a C compiler and make (Debian and Ubuntu: apt install gcc libc6-dev make)"
READ_LOG = "Read what the compiler says: run make -C native in a checkout"
FLAGS = "-g0"  # beside those of native/Makefile: nobody debugs an installation
LOG_LINES = 20


class NativeBuildHook(BuildHookInterface[Any]):
    """Runs make and puts its products, and a note about them, where the package finds them."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the files of a wheel; `version` is "standard" or "editable"."""
        del version
        root = Path(self.root)
        with tempfile.TemporaryDirectory() as made:
            note = build(root / "native", Path(made))
            install(Path(made), root / "src/gpupool/_native", note)
        if note["reason"]:
            self.app.display_warning(f"gpupool: GPU slices are not enforced by this installation: {note['reason']}")
        if note["products"]:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag()}"


def platform_tag() -> str:
    """As in a wheel's name: linux_x86_64."""
    return f"linux_{platform.machine()}"


def build(native: Path, out: Path) -> dict[str, Any]:
    """Runs make; what was made, how, why not all of it, and what to do about that."""
    note: dict[str, Any] = {"reason": "", "remedy": "", "products": [], "machine": platform.machine()}
    names = [os.environ["CC"]] if os.environ.get("CC") else COMPILERS
    compiler = next((found for name in names if (found := shutil.which(name))), None)
    if sys.platform != "linux":
        return note | {"reason": f"they are for Linux and this is {sys.platform}", "remedy": "Use a Linux machine"}
    if compiler is None or shutil.which("make") is None:
        absent = "C compiler" if compiler is None else "make"
        return note | {"reason": f"there was no {absent} when gpupool was installed", "remedy": INSTALL_COMPILER}
    note |= {"compiler": version_of(compiler), "flags": FLAGS}
    failed = run_make(native, out, compiler)
    products = [product for product in PRODUCTS if (out / product).is_file()]
    return note | {"reason": failed, "remedy": READ_LOG if failed else "", "products": products}


def run_make(native: Path, out: Path, compiler: str) -> str:
    """Makes everything that can be made; "", or what went wrong."""
    variables = [f"OUT={out}", f"CC={compiler}", f"PYTHON={sys.executable}", f"CFLAGS={FLAGS}"]
    command = ["make", "-k", "-C", str(native), *variables]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode == 0:
        return ""
    sys.stderr.write("\n".join((made.stdout + made.stderr).splitlines()[-LOG_LINES:]) + "\n")
    wrong = re.search(r"^.*\b(?:error|undefined reference|No such file)\b.*$", made.stderr, re.MULTILINE)
    return f"native/ could not be built ({wrong[0].strip() if wrong else 'make failed'})"


def version_of(compiler: str) -> str:
    """The first line of what the compiler says of itself."""
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    return said.splitlines()[0] if said else compiler


def install(made: Path, target: Path, note: dict[str, Any]) -> None:
    """Replaces each file as a whole: programs that run have the former ones mapped."""
    for product in PRODUCTS:
        (target / product).parent.mkdir(parents=True, exist_ok=True)
        if product in note["products"]:
            fresh = target / f"{product}.{os.getpid()}"
            shutil.copy2(made / product, fresh)
            fresh.replace(target / product)
        else:
            (target / product).unlink(missing_ok=True)
    fresh = target / f"BUILD.json.{os.getpid()}"
    fresh.write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
    fresh.replace(target / "BUILD.json")
