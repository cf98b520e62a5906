"""Any sequence of calls that allocate and free: never above the limit, and the books are the driver's own."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from memory_client import BLOCK, MIB, OOM, SUCCESS, Slice, make_slice

LIMIT = 256 * MIB
CONTEXT = 16 * MIB

# A program that executes commands, a line at a time, and answers [code, handle, bytes used by its own account].
SERVER = """
    import json
    cu = begin()
    pool = new_pool()
    threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    cu.cuMemPoolSetAttribute(pool, threshold, cu.cuuint64_t(2**62))
    stream = value(cu.cuStreamCreate(1))
    space = int(value(cu.cuMemAddressReserve(4096 * BLOCK, 0, 0, 0)))

    def graph(size):
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        cu.cuStreamBeginCapture(stream, mode)
        block = value(cu.cuMemAllocAsync(size, stream))
        cu.cuMemFreeAsync(block, stream)
        exec_ = value(cu.cuGraphInstantiate(value(cu.cuStreamEndCapture(stream)), 0))
        launched = cu.cuGraphLaunch(exec_, stream)
        cu.cuGraphExecDestroy(exec_)
        return launched

    calls = {
        "plain": lambda size: cu.cuMemAlloc(size),
        "managed": lambda size: cu.cuMemAllocManaged(size, 1),
        "pitched": lambda size: cu.cuMemAllocPitch(500, size // 512, 4),
        "created": lambda size: physical(size),
        "async": lambda size: cu.cuMemAllocAsync(size, stream),
        "pooled": lambda size: cu.cuMemAllocFromPoolAsync(size, pool, stream),
        "array": lambda size: array(128, size // 512),
        "mipmap": lambda size: array(128, size // 512, levels=1),
        "graph": graph,
        "free": lambda pointer: cu.cuMemFree(pointer),
        "free_async": lambda pointer: cu.cuMemFreeAsync(pointer, stream),
        "release": lambda handle: cu.cuMemRelease(handle),
        "retain": lambda at: cu.cuMemRetainAllocationHandle(space + at * BLOCK),
        "map": lambda at, size, handle: cu.cuMemMap(space + at * BLOCK, size, 0, handle, 0),
        "unmap": lambda at, size: cu.cuMemUnmap(space + at * BLOCK, size),
        "destroy_array": lambda handle: cu.cuArrayDestroy(cu.CUarray(handle)),
        "destroy_mipmap": lambda handle: cu.cuMipmappedArrayDestroy(cu.CUmipmappedArray(handle)),
        "synchronize": lambda: cu.cuCtxSynchronize(),
        "trim": lambda: cu.cuMemPoolTrimTo(pool, 0),
        "trim_graphs": lambda: cu.cuDeviceGraphMemTrim(0),
        "look": lambda: cu.cuStreamQuery(0),
    }
    print(json.dumps(held()), flush=True)
    for text in sys.stdin:
        name, *arguments = json.loads(text)
        result = calls[name](*arguments)
        handle = int(result[1]) if code(result) == SUCCESS and len(result) > 1 else 0
        print(json.dumps([code(result), handle]), flush=True)
        sys.stdin.readline()
        print(json.dumps([used(), held()]), flush=True)
"""

GRANULES = {
    "plain": 1,
    "managed": 1,
    "pitched": 512,
    "created": BLOCK,
    "array": 65536,
    "mipmap": 65536,
    "async": 1,
    "pooled": 1,
    "graph": BLOCK,
}
POOLED = {"async", "pooled"}
FREES = {"array": "destroy_array", "mipmap": "destroy_mipmap"}


class Sequences(RuleBasedStateMachine):
    """A process of a slice, its own model of what it holds, and the fake driver's account of it."""

    native_out: Path

    @initialize()
    def begin(self) -> None:
        """Start the program."""
        self.folder = Path(tempfile.mkdtemp(prefix="gpupool-memory-"))
        self.room: Slice = make_slice(self.folder, self.native_out, LIMIT, CONTEXT)
        self.program = self.room.start(SERVER)
        self.things: list[tuple[str, int, int]] = []
        self.mapped: dict[int, tuple[int, int]] = {}
        assert self.answer() == CONTEXT

    def answer(self) -> Any:
        """Return the program's next line."""
        assert self.program.stdout is not None
        line = self.program.stdout.readline()
        assert line, self.program.communicate()[1]
        return json.loads(line)

    def tell(self, *words: object) -> None:
        """Send a line to the program."""
        assert self.program.stdin is not None
        self.program.stdin.write(json.dumps(words) + "\n")
        self.program.stdin.flush()

    def call(self, *words: object) -> tuple[int, int]:
        """Make a call; return its code and handle. Compare the books directly after it, before a query of sizes."""
        self.tell(*words)
        code, handle = self.answer()
        assert self.room.lease.used_bytes() <= LIMIT
        assert self.room.driver_total() <= LIMIT, words
        self.tell()
        shown, held = self.answer()
        assert shown == held == self.room.lease.used_bytes(), words
        return code, handle

    @rule(kind=st.sampled_from(sorted(GRANULES)), blocks=st.integers(1, 40), less=st.integers(0, 1023))
    def allocate(self, kind: str, blocks: int, less: int) -> None:
        """Everything that fits succeeds; what is refused did not fit."""
        size = blocks * BLOCK - (less if GRANULES[kind] == 1 else 0)
        before = LIMIT - self.room.lease.used_bytes()
        code, handle = self.call(kind, size)
        assert code in (SUCCESS, OOM)
        needs = max(size, 32 * MIB) if kind in POOLED else size
        assert code == SUCCESS or before < -(-needs // BLOCK) * BLOCK
        if code == SUCCESS and kind != "graph":
            self.things.append((kind, handle, size))

    @precondition(lambda self: self.things)
    @rule(data=st.data(), later=st.booleans())
    def free(self, data: st.DataObject, later: bool) -> None:
        """Free one, at once or in its stream."""
        kind, handle, _ = self.things.pop(data.draw(st.integers(0, len(self.things) - 1)))
        name = FREES.get(kind, "release" if kind == "created" else "free_async" if later and kind in POOLED else "free")
        assert self.call(name, handle)[0] == SUCCESS

    @precondition(lambda self: any(kind == "created" for kind, _, _ in self.things))
    @rule(data=st.data(), at=st.integers(0, 20))
    def map(self, data: st.DataObject, at: int) -> None:
        """Map one somewhere, where there may be something already."""
        _, handle, size = data.draw(st.sampled_from([thing for thing in self.things if thing[0] == "created"]))
        at *= 40
        code, _ = self.call("map", at, size, handle)
        assert (code == SUCCESS) == (at not in self.mapped)
        self.mapped.setdefault(at, (size, handle))

    @precondition(lambda self: self.mapped)
    @rule(data=st.data(), whole=st.booleans())
    def unmap(self, data: st.DataObject, whole: bool) -> None:
        """Unmap one, or fail to unmap a part of it."""
        at = data.draw(st.sampled_from(sorted(self.mapped)))
        size, _ = self.mapped[at]
        part = size if whole else size - BLOCK
        code, _ = self.call("unmap", at, part)
        assert (code == SUCCESS) == whole
        if whole:
            del self.mapped[at]

    @precondition(lambda self: self.mapped)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        """Retain one more handle of mapped memory."""
        at = data.draw(st.sampled_from(sorted(self.mapped)))
        size, handle = self.mapped[at]
        assert self.call("retain", at) == (SUCCESS, handle)
        self.things.append(("created", handle, size))

    @rule(name=st.sampled_from(["synchronize", "trim", "trim_graphs", "look"]))
    def other(self, name: str) -> None:
        """Make calls after which less memory may be in use."""
        assert self.call(name)[0] == SUCCESS

    @invariant()
    def the_program_lives(self) -> None:
        """Check that the program still runs: no sequence of calls ends it."""
        assert self.program.poll() is None

    def teardown(self) -> None:
        """Free everything and check that nothing is left."""
        try:
            for kind, handle, _ in self.things:
                name = FREES.get(kind, "release" if kind == "created" else "free")
                assert self.call(name, handle)[0] == SUCCESS
            for at, (size, _) in self.mapped.items():
                assert self.call("unmap", at, size)[0] == SUCCESS
            for name in ("synchronize", "trim", "trim_graphs", "synchronize"):
                self.call(name)
            assert self.room.lease.used_bytes() == CONTEXT
        finally:
            self.program.kill()
            self.program.communicate()
            self.room.lease.close()
            shutil.rmtree(self.folder)


@pytest.mark.timeout(110)
def test_no_sequence_of_calls_exceeds_the_limit_or_breaks_the_books(native_out: Path) -> None:
    Sequences.native_out = native_out
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        Sequences,
        settings=settings(max_examples=25, stateful_step_count=60, deadline=None, suppress_health_check=quiet),
    )
