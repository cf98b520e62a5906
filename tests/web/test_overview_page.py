"""The overview: what its numbers count, how slices are drawn, and what needs a look."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from pool_world import ADMIN, ANN, BOB
from web_harness import Site, words

from gpupool.domain.nodes.telemetry import GpuSample, NodeSample, ReplicaSample
from gpupool.domain.work.workload import Workload

DASH = "\u2013"


def slices(html: str) -> list[tuple[str, float, float]]:
    """Return the drawn slices: the workload's id, the start and the width of its slice, in percent of the GPU."""
    found = re.findall(
        r'<a href="/workloads/(\w+)".*?<rect class="edge" x="([\d.]+)%" width="([\d.]+)%"/>', html, re.DOTALL
    )
    return [(name, float(x), float(width)) for name, x, width in found]


def tiles(site: Site) -> dict[str, tuple[str, str]]:
    """Return the numbers at the top by title, with their notes."""
    html = site.get("/").text
    found = re.findall(r'tile-title">(.*?)</span>.*?tile-value">(.*?)</span>(.*?)</(?:a|div)>', html, re.DOTALL)
    return {title: (value, words(note)) for title, value, note in found}


def submit(site: Site, actor: Any, **body: Any) -> Workload:
    return site.world.do(site.world.submit(actor, **body))


def measure(site: Site, *replicas: ReplicaSample, gpu_percent: float | None = 40.0) -> None:
    look = NodeSample("here", 1, site.world.clock.now(), 5.0, 900, (GpuSample("GPU-0", gpu_percent, 500),), replicas)
    site.world.services.telemetry.latest = lambda: {"here": look}  # type: ignore[method-assign]


def test_fresh_pool_shows_next_step(site: Site) -> None:
    text = words(site.get("/").text)
    assert "No workloads" in text
    assert "gpupool run -n 1 -p 0.1 -- python3 train.py" in text
    assert tiles(site)["GPUs"] == ("2", "Tesla T4")


def test_pool_without_nodes_shows_next_step(site: Site) -> None:
    site.world.now._nodes._nodes.clear()
    assert "No node has joined yet" in words(site.get("/").text)


def test_overview_counts_nodes_gpus_and_workloads(site: Site) -> None:
    submit(site, ANN, gpus={"fraction": 0.25})
    submit(site, BOB, gpus={"count": 1})
    submit(site, BOB, gpus={"count": 2})
    site.world.do(site.world.pass_time(90))
    numbers = tiles(site)
    assert numbers["Nodes ready"][0] == "1 of 1"
    assert numbers["Allocated"] == ("62 %", "1.25 of 2 GPUs")
    assert numbers["Running"] == ("2", "2 leases")
    assert numbers["Waiting"] == ("1", "longest 1m30s")
    assert numbers["Used now"] == (DASH, "not measured")
    assert numbers["Allocated, idle"] == ("0", "over 5 min, 0 leases")
    site.world.do(site.world.pass_time(300))
    assert tiles(site)["Allocated, idle"] == ("1.25", "over 5 min, 2 leases")


def test_slices_are_drawn_to_scale_side_by_side(site: Site) -> None:
    made = [submit(site, who, gpus={"fraction": part}) for who, part in ((ANN, 0.25), (BOB, 0.125), (ANN, 0.5))]
    drawn = slices(site.get("/").text)
    assert sorted(width for _, _, width in drawn) == [12.5, 25.0, 50.0]
    assert {name for name, _, _ in drawn} == {workload.id for workload in made}
    ends = [x + width for _, x, width in drawn]
    assert [x for _, x, _ in drawn] == [0.0, *ends[:-1]]
    assert ends[-1] == 87.5


def seen(site: Site, workload: Workload, key: str, gpu_percent: float) -> ReplicaSample:
    """Return a sample of a program that runs on the GPUs of a workload's lease."""
    lease = next(one for one in site.world.now.engine.mirror.leases.values() if one.workload == workload.id)
    return ReplicaSample(key, gpu_percent, 500, 100.0, 300, 0, 0, 1, lease=lease.epoch, gpus=1)


def test_line_in_a_slice_shows_its_use(site: Site) -> None:
    made = submit(site, ANN, gpus={"fraction": 0.5})
    measure(site, seen(site, made, site.world.program(made), 20.0))
    html = site.get("/").text
    assert '<rect class="use" x="0%" width="20%"/>' in html, "20 % of a GPU are 40 % of half a GPU"
    assert "uses 40% of it" in html
    assert tiles(site)["Used now"] == ("40 %", "mean of all GPUs")


def test_programs_on_a_lease_count_as_its_use(site: Site) -> None:
    held = submit(site, ANN, kind="lease", gpus={"fraction": 0.5})
    measure(site, seen(site, held, "wsomebody.0.1", 10.0), seen(site, held, "wanother.0.1", 25.0))
    assert "uses 70% of it" in site.get("/").text


def test_missing_measurements_are_not_drawn(site: Site) -> None:
    submit(site, ANN, gpus={"fraction": 0.5})
    measure(site, gpu_percent=None)
    html = site.get("/").text
    assert 'class="use"' not in html
    assert "use not measured" in html
    assert tiles(site)["Used now"] == (DASH, "not measured")


def test_colours_follow_projects_or_users_and_others_can_be_dimmed(site: Site) -> None:
    submit(site, ANN, gpus={"fraction": 0.5})
    submit(site, BOB, gpus={"fraction": 0.5})
    by_project = site.get("/").text
    assert by_project.count('<pattern id="o') == 1
    by_user = site.get("/?by=user&only=bob").text
    assert by_user.count('<pattern id="o') == 2
    assert by_user.count("faint") == 1
    assert "ann" in words(by_user)


def test_names_are_escaped_in_drawings(site: Site) -> None:
    site.world.agent.model = 'T4 "<b>" & more'
    site.world.agent.hiccup()
    site.world.do(site.world.settle())
    submit(site, ANN, gpus={"fraction": 0.5})
    for address in ("/", "/?view=table", "/?only=%3Cscript%3Ealert(1)%3C/script%3E"):
        html = site.get(address).text
        assert "<b>" not in html
        assert "<script>alert" not in html


def test_problems_are_listed(site: Site) -> None:
    site.world.do(site.world.services.nodes.cordon(ADMIN, "here", "new disks"))
    assert "here is cordoned: new disks." in words(site.get("/").text)
    assert tiles(site)["Warnings"][0] == "1"
    site.world.agent.go(up=False)
    site.world.do(site.world.settle())
    assert "here is down." in words(site.get("/?by=user").text)


def test_large_pool_loads_first_screen_and_rest_with_first_refresh(site: Site) -> None:
    node = site.world.now._nodes.get("here")
    for number in range(39):
        site.world.now._nodes.put(replace(node, report=replace(node.report, name=f"node-{number}")))
    first = site.get("/")
    assert first.text.count('<section class="node ') == 16
    assert "24 more nodes" in words(first.text)
    for whole in (site.get("/", x_live="1"), site.get("/?all=true")):
        assert whole.text.count('<section class="node ') == 40
        assert "more nodes" not in words(whole.text)
    assert tiles(site)["Nodes ready"][0] == "40 of 40"


def test_overview_is_available_as_table_and_csv(site: Site) -> None:
    submit(site, ANN, gpus={"fraction": 0.5})
    text = words(site.get("/?view=table&sort=-allocated").text)
    assert "Held by" in text
    answer = site.get("/?view=table&sort=-allocated&format=csv&table=gpus")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.text.splitlines()[1] == "here,0,up,Tesla T4,0.5,,1,default"


@pytest.mark.parametrize("query", ["?by=colour", "?view=globe", f"?only={'x' * 129}"])
def test_unknown_view_is_refused(site: Site, query: str) -> None:
    assert site.get(f"/{query}").status_code == 400
