"""The pack of the benchmark for real GPUs: made here, executed in a network namespace without interfaces.

The Python that starts it has CuPy and numba but no gpupool, as on the machine for which the pack is made.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requires import ROOT, require

pytestmark = pytest.mark.timeout(900)  # the pack is built and installed on a machine that may be busy
PYTHON = ROOT / ".venv-cuda/bin/python"
OLD_ROOT = ROOT / "scripts/old-root"
PARTS = ("--part", "context", "--part", "launch", "--part", "kills", "--part", "frameworks")


class Pack:
    """A pack that was moved to another folder, and its results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder.parent / "out"

    def begin(self, *options: str) -> subprocess.Popen[str]:
        """Start it without network access."""
        command = ["unshare", "--net", str(PYTHON), str(self.folder / "start.py"), "--emulated", "--quick", *PARTS]
        return subprocess.Popen(
            [*command, "--out", str(self.out), *options],
            cwd=self.folder.parent,
            env={name: value for name, value in os.environ.items() if not name.startswith("GPUPOOL_")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str) -> tuple[int, str]:
        """Run it to its end; return its status and its messages."""
        process = self.begin(*options)
        _, errors = process.communicate()
        return process.returncode, errors

    def lines(self) -> list[dict[str, Any]]:
        """Return the figures so far."""
        try:
            text = (self.out / "figures.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pack]:
    require("root", "cc", "cuda-clients", "native")
    version = subprocess.run([PYTHON, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    made = tmp_path_factory.mktemp("made") / "pack"
    command = [str(ROOT / "benchmarks/gpu/pack"), str(made), version.rpartition(".")[0]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    moved = tmp_path_factory.mktemp("gpub") / "pack"
    made.rename(moved)  # pytest's folders are closed to other accounts
    yield Pack(moved)
    if (place := moved / "environment").exists():
        shutil.rmtree(place.read_text())


def test_pack_is_small_and_complete(pack: Pack) -> None:
    assert sum(path.stat().st_size for path in pack.folder.rglob("*") if ".venv" not in path.parts) <= 40 << 20
    assert list(pack.folder.glob("wheels/gpupool-*-manylinux_2_17_*.whl"))
    assert not list(pack.folder.glob("wheels/*.tar.gz"))
    assert os.access(pack.folder / "gpu/workers/launch", os.X_OK)


def test_killed_run_is_resumed_without_network_access(pack: Pack) -> None:
    process = pack.begin()
    while len(pack.lines()) < 2:  # pytest's time limit ends this
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = pack.lines()
    former = Path((pack.out / "pool").read_text())
    assert former.is_dir()

    status, errors = pack.run("--resume", "--budget", "1")
    assert (status, pack.lines()) == (4, kept), errors
    assert "--resume" in errors
    assert not former.exists(), "the pool of the killed run is stopped"

    status, errors = pack.run("--resume", "--budget", "540")
    assert status == 0, errors
    lines = pack.lines()
    assert lines[: len(kept)] == kept
    names = [(line["part"], line["name"]) for line in lines]
    assert len(names) == len(set(names))
    assert {part for part, _ in names} == {"context", "launch", "kills", "frameworks"}
    skipped = {line["name"]: line["reason"] for line in lines if line["outcome"] != "measured"}
    assert {"with PyTorch and cuBLAS", "cupy", "jax"} <= set(skipped)
    assert set(skipped.values()) == {"kernels of frameworks compute nothing on an emulated GPU"}
    assert all(line["emulated"] for line in lines)
    assert {"gpupool", "cupy-cuda13x", "numba-cuda"} <= set(lines[0]["machine"]["versions"])
    assert (pack.out / "report.md").read_text().startswith("# Emulated GPUs")
    assert "no figure of this page describes a real GPU" in (pack.out / "report.html").read_text()
    assert not (pack.out / "pool").exists()


# Perl's loader is built in, and perl-base needs nothing but libc. Its programs on the command line need /dev/null.
LOAD = """
for (@ARGV) {
    my ($path, $symbol) = split /:/;
    my $library = DynaLoader::dl_load_file($path, 0) or die DynaLoader::dl_error();
    DynaLoader::dl_find_symbol($library, $symbol) or die "$path has no $symbol";
}
print "loaded";
"""


@pytest.fixture(scope="module")
def old_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root filesystem of Debian 11 with glibc 2.31 and Perl; the test is skipped if it cannot be downloaded."""
    require("root")
    folder = tmp_path_factory.mktemp("old")
    done = subprocess.run([OLD_ROOT, folder], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Debian 11 cannot be downloaded: {done.stderr.strip()[-300:]}")
    (folder / "dev").mkdir()
    (folder / "dev/null").touch()
    return folder


def test_native_parts_of_pack_load_with_an_older_glibc(pack: Pack, old_root: Path) -> None:
    (wheel,) = pack.folder.glob("wheels/gpupool-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(old_root, [name for name in archive.namelist() if "/_native/" in name])
    native = "/gpupool/_native"
    symbols = {"libcuda.so.1": "cuInit", "libnvidia-ml.so.1": "nvmlInit_v2"}
    libraries = [f"{native}/{kind}/{name}:{symbols[name]}" for kind in ("share", "fake") for name in symbols]

    environment = {"LC_ALL": "C", "PATH": os.environ["PATH"]}

    def run(*command: str) -> str:
        words = ["chroot", str(old_root), *command]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    perl = ("/usr/bin/perl", "-MDynaLoader", "-e", LOAD)
    assert run(*perl, *libraries) == "loaded"
    (loader,) = old_root.glob("lib*/ld-linux-*")  # LD_PRELOAD would apply to this system's chroot, too
    preload = ("--preload", ":".join(f"{native}/share/{name}" for name in symbols))
    assert run(f"/{loader.relative_to(old_root)}", *preload, *perl) == "loaded", "the loader has no complaint"
    arbiter = old_root / native.removeprefix("/") / "gpupool-arbiter"
    arbiter.chmod(0o755)
    assert "shares the time" in run(f"{native}/gpupool-arbiter", "--help")


def test_pack_is_not_overwritten(pack: Pack) -> None:
    command = [str(ROOT / "benchmarks/gpu/pack"), str(pack.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "exists already" in done.stderr
