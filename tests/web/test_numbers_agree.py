"""A past reckoned by hand: what a page, the API, a file and Prometheus say of it is the same."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from collections.abc import Iterator

import hand_case as case
import pool_world
import pytest
from pool_world import world_in
from web_harness import Site

from gpupool.services.usage import analytics

SPAN = f"since={case.SINCE}&until={case.UNTIL}"
EXACT = {"rel": 1e-12, "abs": 1e-6}
EVER = {"vision": 3600 + 5370 * 0.5, "speech": 3600 * 0.1 + 5420}  # from their first to their last second
LOOK_BACK_S = 6 * 3600.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a pool that begins six hours after the end of that history; the part before noon is summed."""
    folder = tmp_path_factory.mktemp("case")
    asyncio.run(case.write(folder / "pool.db", summed_until="12:00:00"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analytics, "PATIENCE_S", 60.0)
        patch.setattr(pool_world, "BEGIN", case.at("14:00:00") + LOOK_BACK_S)
        with world_in(folder) as world:
            yield Site(world)


def test_api_and_files_equal_manual_sums(site: Site) -> None:
    report = site.get(f"/v1/usage/report?{SPAN}&by=project").json()
    found = {line["key"]: line for line in report["lines"]}
    assert {key: line["allocated_s"] for key, line in found.items()} == pytest.approx(case.ALLOCATED, **EXACT)
    assert {key: line["requested_s"] for key, line in found.items()} == pytest.approx(case.REQUESTED, **EXACT)
    for path in ("/v1/usage/report?format=csv&", "/reports/download/csv?"):
        rows = csv.DictReader(io.StringIO(site.get(f"{path}{SPAN}&by=project").text))
        held = {row["key"]: float(row["allocated_gpu_hours"]) * 3600 for row in rows}
        assert held == pytest.approx(case.ALLOCATED, **EXACT)


def test_page_shows_hours(site: Site) -> None:
    asked = "period=days&from=2026-09-04&to=2026-09-04&by=project"
    rows = csv.DictReader(io.StringIO(site.get(f"/reports?{asked}&format=csv&table=report").text))
    held = {row["key"]: float(row["allocated"]) for row in rows}
    assert held == pytest.approx({key: seconds / 3600 for key, seconds in EVER.items()}, abs=0.005)


def test_prometheus_counts_seconds(site: Site) -> None:
    text = site.get("/metrics").text
    pattern = r'gpupool_project_gpu_allocated_seconds_total\{project="(\w+)"\} (\S+)'
    counted = {name: float(value) for name, value in re.findall(pattern, text) if float(value)}
    assert counted == pytest.approx(EVER, abs=0.01)


def test_hours_add_up_to_the_day(site: Site) -> None:
    lines = site.get(f"/v1/usage?{SPAN}&by=project&step=hour").json()["lines"]
    for project, seconds in case.ALLOCATED.items():
        hours = [line["allocated_s"] for line in lines if line["key"] == project]
        assert sum(hours) == pytest.approx(seconds, **EXACT)


def test_days_follow_time_zone_and_lose_nothing(site: Site) -> None:
    asked = f"since={case.DAY - 86_400}&until={case.DAY + 86_400}&by=pool&step=day&zone=Europe/Berlin"
    days = site.get(f"/v1/usage?{asked}").json()["lines"]
    assert [line["at"] for line in days] == [case.DAY - 7200]
    assert sum(line["allocated_s"] for line in days) == pytest.approx(sum(EVER.values()), **EXACT)
