from __future__ import annotations

import re
import runpy
import subprocess
import sys

import pytest
from pages import ROOT

from gpupool.cli.index import MODULES
from gpupool.domain.work.workload import ReplicaState

DOCS = ROOT / "docs"


def test_command_line_reference_is_current() -> None:
    checked = [sys.executable, str(ROOT / "scripts" / "cli-docs"), "--check"]
    done = subprocess.run(checked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", sorted(MODULES))
def test_every_command_is_in_the_reference(command: str) -> None:
    assert f"### gpupool {command}\n" in (DOCS / "cli.md").read_text()


def test_recording_matches_its_script_and_loads_nothing() -> None:
    from xml.etree import ElementTree as ET

    picture = DOCS / "recording.svg"
    tree = ET.parse(picture)
    said = "".join(tree.getroot().itertext()).replace("\xa0", " ")
    for command in runpy.run_path(str(ROOT / "scripts" / "record"))["COMMANDS"]:
        assert command in said
    assert set(re.findall(r"https?://[^\"'\s)]+", picture.read_text())) == {"http://www.w3.org/2000/svg"}


def test_table_of_states_names_every_state() -> None:
    table = (DOCS / "architecture.md").read_text().partition("## States of a replica")[2].partition("\n## ")[0]
    assert all(state.upper() in table for state in ReplicaState)


def test_every_package_is_described() -> None:
    packages = (DOCS / "architecture.md").read_text().partition("## Packages")[2].partition("\n## ")[0]
    folders = {p.parent.name for p in (ROOT / "src" / "gpupool").glob("*/__init__.py")}
    assert folders
    assert {name for name in folders if f"`{name}/" not in packages} == set()


def test_paths_in_where_to_look_exist() -> None:
    answers = (DOCS / "architecture.md").read_text().partition("## Where to look")[2].partition("\n## ")[0]
    paths = re.findall(r"`([a-z_]+/[\w/.]+)`", answers)
    assert len(paths) > 10
    folders = (ROOT / "src" / "gpupool", ROOT)
    assert [path for path in paths if not any((folder / path).exists() for folder in folders)] == []
