"""A small image made from files of this machine, and calls of the engine by tests."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from requires import cc, require

BUSYBOX = shutil.which("busybox")
PODMAN = shutil.which("podman")
TOOLS = (
    "sh ls cat id sleep echo env true false kill ps mount touch stty tty head dd grep mkdir pwd test trap nc tail "
    "which uname rm cp mv basename dirname expr tr sed"
)
GREET = """#!/bin/sh
echo "hello $*"
"""
# Takes all the memory of its GPU that it can get, and tells how much that is.
TAKE_ALL = """
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
    void *cuda = dlopen(count > 1 ? words[1] : "libcuda.so.1", RTLD_NOW);
    if (cuda == NULL) { printf("none %s\\n", dlerror()); return 3; }
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    int (*get)(int *, int) = (int (*)(int *, int))dlsym(cuda, "cuDeviceGet");
    int (*total)(size_t *, int) = (int (*)(size_t *, int))dlsym(cuda, "cuDeviceTotalMem_v2");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = (int (*)(void *))dlsym(cuda, "cuCtxSetCurrent");
    int (*allocate)(unsigned long long *, size_t) =
        (int (*)(unsigned long long *, size_t))dlsym(cuda, "cuMemAlloc_v2");
    int device = 0; size_t bytes = 0; void *context = NULL; unsigned long long at; int got = 0;
    int answer = init(0);
    if (answer != 0) { printf("init %d\\n", answer); return 4; }
    get(&device, 0); total(&bytes, device); retain(&context, device); current(context);
    while (allocate(&at, 64u << 20) == 0) got += 64;
    printf("total %zu\\ngot %d\\n", bytes >> 20, got);
    fflush(stdout);
    return 0;
}
"""


@contextlib.contextmanager
def store_with_image() -> Iterator[Path]:
    """Yield a new folder for images and containers, with the image ``localhost/tiny:1`` in it."""
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


def make_tree(folder: Path) -> None:
    """Create a file system with a shell, a greeting, and a program for CUDA with the libraries that it needs."""
    for name in ("bin", "etc", "tmp", "dev", "proc", "sys", "work"):
        (folder / name).mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    shutil.copy(str(BUSYBOX), folder / "bin/busybox")
    for tool in TOOLS.split():
        (folder / "bin" / tool).symlink_to("busybox")
    (folder / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    greet = folder / "bin/greet"
    greet.write_text(GREET)
    greet.chmod(0o755)
    _add_cuda_program(folder)


def make_musl_tree(folder: Path) -> None:
    """Create a file system with a static shell, and a loader at the path of musl's."""
    for name in ("bin", "etc", "tmp", "dev", "proc", "sys", "lib"):
        (folder / name).mkdir()
    shutil.copy(str(BUSYBOX), folder / "bin/busybox")
    (folder / "bin/sh").symlink_to("busybox")
    (folder / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    (folder / f"lib/ld-musl-{os.uname().machine}.so.1").touch(mode=0o755)


def _add_cuda_program(folder: Path) -> None:
    source, program = folder / "take_all.c", folder / "bin/take_all"
    source.write_text(TAKE_ALL)
    cc("-o", program, source, "-ldl")
    add_libraries(folder, program, *_libraries("libpthread.so.0 libdl.so.2 librt.so.1 libm.so.6"))


def add_libraries(folder: Path, *files: Path | str) -> None:
    """Add the shared libraries of this machine that programs and libraries need, and the libraries themselves."""
    listed = subprocess.run(["ldd", *files], check=False, capture_output=True, text=True).stdout
    found = {path for path in re.findall(r"(/\S+)(?= \(0x)", listed) if not path.startswith(f"{folder}/")}
    for path in found | {str(file) for file in files if not str(file).startswith(f"{folder}/")}:
        shutil.copy(os.path.realpath(path), _inside(folder, Path(path)))


def add_python(folder: Path, *packages: str) -> None:
    """Add this Python with installed packages and what they require, in ``/packages`` (for PYTHONPATH)."""
    program, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    left_out = shutil.ignore_patterns(
        "test", "tests", "site-packages", "dist-packages", "__pycache__", "config-*", "*.a"
    )
    shutil.copytree(library, _inside(folder, library), ignore=left_out, symlinks=True)
    shutil.copy(program, _inside(folder, program))
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin/python3").symlink_to(program)
    for name in _requirements(packages):
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            if not {"..", "__pycache__", "typeshed", "django-stubs"} & set(file.parts):  # thousands of types of jedi
                target = folder / "packages" / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(distribution.locate_file(file)), target)
    add_libraries(folder, program, *folder.rglob("*.so"))


def add_r(folder: Path) -> None:
    """Add R of this machine (Debian) with its packages, IRkernel among them."""
    left_out = shutil.ignore_patterns("doc", "help", "html", "tests", "*-tests")
    for place in ("/usr/lib/R", "/usr/share/R", "/etc/R"):
        shutil.copytree(place, _inside(folder, Path(place)), ignore=left_out, symlinks=True)
    for program in ("/usr/bin/R", "/usr/bin/Rscript", "/bin/bash"):
        shutil.copy(program, _inside(folder, Path(program)))
    (folder / "usr/bin/which").symlink_to("/bin/busybox")
    add_libraries(
        folder, "/usr/bin/Rscript", "/bin/bash", "/usr/lib/R/bin/exec/R", *(folder / "usr/lib/R").rglob("*.so")
    )


def _requirements(packages: Sequence[str]) -> set[str]:
    """Return the names of packages and of all that they require here."""
    found: set[str] = set()
    names = [*packages]
    while names:
        name = canonicalize_name(names.pop())
        if name in found:
            continue
        found.add(name)
        wanted = (Requirement(text) for text in importlib.metadata.requires(name) or ())
        names += [item.name for item in wanted if item.marker is None or item.marker.evaluate({"extra": ""})]
    return found


def _inside(folder: Path, path: Path) -> Path:
    """Return the place of a path of this machine in a file system; its folder is created."""
    target = folder / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _libraries(names: str) -> list[str]:
    text = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    found = dict(line.strip().partition(" (")[::2] for line in text.splitlines() if " => " in line)
    return [found[name].rpartition("=> ")[2] for name in names.split() if name in found]


def podman(store: Path, *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run one command on the store of these tests."""
    command = [str(PODMAN), "--root", str(store / "storage"), "--runroot", str(store / "run"), *words]
    return subprocess.run(command, check=True, capture_output=True, **options)  # type: ignore[call-overload,no-any-return]


def import_image(store: Path, tree: Path, name: str, *changes: str) -> None:
    """Import an image of a folder."""
    archive = archive_of(tree)
    podman(store, "import", *(word for change in changes for word in ("--change", change)), str(archive), name)


def archive_of(tree: Path) -> Path:
    """Return a tar of a folder, in the same parent folder."""
    archive = tree.with_suffix(".tar")
    subprocess.run(["tar", "-C", tree, "--owner=0", "--group=0", "-cf", archive, "."], check=True)
    return archive


def containers(store: Path) -> list[str]:
    """Return the names of all containers."""
    return podman(store, "ps", "--all", "--format", "{{.Names}}").stdout.decode().split()
