"""A history computed by hand is reported to the second by the store, the API and every form of ``gpupool report``."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime

import hand_case as case
import pytest
from e2e_pool import RealPool, folder_for_pool

from gpupool.domain.usage import UsageFilter
from gpupool.services.ports.usage import Dim, TimeQuery
from gpupool.store import open_store

SPAN = ("--since", case.SINCE_TEXT, "--until", case.UNTIL_TEXT)
EXACT = {"rel": 1e-12, "abs": 1e-6}


@pytest.fixture(scope="module")
def pool() -> Iterator[RealPool]:
    """Yield a pool with that history; the hours up to noon are summed."""
    with folder_for_pool() as folder:
        made = RealPool(folder, "1xT4")
        made.env["TZ"] = "UTC"
        made.state.mkdir(mode=0o700)
        asyncio.run(case.write(made.state / "pool.db", summed_until="12:00:00"))
        try:
            made.up()
            made("report", "rates", "set", *case.RATES)
            yield made
        finally:
            made.down("--stop-jobs")


def lines(pool: RealPool, by: str, *more: str) -> dict[str, dict[str, float]]:
    return {line["key"]: line for line in pool.json("report", *SPAN, "--by", by, *more)["lines"]}


def amounts(found: dict[str, dict[str, float]], name: str) -> dict[str, float]:
    return {key: line[name] for key, line in found.items()}


def test_store_has_expected_sums() -> None:
    async def read(summed_until: str | None) -> dict[str, float]:
        with folder_for_pool() as folder:
            await case.write(folder / "pool.db", summed_until)
            store = await open_store(folder / "pool.db")
            rows = await store.usage_books.gpu_time(TimeQuery((case.SINCE, case.UNTIL), (Dim.PROJECT,), UsageFilter()))
            await store.close()
            return {row.keys[0]: row.allocated_s for row in rows}

    for summed_until in (None, "12:00:00", "13:00:00"):
        assert asyncio.run(read(summed_until)) == pytest.approx(case.ALLOCATED, **EXACT)


def test_report_groups_by_project(pool: RealPool) -> None:
    found = lines(pool, "project")
    assert amounts(found, "allocated_s") == pytest.approx(case.ALLOCATED, **EXACT)
    assert amounts(found, "requested_s") == pytest.approx(case.REQUESTED, **EXACT)
    for name, wanted in (("used_s", case.USED), ("idle_s", case.IDLE)):
        assert found["vision"][name] == pytest.approx(wanted["vision"], **EXACT)
        assert found["speech"][name] is wanted["speech"] is None
    assert amounts(found, "measured_s") == pytest.approx(case.MEASURED, **EXACT)
    assert amounts(found, "cost") == pytest.approx(case.COST, **EXACT)
    assert amounts(found, "leases") == case.GRANTED


@pytest.mark.parametrize(
    ("by", "wanted"),
    [("user", case.BY_USER), ("model", case.BY_MODEL), ("node", case.BY_NODE)],
    ids=lambda v: str(v)[:5],
)
def test_report_supports_all_groupings(pool: RealPool, by: str, wanted: dict[str, float]) -> None:
    found = lines(pool, by)
    assert amounts(found, "allocated_s") == pytest.approx(wanted, **EXACT)
    assert (found[next(iter(wanted))]["requested_s"] is None) == (by != "user")


def test_report_lists_workloads_and_pages(pool: RealPool) -> None:
    by_work = {line["name"]: line["allocated_s"] for line in lines(pool, "workload").values()}
    assert by_work == pytest.approx({"case-1": 1785, "case-2": 2685, "case-3": 64.5, "case-4": 5}, **EXACT)
    assert amounts(lines(pool, "user", "--project", "vision"), "allocated_s") == pytest.approx(
        {"ada": 1785, "bob": 2685}, **EXACT
    )
    assert amounts(lines(pool, "project", "--node", "n1"), "allocated_s") == pytest.approx(
        {"vision": 4470, "speech": 5}, **EXACT
    )


def test_hours_add_up_to_the_report(pool: RealPool) -> None:
    report = pool.json("report", *SPAN, "--by", "project", "--step", "hour")
    by_hour: dict[int, float] = defaultdict(float)
    for line in report["timeline"]:
        by_hour[datetime.fromtimestamp(line["at"], UTC).hour] += line["allocated_s"]
    assert by_hour == pytest.approx({10: 1785 + 435 + 5, 11: 1800, 12: 450, 13: 64.5}, **EXACT)
    assert report["total"]["allocated_s"] == pytest.approx(sum(case.ALLOCATED.values()), **EXACT)
    assert {w["key"]: w["p50_s"] for w in report["waits"]} == pytest.approx(case.WAITED, **EXACT)


def test_usage_api_is_unchanged(pool: RealPool) -> None:
    with pool.client as client:
        found = client.usage(case.SINCE, case.UNTIL)
    rows = {(row.project, row.user): (row.gpu_seconds, row.leases) for row in found.rows}
    assert rows[("vision", "ada")] == pytest.approx((1785, 1), **EXACT)
    assert rows[("vision", "bob")] == pytest.approx((2685, 1), **EXACT)
    assert rows[("speech", "ada")] == pytest.approx((69.5, 2), **EXACT)


def test_table_shows_hours(pool: RealPool) -> None:
    said = pool.text("report", *SPAN)
    vision = next(line for line in said.splitlines() if line.startswith("vision"))
    assert vision.split()[1:4] == ["1.24", "1.28", "0.65"]
    assert "2.24 EUR" in vision
    assert "5m05s" in vision
    assert "not measured" in next(line for line in said.splitlines() if line.startswith("speech"))


def test_csv_equals_the_page(pool: RealPool) -> None:
    rows = list(csv.DictReader(io.StringIO(pool.text("report", *SPAN, "--csv"))))
    held = {row["key"]: float(row["allocated_gpu_hours"]) * 3600 for row in rows}
    assert held == pytest.approx(case.ALLOCATED, **EXACT)
    assert {row["key"]: row["used_gpu_hours"] == "" for row in rows} == {"vision": False, "speech": True}
    pool("report", *SPAN, "--html", "use.html")
    page = (pool.work / "use.html").read_text()
    assert re.search(r"<td>vision</td>.*?<td>1\.24</td>", page)
    assert "<script" not in page
    assert "http" not in page


def test_invalid_report_is_refused(pool: RealPool) -> None:
    assert pool("report", "--by", "colour", ok=False).returncode == 2
    assert pool("report", "--csv", "--json", ok=False).returncode == 2
    done = pool("report", "--since", "2026-09-05", "--until", "2026-09-04", ok=False)
    assert (done.returncode, b"[INVALID_REQUEST]" in done.stderr) == (125, True), done
    assert b"[INVALID_FILE]" in pool("report", "--html", "/nowhere/at/all.html", ok=False).stderr


def test_rates_are_stored_and_validated(pool: RealPool) -> None:
    shown = json.loads(pool("report", "rates", "show", "--json").stdout)
    assert shown == {"currency": "EUR", "default": 3.6, "models": {"t4": 1.8}}
    assert pool("report", "rates", "set", "--default", "-1", ok=False).returncode != 0
    said = pool.text("report", "rates", "set", "--model", "v100=none").split()
    assert said[-7:] == ["t4:", "1.8", "EUR", "other", "models:", "3.6", "EUR"]
