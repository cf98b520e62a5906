"""The program of a session as a process: programs that the node lacks, and environments that were copied."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpupool.domain.work.workspace import READY
from gpupool.node.files import workspace_session


def run(home: Path, *words: str) -> subprocess.Popen[str]:
    """Start the program in a home, with no program on its PATH."""
    (home / "bin").mkdir(exist_ok=True)
    python = home / "bin/python"
    if not python.exists():
        python.symlink_to(sys.executable)  # so that nothing is found next to it
    command = [str(python), "-S", workspace_session.__file__, *words]
    environment = {"HOME": str(home), "PATH": str(home / "bin")}
    return subprocess.Popen(command, cwd=home, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("conda.yml", "The node has none of micromamba, mamba, conda, one of which conda.yml needs."),
        ("uv.lock", "The node has no uv, which uv.lock needs."),
        ("python3.99", "python3.99 cannot be started: No such file or directory."),
    ],
)
def test_missing_program_is_named_and_leaves_nothing(tmp_path: Path, environment: str, said: str) -> None:
    process = run(tmp_path, environment)
    assert said in process.communicate(timeout=60)[0]
    assert process.returncode == 127
    assert (tmp_path / ".venv.incomplete").exists()
    assert not (tmp_path / ".venv").exists()


def test_messages_of_a_build_come_before_its_end(tmp_path: Path) -> None:
    """Tools write to both streams; the output up to the last sentence contains all of their messages."""
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/micromamba"
    tool.write_text("#!/bin/sh\nfor i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done\n")
    tool.chmod(0o755)
    process = run(tmp_path, "conda.yml")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    process.terminate()
    lines += process.communicate(timeout=60)[0].splitlines(keepends=True)
    assert lines[1:3] == ["out 1\n", "err 1\n"]


def test_own_environment_of_the_user_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/mine").touch()
    process = run(tmp_path, "uv.lock")
    assert process.stdout is not None
    assert process.stdout.readline().startswith(READY)
    process.terminate()
    assert process.wait(60) == 0
    assert [path.name for path in (tmp_path / ".venv").iterdir()] == ["mine"]


def test_copied_environment_of_conda_is_made_again(tmp_path: Path) -> None:
    meta = tmp_path / ".venv/conda-meta"
    meta.mkdir(parents=True)
    (tmp_path / ".venv/gpupool-path").write_text("/elsewhere/.venv")
    output = run(tmp_path, "conda.yml").communicate(timeout=60)[0]
    assert "The environment was copied from /elsewhere/.venv." in output
    assert "micromamba" in output
    assert (tmp_path / ".venv.incomplete").exists()
