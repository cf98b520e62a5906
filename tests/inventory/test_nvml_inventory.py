import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from fake_nvml import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    MIB,
    NOT_FOUND,
    UNKNOWN,
    FakeCard,
    FakeMig,
    FakeNvml,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Gpu, GpuHealth, NodeReport
from gpupool.node.inventory.nvml import NoGpusError, NvmlInventory

POOL = frozenset({os.getpid()})


def report_of(*cards: FakeCard) -> NodeReport:
    return NvmlInventory("n1", FakeNvml(*cards)).report()


def only_gpu(card: FakeCard, pool_pids: frozenset[int] = POOL) -> Gpu:
    (gpu,) = NvmlInventory("n1", FakeNvml(card)).gpus(pool_pids)
    return gpu


@pytest.fixture
def foreigner() -> Iterator[subprocess.Popen[bytes]]:
    """Simulate a foreign process by one that is not in the pool's pids, because a test cannot create a real one."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def test_gpu_is_reported_with_model_memory_address_and_use() -> None:
    card = FakeCard("GPU-a", name=b"NVIDIA A10", memory_mib=23028, used_mib=512, bus="00000000:65:00.0", utilisation=37)
    report = report_of(card)
    (gpu,) = report.gpus
    assert (gpu.uuid, gpu.index, gpu.model, gpu.memory_mib) == ("GPU-a", 0, "NVIDIA A10", 23028)
    assert (gpu.pci_bus_id, gpu.memory_used_mib, gpu.utilisation_percent) == ("00000000:65:00.0", 512, 37)
    assert (gpu.health, gpu.emulated, gpu.available) == (GpuHealth.OK, False, True)
    assert (report.driver_version, report.cuda_version, report.emulated, report.name) == (
        "550.54.15",
        "12.4",
        False,
        "n1",
    )
    assert report.warnings == ()


def test_used_memory_falls_back_to_the_old_query() -> None:
    class OldMemoryInfo(FakeNvml):
        def nvmlDeviceGetMemoryInfo(self, handle: FakeCard, version: int | None = None) -> object:  # noqa: N802
            if version:
                raise self.NVMLError(13)
            return super().nvmlDeviceGetMemoryInfo(handle)

    nvml = OldMemoryInfo(FakeCard("GPU-a", used_mib=100))
    report = NvmlInventory("n1", nvml).report()
    assert report.gpus[0].memory_used_mib == 400  # the old one counts what the driver reserves
    assert report.warnings == ()


@pytest.mark.parametrize(
    ("level", "name"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]
)
def test_gpus_without_nvlink_are_linked_by_pci_paths(level: int, name: str) -> None:
    one = FakeCard("GPU-a", bus="00000000:01:00.0", levels={"GPU-b": level})
    two = FakeCard("GPU-b", bus="00000000:02:00.0")
    report = report_of(one, two)
    assert [gpu.links for gpu in report.gpus] == [{1: name}, {0: name}]
    assert report.warnings == ()


def test_active_nvlinks_are_counted_for_each_pair() -> None:
    a, b, c = "00000000:0a:00.0", "00000000:0b:00.0", "00000000:0c:00.0"
    cards = (
        FakeCard("GPU-a", bus=a, nvlinks=[b, b, "", b, c, b], levels={"GPU-b": 50, "GPU-c": 50}),
        FakeCard("GPU-b", bus=b, nvlinks=[a, a, a, a], levels={"GPU-c": 40}),
        FakeCard("GPU-c", bus=c, nvlinks=[a]),
    )
    assert [gpu.links for gpu in report_of(*cards).gpus] == [
        {1: "NV4", 2: "NV1"},
        {0: "NV4", 2: "NODE"},
        {0: "NV1", 1: "NODE"},
    ]


def test_nvswitch_pairs_have_the_smaller_number_of_links() -> None:
    cards = (
        FakeCard("GPU-a", bus="00000000:0a:00.0", nvlinks=["switch"] * 18),
        FakeCard("GPU-b", bus="00000000:0b:00.0", nvlinks=["switch"] * 17 + [""]),
    )
    assert [gpu.links for gpu in report_of(*cards).gpus] == [{1: "NV17"}, {0: "NV17"}]


A100 = "NVIDIA A100-SXM4-40GB"
INSTANCES = [FakeMig("MIG-1", f"{A100} MIG 1g.5gb", 4864), FakeMig("MIG-2", f"{A100} MIG 3g.20gb", 19968)]


def test_gpu_with_mig_is_reported_as_its_instances() -> None:
    report = report_of(FakeCard("GPU-a", A100, mig=INSTANCES), FakeCard("GPU-b"))
    assert [(gpu.index, gpu.uuid, gpu.model, gpu.memory_mib) for gpu in report.gpus] == [
        (100, "MIG-1", f"{A100} MIG 1g.5gb", 4864),
        (101, "MIG-2", f"{A100} MIG 3g.20gb", 19968),
        (1, "GPU-b", "Tesla T4", 15360),
    ]
    assert [(gpu.mig_profile, gpu.parent_uuid) for gpu in report.gpus] == [
        ("1g.5gb", "GPU-a"),
        ("3g.20gb", "GPU-a"),
        ("", ""),
    ]
    assert report.warnings == ()


def test_instance_without_profile_is_named_by_slices_and_memory() -> None:
    (gpu,) = report_of(FakeCard("GPU-a", A100, mig=[FakeMig("MIG-1", A100, 19968)])).gpus
    assert (gpu.mig_profile, gpu.model) == ("3g.20gb", f"{A100} MIG 3g.20gb")


def test_mig_without_instances_has_no_capacity_and_warns() -> None:
    report = report_of(FakeCard("GPU-a", mig=[]), FakeCard("GPU-b"))
    assert [gpu.uuid for gpu in report.gpus] == ["GPU-b"]
    assert report.warnings == ("GPU 0: MIG is on but it has no instances, so programs cannot use it",)


def test_instances_can_change_while_the_agent_runs() -> None:
    card = FakeCard("GPU-a", A100, mig=None)
    inventory = NvmlInventory("n1", FakeNvml(card))
    assert [gpu.uuid for gpu in inventory.report().gpus] == ["GPU-a"]
    card.mig = list(INSTANCES)
    assert [gpu.uuid for gpu in inventory.gpus(POOL)] == ["MIG-1", "MIG-2"]
    card.mig = INSTANCES[1:]
    assert [gpu.uuid for gpu in inventory.gpus(POOL)] == ["MIG-2"]


def test_instances_share_the_health_of_their_gpu() -> None:
    gpus = report_of(FakeCard("GPU-a", A100, mig=INSTANCES, uncorrected=1)).gpus
    assert [gpu.health for gpu in gpus] == [GpuHealth.FAILED] * 2


def test_processes_are_assigned_to_their_instance(foreigner: subprocess.Popen[bytes]) -> None:
    cut = [INSTANCES[0], FakeMig("MIG-2", f"{A100} MIG 3g.20gb", 19968, [(foreigner.pid, MIB)])]
    gpus = NvmlInventory("n1", FakeNvml(FakeCard("GPU-a", A100, mig=cut))).gpus(frozenset())
    assert [gpu.available for gpu in gpus] == [True, False]


@pytest.mark.parametrize(
    ("card", "health", "words"),
    [
        (FakeCard("GPU-a", uncorrected=0, remapped=(9, 0, 0, 0), retirement_pending=0), GpuHealth.OK, ""),
        (FakeCard("GPU-a", uncorrected=1), GpuHealth.FAILED, "1 uncorrected memory error since"),
        (FakeCard("GPU-a", uncorrected=3), GpuHealth.FAILED, "3 uncorrected memory errors since"),
        (FakeCard("GPU-a", remapped=(0, 1, 1, 0)), GpuHealth.DEGRADED, "waits to be remapped"),
        (FakeCard("GPU-a", remapped=(0, 1, 0, 1)), GpuHealth.FAILED, "could not be remapped"),
        (FakeCard("GPU-a", retirement_pending=1), GpuHealth.DEGRADED, "pages wait to be retired"),
        (FakeCard("GPU-a", uncorrected=2, retirement_pending=1), GpuHealth.FAILED, "pages wait to be retired"),
    ],
)
def test_memory_errors_determine_health(card: FakeCard, health: GpuHealth, words: str) -> None:
    gpu = only_gpu(card)
    assert (gpu.health, gpu.available) == (health, health is not GpuHealth.FAILED)
    assert words in gpu.health_note
    assert bool(gpu.health_note) == (health is not GpuHealth.OK)


@pytest.mark.parametrize(
    ("xid", "health"),
    [
        (79, GpuHealth.FAILED),
        (48, GpuHealth.FAILED),
        (63, GpuHealth.DEGRADED),
        (94, GpuHealth.DEGRADED),
        (31, GpuHealth.OK),
    ],
)
def test_xid_error_marks_its_gpu_unless_caused_by_a_program(xid: int, health: GpuHealth) -> None:
    cards = (FakeCard("GPU-a"), FakeCard("GPU-b"))
    nvml = FakeNvml(*cards)
    inventory = NvmlInventory("n1", nvml)
    inventory.report()
    assert nvml.watched == ["GPU-a", "GPU-b"]
    nvml.xids.append((cards[1], xid))
    for _ in range(2):
        assert [gpu.health for gpu in inventory.gpus(POOL)] == [GpuHealth.OK, health]
    assert (f"XID {xid}" in inventory.gpus(POOL)[1].health_note) == (health is not GpuHealth.OK)


def test_many_xid_events_are_read_in_batches() -> None:
    card = FakeCard("GPU-a")
    nvml = FakeNvml(card)
    inventory = NvmlInventory("n1", nvml)
    nvml.xids.extend((card, 31) for _ in range(200))
    inventory.gpus(POOL)
    assert 0 < len(nvml.xids) < 200
    for _ in range(4):
        inventory.gpus(POOL)
    assert not nvml.xids


def test_gpus_without_events_are_supported() -> None:
    nvml = FakeNvml(FakeCard("GPU-a", fails={"nvmlDeviceRegisterEvents": 3}))
    report = NvmlInventory("n1", nvml).report()
    assert (report.gpus[0].health, report.warnings) == (GpuHealth.OK, ())


def test_foreign_process_is_named_and_blocks_the_gpu(foreigner: subprocess.Popen[bytes]) -> None:
    card = FakeCard("GPU-a", processes=[(foreigner.pid, 700 * MIB)])
    gpu = only_gpu(card, frozenset())
    (process,) = gpu.foreign
    assert (process.pid, process.memory_mib, gpu.available) == (foreigner.pid, 700, False)
    assert process.name.startswith("python")
    assert process.user == subprocess.check_output(["id", "-un"], text=True).strip()


def test_processes_of_the_pool_and_descendants_are_not_foreign(foreigner: subprocess.Popen[bytes]) -> None:
    card = FakeCard("GPU-a", processes=[(foreigner.pid, None), (os.getpid(), 5)])
    assert only_gpu(card, frozenset({os.getpid()})).foreign == ()
    assert [p.pid for p in only_gpu(card, frozenset({foreigner.pid})).foreign] == [os.getpid()]


def test_ended_process_is_left_out(foreigner: subprocess.Popen[bytes]) -> None:
    foreigner.kill()
    foreigner.wait()
    assert only_gpu(FakeCard("GPU-a", processes=[(foreigner.pid, 1)]), frozenset()).foreign == ()


def test_report_uses_pids_of_last_scan(foreigner: subprocess.Popen[bytes]) -> None:
    inventory = NvmlInventory("n1", FakeNvml(FakeCard("GPU-a", processes=[(foreigner.pid, 1)])))
    assert not inventory.report().gpus[0].available
    inventory.gpus(frozenset({foreigner.pid}))
    assert inventory.report().gpus[0].available


def test_script_is_named_without_its_arguments() -> None:
    code = "import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, "--password=x"]) as process:
        card = FakeCard("GPU-a", processes=[(process.pid, None)])
        name = only_gpu(card, frozenset()).foreign[0].name
        process.kill()
    assert name.startswith("python")
    assert "password" not in name
    assert "sleep" not in name


def test_failed_query_gives_default_and_warning() -> None:
    card = FakeCard("GPU-a", utilisation=50, fails={"nvmlDeviceGetUtilizationRates": UNKNOWN})
    report = report_of(card)
    assert report.gpus[0].utilisation_percent == 0
    assert report.warnings == ("GPU 0: nvmlDeviceGetUtilizationRates failed: Unknown Error",)


def test_older_library_without_functions_gives_no_warning() -> None:
    lacks = frozenset({"nvmlDeviceGetRemappedRows", "nvmlDeviceGetMigMode", "nvmlEventSetCreate"})
    report = NvmlInventory("n1", FakeNvml(FakeCard("GPU-a"), lacks=lacks)).report()
    assert (len(report.gpus), report.warnings) == (1, ())


def test_gpu_without_memory_information_uses_host_memory() -> None:
    report = report_of(FakeCard("GPU-a", fails={"nvmlDeviceGetMemoryInfo": 3}))
    assert report.gpus[0].memory_mib == report.memory_mib > 0
    assert any("memory" in text for text in report.warnings)


def test_gpu_lost_later_is_reported_as_failed() -> None:
    cards = (FakeCard("GPU-a"), FakeCard("GPU-b"))
    inventory = NvmlInventory("n1", FakeNvml(*cards))
    inventory.report()
    cards[0].lost = True
    for gpus in (inventory.gpus(POOL), inventory.report().gpus):
        assert [(gpu.uuid, gpu.health) for gpu in gpus] == [("GPU-a", GpuHealth.FAILED), ("GPU-b", GpuHealth.OK)]
        assert "GPU is lost" in gpus[0].health_note


def test_gpu_that_the_driver_no_longer_finds_has_failed() -> None:
    cards = (FakeCard("GPU-a"), FakeCard("GPU-b"))
    inventory = NvmlInventory("n1", FakeNvml(*cards))
    inventory.report()
    cards[1].fails["nvmlDeviceGetUUID"] = NOT_FOUND
    gpus = inventory.gpus(POOL)
    assert [(gpu.uuid, gpu.health) for gpu in gpus] == [("GPU-a", GpuHealth.OK), ("GPU-b", GpuHealth.FAILED)]
    assert gpus[1].health_note.startswith("the card does not answer: the driver reports: ")


def test_gpu_unreachable_from_the_start_is_a_warning() -> None:
    report = report_of(FakeCard("GPU-a", lost=True), FakeCard("GPU-b"))
    assert [(gpu.uuid, gpu.index) for gpu in report.gpus] == [("GPU-b", 1)]
    assert any(text.startswith("GPU 0: ") and "lost" in text for text in report.warnings)


def test_reloaded_driver_is_initialised_again() -> None:
    class Reloaded(FakeNvml):
        reloaded = False

        def nvmlDeviceGetCount(self) -> int:  # noqa: N802
            if self.reloaded and self.initialised < 2:
                raise self.NVMLError(1)
            return len(self.cards)

    nvml = Reloaded(FakeCard("GPU-a"))
    inventory = NvmlInventory("n1", nvml)
    nvml.reloaded = True
    assert [gpu.uuid for gpu in inventory.report().gpus] == ["GPU-a"]
    assert nvml.initialised == 2


@pytest.mark.parametrize(
    ("nvml", "words"),
    [
        (FakeNvml(init_fails=LIBRARY_NOT_FOUND), "not installed"),
        (FakeNvml(init_fails=DRIVER_NOT_LOADED), "not loaded"),
        (FakeNvml(init_fails=18), "machine not restarted"),
        (FakeNvml(init_fails=UNKNOWN), "does not start (Unknown Error)"),
        (FakeNvml(), "sees no GPU"),
    ],
)
def test_missing_driver_or_gpu_error_has_a_reason(nvml: FakeNvml, words: str) -> None:
    with pytest.raises(NoGpusError) as caught:
        NvmlInventory("n1", nvml)
    assert words in caught.value.reason
    assert (caught.value.code, bool(caught.value.hint)) == (ErrorCode.UNSUPPORTED, True)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(GpupoolError) as caught:
        NvmlInventory.open("n1", "4xT4")
    assert caught.value.code is ErrorCode.INVALID_REQUEST


QUERIES = sorted(name for name in vars(FakeNvml) if name.startswith("nvml"))


@settings(max_examples=60, deadline=None)
@given(
    failing=st.dictionaries(st.sampled_from([q for q in QUERIES if q != "nvmlInit"]), st.integers(1, 30), max_size=6),
    broken=st.dictionaries(
        st.sampled_from([q for q in QUERIES if q != "nvmlInit"]),
        st.sampled_from([ValueError("odd"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), OSError(5, "io")]),
        max_size=3,
    ),
)
def test_scan_never_crashes_after_the_start(failing: dict[str, int], broken: dict[str, Exception]) -> None:
    cards = [
        FakeCard(
            f"GPU-{i}", bus=f"00000000:0{i}:00.0", nvlinks=["switch"], mig=[FakeMig(f"MIG-{i}", "x MIG 1g.5gb", 9)]
        )
        for i in range(2)
    ]
    nvml = FakeNvml(*cards)
    inventory = NvmlInventory("n1", nvml)
    nvml.fails, nvml.broken = failing, broken
    nvml.xids.append((cards[0], 79))
    assert {gpu.uuid for gpu in inventory.report().gpus} <= {"GPU-0", "GPU-1", "MIG-0", "MIG-1"}
    assert all(gpu.memory_mib > 0 for gpu in inventory.gpus(POOL))
