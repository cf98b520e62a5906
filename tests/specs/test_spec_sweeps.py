"""Sweeps: every set of parameters, in order, and the same ones again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.specs.fields.sweep import Parameters, Range, draw, load_parameter_list
from gpupool.specs.fields.templates import as_text, fill, read_scalar
from gpupool.specs.request import expand, parse_request

ID = WorkloadId("w0123456789")


def expanded(sweep: dict[str, Any], seed: str = ID) -> tuple[Parameters, ...]:
    return expand(parse_request({"command": ["true"], "sweep": sweep}).sweep, seed=seed)


def test_grid_is_product_in_declared_order() -> None:
    assert expanded({"grid": {"b": [1, 2], "a": ["x", "y"]}}) == (
        {"b": 1, "a": "x"},
        {"b": 1, "a": "y"},
        {"b": 2, "a": "x"},
        {"b": 2, "a": "y"},
    )


def test_types_of_values_are_kept() -> None:
    row = expanded({"grid": {"i": [1], "f": [1.0], "b": [True], "t": ["1"]}})[0]
    assert [type(value) for value in row.values()] == [int, float, bool, str]


def test_draws_with_a_seed_are_the_same_and_without_one_follow_the_workload() -> None:
    seeded = {"random": {"samples": 5, "seed": 1, "parameters": {"lr": {"min": 0.001, "max": 1, "log": True}}}}
    assert expanded(seeded, "a") == expanded(seeded, "b")
    free = {"random": {k: v for k, v in seeded["random"].items() if k != "seed"}}
    assert expanded(free, "a") == expanded(free, "a") != expanded(free, "b")


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_more_samples_keep_the_first_ones(seed: int, samples: int) -> None:
    drawn = {"lr": Range(1e-4, 1.0, log=True), "n": Range(1, 9, integer=True), "o": ("a", "b")}
    assert draw(drawn, samples + 3, seed)[:samples] == draw(drawn, samples, seed)


@given(
    st.floats(1e-300, 1e300),
    st.floats(1e-300, 1e300),
    st.booleans(),
    st.integers(0, 999),
)
def test_draws_stay_within_their_bounds(one: float, other: float, log: bool, seed: int) -> None:
    low, high = sorted((one, other))
    for row in draw({"x": Range(low, high, log=log)}, 5, seed):
        assert low <= row["x"] <= high


@given(st.integers(1, 10**12), st.integers(0, 10**6), st.booleans(), st.integers(0, 999))
def test_whole_numbers_stay_whole_and_within(low: int, width: int, log: bool, seed: int) -> None:
    for row in draw({"x": Range(low, low + width, log=log, integer=True)}, 5, seed):
        assert isinstance(row["x"], int)
        assert low <= row["x"] <= low + width


def test_logarithmic_values_are_spread_evenly_over_decades() -> None:
    values = [row["x"] for row in draw({"x": Range(0.001, 1.0, log=True)}, 600, 1)]
    assert all(120 < sum(10**e <= v < 10 ** (e + 1) for v in values) < 280 for e in (-3, -2, -1))


@given(st.text())
def test_literal_braces_survive_doubling(text: str) -> None:
    assert fill(text.replace("{", "{{").replace("}", "}}"), {}) == text


@given(st.integers(-(2**59), 2**59) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_value_written_as_text_reads_back(value: Any) -> None:
    assert read_scalar(as_text(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("-3", -3), ("1e-3", 0.001), (".5", 0.5), ("TRUE", True), ("007", "007"), ("1e999", "1e999"),
     ("9" * 30, "9" * 30), ("adam", "adam"), ("", ""), ("1.2.3", "1.2.3"),
     ("01e5", "01e5"), ("2.", 2.0), ("nan", "nan"), ("-0", "-0")],
)  # fmt: skip
def test_values_are_read_as_people_mean_them(text: str, value: Any) -> None:
    read = read_scalar(text)
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("p.csv", b'\xef\xbb\xbflr, note\r\n0.1,"a,b"\r\n\r\n0.01,x\r\n'),
        ("p.jsonl", b'{"lr": 0.1, "note": "a,b"}\n\n{"lr": 0.01, "note": "x"}\n'),
        ("p.yml", b"- {lr: 0.1, note: 'a,b'}\n- {lr: 1e-2, note: x}\n"),
        ("p.json", b'[{"lr": 0.1, "note": "a,b"}, {"lr": 0.01, "note": "x"}]'),
    ],
)
def test_list_files_in_every_form(name: str, data: Any) -> None:
    assert load_parameter_list(data, name) == [{"lr": 0.1, "note": "a,b"}, {"lr": 0.01, "note": "x"}]


@pytest.mark.parametrize(
    ("name", "data", "code", "words"),
    [
        ("p.csv", b"a,b\n1\n", ErrorCode.INVALID_FILE, "p.csv:2: 1 cells under 2 columns"),
        ("p.csv", b"a,a\n1,2\n", ErrorCode.INVALID_FILE, "p.csv:1: a column is named twice"),
        ("p.csv", b'a\n"1\n', ErrorCode.INVALID_FILE, "p.csv:"),
        ("p.csv", b"", ErrorCode.INVALID_COUNT, "0 runs"),
        ("p.csv", b"a\n", ErrorCode.INVALID_COUNT, "0 runs"),
        ("p.csv", b"a\n" + b"1\n" * 10_001, ErrorCode.INVALID_COUNT, "10001 runs"),
        ("p.csv", b"a b\n1\n", ErrorCode.INVALID_NAME, "a b"),
        ("p.csv", b"a\n\xff\n", ErrorCode.INVALID_FILE, "UTF-8"),
        ("p.jsonl", b'{"a": 1}\n{"a"\n', ErrorCode.INVALID_FILE, "p.jsonl:2:"),
        ("p.jsonl", b'{"a": [1]}\n', ErrorCode.INVALID_FILE, "run 1"),
        ("p.jsonl", b"3\n", ErrorCode.INVALID_FILE, "run 1"),
        ("p.yml", b"a: 1\n", ErrorCode.INVALID_FILE, "does not hold a list"),
        ("p.yml", b"- {a: .nan}\n", ErrorCode.INVALID_FILE, "run 1"),
        ("p.yml", b"- {a: 1, a: 2}\n", ErrorCode.INVALID_FILE, "p.yml:1:10: 'a' is given twice"),
    ],
)  # fmt: skip
def test_error_of_bad_list_file_names_the_place(name: str, data: Any, code: ErrorCode, words: str) -> None:
    with pytest.raises(GpupoolError) as caught:
        load_parameter_list(data, name)
    assert caught.value.code is code
    assert words in caught.value.message


@given(st.binary(max_size=200), st.sampled_from(["p.csv", "p.jsonl", "p.yml"]))
def test_any_bytes_as_a_list_file_are_read_or_refused(data: Any, name: str) -> None:
    try:
        rows = load_parameter_list(data, name)
    except GpupoolError:
        return
    assert parse_request({"command": ["true"], "sweep": {"list": rows}}).sweep.rows == rows
