"""Programs that do not use the loader's variables: by path, without environment, setuid. The driver is simulated.

The agent of these tests runs in a mount namespace of its own, in which the simulated driver is installed like NVIDIA's.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_share import T4_MIB, UUID, Node, notes_with, said
from native_harness import compile_program
from node_harness import AS_ROOT, spec

from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.work.program.supervision import ExitReason

PROGRAM = Path(__file__).parent / "programs/driver_by_path.c"
INSTALLED = "/usr/local/nvidia/lib64"
NOBODY = 65534
SLICE_MIB = T4_MIB // 10
INSTALL = f"""
set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work"
mount -t overlay none -o "lowerdir=/usr/local,upperdir=$1/upper,workdir=$1/work" /usr/local
mkdir -p {INSTALLED}
cp "$2/fake/libcuda.so.1" {INSTALLED}/libcuda.so.535.1
cp "$2/fake/libnvidia-ml.so.1" {INSTALLED}/libnvidia-ml.so.535.1
for name in libcuda.so libnvidia-ml.so; do
    ln -s $name.535.1 {INSTALLED}/$name.1
    ln -s $name.1 {INSTALLED}/$name
done
shift 2
exec "$@"
"""


class _InstalledNode(Node):
    """A machine with the driver in a system folder."""

    native: Path
    prefix: tuple[str, ...] = ()

    def command(self) -> list[str]:
        layer = self.root / "layer"
        layer.mkdir(exist_ok=True)
        unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", INSTALL, "install", str(layer)]
        return [*unshare, str(self.native), *self.prefix, *super().command()]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build the program, and a setuid copy of it where every user can execute it."""
    folder = Path("/var/tmp") / tmp_path_factory.mktemp("binds").name
    folder.mkdir()
    folder.chmod(0o755)
    built = compile_program(PROGRAM, tmp_path_factory.mktemp("built"), "-ldl")
    plain, setuid = folder / "plain", folder / "setuid"
    for copy, mode in ((plain, 0o755), (setuid, 0o4755)):
        shutil.copyfile(built, copy)
        copy.chmod(mode)
    yield folder
    shutil.rmtree(folder)


def installed(native_out: Path, monkeypatch: pytest.MonkeyPatch, *prefix: str) -> Iterator[Node]:
    if not AS_ROOT:
        pytest.skip("a mount namespace with another /usr/local needs root")
    monkeypatch.setenv("GPUPOOL_NATIVE", str(native_out))
    node = _InstalledNode()
    node.native, node.prefix = native_out, prefix
    node.up()
    yield node
    node.destroy()


@pytest.fixture
def node(native_out: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    yield from installed(native_out, monkeypatch)


@pytest.fixture
def powerless_node(native_out: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Yield an agent that may not mount."""
    yield from installed(native_out, monkeypatch, "setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")


def run(node: Node, *command: str, uid: int | None = None) -> tuple[str, list[str]]:
    """Run a program in a tenth of the GPU; return its last line and its notes."""
    share = GpuShare(UUID, 0, 100, SLICE_MIB)
    wanted = spec(*command, gpus=(share,), uid=uid)
    report = node.run_to_end(wanted)
    lines = said(node, wanted.key)
    assert (report.reason, report.exit_code) == (ExitReason.EXITED, 0), (report, lines)
    return lines[-1], notes_with(node, wanted.key, "bypass")


def check(line: str) -> None:
    """Check that the program saw one GPU of the slice's size, and got no more memory."""
    _gpus, gpus, _shown, shown, _got, got = line.split()
    assert (int(gpus), int(shown)) == (1, SLICE_MIB), line
    assert SLICE_MIB // 2 < int(got) <= SLICE_MIB - 128, line


@pytest.mark.parametrize("name", ["libcuda.so", "libcuda.so.1", "libcuda.so.535.1"])
def test_driver_opened_by_path_is_limited(node: Node, program: Path, name: str) -> None:
    line, notes = run(node, str(program / "plain"), f"{INSTALLED}/{name}")
    check(line)
    assert not notes


def test_program_with_an_empty_environment_is_limited(node: Node, program: Path) -> None:
    line, _ = run(node, "env", "-i", str(program / "plain"), f"{INSTALLED}/libcuda.so.1")
    check(line)


def test_setuid_program_is_limited(node: Node, program: Path) -> None:
    line, _ = run(node, str(program / "setuid"), f"{INSTALLED}/libcuda.so.1", uid=NOBODY)
    check(line)


def test_agent_without_rights_reports_uncovered_programs(powerless_node: Node, program: Path) -> None:
    line, notes = run(powerless_node, str(program / "plain"), f"{INSTALLED}/libcuda.so.1")
    assert f"shown {T4_MIB}" in line
    assert "cannot bind files over the driver" in notes[0]
    assert "Operation not permitted" in notes[0]
