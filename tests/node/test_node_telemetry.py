"""Samples that the agent takes of programs and itself, and how it stores and returns them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from node_harness import Node, eventually, spec

from gpupool.domain.nodes.gpu import Gpu, GpuShare
from gpupool.domain.nodes.telemetry import GpuSample, NodeSample, ReplicaSample
from gpupool.domain.protocol.node_json import sample_from_list, sample_to_list
from gpupool.domain.work.program.supervision import ProcessStatus
from gpupool.node.agent.attempt import AttemptEntry, first_status
from gpupool.node.agent_main import REPORT_INTERVAL_S, ActivitySampler
from gpupool.node.host import process_tree
from gpupool.node.host.paths import ReplicaFolder, RunFolder
from gpupool.node.host.records import StartRequest
from gpupool.node.inventory.host import HostMeter
from gpupool.node.ports import GpuUsageSample, ProcessTree, SliceCount
from gpupool.node.runners.process.runner import ProcessRunner
from gpupool.node.telemetry.gpu_attribution import (
    GpuObservations,
    GpuUseOfProgram,
    Holder,
    SliceMeter,
    SliceUse,
    attribute_use,
    observe,
)
from gpupool.node.telemetry.sampler import MAX_ANSWER_SAMPLES, ProgramMeter, SampleRing

MIB = 1 << 20
SPIN = "import time\nwhile True: pass"
WRITE = (
    "import os\nf = open('{path}', 'wb')\nf.write(b'x' * (8 << 20)); f.flush(); os.fsync(f.fileno())\ntime.sleep(60)"
)


def looks(node: Node, after: int = 0) -> list[NodeSample]:
    return [sample_from_list("n1", json.loads(text)) for text in node.ask("samples", after=after)]


def until(node: Node, key: str, enough: Callable[[ReplicaSample], bool]) -> ReplicaSample:
    def seen() -> ReplicaSample | None:
        rows = [row for look in looks(node)[-1:] for row in look.replicas if row.key == key]
        return next((row for row in rows if enough(row)), None)

    return eventually(seen, f"{key} is seen so")


# -- a real agent ----------------------------------------------------------------------------------------------------


def test_cpu_memory_and_disk_use_of_programs_is_sampled(own_node: Node, tmp_path: Path) -> None:
    node, python = own_node, sys.executable
    busy = spec(python, "-c", "x = bytearray(64 << 20)\n" + SPIN)
    writer = spec(python, "-c", "import time\n" + WRITE.format(path=tmp_path / "out"))
    idle = spec("sleep 60 & wait")
    for wanted in (busy, writer, idle):
        node.start(wanted)
        node.running(wanted.key)
    row = until(node, busy.key, lambda row: row.cpu_percent > 20)  # other work on this machine may take the rest
    assert row.cpu_percent < 130, "one thread"
    assert row.memory_mib >= 64
    assert (row.gpus, row.lease, row.shared_percent) == (0, 0, None)
    assert until(node, writer.key, lambda row: row.written_bytes >= 8 * MIB).written_bytes < 12 * MIB
    assert until(node, idle.key, lambda row: row.cpu_percent < 5).processes == 2
    found = looks(node)
    assert [look.number for look in found] == sorted({look.number for look in found})
    assert abs(found[-1].at - time.time()) < 30
    assert 0 < found[-1].cpu_percent <= 100 * (os.cpu_count() or 1) + 50
    assert found[-1].memory_used_mib > 64
    made_up = {(gpu.power_w, gpu.temperature_c, gpu.sm_clock_mhz) for gpu in found[-1].gpus}
    assert made_up <= {(None, None, None)}, "what a simulation always says is no measurement"
    last = found[-1].number
    node.down()
    node.up()
    again = eventually(lambda: looks(node, after=last), "the next agent looks too")
    assert again[0].number > last
    assert {row.key for row in again[-1].replicas} >= {busy.key, writer.key}


# -- in parts --------------------------------------------------------------------------------------------------------


def test_samples_are_transferred_unchanged_without_newer_fields() -> None:
    gpu = GpuSample("GPU-1", 12.0, 100, 2, 70.5, None, 1500, None)
    one = ReplicaSample("wabcdefghjk.0.1", 12.0, 90, 50.5, 30, 10, 20, 3, 11.5, 1, 7)
    look = NodeSample("n1", 7, 1.5, 150.25, 2000, (gpu,), (one,))
    row = json.loads(json.dumps(sample_to_list(look)))
    assert sample_from_list("n1", row) == look
    row[4][0].append("newer")
    row[5][0].append("newer")
    assert sample_from_list("n1", [*row, "newer"]) == look


def test_sample_buffer_is_bounded_and_read_from_any_sample() -> None:
    ring = SampleRing(max_samples=5, max_bytes=1000)
    assert (ring.after(0), ring.newest) == ([], 0)
    for number in range(10, 20):
        ring.add(number, f"look {number}")
    assert ring.after(17) == ["look 18", "look 19"]
    assert ring.after(19) == []
    assert ring.after(3) == ring.after(99) == [f"look {n}" for n in range(15, 20)], "older and newer than any: all"
    ring.add(20, "x" * 1000)
    assert ring.after(0) == ["x" * 1000], "too much for the room: the oldest go"
    many = SampleRing()
    for number in range(1, 200):
        many.add(number, "look")
    assert len(many.after(0)) == MAX_ANSWER_SAMPLES


def share(permille: int = 1000, uuid: str = "GPU-0") -> GpuShare:
    return GpuShare(uuid, 0, permille, 16 * permille)


def card(percent: float | None, memory: dict[int, int], shares: dict[int, float] | None) -> GpuUsageSample:
    return GpuUsageSample(
        GpuSample("GPU-0", percent, 2000, len(memory)), {p: m * MIB for p, m in memory.items()}, shares
    )


ALONE, TWO = Holder((share(),), frozenset({1, 2}), sole=True), Holder((share(),), frozenset({1, 2}), sole=False)
PART = Holder((share(300),), frozenset({1, 2}), sole=True)
SLICE = SliceUse(40.0, 700, sole=True)
USES = {
    "a whole GPU is its holder's": (ALONE, card(55.0, {1: 500}, {1: 50.0}), None, (55.0, 500, 1, None)),
    "two on a lease are distinguished": (
        TWO,
        card(55.0, {1: 500, 9: 100}, {1: 20.0, 9: 30.0}),
        None,
        (20.0, 500, 1, None),
    ),
    "so are parts": (PART, card(99.0, {1: 500, 2: 7}, {1: 20.0, 2: 5.0, 9: 70.0}), SLICE, (25.0, 507, 1, 40.0)),
    "others compute": (PART, card(99.0, {}, {9: 99.0}), None, (0.0, 0, 1, None)),
    "a helper or a container hides who": (PART, card(99.0, {}, {77: 99.0}), None, (0.0, 0, 0, None)),
    "unless it is seen itself": (PART, card(99.0, {}, {1: 3.0, 77: 9.0}), None, (3.0, 0, 1, None)),
    "else the arbiter is asked": (PART, card(99.0, {}, None), SLICE, (40.0, 700, 1, 40.0)),
    "the arbiter alone": (PART, None, SLICE, (40.0, 700, 1, 40.0)),
    "of two on a slice it knows nothing": (PART, None, SliceUse(40.0, 700, sole=False), (0.0, 0, 0, None)),
    "nobody tells": (PART, card(None, {}, None), None, (0.0, 0, 0, None)),
    "nobody tells of a whole one": (ALONE, card(None, {1: 500}, None), None, (0.0, 500, 0, None)),
    "processes under other numbers": (ALONE, card(55.0, {77: 500}, None), None, (55.0, 2000, 1, None)),
}


@pytest.mark.parametrize("case", USES, ids=str)
def test_gpu_use_is_attributed_to_programs(case: str) -> None:
    holder, look, part, expected = USES[case]
    seen = observe([] if look is None else [look], frozenset({1, 2, 9}))
    assert attribute_use(holder, seen, {} if part is None else {"GPU-0": part}) == GpuUseOfProgram(*expected)


def test_use_is_summed_over_gpus() -> None:
    both = Holder((share(), share(uuid="GPU-1")), frozenset({1}), sole=True)
    looks = {"GPU-0": card(100.0, {1: 5}, None), "GPU-1": card(60.0, {1: 6}, None)}
    assert attribute_use(both, GpuObservations(looks), {}) == GpuUseOfProgram(160.0, 11, 2)


def test_arbiter_counters_become_percent() -> None:
    meter = SliceMeter()

    def at(now: float, held_s: float, counted_at: float) -> list[float]:
        counts = {"key": {"GPU-0": SliceCount(held_s, 5 * MIB, counted_at, sole=True)}}
        return [use.percent for use in meter.look(counts, now).get("key", {}).values()]

    assert at(10.0, 100.0, 9.9) == [], "one count tells nothing"
    assert at(11.0, 100.5, 10.9) == [pytest.approx(50.0)]
    assert at(12.0, 100.5, 10.9) == [pytest.approx(50.0)], "no news: as before"
    assert at(13.0, 102.5, 12.9) == [pytest.approx(100.0)]
    assert at(20.0, 102.5, 12.9) == [0.0], "it says nothing any more: nobody is on the lease"
    assert at(21.0, 0.5, 20.9) == [], "another arbiter counts anew"
    assert at(22.0, 0.75, 21.9) == [pytest.approx(25.0)]


class Trees:
    """A runner whose programs have used a given number of CPU seconds."""

    def __init__(self) -> None:
        self.cpu_s: dict[str, float] = {}
        self.surveys = 0

    def survey(self, folders: list[Path]) -> dict[str, ProcessTree]:
        self.surveys += 1
        return {
            f.name: ProcessTree(frozenset({os.getpid()}), self.cpu_s[f.name]) for f in folders if f.name in self.cpu_s
        }


def test_cpu_use_is_computed_from_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    trees, folders = Trees(), [Path("/a"), Path("/b")]
    meter = ProgramMeter(trees)  # type: ignore[arg-type]  # as much of a runner as it uses
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)
    trees.cpu_s = {"a": 7.0}
    assert meter.look(folders, 10.0)["a"].cpu_percent == 0.0, "nothing is known of the time before"
    trees.cpu_s = {"a": 8.5, "b": 0.5}
    uses = meter.look(folders, 11.0)
    assert (uses["a"].cpu_percent, uses["b"].cpu_percent) == (150.0, 50.0), "b has begun since"
    trees.cpu_s = {"b": 0.25}
    assert {key: use.cpu_percent for key, use in meter.look(folders, 13.0).items()} == {"b": 0.0}


def test_machine_with_many_processes_is_sampled_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    trees, spent = Trees(), iter(range(1000))
    monkeypatch.setattr(time, "thread_time", lambda: next(spent) * 0.04)  # a sample takes 40 ms of CPU time
    meter = ProgramMeter(trees)  # type: ignore[arg-type]  # likewise
    for second in range(40):
        meter.look([Path("/a")], float(second))
    assert trees.surveys == 10


def test_processes_are_not_scanned_for_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "scan", lambda: pytest.fail("a scan costs milliseconds, and the agent idles"))
    assert ProcessRunner().survey([]) == {}


def test_memory_and_cpus_of_a_limited_container_are_reported(tmp_path: Path) -> None:
    files = {
        "proc/stat": "cpu  100 0 100 800 50 0 0 0 0 0\n",
        "proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n",
        "proc/self/cgroup": "0::/box\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    whole = HostMeter(tmp_path)
    assert whole.look(10.0).memory_used_mib == 4096
    (tmp_path / "proc/stat").write_text("cpu  250 0 150 900 60 0 0 0 0 0\n")
    ticks = os.sysconf("SC_CLK_TCK")
    assert whole.look(11.0).cpu_percent == pytest.approx(100 * 200 / ticks)
    box = tmp_path / "sys/fs/cgroup/box"
    box.mkdir(parents=True)
    for name, text in {"memory.max": f"{1024 * MIB}", "memory.current": f"{900 * MIB}"}.items():
        (box / name).write_text(text)
    (box / "memory.stat").write_text(f"anon 5\ninactive_file {200 * MIB}\n")
    assert HostMeter(tmp_path).look(10.0).memory_used_mib == 700


# -- idle programs -----------------------------------------------------------------------------------------------------

HELD = (GpuShare("GPU-0", 0, 300, 4800),)


class Watched:
    """The part of an agent that activity needs: a program without CPU use on a real GPU where others compute."""

    def __init__(self, folder: Path, computed_at: float | None) -> None:
        wanted = spec("work", gpus=HELD, emulated=False)
        self.key = wanted.key
        order = StartRequest(wanted, {}, (), "boot", folder)
        status = replace(first_status(order, ""), started_at=1.0)
        self.entries = {wanted.key: AttemptEntry(ReplicaFolder(folder / wanted.key), order, status)}
        self.sampler = SimpleNamespace(computed={} if computed_at is None else {wanted.key: computed_at})
        self.backends = SimpleNamespace(runner=SimpleNamespace(survey=lambda _folders: {}))
        self.run = RunFolder(folder)
        self.told: list[ProcessStatus] = []

    async def gpus(self) -> list[Gpu]:
        return [Gpu("GPU-0", 0, "Tesla T4", 16_000, utilisation_percent=100)]

    def changed(self, status: ProcessStatus) -> None:
        self.told.append(status)


@pytest.mark.parametrize(
    ("seen_s_ago", "active"), [(2.0, True), (60.0, False), (None, True)], ids=["computed", "did not", "nobody can tell"]
)
def test_slice_is_idle_although_neighbours_compute(tmp_path: Path, seen_s_ago: float | None, *, active: bool) -> None:
    agent = Watched(tmp_path, None if seen_s_ago is None else time.monotonic() - seen_s_ago)
    asyncio.run(ActivitySampler(agent).sample())  # type: ignore[arg-type]  # a stand-in with all that the sampler reads
    assert ([status.key for status in agent.told] == [agent.key]) is active
    assert (agent.entries[agent.key].status.last_active_at is not None) is active


def test_last_report_of_a_program_that_becomes_idle_is_sent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports are limited in number, but none is lost: the program may never report again."""
    agent = Watched(tmp_path, time.monotonic() - 60)
    sampler = ActivitySampler(agent)  # type: ignore[arg-type]  # a stand-in with all that the sampler reads
    reports = {1: {"saved_at": None, "step": 1}, 2: {"saved_at": None, "step": 2, "metrics": {"loss": 0.5}}}
    for report in reports.values():
        agent.run.progress(agent.key).parent.mkdir(exist_ok=True)
        agent.run.progress(agent.key).write_text(json.dumps(report))
        asyncio.run(sampler.sample())
    assert [status.step for status in agent.told] == [1]
    began = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + REPORT_INTERVAL_S + 1)
    for _ in range(2):
        asyncio.run(sampler.sample())
    assert [status.step for status in agent.told] == [1, 2]
    assert agent.told[-1].metrics == (("loss", 0.5),)
