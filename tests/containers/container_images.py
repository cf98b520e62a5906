"""A small image made from files of this machine, and calls of the engine by tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from requires import cc

BUSYBOX = shutil.which("busybox")
PODMAN = shutil.which("podman")
TOOLS = "sh ls cat id sleep echo env true false kill ps mount touch stty tty head dd grep mkdir pwd test trap nc tail"
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


def make_tree(folder: Path) -> None:
    """A file system with a shell, a greeting, and a program for CUDA with the libraries it needs."""
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
    """A file system with a static shell, and a loader at the path of musl's."""
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
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    libraries = {*re.findall(r"(/\S+)", listed), *_libraries("libpthread.so.0 libdl.so.2 librt.so.1 libm.so.6")}
    for path in sorted(libraries):
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), target)


def _libraries(names: str) -> list[str]:
    text = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    found = dict(line.strip().partition(" (")[::2] for line in text.splitlines() if " => " in line)
    return [found[name].rpartition("=> ")[2] for name in names.split() if name in found]


def podman(store: Path, *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    """One command on the store of these tests."""
    command = [str(PODMAN), "--root", str(store / "storage"), "--runroot", str(store / "run"), *words]
    return subprocess.run(command, check=True, capture_output=True, **options)  # type: ignore[call-overload,no-any-return]


def import_image(store: Path, tree: Path, name: str, *changes: str) -> None:
    """An image of a folder."""
    archive = archive_of(tree)
    podman(store, "import", *(word for change in changes for word in ("--change", change)), str(archive), name)


def archive_of(tree: Path) -> Path:
    """Return a tar of a folder, in the same parent folder."""
    archive = tree.with_suffix(".tar")
    subprocess.run(["tar", "-C", tree, "--owner=0", "--group=0", "-cf", archive, "."], check=True)
    return archive


def containers(store: Path) -> list[str]:
    """The names of all containers there are."""
    return podman(store, "ps", "--all", "--format", "{{.Names}}").stdout.decode().split()
