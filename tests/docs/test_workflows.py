"""Workflows can run: the files are YAML of the expected form, and everything that they name exists."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import yaml
from pages import ROOT

FOLDER = ROOT / ".github/workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
PINNED = re.compile(r"[\w-]+/[\w./-]+@(v\d+(\.\d+){0,2}|[0-9a-f]{40})")
PATH = re.compile(r"(?<![\w/$}])\.?[A-Za-z_]\w*/[\w./-]+")  # relative paths, as scripts/quick
GENERATED = ("dist/", "build/")


def steps(path: Any) -> list[dict[str, Any]]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [step for job in document["jobs"].values() for step in job["steps"]]


def test_there_is_a_quick_and_a_full_tier() -> None:
    commands = {path.stem: {step.get("run") for step in steps(path)} for path in WORKFLOWS}
    assert "scripts/quick" in commands["quick"]
    assert ".ci/run" in commands["full"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_has_triggers_limits_and_read_access(path: Any) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert document["name"] == path.stem
    assert {"push", "pull_request"} <= set(document[True])  # YAML 1.1 reads the key `on` as a boolean
    assert document["permissions"] == {"contents": "read"}
    for job in document["jobs"].values():
        assert job["timeout-minutes"] <= 90
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_to_a_version(path: Any) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_paths_in_commands_exist_and_scripts_are_executable(path: Any) -> None:
    for command in (step["run"] for step in steps(path) if "run" in step):
        for name in PATH.findall(command):
            if not name.startswith(GENERATED):
                assert (ROOT / name).exists(), f"{path.name} runs {command}"
        first = command.split()[0]
        if "/" in first:
            assert os.access(ROOT / first, os.X_OK), f"{path.name} runs {command}"


def test_workflow_python_versions_are_supported() -> None:
    document = yaml.safe_load((FOLDER / "quick.yml").read_text(encoding="utf-8"))
    versions = document["jobs"]["quick"]["strategy"]["matrix"]["python"]
    assert all(isinstance(version, str) for version in versions)  # 3.10 without quotes is 3.1
    lowest = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert lowest is not None
    assert versions[0] == lowest[1]
