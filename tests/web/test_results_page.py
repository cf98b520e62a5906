"""The page of results of a sweep, and suggestions on the page of a workload."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape

import pytest
import structlog
from pool_world import ADMIN, ANN, world_in
from web_harness import Site, words

from gpupool.domain.nodes.telemetry import ReplicaRollup, Rollups, RollupStep, Series
from gpupool.domain.usage import GroupBy
from gpupool.services.usage.efficiency import compare
from gpupool.services.usage.reports import ReportRequest, make_report

BOB_UID = 1002


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path_factory.mktemp("results")) as world:
        world.do(world.services.access.put_user(ADMIN, "bob", {"uid": BOB_UID}))
        yield Site(world)


def test_results_page_sorts_and_exports(site: Site) -> None:
    world = site.world
    made = world.do(
        world.submit(
            actor=ANN, name="tuning", sweep={"grid": {"lr": [0.1, 0.2]}}, command=["t", "{lr}"], gpus={"count": 1}
        )
    )
    for index, loss in ((0, 0.75), (1, 0.25)):
        program = world.agent.programs[world.program(made, index)]
        program.status = replace(program.status, step=5, metrics=(("loss", loss),))
        world.agent.tell(program.status)
    world.do(world.settle())
    page = site.get("/workloads/tuning/results")
    assert page.status_code == 200
    assert "lr" in words(page.text)
    best = site.get("/workloads/tuning/results?sort=loss").text
    assert best.index("0.25") < best.index("0.75")
    text = site.get("/workloads/tuning/results?format=csv&table=results").text
    assert text.splitlines()[0].startswith("index,state,lr,loss,step")
    assert "/results" in site.get("/workloads/tuning").text
    hidden = site.get("/workloads/tuning/results", BOB_UID)
    assert "0.25" not in hidden.text
    assert "lr" not in words(hidden.text).split()


def test_workload_page_and_report_suggest_a_smaller_request(site: Site) -> None:
    world = site.world
    world.do(world.services.workloads.stop_everything(ADMIN))
    world.do(world.settle())
    made = world.do(world.submit(actor=ANN, name="roomy", gpus={"count": 1}))
    at = int(world.clock.now()) // 3600 * 3600
    rollup = ReplicaRollup(RollupStep.MINUTE, at, made.id, 0, 1, 600, 60.0, 0.0, 900.0, 1126, 50.0, 700, 0, 0)
    world.do(world.store.use_rows.save(Rollups((), (rollup,)), {}))
    assert "used 1.1 GiB; -m 1536 would do" in words(site.get("/workloads/roomy").text)
    world.do(world.pass_time(60))
    now = world.clock.now()
    report = world.do(make_report(world.services.accounting, ReportRequest(now - 86400, now, GroupBy.WORKLOAD)))
    ids = [line.key for line in report.lines]
    [(found, compared)] = world.do(compare(world.services.workloads, world.services.telemetry, ADMIN, ids))
    assert (found.name, compared.suggestions[0].option) == ("roomy", "-m 1536")


def test_charts_of_a_run_begin_with_it_and_have_the_allocated_memory(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = site.world
    world.do(world.services.workloads.stop_everything(ADMIN))
    world.do(world.settle())
    made = world.do(world.submit(actor=ANN, name="sliced", gpus={"count": 1, "fraction": 0.5}))
    world.do(world.pass_time(300))
    found = re.search(r'data-chart="(/ui/series/workload/[^"]*what=gpu_memory)"', site.get("/workloads/sliced").text)
    assert found is not None
    measured = Series(60, (world.clock.now() - 120, world.clock.now() - 60), {"gpu_memory_mib": (100.0, 200.0)})

    async def replica_series(*_: object) -> Series:
        return measured

    monkeypatch.setattr(world.services.telemetry, "replica_series", replica_series)
    document = site.get(unescape(found[1])).json()
    assert document["until"] - document["since"] == pytest.approx(330, abs=5)
    allocated = next(line for line in document["series"] if line["label"] == "allocated")
    assert allocated["limit"]
    (lease,) = world.do(world.services.workloads.leases_of(made))
    assert allocated["values"] == [lease.shares[0].memory_mib] * 2
