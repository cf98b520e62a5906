"""The start of the relay: which arguments Ray's worker program gets, and which slow import it avoids."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpupool.fabric.ray import worker

PROGRAM = """
import sys

try:
    import rfc3987_syntax
except ImportError:
    rfc3987_syntax = None
print(__name__, sys.argv[1:], rfc3987_syntax, any(folder.endswith("fabric/ray") for folder in sys.path))
"""


def test_worker_runs_in_the_process_of_its_setup(tmp_path: Path) -> None:
    program = tmp_path / "default_worker.py"
    program.write_text(PROGRAM)
    options = ["--node-ip-address=10.0.0.1", "--serialized-runtime-env-context={}", "--language=PYTHON"]
    command = [sys.executable, worker.__file__, str(program), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == "__main__ ['--node-ip-address=10.0.0.1'] None False"


@pytest.mark.needs("ray")
def test_ray_works_without_the_slow_import() -> None:
    script = """
from gpupool.fabric.ray.environment import load
load("ray._private.node"), load("jsonschema").validate("10.0.0.1", {"format": "ipv4"})
import sys
print(sys.modules["rfc3987_syntax"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == "None"
