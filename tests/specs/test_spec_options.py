"""Command-line values become the plain request that the pool takes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.options import GpuOptions, SweepOptions, parse_after, parse_pairs, parse_random
from gpupool.specs.request import parse_request


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        (GpuOptions(), {}),
        (GpuOptions(count=2), {"count": 2}),
        (GpuOptions(partial="0.1"), {"fraction": 0.1}),
        (GpuOptions(count=2, partial="50%"), {"count": 2, "fraction": 0.5}),
        (GpuOptions(memory="2048"), {"memory_mib": 2048}),
        (GpuOptions(memory="4G"), {"memory_mib": 4096}),
        (GpuOptions(gpus="0.5"), {"count": 1, "fraction": 0.5}),
        (GpuOptions(gpus=".25"), {"count": 1, "fraction": 0.25}),
        (GpuOptions(gpus="1"), {"count": 1}),
        (GpuOptions(gpus="2.0"), {"count": 2}),
        (GpuOptions(gpus="0"), {"count": 0}),
        (GpuOptions(models=("t4",), labels=("rack=7",)), {"models": ["t4"], "labels": {"rack": "7"}}),
    ],
)
def test_gpu_options(options: GpuOptions, spec: dict[str, Any]) -> None:
    assert options.to_spec() == spec
    parse_request({"command": ["true"], "gpus": spec})


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (GpuOptions(partial="0.5", memory="1G"), ErrorCode.INVALID_REQUEST, "-p and -m"),
        (GpuOptions(gpus="1", count=1), ErrorCode.INVALID_REQUEST, "-g excludes"),
        (GpuOptions(gpus="0.5", memory="1G"), ErrorCode.INVALID_REQUEST, "-g excludes"),
        (GpuOptions(gpus="1.5"), ErrorCode.INVALID_FRACTION, "-n 2 -p 0.75"),
        (GpuOptions(gpus="0.0001"), ErrorCode.INVALID_FRACTION, "0.001"),
        (GpuOptions(gpus="0.0"), ErrorCode.INVALID_FRACTION, "-g 0.0"),
        (GpuOptions(gpus="-1"), ErrorCode.INVALID_COUNT, "-1"),
        (GpuOptions(gpus="two"), ErrorCode.INVALID_COUNT, "two"),
        (GpuOptions(gpus="1e3"), ErrorCode.INVALID_COUNT, "1e3"),
        (GpuOptions(gpus="1025"), ErrorCode.INVALID_COUNT, "1025"),
        (GpuOptions(count=-1), ErrorCode.INVALID_COUNT, "-1 is not"),
        (GpuOptions(partial="2"), ErrorCode.INVALID_FRACTION, "2"),
        (GpuOptions(partial="1e99999999999"), ErrorCode.INVALID_FRACTION, "1e99999999999"),
        (GpuOptions(memory="much"), ErrorCode.INVALID_SIZE, "much"),
        (GpuOptions(memory="9" * 400), ErrorCode.INVALID_SIZE, "more memory"),
        (GpuOptions(labels=("rack",)), ErrorCode.INVALID_REQUEST, "KEY=VALUE"),
    ],
)
def test_gpu_options_that_are_refused(options: GpuOptions, code: ErrorCode, words: str) -> None:
    with pytest.raises(GpupoolError) as caught:
        options.to_spec()
    assert caught.value.code is code
    assert words in caught.value.message + caught.value.hint


@given(st.text(max_size=30))
def test_any_text_as_an_amount_of_gpu_is_read_or_refused(text: str) -> None:
    for options in (GpuOptions(gpus=text), GpuOptions(partial=text), GpuOptions(memory=text)):
        try:
            spec = options.to_spec()
        except GpupoolError:
            continue
        parse_request({"command": ["true"], "gpus": spec})


def test_labels_and_dependencies() -> None:
    assert parse_pairs(["a=b", "c="]) == {"a": "b", "c": ""}
    assert parse_after(["x", "y:any"]) == [
        {"workload": "x", "condition": "success"},
        {"workload": "y", "condition": "any"},
    ]


def test_grid_from_options_has_typed_values() -> None:
    spec = SweepOptions(grid=("lr=0.1,1e-2", "n=1,2", "fast=true,false", "opt=adam,sgd")).to_spec()
    assert spec == {"grid": {"lr": [0.1, 0.01], "n": [1, 2], "fast": [True, False], "opt": ["adam", "sgd"]}}


def test_sweep_list_is_read_from_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("lr,opt\n0.1,adam\n")
    assert SweepOptions(list_file=str(path)).to_spec() == {"list": [{"lr": 0.1, "opt": "adam"}]}


def test_no_sweep_when_none_was_asked_for() -> None:
    assert SweepOptions().to_spec() is None


def test_random_from_options() -> None:
    spec = SweepOptions(random=("lr=0.001..0.1:log", "n=2..8:int", "opt=adam,sgd"), samples=5, seed=3).to_spec()
    assert spec == {
        "random": {
            "samples": 5,
            "seed": 3,
            "parameters": {
                "lr": {"min": 0.001, "max": 0.1, "log": True, "integer": False},
                "n": {"min": 2, "max": 8, "log": False, "integer": True},
                "opt": {"choices": ["adam", "sgd"]},
            },
        }
    }
    assert parse_request({"command": ["true"], "sweep": spec}).sweep.size == 5


@pytest.mark.parametrize("value", ["lr", "lr=", "=1..2", "lr=a..b", "lr=1..", "lr=..2", "lr=1..2:square", "lr=true..2"])
def test_random_that_cannot_be_read(value: Any) -> None:
    with pytest.raises(GpupoolError, match="cannot be read"):
        parse_random(value)


@pytest.mark.parametrize(
    "options",
    [
        SweepOptions(grid=("a=1",), list_file="x"),
        SweepOptions(grid=("a=1", "a=2")),
        SweepOptions(grid=("a",)),
        SweepOptions(random=("a=1..2",)),
        SweepOptions(samples=3),
        SweepOptions(grid=("a=1",), seed=3),
    ],
)
def test_sweep_options_that_do_not_go_together(options: SweepOptions) -> None:
    with pytest.raises(GpupoolError) as caught:
        options.to_spec()
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_nothing_heavy_is_imported_for_options() -> None:
    code = "import sys, gpupool.specs.options; sys.exit(bool({'pydantic', 'yaml', 'random'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
