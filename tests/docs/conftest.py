"""A pool of its own for each page, with one emulated GPU whatever the machine has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of somebody who reads a page and types what it says; their pool ends with the test."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "config.json").write_text(json.dumps({"emulate": "1xT4"}))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GPUPOOL", "XDG_"))}
    env |= {
        "PATH": f"{sys.prefix}/bin:{env.get('PATH', os.defpath)}",
        "HOME": str(tmp_path),
        "COLUMNS": "120",
        "GPUPOOL_STATE_DIR": str(state),
        "GPUPOOL_VENV": sys.prefix,
    }
    yield env
    subprocess.run([sys.executable, "-m", "gpupool", "down", "--stop-jobs"], env=env, check=False, capture_output=True)
