"""The options of Run:ai, and the tables of docs/from-runai.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from gpupool.cli.request import runai_options
from gpupool.cli.request.options import parse
from gpupool.cli.request.submit import build_body, build_requests
from gpupool.cli.request.submit_options import SUBMIT
from gpupool.domain.errors import ErrorCode, GpupoolError

PAGE = Path(__file__).parents[2] / "docs" / "from-runai.md"
ROWS = re.findall(r"^\| `(-[^`]*)` \| (?:`([^`]*)` )?\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def body(values: dict[str, Any]) -> dict[str, Any]:
    made = build_body(values, ["name"], ["true"])
    del made["request_id"]
    return made


@pytest.mark.parametrize(("theirs", "ours"), ROWS, ids=[row[0] for row in ROWS])
def test_table_of_the_documentation_holds(theirs: str, ours: str) -> None:
    values, _ = parse(runai_options.JOB, shlex.split(theirs))
    wanted, _ = parse(SUBMIT, shlex.split(ours))
    found, expected = body(runai_options.job_values(values)), body(wanted)
    for one in (found, expected):  # the name of a volume of git has no meaning here
        one["git"] = one.get("git", "").removeprefix("name=code,")
    assert found == expected


def test_every_name_in_the_table_of_options_is_read() -> None:
    names = {flag for option in (*runai_options.JOB, *runai_options.SERVICE) for flag in option.flags}
    assert {flag for flags in runai_options.FLAGS.values() for flag in flags.split()} <= names
    for options in (runai_options.JOB, runai_options.SERVICE):
        flags = [flag for option in options for flag in (*option.flags, *option.off)]
        assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--min-replicas 0 --max-replicas 4", {"replicas": "0..4"}),
        ("--min-replicas 2", {"replicas": "2"}),
        ("--max-replicas 3", {"replicas": "1..3"}),
        ("--serving-port 8000 --metric concurrency --metric-threshold 10", {"service_port": 8000, "concurrency": 10}),
        ("--scale-to-zero-retention-seconds 90", {"to_zero": "90s"}),
    ],
)
def test_options_of_services(words: str, wanted: dict[str, Any]) -> None:
    values, _ = parse(runai_options.SERVICE, shlex.split(words))
    assert runai_options.service_values(values) == wanted


def test_ports() -> None:
    given = ["8888", "30022:22", "service-type=NodePort,container=80,external=8080", "container=6006,authusers=ann"]
    assert runai_options.ports({"port": given}) == [8888, 22, 80, 6006]


@pytest.mark.parametrize(
    "values",
    [
        {"port": ["web"]},
        {"port": ["70000"]},
        {"pull_policy": "Sometimes"},
        {"host_path": ["mount=/data"]},
        {"metric": "latency"},
    ],
)
def test_refusals(values: dict[str, Any]) -> None:
    with pytest.raises(GpupoolError) as caught:
        _ = runai_options.service_values(values), runai_options.ports(values)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.hint


def test_name_prefix() -> None:
    names = {runai_options.job_values({"name_prefix": "exp"})["name"] for _ in range(9)}
    assert len(names) > 1
    assert all(re.fullmatch(r"exp-[0-9a-f]{6}", name) for name in names)


def test_template_begins_a_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "gpupool" / "templates"
    folder.mkdir(parents=True)
    (folder / "big").write_text("# of the team\n-n 2 --memory 8G\n-e A=1 -e B=2\n")
    values, _ = parse(SUBMIT, shlex.split("--template big -g 1 -e B=3"))
    (request,) = build_requests(values, ["name"], ["true"])
    assert (request.gpus.count, request.memory, request.env["A"], request.env["B"]) == (1, 8192, "1", "3")
    (folder / "wrong").write_text("--bogus 1")
    (folder / "nested").write_text("--template big")
    for name, code in (
        ("wrong", ErrorCode.INVALID_REQUEST),
        ("nested", ErrorCode.INVALID_REQUEST),
        ("none", ErrorCode.NOT_FOUND),
        ("../big", ErrorCode.NOT_FOUND),
    ):
        with pytest.raises(GpupoolError) as caught:
            build_requests({"template": name}, ["name"], ["true"])
        assert caught.value.code is code
