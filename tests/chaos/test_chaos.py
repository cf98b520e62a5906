"""Short rounds of `benchmarks/chaos.py`: kill -9 of the pool's processes under a running mix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[2] / "benchmarks" / "chaos.py"


def torment(*options: str) -> None:
    words = (sys.executable, str(CHAOS), *options, "--name", "")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nothing_is_lost_duplicated_or_leaked_under_kills() -> None:
    torment("--kills", "25", "--seed", "7", "--minutes", "1", "--pause", "0.3")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.needs("postgresql")
def test_nothing_is_lost_over_postgresql_under_kills_of_server_and_leader() -> None:
    torment("--database", "postgres", "--kills", "4", "--seed", "1466", "--minutes", "0.1", "--pause", "0.5")
