"""Make the chaos test's modules importable: they are next to the benchmarks and the store's tests."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
sys.path.insert(0, str(Path(__file__).parents[1] / "store"))
