from __future__ import annotations

import csv
import io
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from gpupool.cli.transport.pool_history import needs_replicas, pool_jobs, pool_nodes, pool_projects
from gpupool.domain.errors import GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.people.access import Project
from gpupool.simulate.clusters import parse_cluster
from gpupool.simulate.engine import Simulation
from gpupool.simulate.html_report import CHARTS, page
from gpupool.simulate.load import Change
from gpupool.simulate.metrics import fair_levels, job_table, share_errors, summary
from gpupool.simulate.values import TraceJob

TWO = parse_cluster("2x2xT4")


def test_nodes_come_and_go() -> None:
    change = Change(added=parse_cluster("1 x 4 x A100"), without=("node00001",))
    assert [(node.name, len(node.report.gpus)) for node in change.nodes(TWO)] == [("node00000", 2), ("added00001", 4)]
    assert not Change()
    with pytest.raises(GpupoolError, match="no node node7"):
        Change(without=("node7",)).nodes(TWO)
    with pytest.raises(GpupoolError, match="No node would be left"):
        Change(without=("node00000", "node00001")).nodes(TWO)


def test_quotas_and_weights_change_and_the_rest_of_a_project_stays() -> None:
    change = Change(quotas={"red": 6000, "new": None}, weights={"blue": 2.0})
    red, blue, new = change.projects([Project("red", 4000, limit_permille=9000), Project("blue", 1000)])
    assert (red.quota_permille, red.limit_permille) == (6000, 9000)
    assert (blue.quota_permille, blue.weight) == (1000, 2.0)
    assert (new.name, new.quota_permille) == ("new", None)


def test_fair_levels_serve_quotas_first_and_then_go_by_weight() -> None:
    projects = [Project("red", 4000), Project("blue", 2000, weight=3.0), Project("idle", 5000)]
    assert fair_levels(10_000, {"red": 20_000, "blue": 20_000}, projects) == {"red": 5000, "blue": 5000, "idle": 0}
    assert fair_levels(3000, {"red": 9000, "blue": 9000}, projects) == {"red": 2000, "blue": 1000, "idle": 0}
    assert fair_levels(10_000, {"red": 1000}, projects) == {"red": 1000, "blue": 0, "idle": 0}


def test_share_error_counts_gpus_held_above_fair_share() -> None:
    jobs = [TraceJob(0, 100, GpuRequest(4), "red"), TraceJob(1, 100, GpuRequest(1), "blue", preemptible=False)]
    record = Simulation(jobs, parse_cluster("1x4xT4"), [Project("red", 4000), Project("blue", 0)]).run()
    assert share_errors(record) == [0.0] * 100
    owed = [TraceJob(0, 100, GpuRequest(4), "red", preemptible=False), TraceJob(50, 100, GpuRequest(2), "blue")]
    record = Simulation(owed, parse_cluster("1x4xT4"), [Project("red", 4000), Project("blue", 2000)]).run()
    assert max(share_errors(record)) == 0.0  # looked at only until the last submission


def _shown(jobs: int = 30) -> dict[str, Any]:
    work = [TraceJob(n * 5.0, 40.0, GpuRequest(1), f"p<{n % 2}>") for n in range(jobs)]
    return summary(Simulation(work, TWO).run())


def test_figures_are_drawings_of_all_runs_that_load_nothing() -> None:
    made = page("What <if>", {"now": _shown(), "changed": _shown(40)})
    drawings = made.split("<svg")[1:]
    assert len(drawings) == len(CHARTS)
    for drawing in drawings:
        root = ET.fromstring("<svg" + drawing.split("</svg>")[0] + "</svg>")
        lines = [line for line in root.iter() if line.tag.endswith("polyline")]
        assert [len(line.attrib["points"].split()) for line in lines] in ([100, 100], [101, 101])
    assert "What &lt;if&gt;" in made
    assert "p&lt;1&gt;" in made
    assert "http" not in made.replace("http://www.w3.org/2000/svg", "")


def test_every_job_is_a_row() -> None:
    jobs = [
        TraceJob(0, 100, GpuRequest(4), "red", "ann"),
        TraceJob(1, 2.5, GpuRequest(1, 500), "red", "ann"),
        TraceJob(2, 1, GpuRequest(1, 500, models=("A",))),
    ]
    first, second, third = csv.DictReader(io.StringIO(job_table(Simulation(jobs, parse_cluster("1x4xT4")).run())))
    assert (first["project"], first["user"], first["gpus"], first["wait_s"], first["delay_s"]) == (
        "red",
        "ann",
        "4",
        "0",
        "0",
    )
    assert (second["gpu_permille"], second["duration_s"], second["wait_s"]) == ("500", "2.5", "99")
    assert (third["wait_s"], third["impossible"]) == ("", "No node has a GPU of model A.")


def _workload(name: str, **more: Any) -> dict[str, Any]:
    gpus = {"count": 1, "permille": 1000, "memory_mib": None, "models": [], "labels": {}}
    usual = {
        "id": name,
        "kind": "training",
        "project": "p",
        "user": "u",
        "preemptible": True,
        "priority": 0,
        "gpus": gpus,
    }
    usual |= {
        "created_at": 10.0,
        "started_at": 20.0,
        "finished_at": 50.0,
        "completions": 1,
        "cpus": None,
        "memory_mib": None,
    }
    return usual | more


def test_workloads_of_pool_become_a_trace() -> None:
    sweep = _workload("sweep", completions=3)
    gang = _workload("gang", completions=2, gang={"workers": 2, "min": 2, "within": "", "strict": False})
    waits = _workload("waits", started_at=None, finished_at=None)
    assert [needs_replicas(w) for w in (sweep, gang, waits)] == [True, False, False]
    ran = [{"started_at": 20.0, "finished_at": 25.0}, {"started_at": 25.0, "finished_at": None}, {"started_at": None}]
    trace = pool_jobs([sweep, gang, waits, _workload("shell", kind="exec")], {"sweep": ran}, now=60.0)
    assert [(job.duration_s, job.members) for job in trace.jobs] == [(5.0, 1), (35.0, 1), (30.0, 2)]
    assert trace.skipped == 2
    with pytest.raises(GpupoolError, match="No job with a GPU ran"):
        pool_jobs([waits], {}, now=60.0)


def test_nodes_and_projects_of_pool_are_imported() -> None:
    gpu = {"uuid": "g1", "index": 0, "model": "T4", "memory_mib": 15_360}
    listed = {"name": "n1", "cpus": 8.0, "memory_mib": 1000, "labels": {"rack": "r1"}, "gpus": [gpu]}
    (node,) = pool_nodes([listed, listed | {"name": "n2", "gpus": []}])
    assert (node.name, node.all_labels, node.report.gpus[0].model) == ("n1", {"rack": "r1"}, "T4")
    (project,) = pool_projects([{"name": "red", "quota_permille": 2000, "over_quota": False, "weight": 2.0}])
    assert project == Project("red", 2000, over_quota=False, weight=2.0)
