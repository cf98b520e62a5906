"""Metrics of a pool with a few leases, with a clock moved by the test."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from pool_world import ANN, BOB, World
from prometheus_client.parser import text_string_to_metric_families

from gpupool.api.prometheus import ROWS_AT_ONCE, Exposition, written
from gpupool.domain.nodes.telemetry import GpuSample, NodeSample, ReplicaSample
from gpupool.domain.usage import GroupBy
from gpupool.services.metrics import catalogue as c
from gpupool.services.metrics import families
from gpupool.services.metrics.catalogue import CATALOGUE, Metric, MetricKind
from gpupool.services.metrics.families import OTHERS, Bounded, MetricFamily


def read(world: World) -> dict[str, MetricFamily]:
    async def collected() -> list[MetricFamily]:
        for _ in range(5_000):
            if world.services.metrics.seconds.loaded:
                break
            await asyncio.sleep(0.001)
        return [family async for family in world.services.metrics.families()]

    return {family.metric.name: family for family in world.do(collected())}


def value(families: dict[str, MetricFamily], metric: Metric, *labels: str) -> float:
    return dict(families[metric.name].rows)[labels]


def test_metric_names_are_unique_and_have_type_suffix() -> None:
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)
    assert all(metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER) for metric in CATALOGUE)
    assert all(metric.about.endswith(".") for metric in CATALOGUE)


def test_held_gpus_are_counted_by_gpu_project_and_user(world: World) -> None:
    world.do(world.submit(ANN, gpus={"fraction": 0.5}))
    world.do(world.submit(BOB, gpus={"fraction": 0.25}))
    found = read(world)
    assert value(found, c.PROJECT_HELD, "default") == 0.75
    assert (value(found, c.USER_HELD, "ann"), value(found, c.USER_HELD, "bob")) == (0.5, 0.25)
    assert sorted(part for _, part in found[c.GPU_HELD.name].rows) == [0.0, 0.75]
    assert value(found, c.NODE_UP, "here") == 1
    assert value(found, c.WORKLOADS, "running", "training") == 2
    assert {labels[2:] for labels, _ in found[c.WORKLOAD_HELD.name].rows} == {("default", "ann"), ("default", "bob")}


def test_holders_of_each_gpu_are_named_with_its_uuid(world: World) -> None:
    world.do(world.submit(ANN, name="half", gpus={"fraction": 0.5}))
    world.do(world.submit(BOB, name="both", gpus={"count": 1}))
    rows = read(world)[c.GPU_HOLDER.name].rows
    uuids = {gpu.uuid for node in world.do(world.services.nodes.nodes()) for gpu in node.report.gpus}
    assert {labels[0] for labels, _ in rows} == uuids
    assert {(labels[4], labels[6], part) for labels, part in rows} == {("half", "ann", 0.5), ("both", "bob", 1.0)}
    infos = {(labels[1], *labels[4:]) for labels, _ in read(world)[c.WORKLOAD_INFO.name].rows}
    assert infos == {("half", "training", "here"), ("both", "training", "here")}


def test_health_counters_are_those_of_the_samples(world: World) -> None:
    [node] = world.do(world.services.nodes.nodes())
    sample = GpuSample(
        node.report.gpus[0].uuid, 10.0, 100, xids=2, ecc_corrected=3, slowdown="thermal", pcie_replays=7, pcie_width=16
    )
    silent = GpuSample(node.report.gpus[1].uuid, 10.0, 100)
    snapshot = world.do(world.services.metrics.snapshot())
    snapshot = replace(snapshot, samples={"here": NodeSample("here", 1, world.clock.now(), 0.0, 0, (sample, silent))})
    found = {family.metric.name: family for family in families.health_rows(snapshot)}
    assert dict(found[c.GPU_XIDS.name].rows) == {("here", "0"): 2}
    assert dict(found[c.GPU_ECC.name].rows) == {("here", "0", "corrected"): 3}
    assert dict(found[c.GPU_PCIE_REPLAYS.name].rows) == {("here", "0"): 7}
    assert dict(found[c.GPU_PCIE_WIDTH.name].rows) == {("here", "0"): 16}
    assert found[c.GPU_NVLINK_ERRORS.name].rows == []
    slow = {labels[2]: value for labels, value in found[c.GPU_SLOWDOWN.name].rows}
    assert slow == {"power": 0.0, "hardware": 0.0, "thermal": 1.0}


def test_sums_of_slices_are_exact(world: World) -> None:
    """Three tenths are 0.3, not 0.30000000000000004: an alert on 'allocated > quota' must not fire at the quota."""
    for _ in range(3):
        world.do(world.submit(ANN, gpus={"fraction": 0.1}))
    found = read(world)
    assert value(found, c.PROJECT_HELD, "default") == 0.3
    assert value(found, c.USER_HELD, "ann") == 0.3
    assert sum(part for _, part in found[c.WORKLOAD_HELD.name].rows) == pytest.approx(0.3)


def test_gpu_seconds_are_exact_and_continue_after_a_restart(world: World) -> None:
    first = world.do(world.submit(ANN, gpus={"fraction": 0.5}))
    world.do(world.pass_time(60))
    world.do(world.end(first))
    world.do(world.submit(BOB, gpus={"count": 2}))
    world.do(world.pass_time(100))
    before = read(world)
    assert value(before, c.USER_SECONDS, "ann") == 30.0
    told = world.do(world.services.accounting.usage(0.0, world.clock.at, GroupBy.PROJECT))
    assert {line.key: line.time.allocated_s for line in told} == {"default": 230.0}
    assert value(before, c.PROJECT_SECONDS, "default") == 30.0 + 2 * 100.0
    world.do(world.reboot())
    world.do(world.pass_time(10))
    assert value(read(world), c.PROJECT_SECONDS, "default") == 30.0 + 2 * 110.0


def test_waiting_workloads_are_counted_with_their_wait(world: World) -> None:
    world.do(world.submit(ANN, gpus={"count": 2}))
    world.do(world.submit(BOB, gpus={"count": 2}))
    world.do(world.submit(BOB, gpus={"count": 2}, completions=3, parallelism=3))
    world.do(world.pass_time(120))
    found = read(world)
    assert value(found, c.PROJECT_WAITING, "default") == 4
    assert value(found, c.PROJECT_OLDEST, "default") == 120.0
    assert value(found, c.WORKLOADS, "queued", "training") == 2


def test_leases_are_idle_after_five_minutes_without_use(world: World) -> None:
    made = world.do(world.submit(ANN, gpus={"fraction": 0.5}))
    world.do(world.pass_time(299))
    assert value(read(world), c.PROJECT_IDLE, "default") == 0
    world.do(world.pass_time(2))
    found = read(world)
    assert (value(found, c.PROJECT_IDLE, "default"), value(found, c.USER_IDLE, "ann")) == (0.5, 0.5)
    world.agent.active(world.program(made))
    world.do(world.settle())
    assert value(read(world), c.PROJECT_IDLE, "default") == 0


def test_measured_values_are_exported_and_missing_values_are_absent(world: World) -> None:
    made = world.do(world.submit(ANN, gpus={"count": 2}))
    (node,) = world.do(world.services.nodes.nodes())
    first, second = (gpu.uuid for gpu in node.report.gpus)
    (lease,) = world.now.engine.mirror.leases.values()
    program = ReplicaSample(made.key(0, 1), 150.0, 2048, 250.0, 512, 1, 2, 3, gpus=2, lease=lease.epoch)
    cards = (GpuSample(first, 87.5, 1024, 1, 215.5, 61.0, 1500, 5001), GpuSample(second, None, 1024))
    world.services.telemetry.latest = lambda: {  # type: ignore[method-assign]
        "here": NodeSample("here", 1, world.clock.at, 350.0, 4096, cards, (program,))
    }
    found = read(world)
    assert found[c.GPU_BUSY.name].rows == [(("here", "0"), 0.875)]
    assert found[c.GPU_POWER.name].rows == [(("here", "0"), 215.5)]
    assert found[c.GPU_SM_CLOCK.name].rows == [(("here", "0"), 1.5e9)]
    assert value(found, c.NODE_CPUS_USED, "here") == 3.5
    labels = (made.id, made.name, "default", "ann")
    assert value(found, c.WORKLOAD_BUSY, *labels) == 1.5
    assert value(found, c.WORKLOAD_GPU_MEMORY, *labels) == 2048 * 1024 * 1024
    assert value(found, c.WORKLOAD_CPUS, *labels) == 2.5


def test_waits_and_cycles_are_histograms(world: World) -> None:
    first = world.do(world.submit(ANN, gpus={"count": 2}))
    world.do(world.submit(BOB, gpus={"count": 2}))
    world.do(world.pass_time(200))
    world.do(world.end(first))
    waits = dict(read(world)[c.WAITS.name].histograms)[("training",)]
    assert (waits.total, dict(waits.buckets())[60.0], dict(waits.buckets())[300.0]) == (200.0, 1, 2)
    ((_, cycles),) = read(world)[c.CYCLES.name].histograms
    assert cycles.buckets()[-1][1] >= 2


def test_counters_start_at_zero(world: World) -> None:
    found = read(world)
    assert value(found, c.EVENTS, "NODE_LOST") == 0
    assert value(found, c.WARNINGS, "mail", "failed") == 0


def test_names_above_the_limit_are_summed_permanently() -> None:
    bounded = Bounded(2)
    assert dict(bounded.summed({"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0})) == {("a",): 1, ("b",): 2, (OTHERS,): 12}
    assert dict(bounded.summed({"c": 4.0, "d": 8.0, "a": 1.0})) == {("a",): 1, (OTHERS,): 12}


def test_workloads_above_the_limit_are_one_series(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "MAX_WORKLOADS", 2)
    for fraction in (0.1, 0.4, 0.2, 0.1):
        world.do(world.submit(ANN, gpus={"fraction": fraction}))
    rows = {labels[0]: held for labels, held in read(world)[c.WORKLOAD_HELD.name].rows}
    assert sorted(rows.values()) == [0.2, 0.2, 0.4]
    assert rows[OTHERS] == pytest.approx(0.2)


def exposed(world: World) -> str:
    return world.do(Exposition(world.services).text()).decode()


def test_text_is_readable_by_prometheus_client(world: World) -> None:
    world.do(world.submit(ANN, gpus={"fraction": 0.5}))
    read(world)
    told = {family.name: family for family in text_string_to_metric_families(exposed(world))}
    assert told["gpupool_project_gpu_allocated_seconds"].type == "counter"
    assert told["gpupool_scheduling_cycle_seconds"].type == "histogram"
    (held,) = told["gpupool_project_gpus_allocated"].samples
    assert (held.labels, held.value) == ({"project": "default"}, 0.5)
    assert told["process_resident_memory_bytes"].samples[0].value > 0


@pytest.mark.parametrize("name", ['a"b', "back\\slash", "two\nlines", "é😀", "{}=,"])
def test_label_values_are_escaped_and_read_back(name: str) -> None:
    text = b"".join(written(MetricFamily(c.USER_HELD, [((name,), 1.5)]))).decode()
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"user": name}


def test_many_rows_are_written_in_chunks_under_one_description() -> None:
    pieces = list(written(MetricFamily(c.GPU_HELD, [((f"n{n}", "0"), 0.5) for n in range(3 * ROWS_AT_ONCE)])))
    assert [piece.count(b"\n") for piece in pieces] == [ROWS_AT_ONCE + 2, ROWS_AT_ONCE, ROWS_AT_ONCE]
    (family,) = text_string_to_metric_families(b"".join(pieces).decode())
    assert len(family.samples) == 3 * ROWS_AT_ONCE


def test_scrapers_within_a_second_get_the_same_answer(world: World) -> None:
    exposition = Exposition(world.services)
    first = world.do(exposition.text())
    world.do(world.submit(ANN))
    assert world.do(exposition.text()) is first
