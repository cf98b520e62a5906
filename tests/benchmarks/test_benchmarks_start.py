"""Each benchmark starts: a moved module would otherwise be noticed only at the next measurement."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(
    path.relative_to(ROOT / "benchmarks")
    for path in (ROOT / "benchmarks").rglob("*.py")
    if not path.name.startswith("_") and "__main__" in path.read_text()
)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_benchmark_prints_its_help(program: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / program), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "usage:" in done.stdout
