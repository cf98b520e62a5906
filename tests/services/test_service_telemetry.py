"""Telemetry from samples of nodes to rows and series: exact sums over restarts, without double counting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from fake_fabric import NODE
from pool_world import ANN, BEGIN, World

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.telemetry import GpuSample, NodeSample, ReplicaSample, Rollups, RollupStep
from gpupool.services.telemetry.rings import Ring, Rings
from gpupool.services.telemetry.series import MAX_POINTS, source_for
from gpupool.services.telemetry.tallies import covered

FIRST = 1_000_000  # the number of the sample at BEGIN


def replica(key: str, gpu: float = 0.0, **more: Any) -> ReplicaSample:
    known = {"gpu_memory_mib": 100, "cpu_percent": 50.0, "memory_mib": 30, "read_bytes": 0, "written_bytes": 0}
    return ReplicaSample(key, gpu, **{**known, "processes": 1, "gpus": 1, "lease": 1, **more})


def look(second: int, gpu: float | None = 0.0, replicas: Iterable[ReplicaSample] = (), shift: int = 0) -> NodeSample:
    """Return the sample at a second after BEGIN: GPU-0 busy to some percent, GPU-1 idle."""
    cards = (GpuSample("GPU-0", gpu, 1000, 1, 70.0, 40.0, 1500), GpuSample("GPU-1", 0.0, 0))
    return NodeSample(NODE, FIRST + second + shift, BEGIN + second, 150.0, 2000, cards, tuple(replicas))


def see(world: World, looks: Iterable[NodeSample]) -> None:
    """Deliver samples of the node to the control plane."""
    world.agent.looks.extend(looks)
    world.clock.at = max(world.clock.at, world.agent.looks[-1].at)
    world.do(world.services.telemetry.pull(NODE))


def minute_over(world: World) -> None:
    world.clock.at = (world.clock.at // 60 + 1) * 60 + 1
    world.do(world.services.telemetry.write_if_due())


def kept(world: World, what: str = "busy_s") -> dict[tuple[str, int, int], float]:
    """Return the stored rows by GPU, step and time."""
    return {
        (g, s, int(at - BEGIN)): v for g, s, at, v in world.rows(f"select gpu_uuid, step_s, at, {what} from gpu_use")
    }


def test_rollup_of_one_minute_equals_manual_result(world: World) -> None:
    """50 % busy for 20 s, 100 % for 10 s, idle for 30 s: 20 s of GPU time; 70 W for a minute: 4,200 J."""
    work = world.do(world.submit(ANN, gpus={"count": 1}))
    key = world.program(work)
    use = [50.0] * 20 + [100.0] * 10 + [0.0] * 30
    see(world, (look(s, busy, [replica(key, busy, read_bytes=1000 * s)]) for s, busy in enumerate(use)))
    minute_over(world)
    gpu = "samples, busy_s, utilisation_max, memory_mean_mib, energy_j, temperature_max_c, node"
    assert world.rows(f"select {gpu} from gpu_use where gpu_uuid = 'GPU-0' and step_s = 60") == [
        (60, 20.0, 100.0, 1000.0, 4200.0, 40.0, NODE)
    ]
    one = "workload, replica_index, attempt, samples, busy_s, idle_s, cpu_s, read_bytes"
    assert world.rows(f"select {one} from replica_use where step_s = 60") == [
        (work.id, 0, 1, 60, 20.0, 30.0, 30.0, 59_000)
    ]
    assert world.rows("select samples, cpu_s, memory_max_mib from node_use where step_s = 3600") == [(60, 90.0, 2000)]
    telemetry = world.services.telemetry
    assert telemetry.unwritten() == Rollups()
    series = world.do(telemetry.gpu_series("GPU-0", BEGIN, BEGIN + 60, RollupStep.MINUTE))
    assert (series.step_s, series.times) == (60, (BEGIN,))
    assert series.values["utilisation_percent"] == pytest.approx((100 * 20 / 60,))
    assert series.values["power_w"] == (70.0,)
    looks = world.do(telemetry.replica_series(work.id, 0, BEGIN, BEGIN + 60))
    assert (looks.step_s, len(looks.times), looks.values["gpu_percent"][19:21]) == (1, 60, (50.0, 100.0))
    assert looks.values["read_bytes_per_s"][1:3] == (1000.0, 1000.0)


def test_current_use_is_last_sample_and_expires(world: World) -> None:
    telemetry = world.services.telemetry
    assert (telemetry.latest(), telemetry.latest_gpu("GPU-0")) == ({}, None)
    see(world, [look(0, 30.0, [replica("wabcdefghjk.0.1", 30.0)]), look(1, 40.0)])
    assert telemetry.latest()[NODE].number == FIRST + 1
    assert telemetry.latest_gpu("GPU-0") == GpuSample("GPU-0", 40.0, 1000, 1, 70.0, 40.0, 1500)
    assert telemetry.latest_replica("wabcdefghjk.0.1") is None, "it was gone at the last look"
    world.clock.at += 11
    assert (telemetry.latest(), telemetry.latest_gpu("GPU-0")) == ({}, None)


def test_gap_of_one_second_is_covered_and_longer_gap_is_not(world: World) -> None:
    assert [covered(number, 10) for number in (11, 13, 15, 16, 9)] == [1, 3, 5, 1, 1]
    see(world, [look(0, 100.0), look(3, 100.0), look(30, 100.0)])
    minute_over(world)
    assert kept(world)["GPU-0", 60, 0] == 1 + 3 + 1
    assert kept(world, "samples")["GPU-0", 60, 0] == 5


def test_killed_control_plane_loses_and_duplicates_no_samples(world: World) -> None:
    see(world, (look(s, 100.0) for s in range(90)))
    minute_over(world)  # at 121: the minutes from 0 and from 60 are written
    see(world, (look(s, 100.0) for s in range(121, 150)))
    world.do(world.reboot())
    see(world, (look(s, 100.0) for s in range(150, 170)))
    world.do(world.services.telemetry.pull(NODE))
    minute_over(world)
    assert kept(world) == {
        ("GPU-0", 60, 0): 60.0, ("GPU-0", 60, 60): 30.0, ("GPU-0", 60, 120): 49.0, ("GPU-0", 3600, 0): 139.0,
        ("GPU-1", 60, 0): 0.0, ("GPU-1", 60, 60): 0.0, ("GPU-1", 60, 120): 0.0, ("GPU-1", 3600, 0): 0.0,
    }  # fmt: skip
    series = world.do(world.services.telemetry.gpu_series("GPU-0", BEGIN, BEGIN + 200))
    assert len([v for v in series.values["utilisation_percent"] if v == 100.0]) == 139, "charts go back behind it"


def test_orderly_shutdown_writes_all_samples(world: World) -> None:
    see(world, (look(s, 100.0) for s in range(30)))
    world.do(world.services.telemetry.close())
    assert kept(world)["GPU-0", 60, 0] == 30.0
    world.do(world.reboot())
    see(world, (look(s, 100.0) for s in range(30, 60)))
    minute_over(world)
    assert kept(world)["GPU-0", 60, 0] == 60.0


def test_restarted_agent_and_clock_set_back_keep_series(world: World) -> None:
    see(world, (look(s, 100.0) for s in range(10)))
    world.agent.looks = []
    see(world, (look(s, 100.0) for s in range(12, 20)))
    assert world.services.telemetry.unwritten().gpus[0].busy_s == 20.0  # the two seconds between are covered
    world.agent.looks = []
    see(world, (look(s, 100.0, shift=-5000) for s in range(20, 30)))
    see(world, (look(s, 100.0, shift=-5000) for s in range(30, 35)))
    minute_over(world)
    assert kept(world)["GPU-0", 60, 0] == 35.0
    see(world, [replace(look(s, 100.0, shift=-5000), at=BEGIN + s - 3600) for s in range(35, 40)])
    minute_over(world)
    assert kept(world)["GPU-0", 60, -3600] == 5.0


def test_full_disk_delays_writes_and_drops_oldest_samples(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry, store = world.services.telemetry, world.store
    assert store is not None
    save, full = store.use_rows.save, True

    async def saving(*args: Any) -> None:
        if full:
            raise GpupoolError(ErrorCode.DATABASE_UNWRITABLE, "The disk is full.", "Make room.")
        await save(*args)

    monkeypatch.setattr(store.use_rows, "save", saving)
    for minute in range(12):
        see(world, [look(60 * minute + 5, 100.0)])
        minute_over(world)
    assert kept(world) == {}
    assert len(telemetry.unwritten().nodes) == 10
    points = world.do(telemetry.gpu_series("GPU-0", BEGIN, BEGIN + 800, RollupStep.MINUTE))
    assert len(points.times) == 10, "what is not written is shown all the same"
    full = False
    see(world, [look(725, 100.0)])
    minute_over(world)
    assert sorted(at for gpu, step, at in kept(world) if (gpu, step) == ("GPU-0", 60)) == list(range(120, 780, 60))


def test_gpus_of_lease_without_program_are_idle(world: World) -> None:
    lease = world.do(world.submit(ANN, kind="lease", gpus={"count": 1}))
    uuid = next(iter(world.now.engine.mirror.leases.values())).shares[0].gpu_uuid
    assert uuid in {"GPU-0", "GPU-1"}
    epoch = next(iter(world.now.engine.mirror.leases))
    work = [replica("wabcdefghjk.0.1", 80.0, lease=epoch), replica("wabcdefghjk.1.1", 20.0, lease=epoch)]
    world.clock.at += 1
    see(world, [*(look(s) for s in range(1, 11)), *(look(s, 100.0, work) for s in range(11, 16))])
    mine = [row for row in world.services.telemetry.unwritten().replicas if row.workload == lease.id]
    assert [(row.samples, row.busy_s, row.idle_s, row.cpu_s) for row in mine] == [(15, 5.0, 10.0, 5.0)]
    sample = world.services.telemetry.latest_replica(f"{lease.id}.0.1")
    assert sample is not None
    assert (sample.gpu_percent, sample.gpus) == (100.0, 1)


def test_time_without_samples_is_neither_busy_nor_idle(world: World) -> None:
    hidden = replica("wabcdefghjk.0.1", gpus=0)
    none = replica("wabcdefghjm.0.1", gpus=0, lease=0)
    see(world, [replace(look(s, None, [hidden, none]), gpus=(GpuSample("GPU-0", None, 7),)) for s in range(10)])
    uses = world.services.telemetry.unwritten()
    assert uses.gpus == ()
    assert [(r.samples, r.busy_s, r.idle_s, r.cpu_s) for r in uses.replicas] == [
        (0, 0.0, 0.0, 5.0),
        (10, 0.0, 0.0, 5.0),
    ]
    series = world.do(world.services.telemetry.gpu_series("GPU-0", BEGIN, BEGIN + 10))
    assert set(series.values["utilisation_percent"]) == {None}
    assert set(series.values["memory_used_mib"]) == {7.0}


def test_hanging_node_is_asked_once_and_oversized_answers_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    class Hanging:
        async def samples(self, after: int) -> list[NodeSample]:
            nonlocal asked
            asked += 1
            await asyncio.Event().wait()
            return []

    class Babbling:
        async def samples(self, after: int) -> list[NodeSample]:
            raise ValueError(f"not looks that follow {after}")

    async def scenario() -> None:
        telemetry = world.services.telemetry
        monkeypatch.setattr(world.now.engine.ports.fabric, "link", lambda _node: Hanging())
        for _ in range(5):
            telemetry.pull_all()
            await asyncio.sleep(0)
        assert asked == 1
        monkeypatch.setattr(world.now.engine.ports.fabric, "link", lambda _node: Babbling())
        await telemetry.pull(NODE)
        assert telemetry.latest() == {}

    world.do(scenario())


def test_memory_is_bounded() -> None:
    ring = Ring(2)
    for second in range(1000):
        ring.add(float(second), (second, -second))
    times, values = ring.between(0, 1e9)
    assert (len(times), times[0], times[-1]) == (600, 400.0, 999.0)
    assert (values[0].tolist(), ring.last_at) == ([400.0, -400.0], 999.0)
    rings = Rings[int](1, most=10)
    for key in range(25):
        rings.add(key, float(key), (0.0,))
    assert len(rings) == 10
    assert list(rings) == list(range(15, 25))
    rings.prune(now=620.5)
    assert list(rings) == [21, 22, 23, 24]


def test_finest_source_that_covers_the_period_is_chosen(world: World) -> None:
    now, day = BEGIN, 86_400
    assert source_for(now - 601, now, now, None).step_s == 1
    assert source_for(now - 631, now, now, None).step_s == 60
    assert source_for(now - day, now, now, None).step_s == 60
    assert source_for(now - 2 * day, now, now, None).step_s == 3600
    assert source_for(now - 20 * day, now - 20 * day + 60, now, None).step_s == 3600, "minutes are gone"
    for days, step in ((400, None), (1000, RollupStep.HOUR), (14, RollupStep.MINUTE)):
        source = source_for(now - days * day, now, now, step)
        assert days * day / source.step_s <= MAX_POINTS
    see(world, [look(0, 10.0), look(1, 20.0), look(9, 30.0)])
    series = world.do(world.services.telemetry.gpu_series("GPU-0", BEGIN, BEGIN + 10))
    assert series.values["utilisation_percent"] == (10.0, 20.0, None, 30.0), "a line breaks where nothing was seen"
