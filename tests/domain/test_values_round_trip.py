"""Quantities, names and errors: what is written can be read back, and what cannot be meant is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain import ids, units
from gpupool.domain.errors import HTTP_STATUS, ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest


def code_of(call: object, *args: object) -> ErrorCode:
    with pytest.raises(GpupoolError) as caught:
        call(*args)  # type: ignore[operator]
    assert caught.value.hint
    return caught.value.code


@given(st.integers(1, 1000))
def test_every_gpu_fraction_is_parsed_back(permille: int) -> None:
    assert units.parse_fraction(units.format_permille(permille)) == permille
    assert units.parse_fraction(f"{permille / 10:g}%") == permille
    assert units.fraction_to_permille(permille / 1000) == permille


@pytest.mark.parametrize(
    "text", ["0", "-0.1", "1.001", "2", "0.0005", "101%", "0%", "nan", "inf", "-inf", "1e999", "half", "", "%", "0.1.2"]
)
def test_invalid_gpu_fraction_is_refused(text: str) -> None:
    assert code_of(units.parse_fraction, text) is ErrorCode.INVALID_FRACTION


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("30s", 30), ("30m", 1800), ("1h30m", 5400), ("2d", 172800), ("1w", 604800), (" 1 H ", 3600)],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert units.parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-1s", "1x", "m", "1h-30m", "1e9d", "99999d", "1h garbage"])
def test_invalid_duration_is_refused(text: str) -> None:
    assert code_of(units.parse_duration_s, text) is ErrorCode.INVALID_DURATION


@given(st.integers(1, units.MAX_DURATION_S))
def test_printed_duration_is_parsed_back_rounded(seconds: int) -> None:
    text = units.format_duration(seconds)
    read = units.parse_duration_s(text)
    assert 0 <= seconds - read < 3600
    assert units.format_duration(read) == text


@pytest.mark.parametrize(
    ("text", "mib"), [("2048", 2048), ("2048M", 2048), ("4G", 4096), ("1.5GiB", 1536), ("1 mb", 1)]
)
def test_sizes_are_parsed(text: str, mib: int) -> None:
    assert units.parse_memory_mib(text) == mib


@pytest.mark.parametrize("text", ["", "0", "-5", "0.5", "4T", "G", "4GG", "1e5", "nan"])
def test_invalid_size_is_refused(text: str) -> None:
    assert code_of(units.parse_memory_mib, text) is ErrorCode.INVALID_SIZE


@given(st.integers(0, 2**50 - 1), st.integers(0, 10**6), st.integers(0, 10**6))
def test_identifiers_and_keys_are_parsed_back(bits: int, index: int, attempt: int) -> None:
    made = ids.workload_id(bits)
    assert ids.is_workload_id(made)
    assert ids.split_attempt_key(ids.attempt_key(made, index, attempt)) == (made, index, attempt)
    assert code_of(ids.check_name, made) is ErrorCode.INVALID_NAME


@given(st.sets(st.integers(0, 2**50 - 1), min_size=2, max_size=50))
def test_different_bits_make_different_identifiers(many: set[int]) -> None:
    assert len({ids.workload_id(bits) for bits in many}) == len(many)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "..",
        "w0123456789",
        "w0123456789.0",
        "w0123456789.0.1.2",
        "w0123456789.a.1",
        "../../etc.0.1",
        "w0123456789..1",
        "w0123456789.\u00b2.1",
        "w0123456789.0." + "9" * 5000,
    ],
)
def test_invalid_key_is_refused(key: str) -> None:
    assert code_of(ids.split_attempt_key, key) is ErrorCode.INVALID_NAME


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "a/b", "..", "é", "a" * 64, "a\n", "w0123456789"])
def test_invalid_name_is_refused(name: str) -> None:
    assert code_of(ids.check_name, name) is ErrorCode.INVALID_NAME


@pytest.mark.parametrize("name", ["a", "A1", "train-1", "a.b_c-d", "a" * 63, "w012345678"])
def test_valid_names_are_accepted(name: str) -> None:
    assert ids.check_name(name) == name


@given(st.sampled_from(ErrorCode), st.text(), st.text())
def test_error_is_serialised_completely(code: ErrorCode, message: str, hint: str) -> None:
    error = GpupoolError(code, message, hint)
    again = GpupoolError.from_dict(error.to_dict())
    assert (again.code, again.message, again.hint) == (code, message, hint)
    assert again.http_status == error.http_status
    assert str(code) in str(error)


def test_unknown_error_code_of_newer_server_is_internal() -> None:
    assert GpupoolError.from_dict({"code": "FROM_THE_FUTURE", "message": "m"}).code is ErrorCode.INTERNAL
    assert GpupoolError.from_dict({}).code is ErrorCode.INTERNAL


def test_every_status_is_an_http_error() -> None:
    assert all(400 <= status < 600 for status in HTTP_STATUS.values())


@given(st.integers(1, 80_000), st.integers(1, 80_000))
def test_requested_memory_is_covered_by_the_share(wanted_mib: int, card_mib: int) -> None:
    request = GpuRequest(memory_mib=wanted_mib)
    permille = request.permille_on(card_mib)
    assert permille * card_mib >= wanted_mib * 1000
    assert (permille - 1) * card_mib < wanted_mib * 1000
    assert (permille > 1000) is (wanted_mib > card_mib)
    assert request.memory_on(card_mib) == wanted_mib


@pytest.mark.parametrize(("wanted", "model"), [("t4", "Tesla T4"), ("a100-sxm4", "NVIDIA A100 SXM4"), ("V100", "v100")])
def test_gpu_models_match_common_spellings(wanted: str, model: str) -> None:
    assert GpuRequest(models=(wanted,)).accepts_model(model)
    assert not GpuRequest(models=(wanted,)).accepts_model("H200")


A100, MIG_3G, MIG_ME = (f"NVIDIA A100-SXM4-80GB{mig}" for mig in ("", " MIG 3g.40gb", " MIG 1g.10gb+me"))
MIG_1C = "NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb"


@pytest.mark.parametrize(
    ("wanted", "accepted"),
    [
        ((), {A100}),
        (("a100",), {A100}),
        (("a100-80gb",), {A100}),
        (("NVIDIA A100-SXM4-80GB",), {A100}),
        (("mig",), {MIG_3G, MIG_ME}),
        (("a100 mig",), {MIG_3G, MIG_ME}),
        (("h100 mig",), set()),
        (("3g.40gb",), {MIG_3G}),
        (("3G.40GB",), {MIG_3G}),
        (("3g",), {MIG_3G}),
        (("mig-3g.40gb",), {MIG_3G}),
        (("MIG 1g.10gb",), {MIG_ME}),
        (("1g.10gb+me",), {MIG_ME}),
        (("2g.20gb",), set()),
        (("40gb",), set()),
        (("a100", "3g.40gb"), {A100, MIG_3G}),
        (("1c.3g.40gb",), {MIG_1C}),
    ],
)
def test_mig_instance_needs_a_mig_request(wanted: tuple[str, ...], accepted: set[str]) -> None:
    request = GpuRequest(models=wanted)
    assert {model for model in (A100, MIG_3G, MIG_ME, MIG_1C) if request.accepts_model(model)} == accepted


@given(st.integers(0, 1_000_000_000))
def test_numbers_of_gpus_are_exact(permille: int) -> None:
    assert units.parse_gpus(f"{permille / 1000:.3f}") == permille


@pytest.mark.parametrize("text", ["", "-1", "two", "nan", "inf", "1e99", "0.0001"])
def test_invalid_number_of_gpus_is_refused(text: str) -> None:
    assert code_of(units.parse_gpus, text) is ErrorCode.INVALID_COUNT
