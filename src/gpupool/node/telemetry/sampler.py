"""Sample the machine, its GPUs and its programs once per second, and keep ten minutes for the control plane.

Samples are taken on separate threads, so that neither /proc nor a hanging driver delays the agent. A sample without an
answer from the driver has no GPUs. Each sample is stored as JSON, which takes less memory than objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path

from gpupool.domain.nodes.telemetry import NodeSample, ReplicaSample
from gpupool.domain.protocol.node_json import sample_to_list
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.host.log import log_event
from gpupool.node.inventory.host import HostMeter, read_start
from gpupool.node.ports import GpuUsageSample, Inventory, Meter, NodeProgram, ProcessTree, Runner
from gpupool.node.sharing.choose import SharingModes
from gpupool.node.telemetry.gpu_attribution import (
    GpuObservations,
    GpuUseOfProgram,
    Holder,
    SliceMeter,
    SliceUse,
    attribute_use,
    observe,
)

SAMPLE_INTERVAL_S = 1.0
MAX_SAMPLES = 600
MAX_SAMPLE_BYTES = 16 << 20
MAX_ANSWER_SAMPLES = 60
MAX_ANSWER_BYTES = 2 << 20
DRIVER_TIMEOUT_S = 0.5
_DIGITS = 2  # after the decimal point
MAX_CPU_SHARE = 0.01  # of one core: with many processes, /proc is scanned less often
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProgramUse:
    """The processes of one program and their use. ``cpu_percent`` is 100 per core; bytes are totals."""

    pids: frozenset[int]
    cpu_percent: float
    memory_mib: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    cpu_s: float
    bytes: tuple[int, int]


class ProgramMeter:
    """Measures the process trees of programs; blocks while it reads /proc."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._seen: dict[str, _Seen] = {}
        self._uses: dict[str, ProgramUse] = {}
        self._looked_at = 0.0
        self._next_at = 0.0

    def look(self, folders: Sequence[Path], now: float) -> Mapping[str, ProgramUse]:
        """Return the use by key of programs that have processes; ``now`` is monotonic seconds.

        The last result is returned again if a new scan would cost too much CPU time.
        """
        if now >= self._next_at:
            began = time.thread_time()
            self._look(folders, now)
            # A little early, so that the sample one second later is not skipped.
            self._next_at = now + (time.thread_time() - began) / MAX_CPU_SHARE - 0.1
        return self._uses

    def _look(self, folders: Sequence[Path], now: float) -> None:
        trees = self._runner.survey(folders) if folders else {}
        seen = {key: self._see(key, tree, now) for key, tree in trees.items()}
        self._uses = {key: self._use(key, trees[key], seen[key]) for key in trees}
        self._seen = seen
        self._looked_at = now

    def _see(self, key: str, tree: ProcessTree, now: float) -> _Seen:
        read, written = _io(tree.pids)
        before = self._seen.get(key)
        if before is not None:  # the counts of a process vanish with it, unless its parent waited for it
            read, written = max(read, before.bytes[0]), max(written, before.bytes[1])
        return _Seen(now, tree.cpu_s, (read, written))

    def _use(self, key: str, tree: ProcessTree, seen: _Seen) -> ProgramUse:
        return ProgramUse(tree.pids, self._cpu_percent(key, seen), _memory_mib(tree.pids), *seen.bytes)

    def _cpu_percent(self, key: str, seen: _Seen) -> float:
        """Return CPU use since the last scan. A program that was not there then has started since."""
        before = self._seen.get(key)
        if before is None and not self._looked_at:
            return 0.0
        since, spent = (self._looked_at, 0.0) if before is None else (before.at, before.cpu_s)
        return max(0.0, 100 * (seen.cpu_s - spent) / (seen.at - since)) if seen.at > since else 0.0


def _memory_mib(pids: Iterable[int]) -> int:
    """Return resident memory. Shared memory is counted once, with the largest share of any process."""
    own = shared = 0
    for pid in pids:
        fields = read_start(f"/proc/{pid}/statm").split()
        if len(fields) > 2:
            own += int(fields[1]) - int(fields[2])
            shared = max(shared, int(fields[2]))
    return (own + shared) * _PAGE // _MIB


def _io(pids: Iterable[int]) -> tuple[int, int]:
    """Return bytes read from and written to disks, including children that were waited for."""
    read = written = 0
    for pid in pids:
        for line in read_start(f"/proc/{pid}/io").splitlines():
            name, _, value = line.partition(b": ")
            if name == b"read_bytes":
                read += int(value)
            elif name == b"write_bytes":
                written += int(value)
    return read, written


class SampleRing:
    """The latest samples as JSON, by number; limited in number and bytes. One thread adds, others read."""

    def __init__(self, max_samples: int = MAX_SAMPLES, max_bytes: int = MAX_SAMPLE_BYTES) -> None:
        self._max_samples = max_samples
        self._room = max_bytes
        self._looks: deque[tuple[int, str]] = deque()

    def add(self, number: int, text: str) -> None:
        """Add a sample (ASCII) and drop the oldest if there is no room."""
        self._looks.append((number, text))
        self._room -= len(text)
        while len(self._looks) > self._max_samples or (self._room < 0 and len(self._looks) > 1):
            self._room += len(self._looks.popleft()[1])

    @property
    def newest(self) -> int:
        """Return the number of the latest sample; 0 if there is none."""
        return self._looks[-1][0] if self._looks else 0

    def after(self, number: int) -> list[str]:
        """Return the samples after a number, oldest first, up to a limit.

        Return all if the number is later than any: it is from before the clock was set back.
        """
        found: list[str] = []
        room = MAX_ANSWER_BYTES
        looks = list(self._looks)  # at once: the sampling thread adds others
        first = 0 if number > self.newest else bisect_right(looks, number, key=itemgetter(0))
        for _, text in islice(looks, first, None):
            room -= len(text)
            if found and (room < 0 or len(found) == MAX_ANSWER_SAMPLES):
                break
            found.append(text)
        return found


@dataclass(frozen=True, slots=True)
class _SampleInput:
    """The input of a sample, gathered on the event loop."""

    number: int
    programs: tuple[NodeProgram, ...]
    slices: Mapping[str, Mapping[str, SliceUse]]


class Sampler:
    """Takes the samples. ``ring`` has them; ``computed`` is when a program was last seen to compute (monotonic).

    Programs whose GPU use is unknown are not in ``computed``.
    """

    def __init__(self, inventory: Inventory, runner: Runner) -> None:
        self.ring = SampleRing()
        self.computed: dict[str, float] = {}
        self._meter = inventory if isinstance(inventory, Meter) else None
        self._host = HostMeter()
        self._programs = ProgramMeter(runner)
        self._slices = SliceMeter()
        self._driver = ThreadPoolExecutor(1, "gpu-looks")
        self._thread = ThreadPoolExecutor(1, "looks")
        self._asked: Future[tuple[GpuUsageSample, ...]] | None = None
        self._taken: Future[None] | None = None

    async def run(self, programs: Callable[[], tuple[NodeProgram, ...]], sharing: SharingModes) -> None:
        """Take a sample of what ``programs`` returns each second, forever. A second that is missed has no sample."""
        first, began = int(time.time()), time.monotonic()
        while True:
            passed = int((time.monotonic() - began) / SAMPLE_INTERVAL_S) + 1
            await asyncio.sleep(max(0.0, began + passed * SAMPLE_INTERVAL_S - time.monotonic()))
            try:
                self.look(first + passed, programs(), sharing)
            except Exception as error:  # noqa: BLE001 - the next sample may succeed
                log_event("not looked", error=repr(error))

    def look(self, number: int, programs: tuple[NodeProgram, ...], sharing: SharingModes) -> None:
        """Begin to take a sample with this number, unless another one is still being taken."""
        if self._taken is not None and not self._taken.done():
            return
        slices = self._slices.look(sharing.counts(), time.monotonic())
        self._taken = self._thread.submit(self._add, _SampleInput(number, programs, slices))

    # -- on the sampling thread ---------------------------------------------------------------------------------------

    def _add(self, asked: _SampleInput) -> None:
        try:
            sample, text = self._take(asked)
        except Exception as error:  # noqa: BLE001 - the next sample may succeed
            log_event("not looked", error=repr(error))
            return
        self.ring.add(asked.number, text)
        self._note_computing(sample.replicas)

    def _note_computing(self, replicas: tuple[ReplicaSample, ...]) -> None:
        now = time.monotonic()
        seen = {row.key: now if row.gpu_percent else self.computed.get(row.key, 0.0) for row in replicas if row.gpus}
        self.computed = seen

    def _ask_driver(self) -> Future[tuple[GpuUsageSample, ...]] | None:
        """Start a query; return None while the driver has not answered the last one."""
        if self._meter is None or (self._asked is not None and not self._asked.done()):
            return None
        self._asked = self._driver.submit(self._meter.look)
        return self._asked

    def _take(self, asked: _SampleInput) -> tuple[NodeSample, str]:
        at, now = time.time(), time.monotonic()
        answer = self._ask_driver()
        host = self._host.look(now)
        uses = self._programs.look([program.folder for program in asked.programs], now)
        gpus = _answer(answer)
        sample = NodeSample(
            node="",  # the caller knows the node
            number=asked.number,
            at=round(at, 3),
            cpu_percent=round(host.cpu_percent, _DIGITS),
            memory_used_mib=host.memory_used_mib,
            gpus=tuple(look.sample for look in gpus),
            replicas=_replicas(asked, uses, observe(gpus, _all_pids(uses))),
        )
        return sample, json.dumps(sample_to_list(sample), separators=(",", ":"))

    def close(self) -> None:
        """Stop; a hanging driver is not waited for."""
        for thread in (self._driver, self._thread):
            thread.shutdown(wait=False, cancel_futures=True)


def _answer(asked: Future[tuple[GpuUsageSample, ...]] | None) -> tuple[GpuUsageSample, ...]:
    with contextlib.suppress(Exception):  # any driver failure means that its GPUs are unknown now
        return () if asked is None else asked.result(DRIVER_TIMEOUT_S)
    return ()


def _all_pids(uses: Mapping[str, ProgramUse]) -> frozenset[int]:
    return frozenset[int]().union(*(use.pids for use in uses.values()))


def _replicas(asked: _SampleInput, uses: Mapping[str, ProgramUse], seen: GpuObservations) -> tuple[ReplicaSample, ...]:
    on_lease = Counter(_lease(program.spec) for program in asked.programs)
    found = []
    for program in asked.programs:
        spec, use = program.spec, uses.get(program.spec.key)
        if use is not None:
            holder = Holder(spec.gpus, use.pids, sole=on_lease[_lease(spec)] == 1)
            found.append(_replica(spec, use, attribute_use(holder, seen, asked.slices.get(spec.key, {}))))
    return tuple(found)


def _replica(spec: ProcessSpec, use: ProgramUse, gpu: GpuUseOfProgram) -> ReplicaSample:
    return ReplicaSample(
        key=spec.key,
        gpu_percent=round(gpu.percent, _DIGITS),
        gpu_memory_mib=gpu.memory_mib,
        cpu_percent=round(use.cpu_percent, _DIGITS),
        memory_mib=use.memory_mib,
        read_bytes=use.read_bytes,
        written_bytes=use.written_bytes,
        processes=len(use.pids) - 1,  # without the shepherd
        shared_percent=None if gpu.shared_percent is None else round(gpu.shared_percent, _DIGITS),
        gpus=gpu.gpus,
        lease=_lease(spec) if spec.gpus else 0,
    )


def _lease(spec: ProcessSpec) -> int:
    return spec.gpu_epoch or spec.lease or spec.epoch
