"""Charges for pools, mapped memory, arrays, graphs and contexts, from the first call to the last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_client import MIB, Slice, make_slice

LIMIT = 1024 * MIB


@pytest.fixture
def room(native_out: Path, tmp_path: Path) -> Iterator[Slice]:
    """Create a slice of 1 GiB; a context takes 128 MiB of it."""
    made = make_slice(tmp_path, native_out, LIMIT)
    with made.lease:
        yield made


# -- pools ------------------------------------------------------------------------------------


def test_pool_is_charged_once_for_its_memory(room: Slice) -> None:
    room.run("""
        cu = begin()
        before = used()
        pool = value(cu.cuDeviceGetDefaultMemPool(0))
        threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        value((*cu.cuMemPoolSetAttribute(pool, threshold, cu.cuuint64_t(2**63)), None))
        for _ in range(50):
            block = value(cu.cuMemAllocAsync(100 * MIB, 0))
            value((*cu.cuMemFreeAsync(block, 0), None))
        value((*cu.cuStreamSynchronize(0), None))
        assert used() == held() == before + 100 * MIB, "the pool keeps it"
        value((*cu.cuMemPoolTrimTo(pool, 0), None))
        assert used() == held() == before
    """)


def test_unused_pool_memory_is_released_for_plain_memory(room: Slice) -> None:
    room.run("""
        cu = begin()
        pool = value(cu.cuDeviceGetDefaultMemPool(0))
        threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        cu.cuMemPoolSetAttribute(pool, threshold, cu.cuuint64_t(2**63))
        everything = free()
        block = value(cu.cuMemAllocAsync(everything, 0))
        assert code(cu.cuMemAlloc(512)) == OOM
        cu.cuMemFreeAsync(block, 0)
        cu.cuStreamSynchronize(0)
        assert free() == 0
        assert code(cu.cuMemAlloc(everything)) == SUCCESS
        assert held() == used()
    """)


def test_steady_use_of_a_pool_close_to_the_limit_maps_and_unmaps_nothing(native_out: Path, tmp_path: Path) -> None:
    """8 of 10 GiB are cached in the pool; each step takes 4 of them and gives them back."""
    made = make_slice(tmp_path, native_out, 10 * 1024 * MIB)
    with made.lease:
        made.run("""
            cu = begin()
            pool = value(cu.cuDeviceGetDefaultMemPool(0))
            threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
            value((*cu.cuMemPoolSetAttribute(pool, threshold, cu.cuuint64_t(2**63)), None))
            for pointer in [value(cu.cuMemAllocAsync(4096 * MIB, 0)) for _ in range(2)]:
                value((*cu.cuMemFreeAsync(pointer, 0), None))
            value((*cu.cuStreamSynchronize(0), None))
            before = pool_changes()
            for _ in range(20):
                value((*cu.cuMemFreeAsync(value(cu.cuMemAllocAsync(4096 * MIB, 0)), 0), None))
                value((*cu.cuStreamSynchronize(0), None))
            assert pool_changes() == before
            assert used() == held() == (128 + 8192) * MIB
        """)
        assert made.lease.tenant("oom_count") == 0


def test_fragmented_pool_does_not_grow_beyond_slice(native_out: Path, tmp_path: Path) -> None:
    made = make_slice(tmp_path, native_out, 10 * 1024 * MIB)
    with made.lease:
        made.run("""
            cu = begin()
            pool = value(cu.cuDeviceGetDefaultMemPool(0))
            threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
            value((*cu.cuMemPoolSetAttribute(pool, threshold, cu.cuuint64_t(2**63)), None))
            for pointer in [value(cu.cuMemAllocAsync(1024 * MIB, 0)) for _ in range(8)]:
                value((*cu.cuMemFreeAsync(pointer, 0), None))
            value((*cu.cuStreamSynchronize(0), None))
            value(cu.cuMemAllocAsync(4096 * MIB, 0))
            assert used() == held() <= 10 * 1024 * MIB
            assert code(cu.cuMemAllocAsync(6144 * MIB, 0)) == OOM
            assert used() == held() <= 10 * 1024 * MIB
        """)
        assert made.lease.tenant("oom_count") == 1


def test_shrunk_pool_is_noticed_before_refusal(room: Slice) -> None:
    room.run("""
        cu = begin()
        everything = free()
        for allocate in (lambda: cu.cuMemAlloc(everything), lambda: physical(everything)):
            block = value(cu.cuMemAllocAsync(everything, 0))
            cu.cuMemFreeAsync(block, 0)
            cu.cuCtxSynchronize()
            got = value(allocate())
            assert held() == used()
            cu.cuMemFree(got) if isinstance(got, cu.CUdeviceptr) else cu.cuMemRelease(got)
    """)


def test_small_allocations_near_the_limit_never_pass_it(room: Slice) -> None:
    room.run("""
        cu = begin()
        got = []
        while True:
            result = cu.cuMemAllocAsync(3 * MIB, 0)
            assert held() <= 1024 * MIB
            if code(result) == OOM:
                break
            got.append(value(result))
        assert held() == used() > 1024 * MIB - 64 * MIB
        for block in got:
            cu.cuMemFreeAsync(block, 0)
        cu.cuStreamSynchronize(0)
        assert held() == used() == 128 * MIB
    """)
    peak = room.lease.tenant("peak_bytes")
    assert peak <= LIMIT


def test_destroyed_pool_is_charged_until_last_allocation_is_freed(room: Slice) -> None:
    room.run("""
        cu = begin()
        before = used()
        pool = new_pool()
        cu.cuDeviceSetMemPool(0, pool)
        block = value(cu.cuMemAllocAsync(100 * MIB, 0))
        other = value(cu.cuMemAllocFromPoolAsync(100 * MIB, pool, 0))
        assert code(cu.cuMemPoolDestroy(pool)) == SUCCESS
        assert int(value(cu.cuDeviceGetMemPool(0))) == int(value(cu.cuDeviceGetDefaultMemPool(0)))
        assert code(cu.cuMemAllocFromPoolAsync(512, pool, 0)) == INVALID_VALUE
        assert code(cu.cuMemPoolDestroy(pool)) == INVALID_VALUE
        assert used() == held() == before + 200 * MIB
        cu.cuMemFreeAsync(block, 0)
        cu.cuMemFree(other)
        cu.cuStreamSynchronize(0)
        assert used() == held() == before
        empty = new_pool()
        assert code(cu.cuMemPoolDestroy(empty)) == SUCCESS
        assert code(cu.cuMemPoolDestroy(value(cu.cuDeviceGetDefaultMemPool(0)))) == INVALID_VALUE
    """)


# -- mapped memory ------------------------------------------------------------------------------------


def test_released_but_mapped_memory_does_not_escape(room: Slice) -> None:
    room.run("""
        cu = begin()
        before = used()
        size = 100 * MIB
        address = value(cu.cuMemAddressReserve(2 * size, 0, 0, 0))
        handle = value(physical(size))
        value((*cu.cuMemMap(address, size, 0, handle, 0), None))
        value((*cu.cuMemMap(int(address) + size, size, 0, handle, 0), None))
        value((*cu.cuMemRelease(handle), None))
        assert used() == held() == before + size, "released, still mapped"
        again = value(cu.cuMemRetainAllocationHandle(int(address)))
        value((*cu.cuMemUnmap(address, size), None))
        assert used() == held() == before + size, "mapped a second time"
        assert code(cu.cuMemUnmap(int(address) + size, size // 2)) == INVALID_VALUE
        assert used() == held() == before + size
        value((*cu.cuMemUnmap(int(address) + size, size), None))
        assert used() == held() == before + size, "retained"
        value((*cu.cuMemRelease(again), None))
        assert used() == held() == before
        assert code(cu.cuMemRelease(again)) == INVALID_VALUE
        assert used() == held() == before
    """)


def test_expandable_segments_fill_the_slice_exactly(room: Slice) -> None:
    room.run("""
        cu = begin()
        before, blocks = used(), free() // BLOCK
        address = int(value(cu.cuMemAddressReserve(blocks * BLOCK * 2, 0, 0, 0)))

        def grow(at):
            result = physical(BLOCK)
            if code(result) == SUCCESS:
                value((*cu.cuMemMap(address + at * BLOCK, BLOCK, 0, result[1], 0), None))
                value((*cu.cuMemRelease(result[1]), None))
            return code(result) == SUCCESS

        count = 0
        while grow(count):
            count += 1
        assert count == blocks
        assert used() == held() == before + blocks * BLOCK
        value((*cu.cuMemUnmap(address + 10 * BLOCK, 20 * BLOCK), None))
        assert used() == held() == before + (blocks - 20) * BLOCK
        assert all(grow(10 + i) for i in range(20))
        assert not grow(count + 1)
        value((*cu.cuMemUnmap(address, blocks * BLOCK), None))
        assert used() == held() == before
    """)


def test_allocation_of_thread_without_context_is_charged(room: Slice) -> None:
    room.run("""
        import threading
        cu = begin()
        before = used()
        got = []
        def work():
            assert int(value(cu.cuCtxGetCurrent())) == 0
            got.append(value(physical(10 * MIB)))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert used() == held() == before + 10 * MIB
    """)


# -- arrays ------------------------------------------------------------------------------------


def test_arrays_whose_memory_is_mapped_later_cost_nothing(room: Slice) -> None:
    room.run("""
        cu = begin()
        before = used()
        deferred = value(array(1024, 1024, flags=0x80))
        assert used() == held() == before
        cu.cuArrayDestroy(deferred)
        plain = value(array(1024, 1024))
        mips = value(array(1024, 1024, levels=5))
        assert used() >= held() > before + 9 * MIB
        assert used() < held() + 2 * 65536
        cu.cuArrayDestroy(plain)
        cu.cuMipmappedArrayDestroy(mips)
        assert used() == held() == before
    """)


# -- graphs ------------------------------------------------------------------------------------

CAPTURED = """
    cu = begin()
    before = used()
    stream = value(cu.cuStreamCreate(1))
    def graph_of(size):
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        value((*cu.cuStreamBeginCapture(stream, mode), None))
        block = value(cu.cuMemAllocAsync(size, stream))
        value((*cu.cuMemFreeAsync(block, stream), None))
        graph = value(cu.cuStreamEndCapture(stream))
        return value(cu.cuGraphInstantiate(graph, 0))
    def launch(graph):
        result = code(cu.cuGraphLaunch(graph, stream))
        cu.cuStreamSynchronize(stream)
        return result
"""


def test_graph_memory_is_charged_from_the_first_launch_to_the_trim(room: Slice) -> None:
    room.run(
        CAPTURED
        + """
    one = graph_of(100 * MIB)
    assert used() == held() == before, "nothing is held before a launch"
    for _ in range(3):
        assert launch(one) == SUCCESS
        assert used() == held() == before + 100 * MIB
    two = graph_of(50 * MIB)
    assert launch(two) == SUCCESS
    assert used() == held()
    value((*cu.cuGraphExecDestroy(one), None))
    value((*cu.cuGraphExecDestroy(two), None))
    value((*cu.cuDeviceGraphMemTrim(0), None))
    assert used() == held() == before
    """
    )


def test_graph_that_exceeds_free_memory_is_refused_at_launch(room: Slice) -> None:
    room.run(
        CAPTURED
        + """
    everything = free()
    fits, too_large = graph_of(everything), graph_of(everything + BLOCK)
    assert launch(too_large) == OOM
    assert used() == held() == before
    block = value(cu.cuMemAlloc(512))
    assert launch(fits) == OOM
    assert used() == held() == before + 512
    cu.cuMemFree(block)
    assert launch(fits) == SUCCESS
    assert used() == held() == before + everything
    assert launch(fits) == SUCCESS, "it has its memory"
    block = value(cu.cuMemAlloc(512))
    assert used() == held() == before + 512, "what idle graphs keep makes room"
    assert launch(fits) == OOM, "and must be had anew"
    cu.cuMemFree(block)
    assert launch(fits) == SUCCESS
    assert used() == held() == before + everything
    value((*cu.cuGraphExecDestroy(fits), None))
    assert code(cu.cuMemAlloc(everything)) == SUCCESS, "what graphs do not need makes room"
    assert used() == held()
    """
    )


def test_graph_refused_by_driver_is_retried_at_next_launch(room: Slice) -> None:
    """The card is smaller than the slice."""
    room.lease.set_control("memory_limit_bytes", 64 << 30)
    room.run(
        CAPTURED
        + """
    huge = graph_of(10 << 30)
    block = value(cu.cuMemAlloc(10 << 30))
    assert [launch(huge), launch(huge)] == [OOM, OOM]
    assert used() == held() == before + (10 << 30)
    cu.cuMemFree(block)
    assert launch(huge) == SUCCESS
    assert used() == held() == before + (10 << 30)
    """
    )


def test_uploaded_graph_is_charged(room: Slice) -> None:
    room.run(
        CAPTURED
        + """
    one = graph_of(100 * MIB)
    value((*cu.cuGraphUpload(one, stream), None))
    assert used() == held() == before + 100 * MIB
    assert code(cu.cuGraphUpload(graph_of(free() + 100 * MIB + BLOCK), stream)) == OOM
    assert used() == held()
    """
    )


# -- contexts ------------------------------------------------------------------------------------


def test_contexts_of_a_process_are_charged_once_and_given_back_with_the_last(room: Slice) -> None:
    room.run("""
        cu = cuda()
        value(cu.cuInit(0))
        value(cu.cuDevicePrimaryCtxRetain(0))
        value(cu.cuDevicePrimaryCtxRetain(0))
        other = value(cu.cuCtxCreate(None, 0, 0))
        assert used() == held() == 128 * MIB
        value(cu.cuMemAlloc(10 * MIB))
        value(array(1024, 1024))
        assert used() == held() == 142 * MIB
        value((*cu.cuDevicePrimaryCtxRelease(0), None))
        value((*cu.cuDevicePrimaryCtxRelease(0), None))
        assert used() == held() == 142 * MIB, "another context is left"
        value((*cu.cuCtxDestroy(other), None))
        assert held() == 0
    """)
    assert room.lease.used_bytes() == 0


def test_reset_frees_memory_of_primary_context(room: Slice) -> None:
    room.run("""
        cu = begin()
        value(cu.cuMemAlloc(10 * MIB))
        value(cu.cuMemAllocAsync(10 * MIB, 0))
        value((*cu.cuDevicePrimaryCtxReset(0), None))
        assert held() == 0
        begin()
        assert used() == held() == 128 * MIB
    """)


def test_context_that_does_not_fit_is_refused(room: Slice) -> None:
    room.lease.set_control("memory_limit_bytes", 200 * MIB)
    holder = room.start("cu = begin(); print('ready', flush=True); sys.stdin.readline()")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    room.run("""
        cu = cuda()
        value(cu.cuInit(0))
        assert code(cu.cuDevicePrimaryCtxRetain(0)) == code(cu.cuCtxCreate(None, 0, 0)) == OOM
        assert held() == 0
    """)
    holder.communicate("\n", timeout=30)
    assert room.lease.tenant("oom_count") == 2


# -- fork ------------------------------------------------------------------------------------


def test_children_of_a_fork_pay_for_themselves(room: Slice) -> None:
    room.run("""
        cu = cuda()
        children = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                begin()
                value(cu.cuMemAlloc(50 * MIB))
                os._exit(0 if held() == 178 * MIB else 1)
            children.append(pid)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
        begin()
        block = value(cu.cuMemAlloc(50 * MIB))
        pid = os.fork()
        if pid == 0:
            cu.cuMemFree(block)
            os._exit(0)
        os.waitpid(pid, 0)
        assert held() == 178 * MIB
        value((*cu.cuMemFree(block), None))
        assert held() == 128 * MIB
    """)
    ledgers = [room.lease.slot(index)["ledger"] >> 30 for index in room.lease.owners().values()]
    assert sum(ledgers) * 512 == room.lease.used_bytes()
    assert max(ledgers) * 512 == 178 * MIB, "a child that ended without cleaning up waits for its repair"
