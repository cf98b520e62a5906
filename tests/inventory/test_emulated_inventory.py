import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import GpuRequest
from gpupool.domain.units import format_mib
from gpupool.node.inventory.emulated import (
    MAX_EMULATED_GPUS,
    MAX_SIMULATED_GPUS,
    EmulatedInventory,
    emulated_gpus,
    parse_emulation,
)
from gpupool.node.inventory.models import find_model, known_models


@pytest.mark.parametrize(
    ("spec", "cards"),
    [
        ("", [("Tesla T4", 16384)]),
        ("T4", [("Tesla T4", 16384)]),
        ("2 x T4", [("Tesla T4", 16384)] * 2),
        ("4xT4,2xV100", [("Tesla T4", 16384)] * 4 + [("Tesla V100-SXM2-16GB", 16384)] * 2),
        ("1xA100-80GB", [("NVIDIA A100-SXM4-80GB", 81920)]),
        ("a10080gb", [("NVIDIA A100-SXM4-80GB", 81920)]),
        ("H100:80GiB", [("NVIDIA H100 80GB HBM3", 81920)]),
        ("h100:40G", [("NVIDIA H100 80GB HBM3", 40960)]),
        ("2xMyCard:24G", [("MyCard", 24576)] * 2),
        ("3090", [("NVIDIA GeForce RTX 3090", 24576)]),
        ("rtx-4090", [("NVIDIA GeForce RTX 4090", 24576)]),
        ("tesla t4, NVIDIA L40S", [("Tesla T4", 16384), ("NVIDIA L40S", 49152)]),
        ("X:1", [("X", 1)]),
    ],
)
def test_a_text_names_the_cards(spec: str, cards: list[tuple[str, int]]) -> None:
    assert [(card.name, card.memory_mib) for card in parse_emulation(spec)] == cards


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("4xBogus", "4xBogus"),
        ("2xT4,0xV100", "0xV100"),
        ("65xT4", "65xT4"),
        ("60xT4,5xV100", "5xV100"),
        ("T4,,T4", "''"),
        ("-1xT4", "-1xT4"),
        ("T4:", "T4:"),
        ("T4:9e9", "9e9"),
        ("T4:0", "'0'"),
        ("MyCard:1:2", "MyCard:1:2"),
        ("T4:99999999G", "99999999G"),
        ("T4\x00", "T4"),
        ("9" * 400 + "xT4", "9999"),
        ("T" * 3000, "TTTT"),
    ],
)
def test_a_bad_text_is_refused_by_the_part_that_is_wrong(spec: str, part: str) -> None:
    with pytest.raises(GpupoolError) as caught:
        parse_emulation(spec)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert part in caught.value.message
    assert len(caught.value.message) < 250
    assert "A100-80GB" in caught.value.hint


@given(st.text(max_size=60))
def test_any_text_gives_cards_or_one_kind_of_error(spec: str) -> None:
    try:
        cards = parse_emulation(spec)
    except GpupoolError as error:
        assert error.code is ErrorCode.INVALID_REQUEST  # noqa: PT017 - either outcome is right
    else:
        assert 1 <= len(cards) <= MAX_EMULATED_GPUS
        assert all(card.memory_mib >= 1 for card in cards)


def test_a_simulation_may_have_more_but_not_without_end() -> None:
    assert len(parse_emulation("10000xT4", limit=MAX_SIMULATED_GPUS)) == 10_000
    with pytest.raises(GpupoolError):
        parse_emulation("10001xT4", limit=20_000)


def test_every_known_name_is_found_without_case_and_dashes() -> None:
    for name in known_models():
        assert find_model(name) == find_model(name.lower().replace("-", "").replace(" ", "")) is not None


def test_a_tenth_of_a_t4_is_1_6_gib() -> None:
    (card,) = parse_emulation("T4")
    assert format_mib(GpuRequest(permille=100).memory_on(card.memory_mib)) == "1.6 GiB"


def test_uuids_are_stable_and_belong_to_node_and_index() -> None:
    cards = parse_emulation("3xT4")
    here, again, there = (emulated_gpus(name, cards) for name in ("n1", "n1", "n2"))
    assert here == again
    uuids = [gpu.uuid for gpu in (*here, *there)]
    assert len(set(uuids)) == 6
    form = re.compile(r"GPU-EMULATED-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
    assert all(form.fullmatch(uuid) for uuid in uuids)
    assert [gpu.uuid for gpu in emulated_gpus("n1", parse_emulation("V100"))] == [here[0].uuid]


def test_a_report_says_that_it_is_emulated() -> None:
    inventory = EmulatedInventory.open("My Node!", "2xT4")
    report = inventory.report()
    assert (report.name, report.emulated, report.warnings, report.driver_version) == ("my-node", True, (), "")
    assert report.cpus > 0
    assert report.memory_mib > 0
    assert report.boot_id
    assert inventory.gpus(frozenset({1})) == report.gpus
    assert all(gpu.emulated and gpu.available for gpu in report.gpus)
