"""Reports in the dashboard: the form, the table, and files that are what the API and the command line make."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import pytest
from pool_world import ANN, BEGIN, BOB, World, world_in
from web_harness import Site, words

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.usage import GroupBy
from gpupool.services.usage import analytics
from gpupool.web.pages.reports import read_form

SPAN = f"since={BEGIN:.0f}&until={BEGIN + 3600:.0f}"
DAY = "period=days&from=2027-01-15&to=2027-01-15"  # the day of BEGIN, 08:00 UTC


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield an hour and a minute: ann holds half a GPU for 1,200 s; bob waits 1,200 s and holds two for 900 s."""

    async def story(world: World) -> None:
        half = await world.submit(ANN, name="half", gpus={"fraction": 0.5})
        two = await world.submit(BOB, name="two", gpus={"count": 2})
        await world.pass_time(1200)
        await world.end(half)
        await world.pass_time(900)
        await world.end(two)
        await world.pass_time(1560)

    with pytest.MonkeyPatch.context() as patch, world_in(tmp_path_factory.mktemp("past")) as world:
        patch.setattr(analytics, "PATIENCE_S", 60.0)
        world.do(world.reboot())
        world.do(story(world))
        yield Site(world)


def test_report_page_has_sum_and_rows(site: Site) -> None:
    text = words(site.get(f"/reports?{DAY}&by=user").text)
    assert "GPU hours held 0.67" in text  # (0.5 * 1200 + 2 * 900) / 3600
    assert "bob 0.50" in text
    assert "ann 0.17" in text
    assert "20m" in text  # bob's wait
    assert "gpupool report --since 2027-01-15T00:00:00Z" in text


def test_files_equal_the_api_and_the_page(site: Site) -> None:
    query = f"{SPAN}&by=user"
    mine = site.get(f"/reports/download/csv?{query}")
    assert "attachment" in mine.headers["content-disposition"]
    assert mine.text == site.get(f"/v1/usage/report?{query}&format=csv").text
    held = {row["key"]: 3600 * float(row["allocated_gpu_hours"]) for row in csv.DictReader(io.StringIO(mine.text))}
    assert held == pytest.approx({"bob": 1800.0, "ann": 600.0})
    page = csv.DictReader(io.StringIO(site.get(f"/reports?{DAY}&by=user&format=csv&table=report").text))
    assert {row["key"]: 3600 * float(row["allocated"]) for row in page} == pytest.approx(held, abs=0.01)
    document = site.get(f"/reports/download/json?{query}").json()
    assert {line["key"]: line["allocated_s"] for line in document["lines"]} == pytest.approx(held)
    html = site.get(f"/reports/download/html?{query}")
    assert "<svg" in html.text
    assert "script" not in html.headers["content-security-policy"].replace("default-src 'none'", "")


def test_links_on_the_page_lead_to_the_same_report(site: Site) -> None:
    html = site.get(f"/reports?{DAY}&by=project&step=hour").text
    for form in ("csv", "json", "html"):
        start = html.index(f"/reports/download/{form}?")
        link = html[start : html.index('"', start)].replace("&amp;", "&")
        assert site.get(link).status_code == 200
        assert "by=project" in link
        assert "step=hour" in link


@pytest.mark.parametrize("by", [by.value for by in GroupBy])
def test_every_grouping_has_a_page(site: Site, by: str) -> None:
    assert "GPU hours held 0.67" in words(site.get(f"/reports?{DAY}&by={by}").text)


def test_empty_report_is_computed_again(site: Site) -> None:
    empty = site.get("/reports?period=days&from=2027-01-14&to=2027-01-14").text
    assert "No GPU usage in this period" in words(empty)
    assert 'data-live="often"' in empty
    assert 'data-live="off"' in site.get(f"/reports?{DAY}").text


@pytest.mark.parametrize(("period", "grain_s"), [("7d", 10.0), ("30d", 60.0), ("year", 60.0)])
def test_report_is_cached_for_a_while(period: str, grain_s: float) -> None:
    ends = {read_form({"period": period}, BEGIN + second, "UTC").wish.until for second in range(120)}
    assert ends == {BEGIN + begin * grain_s for begin in range(round(120 / grain_s))}


@pytest.mark.parametrize(
    ("query", "zone", "days"),
    [
        ({"period": "7d"}, "UTC", (7.0, 0.0)),
        ({"period": "month"}, "UTC", (14 + 7 / 24, 0.0)),
        ({"period": "last-month"}, "UTC", (45 + 7 / 24, 14 + 7 / 24)),
        ({"period": "year"}, "UTC", (14 + 7 / 24, 0.0)),
        ({"period": "days", "from": "2027-01-10", "to": "2027-01-11"}, "Europe/Berlin", (5 + 8 / 24, 3 + 8 / 24)),
    ],
)
def test_periods_start_and_end_with_days_of_the_time_zone(
    query: dict[str, str], zone: str, days: tuple[float, float]
) -> None:
    now = BEGIN - 3600.0  # 07:00 UTC, 08:00 in Berlin
    wish = read_form(query, now, zone).wish
    assert ((now - wish.since) / 86400, (now - wish.until) / 86400) == pytest.approx(days)


@pytest.mark.parametrize(
    "query",
    [
        {"period": "ever"},
        {"by": "colour"},
        {"step": "blink"},
        {"period": "days", "from": "today"},
        {"period": "days", "from": "0001-01-01"},
    ],
)
def test_invalid_report_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(GpupoolError) as caught:
        read_form(query, BEGIN, "UTC")
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_future_period_is_refused_on_a_page(site: Site) -> None:
    assert site.get("/reports?period=days&from=2030-01-01&to=2030-01-02").status_code == 400
    assert site.get("/reports/download/csv?since=x&until=5").status_code == 400
