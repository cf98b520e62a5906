"""The light option table and the Typer commands made from it say the same."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from gpupool.cli import app
from gpupool.cli.commands.work import run
from gpupool.cli.request import options
from gpupool.cli.request.options import CLIENT, LEASE, RUN, NeedsFullParser, parse
from gpupool.cli.request.request_body import plain_amount
from gpupool.cli.request.submit import build_requests
from gpupool.cli.request.submit_options import PLAN, SUBMIT
from gpupool.specs.build import LIMIT_FIELDS
from gpupool.specs.fields.request import RequestOptions, WorkloadRequest
from gpupool.specs.job_options import JobField, Option, OptionKind
from gpupool.specs.options import parse_gpu_amount

TABLES = {"run": RUN, "client": CLIENT, "request-gpus": LEASE, "submit": SUBMIT, "plan": PLAN}


def typer_command(name: str) -> Any:
    return typer.main.get_command(app.build([name])).commands[name]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", TABLES)
def test_typer_command_has_options_of_table(name: str) -> None:
    shown = {
        (parameter.name, frozenset(parameter.opts), frozenset(parameter.secondary_opts))
        for parameter in typer_command(name).params
        if parameter.param_type_name == "option" and parameter.name != "help"
    }
    assert shown == {(o.name, frozenset(o.flags), frozenset(o.off)) for o in TABLES[name]}


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_no_spelling_is_used_twice(table: tuple[Option, ...]) -> None:
    flags = [flag for option in table for flag in (*option.flags, *option.off)]
    assert len(flags) == len(set(flags))
    assert len({option.name for option in table}) == len(table)


def test_job_fields_and_limits_are_fields_of_the_request() -> None:
    options = [option.name for table in TABLES.values() for option in table if isinstance(option, JobField)]
    assert {*options, *LIMIT_FIELDS.values()} <= WorkloadRequest.model_fields.keys()


@given(st.from_regex(r"[0-9]{0,4}\.?[0-9]{0,5}|[0-9.٣²%e-]{0,7}", fullmatch=True))
def test_short_way_reads_amounts_as_the_parser(text: str) -> None:
    short = plain_amount(text)
    assert not short or short == parse_gpu_amount(text)


def test_short_way_reads_plain_amounts() -> None:
    assert [plain_amount(text) for text in ("2", "0.25", "0.5")] == [
        {"count": 2},
        {"count": 1, "fraction": 0.25},
        {"count": 1, "fraction": 0.5},
    ]


NOT_FOR_THE_CLIENT = {
    *(
        "command",
        "gpus",
        "env_from",
        "literal",
        "tty",
        "rows",
        "columns",
        "stdin",
        "client_bound",
        "linger",
        "umask",
        "roles",
    ),
    *("on_member_end", "success_policy", "processes"),
}


def test_other_request_fields_are_keywords_of_python_client() -> None:
    assert RequestOptions.__annotations__.keys() == WorkloadRequest.model_fields.keys() - NOT_FOR_THE_CLIENT


TEXT = st.text("abc0.= /", min_size=1, max_size=5).filter(lambda text: not text.startswith("-"))


@st.composite
def written_option(draw: st.DrawFn) -> list[str]:
    option = draw(st.sampled_from(RUN))
    flag = draw(st.sampled_from([*option.flags, *option.off]))
    if option.kind is OptionKind.FLAG:
        return [flag]
    value = {OptionKind.COUNT: st.integers(0, 99).map(str), OptionKind.NUMBER: st.integers(1, 9).map(str)}.get(
        option.kind, TEXT
    )
    text = draw(value)
    if draw(st.booleans()):
        return [flag, text]
    return [f"{flag}={text}"] if flag.startswith("--") else [flag + text]


COMMAND = st.lists(st.sampled_from(["python3", "-c", "--", "x y", "--name", "-n"]), max_size=3).map(
    lambda a: ["prog", *a]
)


@given(st.lists(written_option(), max_size=5), COMMAND, st.booleans())
def test_both_parsers_give_equal_results(given_options: list[list[str]], command: list[str], dashes: bool) -> None:
    argv = [word for words in given_options for word in words] + (["--"] if dashes else []) + command
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.fast, "run", lambda values, program: seen.append((values, program)) or 0)
        status = app.run_app(["run", *argv])
    assert status == 0
    assert seen == [parse(RUN, argv)]


@pytest.mark.parametrize(
    "argv", [["--help"], ["-n"], ["-n", "two"], ["--bogus"], ["--detach=1"], ["-dq", "--", "x"], ["--"]]
)
def test_unusual_options_are_left_to_the_full_parser(argv: list[str]) -> None:
    if argv == ["--"]:
        assert options.parse(RUN, argv) == ({}, [])
        return
    with pytest.raises(NeedsFullParser):
        options.parse(RUN, argv)


@pytest.mark.parametrize(
    ("options_", "gang"),
    [
        (["--workers", "4"], {"workers": 4}),
        (["--workers", "4", "--mixed-models"], {"workers": 4, "mixed_models": True}),
        (["--workers", "4", "--within", "rack"], {"workers": 4, "within": "rack"}),
        (
            ["--workers", "4", "--min-workers", "2", "--within-strictly", "rack"],
            {"workers": 4, "min": 2, "within": "rack", "strict": True},
        ),
    ],
)
def test_options_of_a_gang(options_: list[str], gang: dict[str, Any]) -> None:
    values, program = parse(SUBMIT, [*options_, "--", "true"])
    (request,) = build_requests(values, [], program)
    assert request.to_body()["gang"] == gang
