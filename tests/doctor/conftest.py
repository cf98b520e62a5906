"""The folders of a pool and of a machine that the doctor checks."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "inventory"))  # the fake NVML lives there

from gpupool.daemon.doctor.run import DoctorContext


@pytest.fixture
def context(tmp_path: Path) -> DoctorContext:
    """Return an empty pool on a machine whose /proc, /sys and /dev are empty folders."""
    state, root = tmp_path / "state", tmp_path / "root"
    for folder in (state, state / "run", root / "proc", root / "sys", root / "dev"):
        folder.mkdir(mode=0o700, parents=True)
    return DoctorContext(state, state / "run", root=root)
