"""Programs that give the fake driver work: streams, events, captures, graphs. See fake_cuda_clients."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from typing import Any

from cuda.bindings import driver as cuda
from fake_cuda_prelude import GLOBAL, MIB, RELAXED, begin, free_bytes, kernel, launch, name, ok, tell, timed


def events() -> object:
    """Return the milliseconds between events around five kernels of 1 ms in one stream, and the reports."""
    begin()
    spin, stream = kernel("spin_1ms"), ok(cuda.cuStreamCreate(1))
    ok(cuda.cuStreamSynchronize(stream))
    first, last = (ok(cuda.cuEventCreate(0)) for _ in range(2))
    start = time.monotonic_ns()
    ok(cuda.cuEventRecord(first, stream))
    for _ in range(5):
        ok(launch(spin, stream))
    ok(cuda.cuEventRecord(last, stream))
    meanwhile = [name(cuda.cuEventQuery(last)), name(cuda.cuStreamQuery(stream))]
    ok(cuda.cuEventSynchronize(last))
    real = (time.monotonic_ns() - start) / 1e6
    silent = ok(cuda.cuEventCreate(2))
    ok(cuda.cuEventRecord(silent, stream))
    errors = [name(cuda.cuEventElapsedTime(first, silent)), name(cuda.cuStreamQuery(stream))]
    return {"elapsed": ok(cuda.cuEventElapsedTime(first, last)), "real": real, "told": meanwhile + errors}


def order() -> object:
    """Measure which work waits for which: streams, the legacy stream, events between streams."""
    begin()
    spin = kernel("spin_20ms")
    blocking, free, other = ok(cuda.cuStreamCreate(0)), ok(cuda.cuStreamCreate(1)), ok(cuda.cuStreamCreate(1))
    ok(launch(spin, blocking))
    told = [name(cuda.cuStreamQuery(free)), name(cuda.cuStreamQuery(blocking)), name(cuda.cuStreamQuery(0))]
    event = ok(cuda.cuEventCreate(2))
    ok(cuda.cuEventRecord(event, blocking))
    ok(cuda.cuStreamWaitEvent(other, event, 0))
    told.append(name(cuda.cuStreamQuery(other)))
    ok(cuda.cuStreamSynchronize(other))
    return [*told, name(cuda.cuStreamQuery(blocking))]


def computes() -> object:
    """Run the computing kernels, in the order of their stream."""
    begin()
    stream, count = ok(cuda.cuStreamCreate(1)), 1000
    a, b, c = (ok(cuda.cuMemAlloc(4 * count)) for _ in range(3))
    sent, got = (ctypes.c_float * count)(*range(count)), (ctypes.c_float * count)()
    ok(cuda.cuMemcpyHtoDAsync(a, ctypes.addressof(sent), 4 * count, stream))
    ok(cuda.cuMemcpyDtoDAsync(b, a, 4 * count, stream))
    pointers = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    ok(launch(kernel("vector_add_f32"), stream, ((int(a), int(b), int(c), count), pointers)))
    scaled = ((10.0, int(a), int(c), count), (ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int))
    ok(launch(kernel("saxpy_f32"), stream, scaled))
    ok(cuda.cuMemcpyDtoHAsync(ctypes.addressof(got), c, 4 * count, stream))
    ok(cuda.cuStreamSynchronize(stream))
    right = list(got) == [12.0 * i for i in range(count)]
    filled = ((8, 3, 1), (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int))
    ok(launch(kernel("fill_u32"), 0, filled))
    return right, name(cuda.cuCtxSynchronize()), name(cuda.cuMemAlloc(1))


def host_functions() -> object:
    """Run a host function between two pieces of work, in another thread, where it may not call the driver."""
    begin()
    stream, seen = ok(cuda.cuStreamCreate(1)), []

    def function(_: object) -> None:
        seen.append((name(cuda.cuStreamQuery(stream)), threading.current_thread() is threading.main_thread()))
        time.sleep(0.05)
        seen.append(("slept", False))

    keep = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
    ok(cuda.cuLaunchHostFunc(stream, ctypes.cast(keep, ctypes.c_void_p).value, 0))
    behind = ok(cuda.cuEventCreate(2))
    ok(cuda.cuEventRecord(behind, stream))
    told = name(cuda.cuEventQuery(behind))
    other = ok(cuda.cuStreamCreate(1))
    ok(launch(kernel("spin_1ms"), other))
    ok(cuda.cuStreamSynchronize(other))
    concurrent = len(seen) < 2
    ok(cuda.cuStreamSynchronize(stream))
    return {"seen": seen, "told": told, "others_go_on": concurrent, "after": name(cuda.cuEventQuery(behind))}


def saturate(seconds: str, which: str) -> object:
    """Keep the GPU busy for some time; the shared state has the time that it was given."""
    begin()
    spin = kernel(which)
    tell(found=True)
    sys.stdin.readline()
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        for _ in range(20):
            ok(launch(spin))
        ok(cuda.cuCtxSynchronize())
    return None


def capture() -> object:
    """Capture work, which does not run; the graph keeps its order, and a second stream joins through an event."""
    begin()
    spin = kernel("spin_2ms")
    stream, side = ok(cuda.cuStreamCreate(1)), ok(cuda.cuStreamCreate(1))
    fork, join = ok(cuda.cuEventCreate(2)), ok(cuda.cuEventCreate(2))
    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    ok(launch(spin, stream))
    ok(cuda.cuEventRecord(fork, stream))
    ok(cuda.cuStreamWaitEvent(side, fork, 0))
    ok(launch(spin, side))
    ok(cuda.cuEventRecord(join, side))
    ok(launch(spin, stream))
    ok(cuda.cuStreamWaitEvent(stream, join, 0))
    status = ok(cuda.cuStreamIsCapturing(side)).name
    graph = ok(cuda.cuStreamEndCapture(stream))
    nodes = ok(cuda.cuGraphGetNodes(graph))[1]
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    elapsed, real = timed(lambda: ok(cuda.cuGraphLaunch(executable, stream)), stream)
    return {"status": status, "nodes": nodes, "elapsed": elapsed, "real": real}


def broken_captures() -> object:
    """Make calls that a capture forbids, and return how it ends."""
    begin()
    stream, event, found = ok(cuda.cuStreamCreate(0)), ok(cuda.cuEventCreate(2)), []
    for call in (
        lambda: cuda.cuMemAlloc(1),
        lambda: cuda.cuEventQuery(event),
        lambda: cuda.cuStreamSynchronize(stream),
        lambda: cuda.cuMemcpyHtoD(0, 0, 0),
        lambda: launch(kernel("any"), 0),
        lambda: cuda.cuStreamWaitEvent(stream, event, 0),
    ):
        ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
        found.append((name(call()), name(cuda.cuStreamEndCapture(stream))))
    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    before = ok(cuda.cuThreadExchangeStreamCaptureMode(RELAXED))
    relaxed = (name(cuda.cuMemAlloc(1)), name(cuda.cuEventQuery(event)))
    ok(cuda.cuThreadExchangeStreamCaptureMode(before))
    found.append((*relaxed, name(cuda.cuStreamEndCapture(stream))))
    others: list[str] = []
    for mode in (GLOBAL, RELAXED):
        ok(cuda.cuStreamBeginCapture(stream, mode))
        thread = threading.Thread(target=lambda: others.append(name(cuda.cuEventQuery(event))))
        thread.start()
        thread.join()
        others.append(name(cuda.cuStreamEndCapture(stream)))
    return {"found": found, "others": others, "legacy": name(cuda.cuStreamBeginCapture(0, GLOBAL))}


def graph_memory() -> object:
    """Reserve memory at the first launch, use it while allocated, and give it back by a trim."""
    begin()
    stream, before, steps = ok(cuda.cuStreamCreate(1)), free_bytes(), []
    ask = cuda.CUgraphMem_attribute

    def now() -> tuple[int, int, int]:
        kinds = (ask.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, ask.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)
        reserved, used = (int(ok(cuda.cuDeviceGetGraphMemAttribute(0, kind))) for kind in kinds)
        return reserved, used, before - free_bytes()

    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    pointer = ok(cuda.cuMemAllocAsync(3 * MIB, stream))
    ok(cuda.cuMemsetD8Async(pointer, 5, MIB, stream))
    graph = ok(cuda.cuStreamEndCapture(stream))
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    steps.append(now())
    ok(cuda.cuGraphLaunch(executable, stream))
    ok(cuda.cuStreamSynchronize(stream))
    steps.append(now())
    again = name(cuda.cuGraphLaunch(executable, stream))
    ok(cuda.cuDeviceGraphMemTrim(0))
    steps.append(now())
    ok(cuda.cuMemFreeAsync(pointer, stream))
    ok(cuda.cuStreamSynchronize(stream))
    steps.append(now())
    ok(cuda.cuGraphLaunch(executable, stream))
    ok(cuda.cuMemFreeAsync(pointer, stream))
    ok(cuda.cuStreamSynchronize(stream))
    ok(cuda.cuGraphExecDestroy(executable))
    steps.append(now())
    ok(cuda.cuDeviceGraphMemTrim(0))
    return {"steps": [*steps, now()], "again": again}


def built_graph() -> object:
    """Make a graph node by node: two fills, a kernel that adds them, a copy and a host function that reads it."""
    context, count, seen = begin(), 64, []
    a, b, c = (ok(cuda.cuMemAlloc(4 * count)) for _ in range(3))
    out = (ctypes.c_float * count)()
    graph = ok(cuda.cuGraphCreate(0))
    fills = []
    for pointer in (a, b):
        fill = cuda.CUDA_MEMSET_NODE_PARAMS()
        fill.dst, fill.elementSize, fill.value, fill.width, fill.height = pointer, 4, 0x3F800000, count, 1
        fills.append(ok(cuda.cuGraphAddMemsetNode(graph, [], 0, fill, context)))
    add = cuda.CUDA_KERNEL_NODE_PARAMS()
    add.func = kernel("vector_add_f32")
    add.gridDimX = add.gridDimY = add.gridDimZ = add.blockDimX = add.blockDimY = add.blockDimZ = 1
    pointers = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    add.kernelParams = ((int(a), int(b), int(c), count), pointers)
    added = ok(cuda.cuGraphAddKernelNode(graph, fills, 2, add))
    copy = cuda.CUDA_MEMCPY3D()
    copy.srcMemoryType, copy.srcDevice = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE, c
    copy.dstMemoryType, copy.dstHost = cuda.CUmemorytype.CU_MEMORYTYPE_HOST, ctypes.addressof(out)
    copy.WidthInBytes, copy.Height, copy.Depth = 4 * count, 1, 1
    copied = ok(cuda.cuGraphAddMemcpyNode(graph, [added], 1, copy, context))
    keep = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append(out[count - 1]))
    host = cuda.CUDA_HOST_NODE_PARAMS()
    host.fn = ctypes.cast(keep, ctypes.c_void_p).value
    ok(cuda.cuGraphAddHostNode(graph, [copied], 1, host))
    outer, stream = ok(cuda.cuGraphCreate(0)), ok(cuda.cuStreamCreate(1))
    ok(cuda.cuGraphAddChildGraphNode(outer, [], 0, graph))
    for one in (graph, outer):
        executable = ok(cuda.cuGraphInstantiate(one, 0))
        ok(cuda.cuGraphLaunch(executable, stream))
        ok(cuda.cuStreamSynchronize(stream))
        ok(cuda.cuGraphExecDestroy(executable))
    return seen, ok(cuda.cuGraphGetRootNodes(graph, 9))[1], ok(cuda.cuGraphGetNodes(graph, 9))[1]


def update_graph() -> object:
    """Give an executable graph other parameters, which it takes, and another shape, which it refuses."""
    begin()
    stream, elapsed = ok(cuda.cuStreamCreate(1)), []

    def graph_of(*names: str) -> Any:
        ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
        for one in names:
            ok(launch(kernel(one), stream))
        return ok(cuda.cuStreamEndCapture(stream))

    def run() -> None:
        elapsed.append(timed(lambda: ok(cuda.cuGraphLaunch(executable, stream)), stream))

    executable = ok(cuda.cuGraphInstantiate(graph_of("spin_1ms", "spin_1ms"), 0))
    run()
    ok(cuda.cuGraphExecUpdate(executable, graph_of("spin_4ms", "spin_4ms")))
    run()
    refused = name(cuda.cuGraphExecUpdate(executable, graph_of("spin_4ms")))
    run()
    return {"elapsed": elapsed, "refused": refused}


def queue_depth() -> object:
    """Return the milliseconds to issue more launches than a GPU queues: those above 1,024 wait for the first."""
    begin()
    spin, start = kernel("spin_1ms"), time.monotonic()
    for _ in range(1024 + 60):
        ok(launch(spin))
    return (time.monotonic() - start) * 1e3


def default_stream() -> object:
    """Return whether work in a blocking stream waits for the default stream."""
    begin()
    stream, event = ok(cuda.cuStreamCreate(0)), ok(cuda.cuEventCreate(2))
    ok(launch(kernel("spin_50ms")))
    ok(cuda.cuEventRecord(event, stream))
    return name(cuda.cuEventQuery(event))
