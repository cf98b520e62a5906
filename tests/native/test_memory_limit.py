"""The memory limit: every call that allocates, at the limit, a byte under it and a byte over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_client import MIB, Slice, make_slice

LIMIT = 1024 * MIB
TILES = 65536  # what the driver rounds the size of arrays up to, as far as it says


@pytest.fixture
def room(native_out: Path, tmp_path: Path) -> Iterator[Slice]:
    """Create a slice of 1 GiB; a context takes 128 MiB of it."""
    made = make_slice(tmp_path, native_out, LIMIT)
    with made.lease:
        yield made


# What allocates `size` bytes, the granule in which sizes count, and what frees it again.
CALLS = [
    pytest.param("cu.cuMemAlloc(size)", 512, "cu.cuMemFree(got)", id="cuMemAlloc"),
    pytest.param("cu.cuMemAllocPitch(512, size // 512, 4)", 512, "cu.cuMemFree(got[0])", id="cuMemAllocPitch"),
    pytest.param("cu.cuMemAllocPitch(500, size // 512, 4)", 512, "cu.cuMemFree(got[0])", id="cuMemAllocPitch-rounded"),
    pytest.param("cu.cuMemAllocManaged(size, 1)", 512, "cu.cuMemFree(got)", id="cuMemAllocManaged"),
    pytest.param("physical(size)", 2 * MIB, "cu.cuMemRelease(got)", id="cuMemCreate"),
    pytest.param(
        "cu.cuMemAllocAsync(size, 0)",
        2 * MIB,
        "cu.cuMemFreeAsync(got, 0)[0], cu.cuStreamSynchronize(0)",
        id="cuMemAllocAsync",
    ),
    pytest.param(
        "cu.cuMemAllocFromPoolAsync(size, pool, 0)",
        2 * MIB,
        "cu.cuMemFreeAsync(got, 0)[0], cu.cuStreamSynchronize(0)",
        id="cuMemAllocFromPoolAsync",
    ),
    pytest.param("array(128, size // 512)", TILES, "cu.cuArrayDestroy(got)", id="cuArray3DCreate"),
    pytest.param("array(128, size // 1024, 2)", TILES, "cu.cuArrayDestroy(got)", id="cuArray3DCreate-deep"),
    pytest.param(
        "array(128, size // 512, levels=1)", TILES, "cu.cuMipmappedArrayDestroy(got)", id="cuMipmappedArrayCreate"
    ),
]


@pytest.mark.parametrize(("call", "granule", "release"), CALLS)
def test_call_gets_the_whole_slice_and_no_more(room: Slice, call: str, granule: int, release: str) -> None:
    room.run(
        f"""
        cu = begin()
        pool = new_pool()
        before, everything = used(), free()
        assert everything == {LIMIT} - 128 * MIB, everything
        for size in (everything - {granule}, everything):
            got = value({call})
            assert free() == everything - size, (free(), everything - size)
            assert held() == used(), (held(), used())
            {release}
            assert used() == held() == before, (used(), held(), before)
        size = everything + {granule}
        assert code({call}) == OOM
        assert used() == held() == before
        rest = value(cu.cuMemAlloc(512))
        size = everything
        assert code({call}) == OOM, "one granule too little"
        assert used() == held() == before + 512
        """
    )
    assert room.lease.tenant("oom_count") == 2


def test_sizes_are_counted_in_512_bytes_and_a_byte_over_is_too_much(room: Slice) -> None:
    room.run("""
        cu = begin()
        everything = free()
        most = value(cu.cuMemAlloc(everything - 512))
        one = value(cu.cuMemAlloc(1))
        assert free() == 0
        assert code(cu.cuMemAlloc(1)) == OOM
        cu.cuMemFree(one)
        assert code(cu.cuMemAlloc(513)) == OOM
        assert code(cu.cuMemAlloc(512)) == SUCCESS
        assert held() == used()
    """)


def test_huge_sizes_are_out_of_memory_and_cause_no_driver_error(room: Slice) -> None:
    room.run("""
        cu = begin()
        before = used()
        for size in (2**40, 2**44, 2**52, 2**63, 2**64 - 1):
            assert code(cu.cuMemAlloc(size)) == OOM, size
            assert code(cu.cuMemAllocAsync(size, 0)) == OOM, size
        assert code(cu.cuMemAlloc(0)) == INVALID_VALUE
        assert code(cu.cuMemFree(12345)) == INVALID_VALUE
        assert code(cu.cuMemFree(0)) == SUCCESS
        assert code(physical(12345)) == INVALID_VALUE
        assert used() == held() == before
    """)


def test_driver_failure_releases_reserved_memory(room: Slice) -> None:
    """The card is smaller than the slice: the driver itself is out of memory."""
    room.lease.set_control("memory_limit_bytes", 64 << 30)
    room.run("""
        cu = begin()
        before = used()
        assert code(cu.cuMemAlloc(32 << 30)) == code(cu.cuMemAllocAsync(32 << 30, 0)) == OOM
        assert code(physical(32 << 30)) == code(array(1024, 8 << 20)) == OOM
        assert used() == held() == before
    """)
    assert room.lease.tenant("oom_count") == 0, "these were the card's, not the slice's"


def test_free_pointers_are_freed_once(room: Slice) -> None:
    room.run("""
        cu = begin()
        before = used()
        one = value(cu.cuMemAlloc(MIB))
        assert code(cu.cuMemFree(int(one) + 512)) == INVALID_VALUE
        assert used() == before + MIB
        assert code(cu.cuMemFree(one)) == SUCCESS
        assert code(cu.cuMemFree(one)) == INVALID_VALUE
        assert used() == held() == before
    """)


def test_slice_looks_like_a_whole_gpu(room: Slice) -> None:
    room.run(f"""
        cu = begin()
        value(cu.cuMemAlloc(100 * MIB))
        assert value(cu.cuMemGetInfo()) == ({LIMIT} - 228 * MIB, {LIMIT})
        assert value(cu.cuDeviceTotalMem(0)) == {LIMIT}
    """)


def test_all_processes_see_the_same_sizes(room: Slice) -> None:
    source = """
        cu = begin()
        value(cu.cuMemAlloc(int(sys.argv[1])))
        print("ready", flush=True)
        sys.stdin.readline()
        print(value(cu.cuMemGetInfo()), flush=True)
        sys.stdin.readline()
    """
    programs = [room.start(source, str(size * MIB)) for size in (10, 20, 30)]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    seen = set()
    for program in programs:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write("\n")
        program.stdin.flush()
        seen.add(program.stdout.readline())
    assert seen == {f"({LIMIT - 3 * 128 * MIB - 60 * MIB}, {LIMIT})\n"}
    for program in programs:
        program.communicate("\n", timeout=30)


def test_correction_beyond_ledgers_counts_as_used(room: Slice) -> None:
    room.lease.set_control("correction_bytes", 100 * MIB)
    room.run(f"""
        cu = begin()
        assert free() == {LIMIT} - 228 * MIB
        assert code(cu.cuMemAlloc(free() + 512)) == OOM
        assert code(cu.cuMemAlloc(free())) == SUCCESS
    """)


def test_pinned_host_memory_costs_nothing(room: Slice) -> None:
    room.run("""
        cu = begin()
        before = used()
        block = value(cu.cuMemHostAlloc(100 * MIB, 0))
        assert used() == before
        assert code(cu.cuMemFreeHost(block)) == SUCCESS
    """)


def test_unusable_lease_gives_no_memory(room: Slice) -> None:
    (room.lease.path / "status").write_bytes(b"nonsense" * 512)
    room.run("""
        cu = cuda()
        assert code(cu.cuInit(0)) == SYSTEM_NOT_READY
        assert code(cu.cuMemAlloc(512)) == code(cu.cuMemAllocAsync(512, 0)) == SYSTEM_NOT_READY
        assert code(physical(2 * MIB)) == code(cu.cuDevicePrimaryCtxRetain(0)) == SYSTEM_NOT_READY
    """)


def test_whole_gpu_is_available_without_a_lease(room: Slice) -> None:
    room.run(
        """
        cu = begin()
        before, total = value(cu.cuMemGetInfo())
        assert total == value(cu.cuDeviceTotalMem(0)) == 16 << 30
        value(cu.cuMemAlloc(2 << 30))
        assert value(cu.cuMemGetInfo())[0] == before - (2 << 30)
        """,
        GPUPOOL_LEASE_DIR="",
        GPUPOOL_CUDA_DRIVER=str(room.out / "fake/libcuda.so.1"),
    )
    assert room.lease.used_bytes() == 0
