"""A machine whose Ray is not the head's says so; its agent and jobs run on meanwhile."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from gpupool.fabric.ray import node_process
from gpupool.fabric.ray.node_process import EXIT_BROKEN, Machine


def refused_by_ray(_machine: Machine) -> None:
    """As Ray itself refuses a node."""
    utils = pytest.importorskip("ray._private.utils")
    utils.check_version_info({"ray_version": "1.0.0", "python_version": "3.6.0"}, "node 10.0.0.2")


def test_another_version_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_process, "_start", refused_by_ray)
    assert node_process._run(cast(Machine, None), cast(Any, None), cast(Any, None)) == EXIT_BROKEN
    said = json.loads(capsys.readouterr().err)
    assert said["event"] == "ray cannot join"
    assert "Ray: 1.0.0" in said["why"]
    assert "head's Ray" in said["hint"]
