"""Analytics: the page, its charts and the API say the same, and it is what the leases come to by hand."""

from __future__ import annotations

import asyncio
import csv
import io
import itertools
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

import pytest
from pool_world import ANN, BEGIN, BOB, World, world_in
from web_harness import Site, words

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.usage import analytics
from gpupool.web.kit.charts import MAX_POINTS, downsample
from gpupool.web.kit.ranges import DAY_S, HOUR_S, RANGES, read_range

SPAN = f"since={BEGIN:.0f}&until={BEGIN + 3600:.0f}"


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """Give pages much time, so that they are complete on a slow machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analytics, "PATIENCE_S", 60.0)
        yield


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield an hour: ann holds 0.5 GPU for 1,200 s and 1 for 600 s; bob waits 900 s, then holds 2 for 900 s."""

    async def story(world: World) -> None:
        for _ in range(5_000):  # until the GPUs are recorded: then the clock may be moved
            if await world.now.engine.ports.store.capacity.present():
                break
            await asyncio.sleep(0.001)
        half = await world.submit(ANN, name="half", gpus={"fraction": 0.5})
        whole = await world.submit(ANN, name="whole", gpus={"count": 1})
        await world.pass_time(300)
        two = await world.submit(BOB, name="two", gpus={"count": 2})
        await world.pass_time(300)
        await world.end(whole)
        await world.pass_time(600)
        await world.end(half)
        await world.pass_time(900)
        await world.end(two)
        await world.pass_time(1500)

    with world_in(tmp_path_factory.mktemp("past")) as world:
        world.do(story(world))
        yield Site(world)


def lines(site: Site, url: str) -> dict[str, list[float | None]]:
    document: dict[str, Any] = site.get(f"/ui/series/{url}").json()
    return {line["label"]: line["values"] for line in document["series"]}


def table(site: Site, name: str) -> list[dict[str, str]]:
    answer = site.get(f"/analytics?{SPAN}&format=csv&table={name}")
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text)))


def test_slow_parts_are_loaded_later(site: Site) -> None:
    site.world.services.analytics.patience_s = 0.0
    first = site.get("/analytics")
    assert "Calculating…" in first.text
    assert 'data-live="often"' in first.text
    site.world.services.analytics.patience_s = 60.0
    assert 'data-live="on"' in site.get("/analytics").text


def test_page_shows_sums_of_leases(past: Site) -> None:
    text = words(past.get(f"/analytics?{SPAN}").text)
    assert "GPU hours held 0.83 42 % of the pool" in text  # (0.5 * 1200 + 600 + 2 * 900) / 3600 of 2 GPUs for an hour
    assert "nothing measured" in text
    assert "3 workloads started" in text


def test_tables_equal_the_api(past: Site) -> None:
    usage = past.get(f"/v1/usage?{SPAN}").json()["rows"]
    by_user = {row["user"]: row["gpu_seconds"] for row in usage}
    assert by_user == pytest.approx({"ann": 1200.0, "bob": 1800.0})
    held = {row["who"]: 3600 * float(row["held"]) for row in table(past, "users")}
    assert held == pytest.approx(by_user)
    (project,) = table(past, "waste")
    assert (project["who"], 3600 * float(project["held"])) == ("default", pytest.approx(3000.0))


def test_lines_add_up_to_the_totals(past: Site) -> None:
    pool = lines(past, f"pool/gpus?{SPAN}")
    assert sum(60 * (value or 0) for value in pool["held"]) == pytest.approx(3000.0, rel=1e-3)
    assert pool["held"][0] == 1.5
    assert pool["held"][15] == 0.5  # of the minute from 900 s on
    assert pool["held"][21] == 2.0
    assert pool["in the pool"][10] == 2.0
    users = lines(past, f"pool/gpus?{SPAN}&by=user")
    assert list(users) == ["bob", "ann"]
    assert sum(60 * (value or 0) for value in users["ann"]) == pytest.approx(1200.0, rel=1e-3)


def test_waiting_workloads_are_counted_at_each_moment(past: Site) -> None:
    (waiting,) = lines(past, f"pool/queue?{SPAN}").values()
    assert waiting == [0.0] * 5 + [1.0] * 15 + [0.0] * 41  # bob's, from 300 s to 1,200 s
    p50 = lines(past, f"pool/waiting?{SPAN}")["median"]
    assert (p50[0], p50[5], p50[6]) == (0.0, 900.0, None)


def test_queue_and_free_gpus_of_a_day_are_drawn_up_to_its_end(past: Site) -> None:
    day = f"since={BEGIN - 86400:.0f}&until={BEGIN + 400:.0f}"
    assert lines(past, f"pool/queue?{day}")["queued workloads"][-1] == 1, "two waits since second 300"
    document = past.get(f"/ui/series/pool/free?{day}").json()
    assert document["times"][-1] == BEGIN + 400


def test_free_rest_next_to_a_slice_is_fragmented(past: Site) -> None:
    free = lines(past, f"pool/free?{SPAN}")
    assert (free["in pieces"][1], free["whole"][1]) == (0.5, 0.0)
    assert (free["in pieces"][11], free["whole"][11]) == (0.5, 1.0)
    assert (free["in pieces"][30], free["whole"][30]) == (0.0, 0.0)
    assert (free["in pieces"][40], free["whole"][40]) == (0.0, 2.0)


def test_no_capacity_before_the_pool_existed(past: Site) -> None:
    before = f"since={BEGIN - 7200:.0f}&until={BEGIN:.0f}"
    assert set(lines(past, f"pool/free?{before}")["whole"]) == {0.0}
    asked = past.get(f"/v1/usage/capacity?{before}").json()
    assert (asked["gpu_seconds"], asked["available_gpu_seconds"]) == (0.0, 0.0)
    whole = past.get(f"/v1/usage/capacity?since={BEGIN - 7200:.0f}&until={BEGIN + 3600:.0f}").json()
    assert whole["gpu_seconds"] == pytest.approx(7200.0, abs=5.0)
    text = words(past.get(f"/analytics?since={BEGIN - 7200:.0f}&until={BEGIN + 3600:.0f}").text)
    assert "GPU hours held 0.83 42 % of the pool" in text, "of the hour in which there was a pool, not of three"


def test_idle_leases_are_listed_with_their_cost(site: Site) -> None:
    world = site.world
    world.do(world.submit(ANN, name="sleeper", gpus={"fraction": 0.5}))
    assert "No idle GPUs" in site.get("/analytics").text
    world.do(world.pass_time(7200))
    text = words(site.get("/analytics").text)
    assert "Idle leases now 1" in text
    assert "sleeper ann default 0.5 here 2h" in text
    assert '<a href="/workloads/w' in site.get("/analytics").text


def test_longest_waits_and_free_capacity_are_shown(site: Site) -> None:
    world = site.world
    world.do(world.submit(ANN, name="holder", gpus={"count": 2}))
    for number in range(6):
        world.do(world.submit(BOB, name=f"late-{number}", gpus={"count": 2}))
        world.do(world.pass_time(60))
    text = words(site.get("/analytics").text)
    waits = text[text.index("Longest waits now") :]
    assert [name for name in (f"late-{n}" for n in range(6)) if name in waits] == [f"late-{n}" for n in range(5)]
    assert "training 6 1" in text or "training 1 6" in text


def test_unknown_parameters_are_refused(site: Site) -> None:
    for url in ("pool/gpus?by=nobody", "pool/gpus?by=user&what=all", "gpu/x?what=noise", "pool/queue?range=2h"):
        answer = site.get(f"/ui/series/{url}")
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "INVALID_REQUEST"


@pytest.mark.parametrize("query", ["since=5&until=4", "since=nan", "until=1e99", "since=0&until=9e9", "range=x"])
def test_invalid_period_is_refused(query: str) -> None:
    with pytest.raises(GpupoolError) as caught:
        read_range(dict(parse_qsl(query)), BEGIN, "UTC")
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("name", RANGES)
def test_charts_have_few_steps_and_cover_the_period(name: str) -> None:
    span = read_range({"range": name}, BEGIN + 0.5, "Europe/Berlin")
    edges = span.edges()
    assert (edges[0], edges[-1]) == (span.since, span.until)
    assert span.until - span.since == RANGES[name]
    assert all(before < after for before, after in itertools.pairwise(edges))
    assert 24 <= len(edges) - 1 <= MAX_POINTS
    assert 24 <= span.moments().count <= MAX_POINTS


def test_days_follow_pool_time_zone_over_clock_changes() -> None:
    since = 1_774_566_000.0  # midnight of 27 March 2026 in Berlin; on the 29th a day has 23 hours
    span = read_range({"since": str(since), "until": str(since + 100 * DAY_S)}, 0.0, "Europe/Berlin")
    lengths = [after - before for before, after in itertools.pairwise(span.edges())]
    assert lengths[:4] == [DAY_S, DAY_S, DAY_S - HOUR_S, DAY_S]


def test_many_points_are_averaged() -> None:
    times = [float(n) for n in range(1300)]
    few, (values,) = downsample(times, [[None if n % 3 else 1.0 for n in range(1300)]])
    assert len(few) == 434
    assert set(values) == {1.0}


def test_csv_of_a_chart_has_its_lines(past: Site) -> None:
    answer = past.get(f"/ui/series/pool/gpus?{SPAN}&format=csv")
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert rows[0] == ["time", "epoch_s", "held (GPUs)", "computing (GPUs)", "in the pool (GPUs)"]
    assert rows[1][1:3] == [f"{BEGIN:.3f}", "1.5"]
    assert "attachment" in answer.headers["content-disposition"]


def test_users_are_linked_to_a_page_that_everybody_may_see(past: Site) -> None:
    assert 'href="/workloads?user=ann"' in past.get(f"/analytics?{SPAN}").text
