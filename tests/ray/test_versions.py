"""A machine with another version of Ray than the head reports it; its agent and jobs continue to run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gpupool.fabric.ray.node_process import EXIT_BROKEN

# In a process of its own: importing Ray changes the environment, which all pools of later tests would take over.
REFUSED_BY_RAY = """
from gpupool.fabric.ray import node_process

def start(machine, stop):
    from ray._private import utils
    utils.check_version_info({"ray_version": "1.0.0", "python_version": "3.6.0"}, "node 10.0.0.2")

node_process._start = start
raise SystemExit(node_process._run(None, None, None))
"""


@pytest.mark.needs("ray")
def test_other_version_is_reported_in_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED_BY_RAY], capture_output=True, check=False, timeout=100)
    assert done.returncode == EXIT_BROKEN, done.stderr.decode()
    said = json.loads(done.stderr)
    assert said["event"] == "ray cannot join"
    assert "Ray: 1.0.0" in said["why"]
    assert "head's Ray" in said["hint"]
