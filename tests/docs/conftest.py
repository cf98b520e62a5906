"""A separate pool for each page, with one emulated GPU on every machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return the environment of a reader who types the commands of a page; the pool ends with the test.

    Its state is where other users may pass, as that of a pool of root is, and not in pytest's closed folder.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpdocs-", dir="/tmp"))
    folder.chmod(0o711)
    state = folder / "state"
    state.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700)
    (state / "config.json").write_text(json.dumps({"emulate": "1xT4"}))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GPUPOOL", "XDG_"))}
    without = tmp_path / "without"  # as for a reader: `scripts/test` installs no PyTorch, which takes seconds to import
    without.mkdir()
    (without / "torch.py").write_text("raise ImportError\n")
    env |= {
        "PYTHONPATH": str(without),
        "PATH": f"{sys.prefix}/bin:{env.get('PATH', os.defpath)}",
        "HOME": str(tmp_path),
        "COLUMNS": "120",
        "GPUPOOL_STATE_DIR": str(state),
        "GPUPOOL_VENV": sys.prefix,
    }
    yield env
    subprocess.run([sys.executable, "-m", "gpupool", "down", "--stop-jobs"], env=env, check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)
