"""Help, the overview, completion, and mistakes on the command line."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import typer
from cli_fake_pool import COMMAND, FakePool, workload_view

from gpupool.cli import app
from gpupool.cli.index import MODULES, known_name, near_names, overview


def commands() -> list[list[str]]:
    found = []
    for name in MODULES:
        command = typer.main.get_command(app.build([name])).commands[name]  # type: ignore[attr-defined]
        below = getattr(command, "commands", {})
        found += [[name, inner] for inner in below] if below else [[name]]
    return found


ALL = commands()


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_has_help_with_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run_app([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Examples:" in shown
    said = shown.partition("Examples:")[2]
    assert any(f"gpupool {' '.join(words)}" in text for text in (said, said.replace("-", "_")))


def test_the_index_has_exactly_the_commands_of_the_modules() -> None:
    built = typer.main.get_command(app.build(MODULES))
    assert set(built.commands) == set(MODULES)  # type: ignore[attr-defined]


def test_the_overview_names_every_command() -> None:
    assert all(f"  {name} " in overview() for name in MODULES)
    assert max(map(len, overview().splitlines())) <= 120


def test_names_are_found_with_dashes_and_near_misses() -> None:
    assert known_name("request-gpus") == "request_gpus"
    assert known_name("bogus") is None
    assert "release_gpus" in near_names("relase_gpus")


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        ((), 2, ""),
        (("--help",), 0, ""),
        (("-h",), 0, ""),
        (("--version",), 0, ""),
        (("pss",), 2, "Did you mean 'gpupool ps'"),
        (("run", "--bogus", "--", "true"), 125, "--bogus"),
        (("run",), 125, "say what to run"),
        (("run", "-n", "two", "--", "true"), 125, "integer"),
        (("ps", "--bogus"), 2, "gpupool ps --help"),
        (("describe", "a", "b"), 2, "job, node and project"),
        (("stop",), 2, "--all"),
        (("project",), 2, ""),
    ],
)
def test_mistakes_have_a_sentence_and_a_status(gpupool: Any, args: tuple[str, ...], status: int, said: str) -> None:
    done = gpupool(*args)
    assert done.returncode == status, done.stderr
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def complete(pool: FakePool, line: str) -> list[str]:
    words = line.split(" ")
    env = {"_GPUPOOL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run([*COMMAND], env=pool.env | env, capture_output=True, timeout=60, check=False)
    assert b"Traceback" not in done.stderr
    return done.stdout.decode().split()


def test_completion_knows_commands_options_and_names(pool: FakePool) -> None:
    views = [workload_view("w0000000001", name="train-1"), workload_view("w0000000002", name="other")]
    pool.answers["GET /v1/workloads"] = {"workloads": views, "next_cursor": None}
    assert set(complete(pool, "gpupool re")) >= {"release_gpus", "request_gpus", "resume"}
    assert "--max-time" in complete(pool, "gpupool run --max")
    assert complete(pool, "gpupool logs tr") == ["train-1"]


def test_completion_is_silent_without_a_pool(pool: FakePool) -> None:
    pool.down()
    assert complete(pool, "gpupool logs tr") == []
    pool.up()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_for_gpupool(gpupool: Any, shell: str) -> None:
    done = gpupool("completion", shell)
    assert done.returncode == 0
    assert b"_GPUPOOL_COMPLETE=complete_" + shell.encode() in done.stdout


def test_the_bash_script_is_valid(gpupool: Any) -> None:
    script = gpupool("completion", "bash").stdout
    assert subprocess.run(["bash", "-n"], input=script, check=False, timeout=20).returncode == 0
