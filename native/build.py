#!/usr/bin/env python3
"""Build the native parts: native/build.py OUT [--sanitize thread|address] [--flag=-g0 ...] [PRODUCT ...]

Write the products into the folder OUT; without names, build all of them. This needs Python's standard library and a C
compiler, but no headers of NVIDIA's: generated/*.txt has what is needed of them, and generate.py makes OUT/generated/
from it and from a look at which functions are hooks.

The compiler is the command in the variable CC. Without CC it is the first of cc, gcc and clang that can link a program,
or else the Zig compiler of the PyPI package ziglang. Zig brings its own C library; what it builds needs glibc 2.17.
GPUPOOL_BUILD_TARGET=x86_64 or aarch64 builds for that machine, always with Zig.
"""

import argparse
import importlib.util
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
COMPILERS = ("cc", "gcc", "clang")
ZIG_REQUIREMENT = "ziglang>=0.13,<0.18"  # the releases that were tried
ZIG_MACHINES = ("x86_64", "aarch64")
ZIG_GLIBC = "2.17"
TARGET_SWITCH = "GPUPOOL_BUILD_TARGET"
PROBE = "#include <stdio.h>\n#include <dlfcn.h>\n#include <pthread.h>\nint main(void) { return puts(dlerror()); }\n"
PROBE_TIMEOUT_S = 120

CFLAGS = (
    *("-std=gnu11", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-fno-plt", "-D_GNU_SOURCE="),
    *("-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Wvla"),
)
BRANCH_PROTECTION = {"x86_64": ("-fcf-protection=full",), "aarch64": ("-mbranch-protection=standard",)}
READ_ONLY = ("-Wl,-z,relro,-z,now",)
LIBRARY = ("-shared", *READ_ONLY, "-Wl,--hash-style=both")
SYMBOLIC = ("-Wl,-Bsymbolic",)
THREADS = ("-ldl", "-lpthread")
_COMPLETE = ("-Wl,-z,defs",)  # undefined symbols are errors; those of a sanitizer are in its own library


@dataclass(frozen=True, slots=True)
class Product:
    """One library or program: its sources are all C files of these folders, and these generated ones."""

    path: str
    folders: tuple[str, ...]
    link: tuple[str, ...]
    generated: tuple[str, ...] = ()
    libraries: tuple[str, ...] = THREADS


def _library(
    path: str,
    *folders: str,
    generated: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
    binding: tuple[str, ...] = SYMBOLIC,
) -> Product:
    soname = f"-Wl,-soname,{Path(path).name}"
    return Product(path, folders, (*LIBRARY, *binding, soname), generated, (*THREADS, *more))


SHARE_CUDA = "share/libcuda.so.1"
# Some programs (numba) ask for libcuda.so before libcuda.so.1. This one is empty except for its name and a reference to
# the other.
SHARE_CUDA_ALIAS = "share/libcuda.so"
COMMAND = "gpupool-command"
COMPILED = (
    _library(SHARE_CUDA, "share", "common", generated=("cuda_hooks.c", "cuda_jumps.S")),
    _library("share/libnvidia-ml.so.1", "nvml", "common", generated=("nvml_hooks.c", "nvml_jumps.S")),
    _library("fake/libcuda.so.1", "fake/cuda", "fake", more=("-lm",)),
    # As NVIDIA's: not -Bsymbolic, so that its calls of its own exports can be interposed.
    _library("fake/libnvidia-ml.so.1", "fake/nvml", "fake", more=("-lm",), binding=()),
    Product("gpupool-arbiter", ("arbiter", "common"), ("-pie", *READ_ONLY)),
    Product(COMMAND, ("command",), ("-pie", *READ_ONLY)),
)
PRODUCTS = (*(product.path for product in COMPILED), SHARE_CUDA_ALIAS)


class CompilerError(Exception):
    """A compiler failed; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command that compiles and links C. ``environment`` is added to its variables."""

    command: tuple[str, ...]
    name: str  # with its version
    machine: str  # for which it compiles: x86_64, aarch64
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, arguments: Iterable[object]) -> None:
        """Compile in this folder. Raises ``CompilerError``."""
        command = [*self.command, *map(str, arguments)]
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CompilerError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")


def find_compiler(cache: Path) -> Compiler | None:
    """Return a compiler that works, or None. ``cache`` is a folder for what Zig compiles of its C library."""
    if TARGET_SWITCH not in os.environ:
        named = shlex.split(os.environ.get("CC", ""))
        for command in [named] if named else [[name] for name in COMPILERS]:
            if can_link(command):
                machine = _first_line([*command, "-dumpmachine"]).partition("-")[0]
                return Compiler(tuple(command), _first_line([*command, "--version"]), machine)
        if named or not zig_fits():
            return None
    if importlib.util.find_spec("ziglang") is None:
        return None
    machine = target_machine()
    zig = (sys.executable, "-m", "ziglang")
    options = ("cc", "-target", f"{machine}-linux-gnu.{ZIG_GLIBC}", "-fno-sanitize=undefined")
    environment = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(cache))
    return Compiler((*zig, *options), f"zig {_first_line([*zig, 'version'])}", machine, environment)


def target_machine() -> str:
    """Return the machine to build for: this one, or that of a release."""
    return os.environ.get(TARGET_SWITCH) or platform.machine()


def zig_fits() -> bool:
    """Return whether programs that Zig builds for glibc run here."""
    return sys.platform == "linux" and platform.machine() in ZIG_MACHINES and platform.libc_ver()[0] == "glibc"


def can_link(compiler: Sequence[str]) -> bool:
    """Return whether this command makes a program: gcc without the C library's headers cannot."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*compiler, "-x", "c", "-", "-o", f"{folder}/program", *THREADS]
        try:
            done = subprocess.run(
                command, input=PROBE, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


def generator() -> ModuleType:
    """Return generate.py, which lies next to this file, as a module."""
    spec = importlib.util.spec_from_file_location("gpupool_native_generate", HERE / "generate.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(HERE / "generate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def _first_line(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0].strip()


def build(
    out: Path, compiler: Compiler, flags: Sequence[str] = (), sanitize: str = "", products: Sequence[str] = ()
) -> dict[str, str]:
    """Build as many of the products (all unless named) as possible; return what the compiler said of those that failed.

    They are built side by side.
    """
    products = products or PRODUCTS
    out = out.resolve()
    generate = generator()
    generate.write(out / "generated", generate.make_tables())
    flags = [*flags, *([f"-fsanitize={sanitize}", "-fno-omit-frame-pointer"] if sanitize else _COMPLETE)]
    steps = {product.path: _compile(product, out, compiler.machine, flags) for product in COMPILED}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started = {path: pool.submit(_attempt, compiler, steps[path]) for path in steps if path in products}
    failures = {path: said for path, step in started.items() if (said := step.result())}
    if SHARE_CUDA_ALIAS in products and SHARE_CUDA not in failures and (said := _attempt(compiler, _alias(out))):
        failures[SHARE_CUDA_ALIAS] = said
    return failures


def _compile(product: Product, out: Path, machine: str, flags: Sequence[str]) -> list[object]:
    """Return the arguments that make a product."""
    (out / product.path).parent.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{folder}" for folder in (out, "include", "common", ".", *product.folders)]
    sources = [path.relative_to(HERE) for folder in product.folders for path in sorted(HERE.glob(f"{folder}/*.c"))]
    sources += [out / "generated" / name for name in product.generated]
    compiling = [*CFLAGS, *BRANCH_PROTECTION.get(machine, ()), *includes, *flags]
    return [*compiling, *product.link, "-o", out / product.path, *sources, *product.libraries]


def _alias(out: Path) -> list[object]:
    linking = ["-shared", "-nostdlib", "-Wl,-soname,libcuda.so", "-Wl,--no-as-needed", *READ_ONLY]
    return [*linking, "-o", out / SHARE_CUDA_ALIAS, "-x", "c", "/dev/null", "-x", "none", out / SHARE_CUDA]


def _attempt(compiler: Compiler, arguments: Iterable[object]) -> str:
    try:
        compiler.run(arguments)
    except CompilerError as error:
        return str(error)
    return ""


def reason_of(failures: Mapping[str, str]) -> str:
    """Return the first error in what a compiler said, for one sentence."""
    text = "\n".join(failures.values())
    wrong = re.search(r"^.*\b(?:error|undefined reference|undefined symbol|No such file)\b.*$", text, re.MULTILINE)
    return wrong[0].strip() if wrong else f"the compiler failed at {', '.join(failures)}"


def main() -> int:
    """Build what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("products", nargs="*", metavar="PRODUCT", help=f"some of {', '.join(PRODUCTS)}")
    parser.add_argument("--sanitize", choices=("thread", "address"), default="")
    parser.add_argument("--flag", action="append", default=[], help="one more flag for the compiler; may be repeated")
    chosen = parser.parse_args()
    if unknown := set(chosen.products) - set(PRODUCTS):
        parser.error(f"no such product: {', '.join(sorted(unknown))}")
    compiler = find_compiler(chosen.out / "zig-cache")
    if compiler is None:
        sys.stderr.write("There is no C compiler that works. Install one, or the PyPI package ziglang.\n")
        return 1
    failures = build(chosen.out, compiler, chosen.flag, chosen.sanitize, chosen.products)
    for said in failures.values():
        sys.stderr.write(f"{said}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
