"""A short round of `benchmarks/chaos.py`: kill -9 of the pool's processes under a running mix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[2] / "benchmarks" / "chaos.py"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nothing_is_lost_doubled_or_leaked_however_the_pool_is_killed() -> None:
    options = ("--kills", "25", "--seed", "7", "--minutes", "1", "--pause", "0.3", "--name", "")
    done = subprocess.run((sys.executable, str(CHAOS), *options), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
