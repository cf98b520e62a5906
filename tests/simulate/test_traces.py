from __future__ import annotations

from pathlib import Path

import pytest

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.simulate.clusters import parse_cluster, parse_nodes, permuted
from gpupool.simulate.load import at_load, capacity_of, inflated, offered_load, permille_of, split
from gpupool.simulate.traces import TraceFormat, format_of, parse_all, parse_trace, read_nodes, read_trace

OWN = "submitted_s,duration_s,gpus,gpu_permille,gpu_memory_mib,cpus,memory_mib,model,project,user,kind"
OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
OPENB_NODES = "sn,cpu_milli,memory_mib,gpu,model"


def test_our_own_format_has_every_field() -> None:
    line = "5,60,2,500,,4,1024,A100|H100,vision,ann,interactive"
    (job,) = parse_trace([OWN, line], TraceFormat.GPUPOOL).jobs
    assert (job.submitted_s, job.duration_s, job.cpus, job.memory_mib) == (5.0, 60.0, 4.0, 1024)
    assert job.request == GpuRequest(2, 500, None, ("A100", "H100"))
    assert (job.project, job.user, job.preemptible) == ("vision", "ann", False)


def test_own_format_has_departments_windows_checkpoints_and_reservations() -> None:
    header = "submitted_s,duration_s,gpus,kind,project,user,department,priority,checkpoint_s,windows,nodes"
    rows_ = [
        "5,60,1,training,vision,ann,ml,3,1800,nights; sat,sun,",
        "6,60,1,,speech,bob,ml,,,,",
        "100,50,0,reservation,vision,,,,,,n1|n2",
        "200,50,0,reservation,,,,,,,n1",
    ]
    rows_[0] = '5,60,1,training,vision,ann,ml,3,1800,"nights; sat,sun",'
    trace = parse_trace([header, *rows_], TraceFormat.GPUPOOL)
    first, second = trace.jobs
    assert (first.priority, first.checkpoint_s, first.windows) == (3, 1800.0, ("nights", "sat,sun"))
    assert (second.priority, second.checkpoint_s, second.windows) == (0, None, ())
    assert {project.name: project.department for project in trace.projects} == {"vision": "ml", "speech": "ml"}
    booked, upkeep = trace.reservations
    assert (booked.nodes, booked.starts_at, booked.ends_at) == (("n1", "n2"), 100.0, 150.0)
    assert booked.admits("vision", "ann")
    assert upkeep.maintenance
    assert trace.timed
    assert trace.skipped == 0


def test_three_columns_of_our_own_are_enough_and_order_does_not_matter() -> None:
    trace = parse_trace(["gpus,duration_s,submitted_s", "1,10,7", "2,10,3", "0,10,1"], TraceFormat.GPUPOOL)
    assert [job.submitted_s for job in trace.jobs] == [3.0, 7.0]
    assert all(job.preemptible and job.request.whole for job in trace.jobs)
    assert trace.skipped == 1


def test_openb_pod_runs_from_scheduling_to_deletion() -> None:
    lines = [OPENB, "p1,12000,16384,1,460,V100M16|V100M32,BE,Running,100,700,200", "p2,8000,1,1,1000,,LS,Failed,5,25,"]
    late, early = parse_trace([*lines, "p3,1000,1,0,0,,LS,Running,1,2,1"], TraceFormat.OPENB).jobs[::-1]
    assert (late.submitted_s, late.duration_s, late.cpus, late.preemptible) == (100.0, 500.0, 12.0, True)
    assert late.request == GpuRequest(1, 460, models=("V100M16", "V100M32"))
    assert (early.duration_s, early.preemptible) == (20.0, False)
    assert len(parse_all([*lines, "p3,1000,1,0,0,,LS,Running,1,2,1"], TraceFormat.OPENB)) == 3


def test_philly_job_has_virtual_cluster_as_project() -> None:
    lines = ["timestamp,duration,num_gpus,gpu_time,cluster", "1970-01-01 00:01:00,66.0,4,264.0,11cb48"]
    (job,) = parse_trace(lines, TraceFormat.PHILLY).jobs
    assert (job.submitted_s, job.duration_s, job.request.count, job.project) == (60.0, 66.0, 4, "11cb48")


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        (OWN, TraceFormat.GPUPOOL),
        (OPENB, TraceFormat.OPENB),
        ("timestamp,duration,num_gpus,gpu_time,cluster\n", TraceFormat.PHILLY),
    ],
)
def test_first_line_determines_format(header: str, kind: TraceFormat) -> None:
    assert format_of(header) is kind


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["a,b,c"], "no column submitted_s"),
        ([], "no column submitted_s"),
        (["submitted_s,duration_s,gpus"], "no job"),
        (["submitted_s,duration_s,gpus", "1,2"], "Line 2: 2 fields where"),
        (["submitted_s,duration_s,gpus", "1,2,1", "x,2,1"], "Line 3: submitted_s is 'x'"),
        (["submitted_s,duration_s,gpus", "1,nan,1"], "Line 2: duration_s is 'nan'"),
        (["submitted_s,duration_s,gpus", "1,-2,1"], "Line 2: duration_s is '-2'"),
        (["submitted_s,duration_s,gpus", "1,inf,1"], "Line 2: duration_s is 'inf'"),
        (["submitted_s,duration_s,gpus", "1,2,1.5"], "not a whole number"),
        (["submitted_s,duration_s,gpus", "1,2,99999999"], "from 0 to 10000"),
        (["submitted_s,duration_s,gpus,gpu_permille", "1,2,1,0"], "gpu_permille is 0"),
        (["submitted_s,duration_s,gpus,gpu_permille", "1,2,1,1001"], "from 0 to 1000"),
        (["submitted_s,duration_s,gpus,kind", "1,2,1,party"], "kind is 'party'"),
        (["submitted_s,duration_s,gpus,windows", "1,2,1,someday"], "Line 2: 'someday' is not a time window"),
        (["submitted_s,duration_s,gpus,checkpoint_s", "1,2,1,often"], "Line 2: checkpoint_s is 'often'"),
        (["submitted_s,duration_s,gpus,kind", "1,2,1,", "1,2,0,reservation"], "Line 3: a reservation names no nodes"),
        (["submitted_s,duration_s,gpus,project,department", "1,2,1,a,x", "1,2,1,a,y"], "Line 3: project a is in"),
        (["submitted_s,duration_s,gpus,project", f"1,2,1,{'x' * 201}"], "longer than 200"),
        (["submitted_s,duration_s,gpus", f'1,2,"{"x" * 140_000}"'], "field larger"),
    ],
)
def test_trace_error_names_its_line(lines: list[str], said: str) -> None:
    with pytest.raises(GpupoolError, match=said) as raised:
        parse_trace(lines, TraceFormat.GPUPOOL)
    assert raised.value.code is ErrorCode.INVALID_FILE
    assert raised.value.hint


def test_unknown_header_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    strange = tmp_path / "strange.csv"
    strange.write_bytes(b"\xff\xfe\x00")
    for path, said in [(tmp_path / "none.csv", "No such file"), (tmp_path, "directory"), (strange, "UTF-8")]:
        with pytest.raises(GpupoolError, match=said):
            read_trace(path)
    with pytest.raises(GpupoolError, match="known format"):
        format_of("when,how_long")
    strange.write_text("")
    with pytest.raises(GpupoolError, match="known format"):
        read_trace(strange)
    with pytest.raises(GpupoolError, match="no column"):
        read_nodes(strange)


def test_clusters_in_words_and_tables() -> None:
    nodes = parse_cluster("2x8xA100, 1x2xT4")
    assert [len(node.report.gpus) for node in nodes] == [8, 8, 2]
    assert capacity_of(nodes) == 18_000
    (node,) = parse_nodes([OPENB_NODES, "n1,64000,262144,2,P100", "n2,1000,1,0,"])
    assert (node.name, node.report.cpus, node.report.memory_mib) == ("n1", 64.0, 262144)
    (flat,) = parse_nodes(["gpu_model,gpu_capacity_num,cpu_num,node_name", "A10,1,128,2"])
    assert (flat.name, flat.report.cpus, flat.report.gpus[0].model) == ("node-2", 128.0, "A10")


@pytest.mark.parametrize("text", ["", "8xA100", "0x8xA100", "2x0xA100", "2x65xA100", "x", "1x1xA,", "200000x1xA"])
def test_invalid_cluster_is_refused(text: str) -> None:
    with pytest.raises(GpupoolError) as raised:
        parse_cluster(text)
    assert raised.value.hint


def test_nodes_may_not_share_a_name() -> None:
    with pytest.raises(GpupoolError, match="twice"):
        parse_nodes([OPENB_NODES, "n1,1,1,2,P100", "n1,1,1,2,P100"])


def test_permuting_keeps_the_machines_and_changes_their_names() -> None:
    nodes = parse_cluster("5x8xA100,5x1xT4")
    again, other = permuted(nodes, 1), permuted(nodes, 2)
    assert permuted(nodes, 1) == again
    assert [n.report.gpus for n in again] != [n.report.gpus for n in other]
    uuids = [sorted(gpu.uuid for n in found for gpu in n.report.gpus) for found in (again, nodes)]
    assert uuids[0] == uuids[1]
    assert len({n.name for n in again}) == 10


def test_trace_is_stretched_to_a_load() -> None:
    lines = ["submitted_s,duration_s,gpus", "0,100,1", "50,100,2", "100,100,1"]
    jobs = parse_trace(lines, TraceFormat.GPUPOOL).jobs
    assert offered_load(jobs, 4000) == pytest.approx(1.0)
    slower = at_load(jobs, 4000, 0.5)
    assert [job.submitted_s for job in slower] == [0.0, 100.0, 200.0]
    for load, few in [(0.0, jobs), (float("nan"), jobs), (2000.0, jobs), (1.0, jobs[:1])]:
        with pytest.raises(GpupoolError, match="load cannot be set"):
            at_load(few, 4000, load)


def test_inflating_keeps_every_job_and_is_the_same_for_a_seed() -> None:
    lines = ["submitted_s,duration_s,gpus", *(f"{n},1,{1 + n % 3}" for n in range(20))]
    jobs = parse_trace(lines, TraceFormat.GPUPOOL).jobs
    more = inflated(jobs, 50_000, 1.3, 7)
    assert more == inflated(jobs, 50_000, 1.3, 7) != inflated(jobs, 50_000, 1.3, 8)
    assert 65_000 <= sum(permille_of(job.request) for job in more) < 68_000
    assert sorted(j.request.count for j in more[:20]) == sorted(j.request.count for j in jobs)


def test_request_too_large_for_node_is_split() -> None:
    assert [part.count for part in split(GpuRequest(19), 8)] == [8, 8, 3]
    assert split(GpuRequest(8), 8) == (GpuRequest(8),)
    assert split(GpuRequest(12), 8) == (GpuRequest(6), GpuRequest(6))
