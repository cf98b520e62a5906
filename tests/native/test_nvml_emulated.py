"""The pool's emulated GPUs are simulated: the agent sees what programs do on them, through the fake NVML."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from native_harness import GIB, MIB
from nvml_harness import holder_program, on_gpu

_PRELUDE = """\
import json, os, sys
from dataclasses import asdict
from pathlib import Path
from gpupool.node.host import native
native.FOLDER = Path(sys.argv[1])
from gpupool.node.inventory.emulated import EmulatedInventory, parse_emulation
run = Path(sys.argv[2])
inventory = EmulatedInventory("n1", parse_emulation(sys.argv[3]))

def tell(value):
    print(json.dumps(value))
"""


@pytest.fixture(scope="module")
def holder(native_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return holder_program(tmp_path_factory.mktemp("holder"))


def in_agent(native_out: Path, run: Path, cards: str, script: str) -> Any:
    """Return the output of a process like the agent, with these emulated cards and this run folder."""
    command = [sys.executable, "-c", _PRELUDE + textwrap.dedent(script), str(native_out), str(run), cards]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


DESCRIBE = "tell(str(inventory.fake_driver_folder(run)))"


def test_use_and_foreign_processes_of_emulated_gpus_are_real(native_out: Path, tmp_path: Path, holder: Path) -> None:
    cards = "T4,A100-80GB[3g.40gb,2g.20gb]"
    folder = Path(in_agent(native_out, tmp_path, cards, DESCRIBE))
    script = """
        before = inventory.report()
        inventory.fake_driver_folder(run)
        mine = frozenset(map(int, os.environ.get("MINE", "").split()))
        gpus = inventory.gpus(mine)
        after = inventory.report()
        assert after.gpus == gpus
        assert [g.uuid for g in before.gpus] == [g.uuid for g in gpus]
        assert "GPUPOOL_FAKE_GPUS" not in os.environ
        assert all(g.emulated for g in gpus)
        tell([[g.index, g.model, g.memory_mib, g.memory_used_mib, [p.pid for p in g.foreign]] for g in gpus])
    """
    with (
        on_gpu(holder, folder, (0, -1), 3 * GIB) as one,
        on_gpu(holder, folder, (1, 1), 512 * MIB) as two,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("MINE", str(two.pid))
        assert in_agent(native_out, tmp_path, cards, script) == [
            [0, "Tesla T4", 16384, 3072, [one.pid]],
            [200, "NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40960, 0, []],
            [201, "NVIDIA A100-SXM4-80GB MIG 2g.20gb", 20480, 512, []],
        ]
        one.kill()
        one.wait()
        patch.setenv("MINE", f"{one.pid} {two.pid}")
        used = [row[3:] for row in in_agent(native_out, tmp_path, cards, script)]
        assert used == [[0, []], [0, []], [512, []]]


def test_fake_driver_files_of_shared_pool_are_open_to_other_users(native_out: Path, tmp_path: Path) -> None:
    script = """
        folder = inventory.fake_driver_folder(run, shared=True)
        tell(sorted([p.name, oct(p.stat().st_mode & 0o777)] for p in folder.iterdir()))
    """
    assert in_agent(native_out, tmp_path, "2xT4", script) == [
        ["gpu-0.alive", "0o666"],
        ["gpu-0.state", "0o666"],
        ["gpu-1.alive", "0o666"],
        ["gpu-1.state", "0o666"],
        ["gpus.conf", "0o644"],
    ]


def test_without_the_native_parts_cards_exist_on_paper(tmp_path: Path) -> None:
    script = """
        inventory.fake_driver_folder(run)
        tell([g.memory_used_mib for g in inventory.gpus(frozenset())])
    """
    assert in_agent(tmp_path / "nothing", tmp_path, "2xT4", script) == [0, 0]


def test_nvml_inventory_works_on_fake_driver(native_out: Path, tmp_path: Path) -> None:
    script = """
        import ctypes
        folder = inventory.fake_driver_folder(run)
        os.environ["GPUPOOL_FAKE_GPUS"] = str(folder)
        ctypes.CDLL(str(native.FOLDER / "fake/libnvidia-ml.so.1"))
        from gpupool.node.inventory.nvml import NvmlInventory
        report = NvmlInventory("n1").report()
        tell([report.warnings, [[g.index, g.model, g.mig_profile, g.health, g.links] for g in report.gpus]])
    """
    warnings, gpus = in_agent(native_out, tmp_path, "2xT4,A100-80GB[3g.40gb]", script)
    assert warnings == []
    assert gpus == [
        [0, "Tesla T4 (emulated)", "", "ok", {"1": "PHB", "2": "PHB"}],
        [1, "Tesla T4 (emulated)", "", "ok", {"0": "PHB", "2": "PHB"}],
        [300, "NVIDIA A100-SXM4-80GB (emulated) MIG 3g.40gb", "3g.40gb", "ok", {}],
    ]
