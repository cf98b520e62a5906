"""Help, the overview, completion, and mistakes on the command line."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest
import typer
from cli_fake_pool import COMMAND, FakePool, workload_view

from gpupool.cli import app
from gpupool.cli.index import ALIASES, MODULES, known_name, near_names, overview, resolve_alias


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


@pytest.mark.parametrize("words", ["--help", "submit --help", "ps --help", "--version", "completion bash"])
@pytest.mark.parametrize("is_buffered", [True, False])
def test_closed_output_is_no_error(pool: FakePool, words: str, is_buffered: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = pool.env | ({} if is_buffered else {"PYTHONUNBUFFERED": "1"})
    command = [*COMMAND, *words.split()]
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=env, timeout=60, check=False)
    finally:
        os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 0


def test_index_lists_exactly_the_commands_of_the_modules() -> None:
    built = typer.main.get_command(app.build(MODULES))
    assert set(built.commands) == set(MODULES)  # type: ignore[attr-defined]


def test_overview_names_every_command() -> None:
    assert all(f"  {name} " in overview() for name in MODULES)
    assert max(map(len, overview().splitlines())) <= 120


def test_command_names_accept_dashes_and_suggest_similar_names() -> None:
    assert known_name("request_gpus") == known_name("request-gpus") == "request-gpus"
    assert known_name("bogus") is None
    assert "release-gpus" in near_names("relase_gpus")


def test_alias_is_replaced_by_its_command() -> None:
    assert resolve_alias(["node", "describe", "gpu1", "--json"]) == ["describe", "node", "gpu1", "--json"]
    assert resolve_alias(["workload", "list", "-a"]) == ["ps", "-a"]
    assert resolve_alias(["node", "label", "gpu1"]) == ["node", "label", "gpu1"]
    assert resolve_alias(["workload", "--help"]) == ["workload", "--help"]
    assert resolve_alias(["node"]) == ["node"]


@pytest.mark.parametrize("target", [target for verbs in ALIASES.values() for target in verbs.values()])
def test_alias_target_is_a_command(target: str) -> None:
    assert target.split(maxsplit=1)[0] in MODULES


def test_alias_prints_output_of_its_command(gpupool: Any) -> None:
    alias, command = gpupool("workload", "list", "--json"), gpupool("ps", "--json")
    assert (alias.returncode, alias.stdout) == (0, command.stdout)
    assert b"--priority" in gpupool("workload", "submit", "--help").stdout


@pytest.mark.parametrize("name", ["request_gpus", "request-gpus", "list_gpus", "join-token", "login_code"])
def test_underscores_and_dashes_name_the_same_command(gpupool: Any, name: str) -> None:
    shown = gpupool(name, "--help")
    assert (shown.returncode, f"gpupool {name.replace('_', '-')}" in shown.stdout.decode()) == (0, True)


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        ((), 2, ""),
        (("--help",), 0, ""),
        (("-h",), 0, ""),
        (("--version",), 0, ""),
        (("pss",), 2, "Did you mean 'gpupool ps'"),
        (("sbatch", "job.sh"), 2, "Did you mean 'gpupool submit'"),
        (("submit-dist", "pytorch"), 2, "Did you mean 'gpupool training pytorch submit'"),
        (("run", "--bogus", "--", "true"), 125, "--bogus"),
        (("run",), 125, "give a command"),
        (("run", "-n", "two", "--", "true"), 125, "integer"),
        (("ps", "--bogus"), 2, "gpupool ps --help"),
        (("describe", "a", "b"), 2, "job, node or project"),
        (("list", "clusters"), 2, "Invalid value for 'what': 'clusters' is not one of 'jobs', 'nodes'"),
        (("submit", "name", "word", "--", "true"), 125, "'word' before -- is neither the name nor an option"),
        (("stop",), 2, "--all"),
        (("project",), 2, ""),
    ],
)
def test_usage_errors_have_message_and_status(gpupool: Any, args: tuple[str, ...], status: int, said: str) -> None:
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
    assert set(complete(pool, "gpupool re")) >= {"release-gpus", "request-gpus", "resume"}
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


def test_bash_completion_script_is_valid(gpupool: Any) -> None:
    script = gpupool("completion", "bash").stdout
    assert subprocess.run(["bash", "-n"], input=script, check=False, timeout=20).returncode == 0
