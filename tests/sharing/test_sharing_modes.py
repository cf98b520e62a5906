import asyncio
import importlib.metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.inventory.emulated import EmulatedInventory
from gpupool.node.ports import NodeProgram, PreparedShare, SharingHost, SharingMode
from gpupool.node.sharing import choose
from gpupool.node.sharing.advisory import AdvisorySharing
from gpupool.node.sharing.choose import SharingModes
from gpupool.node.sharing.slices.slice_mode import ShareSharing
from gpupool.node.sharing.variables import ADVISORY_NOTE, EMULATED_NOTE
from gpupool.node.sharing.whole import WholeSharing

TENTH = GpuShare("GPU-a", 0, 100, 1638)
WHOLE = (GpuShare("GPU-a", 0, 1000, 16384), GpuShare("GPU-b", 3, 1000, 32768))
FRAMEWORKS = {"XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION", "TF_FORCE_GPU_ALLOW_GROWTH"}


def spec(*gpus: GpuShare, emulated: bool = False, env: dict[str, str] | None = None) -> ProcessSpec:
    return ProcessSpec("w0000000001.0.0", 1, ("true",), env or {}, "/", gpus=gpus, emulated=emulated)


def _no_notes(key: str, sentence: str) -> None:
    raise AssertionError((key, sentence))


def modes(slices: str = "advisory") -> SharingModes:
    host = SharingHost(
        Path("/nonexistent"),
        EmulatedInventory.open("n1", "1xT4"),
        shared=False,
        note=_no_notes,
        end_reason=_no_notes,
        store=Path("/nonexistent"),
    )
    return SharingModes(host, slices)


def sharing_for(wanted: ProcessSpec, slices: str = "advisory") -> SharingMode:
    return modes(slices).choose(wanted)[0]


def prepared(wanted: ProcessSpec) -> PreparedShare:
    return asyncio.run(modes().prepare(NodeProgram(wanted, {}, Path("/nonexistent"))))


@pytest.mark.parametrize(
    ("gpus", "mode"),
    [((), WholeSharing), (WHOLE, WholeSharing), ((TENTH,), AdvisorySharing), ((WHOLE[0], TENTH), AdvisorySharing)],
)
def test_shares_decide_the_mode(gpus: tuple[GpuShare, ...], mode: type[SharingMode]) -> None:
    assert type(sharing_for(spec(*gpus))) is mode


def test_whole_gpus_are_shown_by_uuid_in_the_order_of_the_allocation() -> None:
    wanted = spec(*WHOLE)
    assert prepared(wanted).env == {
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "GPUPOOL_GPUS": "GPU-a:1000:16384,GPU-b:1000:32768",
        "GPUPOOL_GPU_SHARE": "1.00",
        "GPUPOOL_GPU_MEMORY_MIB": "16384",
    }
    assert prepared(wanted).notes == ()


def test_advisory_slice_gets_its_share_and_a_note() -> None:
    wanted = spec(TENTH)
    assert prepared(wanted).env == {
        "CUDA_VISIBLE_DEVICES": "GPU-a",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "GPU-a",
        "GPUPOOL_GPUS": "GPU-a:100:1638",
        "GPUPOOL_GPU_SHARE": "0.10",
        "GPUPOOL_GPU_MEMORY_MIB": "1638",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.0750",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    assert prepared(wanted).notes == (ADVISORY_NOTE,)


def test_without_gpus_cuda_finds_none() -> None:
    wanted = spec()
    added = prepared(wanted).env
    assert (added["CUDA_VISIBLE_DEVICES"], added["NVIDIA_VISIBLE_DEVICES"], added["GPUPOOL_GPUS"]) == ("", "void", "")
    assert not {"GPUPOOL_EMULATED", "GPUPOOL_GPU_SHARE"} & added.keys()
    assert prepared(wanted).notes == ()


@pytest.mark.parametrize("gpus", [WHOLE, (TENTH,)])
def test_emulated_gpus_are_hidden_from_cuda_and_marked_as_emulated(gpus: tuple[GpuShare, ...]) -> None:
    wanted = spec(*gpus, emulated=True)
    added = prepared(wanted).env
    assert (added["CUDA_VISIBLE_DEVICES"], added["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")
    assert added["GPUPOOL_EMULATED"] == "1"
    assert added["GPUPOOL_GPUS"].startswith("GPU-a:")
    assert not FRAMEWORKS & added.keys()
    assert EMULATED_NOTE in prepared(wanted).notes


@pytest.mark.parametrize(
    "name", ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"]
)
def test_jax_settings_of_program_are_kept(name: str) -> None:
    wanted = spec(TENTH, env={name: "0.5"})
    added = prepared(wanted).env
    assert FRAMEWORKS & added.keys() == {"TF_FORCE_GPU_ALLOW_GROWTH"}


def test_tensorflow_settings_of_program_are_kept() -> None:
    wanted = spec(TENTH, env={"TF_FORCE_GPU_ALLOW_GROWTH": "false"})
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in prepared(wanted).env


def test_pytorch_is_not_given_an_option_that_older_releases_fail_on() -> None:
    wanted = spec(TENTH)
    assert not [name for name in prepared(wanted).env if name.startswith("PYTORCH")]


@given(st.lists(st.builds(GpuShare, st.just("GPU-a"), st.just(0), st.integers(1, 1000), st.integers(1, 10**6))))
def test_framework_never_gets_more_than_the_slice(shares: list[GpuShare]) -> None:
    wanted = spec(*shares)
    added = prepared(wanted).env
    assert added["GPUPOOL_GPUS"].count(":") == 2 * len(shares)
    if "XLA_PYTHON_CLIENT_MEM_FRACTION" in added:
        assert 0 < float(added["XLA_PYTHON_CLIENT_MEM_FRACTION"]) <= min(s.permille for s in shares) / 1000


class StrictSharing(AdvisorySharing):
    """Stands for a mode that a package adds."""


def test_mode_of_installed_package_is_used_when_named(monkeypatch: pytest.MonkeyPatch) -> None:
    added = importlib.metadata.EntryPoints(
        [
            *importlib.metadata.entry_points(group=choose.ENTRY_POINTS),
            importlib.metadata.EntryPoint("strict-test", f"{__name__}:StrictSharing", choose.ENTRY_POINTS),
        ]
    )
    monkeypatch.setattr(choose, "entry_points", lambda group: added.select(group=group))
    assert type(sharing_for(spec(TENTH), slices="strict-test")) is StrictSharing
    assert type(sharing_for(spec(*WHOLE), slices="strict-test")) is WholeSharing


def test_unknown_mode_is_refused_with_list_of_modes() -> None:
    with pytest.raises(GpupoolError) as caught:
        modes().mode("telepathy")
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert "advisory, mig, mps, share, whole" in caught.value.hint


def test_built_in_modes_are_found_by_entry_point() -> None:
    points = importlib.metadata.entry_points(group=choose.ENTRY_POINTS)
    assert {points[name].load() for name in ("whole", "share", "advisory")} == {
        WholeSharing,
        ShareSharing,
        AdvisorySharing,
    }
