from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_client import MIB, OOM, Slice, driver_books, make_slice

from gpupool.node.sharing.slices.context_sizes import MAX_BYTES, MIN_BYTES, ContextSizes

LIMIT = 1024 * MIB
ESTIMATE = 128 * MIB
PRIMARY = """
cu = begin()
print(used())
value(cu.cuDevicePrimaryCtxRelease(0))
print(held())
"""
OF_ITS_OWN = """
cu = cuda()
value(cu.cuInit(0))
context = value(cu.cuCtxCreate(None, 0, 0))
print(used())
value(cu.cuCtxDestroy(context))
print(held())
"""
REFUSED = """
cu = cuda()
value(cu.cuInit(0))
print(code(cu.cuDevicePrimaryCtxRetain(0)), code(cu.cuCtxCreate(None, 0, 0)))
print(held())
"""


@pytest.fixture
def made(native_out: Path, tmp_path: Path) -> Iterator[Slice]:
    slice_ = make_slice(tmp_path, native_out, LIMIT, context_bytes=ESTIMATE)
    with slice_.lease:
        yield slice_


def in_use(made: Slice) -> int:
    return made.lease.used_bytes()


@pytest.mark.parametrize("program", [PRIMARY, OF_ITS_OWN])
@pytest.mark.parametrize("mib", [64, 128, 600])
def test_context_is_charged_its_measured_size(made: Slice, program: str, mib: int) -> None:
    assert made.run(program, GPUPOOL_FAKE_CONTEXT_MIB=str(mib)).split() == [str(mib * MIB), "0"]
    assert in_use(made) == 0


def test_context_larger_than_the_slice_is_refused_and_freed(made: Slice) -> None:
    assert made.run(REFUSED, GPUPOOL_FAKE_CONTEXT_MIB="1025").split() == [str(OOM), str(OOM), "0"]
    assert in_use(made) == 0


def test_simultaneous_processes_measure_their_own_contexts(made: Slice) -> None:
    begun = [made.start(PRIMARY, GPUPOOL_FAKE_CONTEXT_MIB=str(mib)) for mib in (100, 200, 300)]
    ended = [process.communicate(timeout=100) for process in begun]
    assert [process.returncode for process in begun] == [0, 0, 0], ended
    assert in_use(made) == 0


def test_estimate_is_kept_without_nvml(native_out: Path, tmp_path: Path) -> None:
    made = make_slice(tmp_path, native_out, LIMIT, context_bytes=ESTIMATE, nvml=False)
    with made.lease:
        assert made.run(PRIMARY, GPUPOOL_FAKE_CONTEXT_MIB="600").split() == [str(ESTIMATE), "0"]


def test_nvml_state_is_restored(made: Slice) -> None:
    """The measurement begins and ends NVML by itself: to the program it is not initialised afterwards."""
    program = """
    import ctypes, os
    nvml = ctypes.CDLL(os.environ["NVML"])
    version = ctypes.create_string_buffer(80)
    begin()
    print(nvml.nvmlSystemGetDriverVersion(version, 80))
    print(nvml.nvmlInit_v2(), nvml.nvmlSystemGetDriverVersion(version, 80), nvml.nvmlShutdown(), nvml.nvmlShutdown())
    """
    nvml = str(made.out / "fake/libnvidia-ml.so.1")
    assert made.run(program, NVML=nvml).split() == ["1", "0", "0", "0", "1"]


def test_later_modules_use_memory_of_the_simulated_driver(made: Slice) -> None:
    program = """
    cu = begin()
    before = held()
    for _ in range(3):
        value(cu.cuModuleLoadData(b"any image"))
    print((held() - before) >> 20)
    value(cu.cuDevicePrimaryCtxRelease(0))
    print(held())
    """
    assert made.run(program, GPUPOOL_FAKE_CONTEXT_GROWTH_MIB="40").split() == ["120", "0"]
    assert sum(driver_books(made.gpus).values()) == 0


# -- what the agent remembers -----------------------------------------------------------------------------------------


def test_smallest_context_size_of_a_model_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "sizes.json"
    sizes = ContextSizes(path)
    assert sizes.of("GPU-a") is None
    for size in (900, 510, 700):
        sizes.learn("GPU-a", "580 H200", size * MIB)
    sizes.learn("GPU-b", "580 H200", 640 * MIB)
    sizes.learn("GPU-c", "580 T4", 300 * MIB)
    for known in (sizes, ContextSizes(path)):
        assert [known.of(f"GPU-{name}") for name in "abcd"] == [510 * MIB, 510 * MIB, 300 * MIB, None]
    sizes.learn("GPU-a", "590 H200", 800 * MIB)  # another driver
    assert ContextSizes(path).of("GPU-a") == 800 * MIB


@pytest.mark.parametrize("size", [0, -5, MIN_BYTES - 1, MAX_BYTES + 1])
def test_invalid_context_size_is_not_learned(tmp_path: Path, size: int) -> None:
    sizes = ContextSizes(tmp_path / "sizes.json")
    sizes.learn("GPU-a", "580 H200", size)
    assert sizes.of("GPU-a") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sizes": 5, "models": {"GPU-a": 7}}', '{"sizes": {"x": "y"}}'])
def test_invalid_file_is_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sizes.json"
    path.write_text(text)
    sizes = ContextSizes(path)
    assert sizes.of("GPU-a") is None
    sizes.learn("GPU-a", "580 H200", 500 * MIB)
    assert ContextSizes(path).of("GPU-a") == 500 * MIB
