"""The library's own calls of the driver in the neighbourhood of stream captures: as if they were not made."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_client import MIB, Slice, make_slice
from native_harness import NATIVE, generator

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
LIMIT = 1024 * MIB

# Programs print the result codes of their calls. `capture` captures a stream; `other` is one that is not captured.
PRELUDE = """
import threading
cu = begin()
mode = cu.CUstreamCaptureMode(int(sys.argv[1]))
capture, other = (value(cu.cuStreamCreate(1)) for _ in range(2))
def end():
    result, graph = cu.cuStreamEndCapture(capture)
    print("end", int(result))
def other_thread(work):
    thread = threading.Thread(target=lambda: (value(cu.cuCtxSetCurrent(value(cu.cuDevicePrimaryCtxRetain(0)))), work()))
    thread.start()
    thread.join()
def keep_all(pool):
    keep = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    value(cu.cuMemPoolSetAttribute(pool, keep, cu.cuuint64_t(2**63)))
"""

ALLOCATES = """
def work():
    result, pointer = cu.cuMemAllocAsync(1 << 20, other)
    print("alloc", int(result), int(cu.cuMemFreeAsync(pointer, other)[0]))
"""
ALLOCATES_FROM_A_POOL = """
pool = new_pool()
def work():
    result, pointer = cu.cuMemAllocFromPoolAsync(1 << 20, pool, other)
    print("alloc", int(result), int(cu.cuMemFreeAsync(pointer, other)[0]))
"""
MAKES_ROOM = """
keep_all(value(cu.cuDeviceGetDefaultMemPool(0)))
value(cu.cuMemFreeAsync(value(cu.cuMemAllocAsync(600 << 20, other)), other))
value(cu.cuStreamSynchronize(other))
pool = new_pool()
def work():
    result, pointer = cu.cuMemAllocFromPoolAsync(500 << 20, pool, other)
    print("alloc", int(result))
"""
LAUNCHES_A_GRAPH_THAT_ALLOCATES = """
value(cu.cuStreamBeginCapture(other, cu.CUstreamCaptureMode(2)))
value(cu.cuMemFreeAsync(value(cu.cuMemAllocAsync(4 << 20, other)), other))
exec_ = value(cu.cuGraphInstantiate(value(cu.cuStreamEndCapture(other)), 0))
def work():
    print("launch", int(cu.cuGraphLaunch(exec_, other)[0]))
"""
ASKS_FOR_FREE_MEMORY = """
value(cu.cuMemFreeAsync(value(cu.cuMemAllocAsync(1 << 20, other)), other))
def work():
    print("info", int(cu.cuMemGetInfo()[0]))
"""
WORK = {
    "allocates": ALLOCATES,
    "allocates from a pool": ALLOCATES_FROM_A_POOL,
    "makes room": MAKES_ROOM,
    "launches a graph that allocates": LAUNCHES_A_GRAPH_THAT_ALLOCATES,
    "asks for free memory": ASKS_FOR_FREE_MEMORY,
}
HERE = "value(cu.cuStreamBeginCapture(capture, mode))\nwork()\nend()\n"
OTHER_THREAD = "value(cu.cuStreamBeginCapture(capture, mode))\nother_thread(work)\nend()\n"


@pytest.fixture
def made(native_out: Path, tmp_path: Path) -> Iterator[Slice]:
    slice_ = make_slice(tmp_path, native_out, LIMIT)
    with slice_.lease:
        yield slice_


def without_the_library(made: Slice, source: str, *arguments: str) -> str:
    program = "from memory_client import *\nimport sys\n" + textwrap.dedent(source)
    environment = made.environment() | {"LD_PRELOAD": str(made.out / "fake/libcuda.so.1")}
    del environment["GPUPOOL_LEASE_DIR"]
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100).stdout


@pytest.mark.parametrize("where", [HERE, OTHER_THREAD], ids=["in the capturing thread", "in another thread"])
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED], ids=["global", "thread-local", "relaxed"])
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_capture_ends_as_without_the_library(made: Slice, work: str, mode: int, where: str) -> None:
    source = "import sys\n" + PRELUDE + work + where
    expected = without_the_library(made, source, str(mode))
    assert expected.splitlines()[-1] == "end 0"
    assert made.run(source, str(mode)) == expected


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
def test_simulated_driver_breaks_captures_for_pool_attributes(made: Slice, mode: int) -> None:
    """The tests above rely on this; a thread in relaxed mode may ask."""
    work = """
    pool = value(cu.cuDeviceGetDefaultMemPool(0))
    def ask():
        print(int(cu.cuMemPoolGetAttribute(pool, cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)[0]))
    value(cu.cuStreamBeginCapture(capture, mode))
    value(cu.cuThreadExchangeStreamCaptureMode(cu.CUstreamCaptureMode(2)))
    ask()
    value(cu.cuThreadExchangeStreamCaptureMode(cu.CUstreamCaptureMode(0)))
    ask()
    end()
    """
    source = PRELUDE + textwrap.dedent(work)
    assert without_the_library(made, source, str(mode)).split() == ["0", "900", "end", "901"]


# -- the table of own calls ------------------------------------------------------------------

TABLE = NATIVE / "share/own_calls.def"
ROW = re.compile(r"^OWN_CALL\((cu\w+), (SAFE|UNSAFE), (NONE|CURRENT), \"([\w.]+(?: [\w.]+)*)\"\)$", re.MULTILINE)


def sources() -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((NATIVE / "share").glob("*.[ch]"))}


def test_table_lists_the_place_of_each_own_call() -> None:
    rows = {name: where.split() for name, _, _, where in ROW.findall(TABLE.read_text())}
    used: dict[str, list[str]] = {}
    for file, text in sources().items():
        for name in set(re.findall(r"\bOWN\((cu\w+)[,)]", text)):
            used.setdefault(name, []).append(file)
    assert rows == used
    assert len(rows) == TABLE.read_text().count("\nOWN_CALL(")


def test_other_calls_are_calls_of_the_program() -> None:
    hooks = set(generator().hooks_of(generator().CUDA))
    called = {name for text in sources().values() for name in re.findall(r"\bREAL\((cu\w+)\)", text)}
    assert called - hooks == set()
