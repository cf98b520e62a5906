"""Commands that run without Typer read the same arguments, print the same and stay light."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cli_fake_pool import COMMAND, FakePool

from gpupool.cli import app, light_app
from gpupool.cli.index import MODULES, resolve_alias
from gpupool.cli.lazy_typer import Command, Typer
from gpupool.cli.light_parser import Parameter, parameters_of, parse_command
from gpupool.cli.request.options import NeedsFullParser

EVERYDAY = (
    "ps",
    "list",
    "describe",
    "why",
    "logs",
    "events",
    "nodes",
    "list-gpus",
    "smi",
    "usage",
    "fairshare",
    "wait",
    "stop",
    "suspend",
    "resume",
    "status",
    "whoami",
    "version",
    "submit",
)
HEAVY = {"typer", "pydantic", "rich", "dataclasses", "inspect", "asyncio", "subprocess", "httpx2", "yaml", "numpy"}
Calls = list[dict[str, Any]]


def recorded(function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    """Return a function with the declarations of another one that records its arguments."""
    options = getattr(function, "options", ())

    def record(**values: Any) -> None:
        plain = {name: value for name, value in values.items() if name != "context"}
        if options:
            plain = {name: value for name, value in plain.items() if value not in (None, [])}
        calls.append(plain)

    record.own, record.options = getattr(function, "own", function), options  # type: ignore[attr-defined]
    return record


def replace_functions(program: Typer, calls: Calls) -> Typer:
    for command in program.commands.values():
        command.function = recorded(command.function, calls)
    for group in program.groups.values():
        replace_functions(group, calls)
    return program


def commands() -> Iterator[tuple[list[str], Command]]:
    for name in MODULES:
        program = light_app.declare(name)
        if name in program.commands:
            yield [name], program.commands[name]
        elif name in program.groups and program.groups[name].own is None:
            for inner, command in program.groups[name].commands.items():
                if resolve_alias([name, inner]) == [name, inner]:
                    yield [name, inner], command


# The nouns of Run:ai have the options of submit under more names.
COMMANDS = [(words, command) for words, command in commands() if words[-1:] != ["submit"] or len(words) == 1]


def sample(parameter: Parameter) -> str:
    if hasattr(parameter.kind, "__members__"):
        return str(next(iter(parameter.kind)))
    if parameter.kind is int:
        return str(int(parameter.smallest or 0) + 3)
    return "2.5" if parameter.kind is float else "some=text"


def command_lines(command: Command) -> Iterator[list[str]]:
    """Yield command lines with each option in each spelling, all of them together, and doubled."""
    parameters = parameters_of(command.function, {}, {})
    arguments = [sample(p) for p in parameters if not p.flags]
    yield arguments
    together: list[str] = []
    for option in parameters:
        for flag in (*option.flags, *option.off):
            if option.kind is bool:
                yield [flag, *arguments]
                yield [*arguments, flag]
                together.append(flag)
                continue
            value = sample(option)
            yield [flag, value, *arguments]
            yield [*arguments, f"{flag}={value}" if flag.startswith("--") else f"{flag}{value}"]
            yield [flag, value, flag, value, *arguments]
            together += [flag, value]
    yield [*together, *arguments]
    yield [*together, "--", *arguments]


def read_by_typer(words: list[str], argv: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any] | None:
    calls: Calls = []
    monkeypatch.setattr(app, "declare", lambda name: replace_functions(light_app.declare(name), calls))
    app.run_app([*words, *argv])
    return calls[0] if calls else None


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_arguments_are_read_as_by_typer(
    words: list[str], command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        lines = list(command_lines(command))
    except NeedsFullParser:  # a type that only Typer reads
        assert words[0] not in EVERYDAY
        return
    for argv in lines:
        calls: Calls = []
        own, _ = light_app.split_program(light_app.normalize_kubectl_flags([*words, *argv]))
        light = Command(command.name, recorded(command.function, calls), "", (), command.settings)
        try:
            light.function(**parse_command(light, own[len(words) :], {}))
        except NeedsFullParser:
            assert words[0] not in EVERYDAY, argv
            continue
        assert calls[0] == read_by_typer(words, argv, monkeypatch), argv
    capsys.readouterr()


@pytest.mark.parametrize(
    "words",
    [
        ["ps", "--bogus"],
        ["ps", "-n"],
        ["ps", "-n", "0"],
        ["ps", "-n", "many"],
        ["ps", "--state", "asleep"],
        ["ps", "--all=yes"],
        ["ps", "extra"],
        ["ps", "--help"],
        ["describe"],
        ["list", "horses"],
        ["why", "a", "b"],
        ["node"],
        ["report", "rates", "show"],
    ],
    ids=" ".join,
)
def test_typer_reports_usage_errors(words: list[str]) -> None:
    assert light_app.run_light(words) is None


OUTPUTS = [
    ["ps"],
    ["ps", "-aw", "--json"],
    ["ps", "--json"],
    ["list", "nodes"],
    ["describe", "w0000000000"],
    ["describe", "a", "b", "c"],
    ["describe", "nothing"],
    ["why", "nothing"],
    ["stop"],
    ["stop", "nothing", "w0000000000"],
    ["stop", "--all", "w0000000000"],
    ["nodes"],
    ["list-gpus", "--json"],
    ["usage", "--since", "bogus"],
    ["usage"],
    ["whoami"],
    ["fairshare"],
    ["version"],
    ["project", "set", "vision"],
    ["submit", "night", "-p", "7", "--", "true"],
    ["submit", "night", "-p", "0.1", "--priority", "bananas", "--", "true"],
    ["submit"],
]


@pytest.mark.parametrize("words", OUTPUTS, ids=" ".join)
def test_both_paths_print_the_same(
    words: list[str], gpupool: Callable[..., Any], pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.queue_all = True
    gpupool("run", "-d", "--name", "night", "--", "true")
    light = gpupool(*words)
    monkeypatch.setattr(light_app, "run_light", lambda _argv: None)
    full = gpupool(*words)
    assert (light.returncode, light.stdout, light.stderr) == (full.returncode, full.stdout, full.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ["ps"],
        ["why", "w0000000000"],
        ["nodes"],
        ["list-gpus"],
        ["usage"],
        ["whoami"],
        ["fairshare"],
        ["version"],
    ],
    ids=" ".join,
)
def test_everyday_commands_import_no_heavy_modules(words: list[str], pool: FakePool) -> None:
    run = [sys.executable, "-X", "importtime", "-m", "gpupool"]
    subprocess.run([*COMMAND, "run", "-d", "--", "true"], env=pool.env, check=True, capture_output=True, input=b"")
    done = subprocess.run([*run, *words], env=pool.env, capture_output=True, timeout=60, check=False)
    lines = [line for line in done.stderr.splitlines() if b"import time:" in line]
    assert not {line.rpartition(b"|")[2].strip().decode() for line in lines} & HEAVY
