"""The fake driver: devices, contexts, memory, and what other processes see of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_cuda_harness import Pool, counters
from native_harness import GIB, MIB, FakeGpu, fake_gpus_folder

pytest.importorskip("cuda.bindings")

T4 = FakeGpu(uuid="GPU-EMULATED-00112233-4455-6677-8899-aabbccddeeff", name="Tesla T4")
H100 = FakeGpu(
    uuid="GPU-10112233-4455-6677-8899-aabbccddeeff",
    memory_bytes=80 * GIB,
    multiprocessors=132,
    capability="9.0",
    name="NVIDIA H100 80GB HBM3",
)
MIG = "mig MIG-20112233-4455-6677-8899-aabbccddeeff 10737418240 16 1g.10gb\n"


@pytest.fixture
def pool(native_out: Path, tmp_path: Path) -> Pool:
    return Pool(native_out / "fake", fake_gpus_folder(tmp_path / "gpus", [T4, H100]))


T4_SEEN = ["Tesla T4 (emulated)", "00112233445566778899aabbccddeeff", 16 * GIB]
H100_SEEN = ["NVIDIA H100 80GB HBM3 (emulated)", "10112233445566778899aabbccddeeff", 80 * GIB]


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, [T4_SEEN, H100_SEEN]),
        ("1,0", [H100_SEEN, T4_SEEN]),
        ("GPU-1011", [H100_SEEN]),
        (T4.uuid, [T4_SEEN]),
        ("1,7,0", [H100_SEEN]),
        ("", "NO_DEVICE"),
    ],
)
def test_described_and_visible_devices_are_listed(pool: Pool, visible: str | None, seen: object) -> None:
    more = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert pool.run("devices", **more) == seen


def test_no_device_without_a_description(native_out: Path, tmp_path: Path) -> None:
    assert Pool(native_out / "fake", tmp_path).run("devices") == "NO_DEVICE"


def test_mig_instance_is_a_device_with_own_memory(pool: Pool) -> None:
    with (pool.gpus / "gpus.conf").open("a") as conf:
        conf.write(MIG)
    name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb (emulated)"
    seen = [[name, "20112233445566778899aabbccddeeff", 10 * GIB]]
    assert pool.run("devices", CUDA_VISIBLE_DEVICES="MIG-20112233-4455-6677-8899-aabbccddeeff") == seen
    assert (pool.gpus / "gpu-1.0.state").exists()


def test_attributes_equal_those_of_the_gpu(pool: Pool) -> None:
    assert pool.run("attributes") == [7, 5, 40, 1024, 32, 65536, 1]
    assert pool.run("attributes", CUDA_VISIBLE_DEVICES="1") == [9, 0, 132, 1024, 32, 232448, 1]


def test_calls_need_the_driver_and_a_context(pool: Pool) -> None:
    wanted = [
        "NOT_INITIALIZED",
        "INVALID_CONTEXT",
        "INVALID_CONTEXT",
        "INVALID_CONTEXT",
        "SUCCESS",
        "CONTEXT_IS_DESTROYED",
    ]
    assert pool.run("without_context") == wanted


def test_limits_for_graphics_are_zero_and_fixed(pool: Pool) -> None:
    found = pool.run("limits")
    results = [result for result, _ in found["read"]]
    assert results == [0] * 10 + [1]  # INVALID_VALUE for a limit that does not exist
    assert [value for _, value in found["read"][7:10]] == [0, 0, 0]  # cuBLAS fails without an answer
    assert found["set"] == 215  # UNSUPPORTED_LIMIT
    assert found["green"] == [0, None]


def test_table_for_profilers_answers_not_supported(pool: Pool) -> None:
    assert pool.run("profiler_table") == [0, 200, [801], 500, False]


def test_memory_holds_bytes_and_is_counted(pool: Pool) -> None:
    errors = ["INVALID_VALUE", "INVALID_VALUE", "INVALID_VALUE", "INVALID_VALUE"]
    found = {"small": 1024, "same": True, "range": [True, 1000], "freed": 0, "errors": errors}
    assert pool.run("memory") == found


def test_gpu_memory_can_be_filled_completely(pool: Pool) -> None:
    assert pool.run("fill_card") == ["OUT_OF_MEMORY", "OUT_OF_MEMORY", 0, True]


def test_memory_of_killed_process_is_free_at_once(pool: Pool) -> None:
    """Its memory and its hours of unfinished work are gone although it is still a zombie."""
    holder = pool.start("hold", 8 * GIB)
    assert holder.stdout is not None
    holder.stdout.readline()
    held = counters(pool)[holder.pid]
    assert held.live
    assert held.memory_bytes == 8 * GIB + T4.context_bytes
    taken = pool.run("memory")
    assert taken["freed"] == 0
    holder.kill()  # not reaped before the next has looked
    waited, free = pool.run("wait_for_free", 16 * GIB - T4.context_bytes)
    assert free == 16 * GIB - T4.context_bytes
    assert waited < 5
    holder.communicate()
    assert not counters(pool)[holder.pid].live


def test_forked_child_cannot_use_the_driver(pool: Pool) -> None:
    assert pool.run("after_fork") == {"child": ["NOT_INITIALIZED", "NOT_INITIALIZED"], "parent": "SUCCESS"}


def test_pools_reserve_reuse_and_release_memory(pool: Pool) -> None:
    found = pool.run("pools")
    steps = [[r // MIB, u // MIB] for r, u in found["steps"]]
    assert steps == [[32, 1], [72, 41], [72, 1], [32, 1], [32, 0], [0, 0]]
    assert found["charged"] == 72 * MIB
    assert found["left"] == 0
    assert found["reused"]


def test_pool_respects_its_maximum_size(pool: Pool) -> None:
    assert pool.run("limited_pool") == ["OUT_OF_MEMORY", "OUT_OF_MEMORY", "SUCCESS"]


def test_physical_memory_is_charged_until_nothing_refers_to_it(pool: Pool) -> None:
    found = pool.run("virtual_memory")
    assert found["size"] == 2 * MIB
    assert found["charged"] == [2 * MIB, 2 * MIB, 2 * MIB, 0]
    assert found["seen"] == [0x01020304] * 4
    assert found["errors"] == ["INVALID_VALUE"] * 3


def test_arrays_take_memory_and_hold_bytes(pool: Pool) -> None:
    assert pool.run("arrays") == [4608, True, 0, "INVALID_HANDLE"]  # 10 rows of 416 bytes, in units of 512
