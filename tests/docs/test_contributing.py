"""The guides of docs/contributing are tried: their changes are made to a copy of the package, and their checks run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pages import ROOT

GUIDES = ROOT / "docs" / "contributing"
MAX_FILES = {"add-a-command": 2, "add-a-job-field": 4, "add-a-sharing-mode": 3}  # written by hand
BLOCK = re.compile(r"^( *)```(diff|python)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
GENERATED_BY_THE_BUILD = shutil.ignore_patterns("_native", "__pycache__")


def blocks_of(guide: Path, kind: str) -> list[str]:
    """Return the blocks of one kind; a block in a list is indented like the list."""
    found = BLOCK.findall(guide.read_text(encoding="utf-8"))
    return [re.sub(f"^{indent}", "", text, flags=re.MULTILINE) for indent, name, text in found if name == kind]


def apply(change: str, root: Path) -> Path:
    """Make one change to a file, or write a new one. The hunks of a change are separated by ``@@``."""
    head, _, body = change.partition("\n")
    path = root / head.removeprefix("--- ")
    text = path.read_text(encoding="utf-8") if path.exists() else None
    for hunk in body.split("@@\n"):
        lines = [line or " " for line in hunk.splitlines()]
        old = "".join(f"{line[1:]}\n" for line in lines if line[0] != "+")
        new = "".join(f"{line[1:]}\n" for line in lines if line[0] != "-")
        assert text is None or text.count(old) == 1, f"{path.name} must have exactly once:\n{old}"
        text = new if text is None else text.replace(old, new)
    path.write_text(text or "", encoding="utf-8")
    return path


def install_entry_points(root: Path) -> None:
    """Make the entry points of the copied project known to Python, as an installation does."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = root / "src" / "gpupool_copy-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gpupool-copy\nVersion: 0\n", encoding="utf-8")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in project["entry-points"].items()
    )
    (folder / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")


def test_every_guide_is_tried() -> None:
    tried_elsewhere = {"add-a-runner"}  # tests/node/test_runner_conformance.py
    assert {guide.stem for guide in GUIDES.glob("*.md")} == set(MAX_FILES) | tried_elsewhere


@pytest.mark.parametrize("name", MAX_FILES)
def test_example_of_guide_works(name: str, tmp_path: Path) -> None:
    guide = GUIDES / f"{name}.md"
    shutil.copytree(ROOT / "src" / "gpupool", tmp_path / "src" / "gpupool", ignore=GENERATED_BY_THE_BUILD)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    changed = {apply(change, tmp_path) for change in blocks_of(guide, "diff")}
    assert len(changed) <= MAX_FILES[name]
    install_entry_points(tmp_path)
    (check,) = blocks_of(guide, "python")
    env = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(
        [sys.executable, "-c", check], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
