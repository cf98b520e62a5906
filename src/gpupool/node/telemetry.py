"""Once a second: what the machine, its GPUs and its programs use, kept for ten minutes for the control plane to fetch.

A look is taken on threads of its own, so that neither /proc nor a driver that hangs holds up the agent; a look without
an answer of the driver is one without GPUs. Each is written out as JSON at once, which takes less room than objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from gpupool.domain.supervision import ProcessSpec
from gpupool.domain.telemetry import NodeSample, ReplicaSample
from gpupool.domain.wire import look_to_list
from gpupool.node.entry import Entry
from gpupool.node.gpu_use import GpuUseOfProgram, Holder, Sights, SliceMeter, SliceUse, sights, use_of
from gpupool.node.inventory.host_use import HostMeter
from gpupool.node.journal import say
from gpupool.node.ports import GpuLook, Inventory, Meter, Runner
from gpupool.node.program_use import ProgramMeter, ProgramUse
from gpupool.node.sharing.choose import SharingModes

EVERY_S = 1.0
KEPT = 600  # looks
KEPT_BYTES = 16 << 20
ANSWER_LOOKS = 60
ANSWER_BYTES = 2 << 20
DRIVER_WAIT_S = 0.5  # a look waits no longer for the driver
_DIGITS = 2  # behind the point


class LookRing:
    """The latest looks as JSON, by number; bounded in number and bytes."""

    def __init__(self, kept: int = KEPT, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept = kept
        self._room = kept_bytes
        self._looks: deque[tuple[int, str]] = deque()

    def add(self, number: int, text: str) -> None:
        """One more; the oldest make room. ASCII."""
        self._looks.append((number, text))
        self._room -= len(text)
        while len(self._looks) > self._kept or (self._room < 0 and len(self._looks) > 1):
            self._room += len(self._looks.popleft()[1])

    @property
    def newest(self) -> int:
        """The number of the latest look; 0 for none."""
        return self._looks[-1][0] if self._looks else 0

    def after(self, number: int) -> list[str]:
        """The looks that follow a number, oldest first and not too many at once.

        All, when the number is later than any: it is from before the clock was set back.
        """
        found: list[str] = []
        room = ANSWER_BYTES
        for own, text in self._looks:
            if own <= number <= self.newest:
                continue
            room -= len(text)
            if found and (room < 0 or len(found) == ANSWER_LOOKS):
                break
            found.append(text)
        return found


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a look needs to know of the programs that live, gathered on the event loop."""

    number: int
    programs: tuple[Entry, ...]
    slices: Mapping[str, Mapping[str, SliceUse]]
    gpus: Future[tuple[GpuLook, ...]] | None


class Sampler:
    """Takes the looks. ``ring`` has them; ``computed`` says when a program was last seen to compute, by monotonic time.

    Only of programs of which that can be seen.
    """

    def __init__(self, inventory: Inventory, runner: Runner) -> None:
        self.ring = LookRing()
        self.computed: dict[str, float] = {}
        self._meter = inventory if isinstance(inventory, Meter) else None
        self._host = HostMeter()
        self._programs = ProgramMeter(runner)
        self._slices = SliceMeter()
        self._driver = ThreadPoolExecutor(1, "gpu-looks")
        self._thread = ThreadPoolExecutor(1, "looks")
        self._asked: Future[tuple[GpuLook, ...]] | None = None

    async def run(self, entries: Mapping[str, Entry], sharing: SharingModes) -> None:
        """For ever: a look at each second that passes; a second that is missed stays without one."""
        first, began = int(time.time()), time.monotonic()
        while True:
            passed = int((time.monotonic() - began) / EVERY_S) + 1
            await asyncio.sleep(max(0.0, began + passed * EVERY_S - time.monotonic()))
            try:
                await self.look(first + passed, entries, sharing)
            except Exception as error:  # noqa: BLE001 - the next look may do better
                say("not looked", error=repr(error))

    async def look(self, number: int, entries: Mapping[str, Entry], sharing: SharingModes) -> None:
        """One look, by that number."""
        live = tuple(e for e in entries.values() if e.status.started_at is not None and not e.exited)
        slices = self._slices.look(sharing.counts(), time.monotonic())
        asked = _Asked(number, live, slices, self._ask_driver())
        sample, text = await asyncio.get_running_loop().run_in_executor(self._thread, self._take, asked)
        self.ring.add(number, text)
        self._note_computing(sample.replicas)

    def _note_computing(self, replicas: tuple[ReplicaSample, ...]) -> None:
        now = time.monotonic()
        seen = {row.key: now if row.gpu_percent else self.computed.get(row.key, 0.0) for row in replicas if row.gpus}
        self.computed = seen

    def _ask_driver(self) -> Future[tuple[GpuLook, ...]] | None:
        """An answer to come; None while the driver owes one."""
        if self._meter is None or (self._asked is not None and not self._asked.done()):
            return None
        self._asked = self._driver.submit(self._meter.look)
        return self._asked

    # -- on the thread of looks --------------------------------------------------------------------------------------

    def _take(self, asked: _Asked) -> tuple[NodeSample, str]:
        at, now = time.time(), time.monotonic()
        host = self._host.look(now)
        uses = self._programs.look([e.folder.path for e in asked.programs], now)
        gpus = _answer(asked.gpus)
        sample = NodeSample(
            node="",  # whoever asks knows whom
            number=asked.number,
            at=round(at, 3),
            cpu_percent=round(host.cpu_percent, _DIGITS),
            memory_used_mib=host.memory_used_mib,
            gpus=tuple(look.sample for look in gpus),
            replicas=_replicas(asked, uses, sights(gpus, _all_pids(uses))),
        )
        return sample, json.dumps(look_to_list(sample), separators=(",", ":"))

    def close(self) -> None:
        """Look no more; a driver that hangs is not waited for."""
        for thread in (self._driver, self._thread):
            thread.shutdown(wait=False, cancel_futures=True)


def _answer(asked: Future[tuple[GpuLook, ...]] | None) -> tuple[GpuLook, ...]:
    with contextlib.suppress(Exception):  # whatever the driver's trouble is: nothing is known of its GPUs now
        return () if asked is None else asked.result(DRIVER_WAIT_S)
    return ()


def _all_pids(uses: Mapping[str, ProgramUse]) -> frozenset[int]:
    return frozenset[int]().union(*(use.pids for use in uses.values()))


def _replicas(asked: _Asked, uses: Mapping[str, ProgramUse], seen: Sights) -> tuple[ReplicaSample, ...]:
    on_lease = Counter(_lease(entry.order.spec) for entry in asked.programs)
    found = []
    for entry in asked.programs:
        spec, use = entry.order.spec, uses.get(entry.key)
        if use is not None:
            holder = Holder(spec.gpus, use.pids, sole=on_lease[_lease(spec)] == 1)
            found.append(_replica(entry, use, use_of(holder, seen, asked.slices.get(entry.key, {}))))
    return tuple(found)


def _replica(entry: Entry, use: ProgramUse, gpu: GpuUseOfProgram) -> ReplicaSample:
    spec = entry.order.spec
    return ReplicaSample(
        key=entry.key,
        gpu_percent=round(gpu.percent, _DIGITS),
        gpu_memory_mib=gpu.memory_mib,
        cpu_percent=round(use.cpu_percent, _DIGITS),
        memory_mib=use.memory_mib,
        read_bytes=use.read_bytes,
        written_bytes=use.written_bytes,
        processes=len(use.pids) - 1,  # its supervisor is ours
        shared_percent=None if gpu.shared_percent is None else round(gpu.shared_percent, _DIGITS),
        gpus=gpu.gpus,
        lease=_lease(spec) if spec.gpus else 0,
    )


def _lease(spec: ProcessSpec) -> int:
    return spec.lease or spec.epoch
