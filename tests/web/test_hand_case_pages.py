"""The past that was reckoned by hand, on the pages: analytics, its charts, and the reports page."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterator
from typing import Any

import hand_case
import pytest
from hand_case import ALLOCATED, BY_MODEL, BY_NODE, BY_USER, IDLE, MEASURED, SINCE, UNTIL, USED, WAITED
from pool_world import World
from web_harness import Site

from gpupool.domain.usage import CostRates
from gpupool.services.usage import analytics

SPAN = f"since={SINCE}&until={UNTIL}"
NEAR = 0.01  # seconds


@pytest.fixture(scope="module", params=[None, "12:00:00"], ids=["from leases", "hours summed"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield the dashboard over that history, with and without hours that were summed beforehand."""
    folder = tmp_path_factory.mktemp("case")
    asyncio.run(hand_case.write(folder / "pool.db", request.param))
    world = World(folder)
    world.clock.at = hand_case.at("23:00:00")
    asyncio.set_event_loop(world.loop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analytics, "PATIENCE_S", 60.0)
        world.do(world.boot())
        yield Site(world)
        world.do(world.crash())
    world.loop.close()
    asyncio.set_event_loop(None)


def seconds(site: Site, url: str, key: str, column: str) -> dict[str, float | None]:
    """Return GPU seconds in a table of a page by its key column; None: a dash."""
    rows = csv.DictReader(io.StringIO(site.get(url).text))
    return {row[key]: 3600 * float(row[column]) if row[column] else None for row in rows}


def close(expected: dict[str, Any]) -> Any:
    return pytest.approx(expected, abs=NEAR)


def test_waste_by_project(site: Site) -> None:
    url = f"/analytics?{SPAN}&format=csv&table=waste"
    assert seconds(site, url, "who", "held") == close(ALLOCATED)
    assert seconds(site, url, "who", "used")["vision"] == pytest.approx(USED["vision"], abs=NEAR)
    assert seconds(site, url, "who", "idle")["vision"] == pytest.approx(IDLE["vision"], abs=NEAR)
    assert seconds(site, url, "who", "used")["speech"] is None
    parts = csv.DictReader(io.StringIO(site.get(url).text))
    part = {row["who"]: row["waste"] for row in parts}
    assert float(part["vision"]) == pytest.approx(100 * (IDLE["vision"] or 0) / MEASURED["vision"], abs=1e-4)


def test_top_users(site: Site) -> None:
    assert seconds(site, f"/analytics?{SPAN}&format=csv&table=users", "who", "held") == close(BY_USER)


@pytest.mark.parametrize(
    ("by", "expected"), [("project", ALLOCATED), ("user", BY_USER), ("model", BY_MODEL), ("node", BY_NODE)]
)
def test_reports_and_charts(site: Site, by: str, expected: dict[str, float]) -> None:
    day = "period=days&from=2026-09-04&to=2026-09-04"
    whole_day = seconds(site, f"/reports?{day}&by={by}&format=csv&table=report", "key", "allocated")
    assert all((whole_day[key] or 0) >= value - NEAR for key, value in expected.items())
    file = csv.DictReader(io.StringIO(site.get(f"/reports/download/csv?{SPAN}&by={by}").text))
    assert {row["key"]: 3600 * float(row["allocated_gpu_hours"]) for row in file} == close(expected)
    document = site.get(f"/ui/series/pool/gpus?{SPAN}&by={by}").json()
    edges = [*document["times"], document["until"]]
    for line in document["series"]:
        drawn = sum(value * (edges[n + 1] - edges[n]) for n, value in enumerate(line["values"]))
        assert drawn == pytest.approx(expected[line["label"]], rel=1e-4)


def test_costs_and_waits(site: Site) -> None:
    rates = CostRates("EUR", 3.6, (("t4", 1.8),))
    site.world.services.accounting._rates = rates
    users = csv.DictReader(io.StringIO(site.get(f"/analytics?{SPAN}&format=csv&table=waste").text))
    assert {row["who"]: float(row["cost"]) for row in users} == pytest.approx(hand_case.COST, abs=1e-5)
    waits = site.get(f"/ui/series/pool/waiting?{SPAN}").json()["series"][0]["values"]
    assert sorted(value for value in waits if value is not None) == sorted(WAITED.values())
