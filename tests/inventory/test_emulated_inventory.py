import re
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.units import format_mib
from gpupool.node.inventory.emulated import (
    MAX_EMULATED_GPUS,
    MAX_SIMULATED_GPUS,
    EmulatedInventory,
    emulated_gpus,
    emulated_uuid,
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
def test_description_lists_the_gpus(spec: str, cards: list[tuple[str, int]]) -> None:
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
        ("A100-80GB[3g.40gb,bogus]", "'bogus'"),
        ("A100-80GB[3g.40gb", "A100-80GB[3g.40gb"),
        ("A100-80GB[3g.40gb]x", "A100-80GB[3g.40gb]x"),
        ("A100-80GB[]", "A100-80GB[]"),
        ("A100-80GB[8g.80gb]", "8g.80gb"),
        ("A100-80GB[4g.40gb,4g.40gb]", "do not fit on the card"),
        ("A30[1g.6gb,1g.24gb]", "do not fit on the card"),
        ("MyCard:1:2", "MyCard:1:2"),
        ("T4:99999999G", "99999999G"),
        ("T4\x00", "T4"),
        ("9" * 400 + "xT4", "9999"),
        ("T" * 3000, "TTTT"),
    ],
)
def test_invalid_description_error_names_its_part(spec: str, part: str) -> None:
    with pytest.raises(GpupoolError) as caught:
        parse_emulation(spec)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert part in caught.value.message
    assert len(caught.value.message) < 250
    assert "A100-80GB" in caught.value.hint


@given(st.text(max_size=60))
def test_any_description_gives_gpus_or_a_value_error(spec: str) -> None:
    try:
        cards = parse_emulation(spec)
    except GpupoolError as error:
        assert error.code is ErrorCode.INVALID_REQUEST  # noqa: PT017 - either outcome is right
    else:
        assert 1 <= len(cards) <= MAX_EMULATED_GPUS
        assert all(card.memory_mib >= 1 for card in cards)


def test_number_of_simulated_gpus_is_limited() -> None:
    assert len(parse_emulation("10000xT4", limit=MAX_SIMULATED_GPUS)) == 10_000
    with pytest.raises(GpupoolError):
        parse_emulation("10001xT4", limit=20_000)


def test_known_models_are_found_without_case_and_dashes() -> None:
    for name in known_models():
        assert find_model(name) == find_model(name.lower().replace("-", "").replace(" ", "")) is not None


def test_tenth_of_a_t4_has_1_6_gib() -> None:
    (card,) = parse_emulation("T4")
    assert format_mib(GpuRequest(permille=100).memory_on(card.memory_mib)) == "1.6 GiB"


def test_uuids_are_derived_from_node_and_index() -> None:
    cards = parse_emulation("3xT4")
    here, again, there = (emulated_gpus(name, cards) for name in ("n1", "n1", "n2"))
    assert here == again
    uuids = [gpu.uuid for gpu in (*here, *there)]
    assert len(set(uuids)) == 6
    form = re.compile(r"GPU-EMULATED-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
    assert all(form.fullmatch(uuid) for uuid in uuids)
    assert [gpu.uuid for gpu in emulated_gpus("n1", parse_emulation("V100"))] == [here[0].uuid]


def test_report_marks_emulated_gpus() -> None:
    inventory = EmulatedInventory.open("My Node!", "2xT4")
    report = inventory.report()
    assert (report.name, report.emulated, report.warnings, report.driver_version) == ("my-node", True, (), "")
    assert report.cpus > 0
    assert report.memory_mib > 0
    assert report.boot_id
    assert inventory.gpus(frozenset({1})) == report.gpus
    assert all(gpu.emulated and gpu.available for gpu in report.gpus)


def test_gpu_with_mig_is_reported_as_its_instances() -> None:
    cards = parse_emulation("T4, 2xA100-80GB[3g.40gb,2g.20gb, 1G.10GB+me],V100")
    assert [card.mig for card in cards] == [(), *[("3g.40gb", "2g.20gb", "1g.10gb+me")] * 2, ()]
    gpus = emulated_gpus("n1", cards)
    assert [(gpu.index, gpu.memory_mib) for gpu in gpus] == [
        (0, 16384),
        *[(200, 40960), (201, 20480), (202, 10240)],
        *[(300, 40960), (301, 20480), (302, 10240)],
        (3, 16384),
    ]
    assert gpus[1].model == "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    assert len({gpu.uuid for gpu in gpus}) == len(gpus)
    assert {gpu.parent_uuid for gpu in gpus[1:4]} == {emulated_uuid("n1", 1)}
    form = re.compile(r"MIG-EMULATED-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
    assert all(form.fullmatch(gpu.uuid) for gpu in gpus[1:7])


def test_custom_memory_size_keeps_other_model_data() -> None:
    (card,) = parse_emulation("h100:40G")
    assert (card.memory_mib, card.multiprocessors, card.capability) == (40960, 132, "9.0")


def described(folder: Path) -> list[str]:
    return (folder / "gpus.conf").read_text().splitlines()


def test_fake_driver_description_has_gpus_and_instances(tmp_path: Path) -> None:
    inventory = EmulatedInventory("n1", parse_emulation("T4,A100-80GB[3g.40gb,1g.10gb],X:16"))
    folder = inventory.fake_driver_folder(tmp_path)
    first, second, third = (emulated_uuid("n1", index) for index in range(3))
    instances = [gpu.uuid for gpu in inventory.report().gpus if gpu.mig_profile]
    assert described(folder) == [
        f"{first} {16 << 30} 40 7.5 {128 << 20} Tesla T4",
        f"{second} {80 << 30} 108 8.0 {128 << 20} NVIDIA A100-SXM4-80GB",
        f"mig {instances[0]} {40 << 30} 46 3g.40gb",
        f"mig {instances[1]} {10 << 30} 15 1g.10gb",
        f"{third} {16 << 20} 40 7.5 {1 << 20} X",
    ]


def test_fake_driver_description_survives_agents_and_follows_gpus(tmp_path: Path) -> None:
    folder = EmulatedInventory("n1", parse_emulation("T4")).fake_driver_folder(tmp_path)
    before = (folder / "gpus.conf").stat()
    (folder / "gpu-7.state").touch()
    assert EmulatedInventory("n1", parse_emulation("T4")).fake_driver_folder(tmp_path, shared=True) == folder
    assert (folder / "gpus.conf").stat().st_ino == before.st_ino
    assert (folder / "gpu-7.state").exists()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o711
    EmulatedInventory("n1", parse_emulation("V100")).fake_driver_folder(tmp_path)
    assert "V100" in described(folder)[0]
    assert not (folder / "gpu-7.state").exists()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
