from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpupool.cli import entry
from gpupool.cli.commands.pool import simulate as simulating

Program = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text("submitted_s,duration_s,gpus,project\n0,100,1,vision\n10,50,1,speech\n20,30,1,vision\n")
    return path


@pytest.fixture
def simulate(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Program:
    def run(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gpupool", "simulate", *map(str, args)])
        status = entry.run()
        shown = capfd.readouterr()
        return status, shown.out, shown.err

    return run


def test_people_get_a_table(simulate: Program, trace: Path) -> None:
    status, out, err = simulate(trace, "--cluster", "1x1xA100")
    assert (status, err) == (0, "")
    assert "3, 3 finished" in out
    assert "mean 1m13s" in out
    assert [line.split()[:3] for line in out.splitlines()[-2:]] == [["speech", "1", "1"], ["vision", "2", "2"]]


def test_program_json_is_equal_each_time_except_pace(simulate: Program, trace: Path) -> None:
    runs = [json.loads(simulate(trace, "--cluster", "1x1xA100", "--seed", 3, "--json")[1]) for _ in range(2)]
    for run in runs:
        del run["wall_s"], run["starts_per_s"]
    assert runs[0] == runs[1]
    assert runs[0]["projects"]["speech"]["wait_s"]["mean"] in {90, 120}
    assert runs[0]["allocated"] == 1.0


def test_nodes_come_from_a_file_and_the_load_is_set(simulate: Program, trace: Path, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\n")
    status, out, _ = simulate(trace, "--nodes", nodes, "--load", "0.5", "--format", "gpupool", "--json")
    assert status == 0
    assert json.loads(out)["span_s"] == 180.0


def test_quota_and_number_of_jobs_are_applied(simulate: Program, trace: Path) -> None:
    args = ["--cluster", "1x1xA100", "--quota", "vision=0", "--quota", "speech=1", "--jobs", 2, "--grace", "5s"]
    shown = json.loads(simulate(trace, *args, "--json")[1])
    assert shown["jobs"] == 2
    assert (shown["preemptions"], shown["projects"]["speech"]["wait_s"]["mean"]) == (1, 55)


def test_change_is_shown_next_to_current_state(simulate: Program, trace: Path, tmp_path: Path) -> None:
    args = [trace, "--cluster", "1x1xA100", "--add-nodes", "1x1xA100", "--weight", "vision=2"]
    page, table = tmp_path / "figures.html", tmp_path / "jobs.csv"
    _, out, err = simulate(*args, "--html", page, "--csv", table)
    assert err == ""
    rows = {line.split("  ")[0]: line.split()[-2:] for line in out.splitlines()}
    assert rows["GPUs"] == ["1", "2"]
    assert rows["Waited, max"] == ["2m10s", "40s"]
    assert page.read_text().count("<polyline") == 10
    assert len(table.read_text().splitlines()) == 4
    shown = json.loads(simulate(*args, "--json")[1])
    assert (shown["base"]["gpus"], shown["changed"]["gpus"]) == (1, 2)


def test_quotas_are_shown_only_on_request(simulate: Program, trace: Path) -> None:
    args = [trace, "--cluster", "1x1xA100", "--quota", "vision=0", "--json"]
    assert "base" not in json.loads(simulate(*args)[1])
    assert "base" in json.loads(simulate(*args, "--compare")[1])


def test_loss_of_jobs_that_save_nothing_is_shown_next_to_checkpointing(simulate: Program, tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text("submitted_s,duration_s,gpus,project\n0,3600,1,vision\n1000,60,1,speech\n")
    args = [path, "--cluster", "1x1xA100", "--quota", "vision=0", "--quota", "speech=1", "--checkpoint", "5m"]
    shown = json.loads(simulate(*args, "--json")[1])
    assert shown["wasted_gpu_hours"] == pytest.approx(110 / 3600, abs=0.001)
    assert shown["from_zero"]["wasted_gpu_hours"] == pytest.approx(1010 / 3600, abs=0.001)
    assert shown["from_zero"]["delay_s"]["max"] == shown["delay_s"]["max"] + 900
    _, out, _ = simulate(*args)
    assert "delayed mean 9m00s, p99" in out
    assert "(end, compared with running alone)" in out
    compared = simulate(*args, "--compare")[1]
    assert "From zero: GPU hours lost  0.0 (0.0 %)  0.3 (21.6 %)" in " ".join(compared.split(" "))


def test_reservations_of_a_trace_are_kept(simulate: Program, tmp_path: Path) -> None:
    path = tmp_path / "class.csv"
    path.write_text(
        "submitted_s,duration_s,gpus,project,kind,nodes\n5,60,1,vision,,\n0,100,0,cs101,reservation,node00000\n"
    )
    shown = json.loads(simulate(path, "--cluster", "1x1xA100", "--json")[1])
    assert shown["wait_s"]["max"] == 95
    status, _, err = simulate(path, "--cluster", "1x1xA100", "--load", "1")
    assert (status != 0, "time windows or reservations" in err) == (True, True)
    path.write_text(path.read_text().replace("node00000", "gpu9"))
    assert "There is no node gpu9 to reserve" in simulate(path, "--cluster", "1x1xA100")[2]


def test_turns_are_tried_out(simulate: Program, tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("submitted_s,duration_s,gpus\n0,36000,1\n10000,60,1\n")
    wait = [
        json.loads(simulate(path, "--cluster", "1x1xT4", "--json", *more)[1])["wait_s"]["max"]
        for more in ([], ["--turn", "1h", "--checkpoint", "10m", "--order", "shortest"])
    ]
    assert wait == [26_000, 10]


def test_long_simulation_reports_progress(simulate: Program, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulating, "PROGRESS_EVERY_S", 0.0)
    assert "3 of 3 jobs submitted" in simulate(trace, "--cluster", "1x1xA100")[2]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "--cluster 4x8xA100"),
        (["--cluster", "1x1xA", "--nodes", "x"], "--cluster 4x8xA100"),
        (["--cluster", "many"], "NODESxGPUSxMODEL"),
        (["--nodes", "/none.csv"], "cannot be read"),
        (["--cluster", "1x1xA", "--quota", "vision"], "is not a quota"),
        (["--cluster", "1x1xA", "--quota", "vision=x"], "is not a number of GPUs"),
        (["--cluster", "1x1xA", "--load", "0"], "load cannot be set"),
        (["--cluster", "1x1xA", "--format", "philly"], "no column timestamp"),
        (["--cluster", "1x1xA", "--grace", "soon"], "soon"),
        (["--cluster", "1x1xA", "--weight", "vision=much"], "is not a weight"),
        (["--cluster", "1x1xA", "--without", "n7"], "There is no node n7"),
        (["--cluster", "1x1xA", "--html", "/none/there.html"], "cannot be written"),
        (["--from-pool"], "excludes a trace"),
    ],
)
def test_mistakes_are_reported_in_a_sentence(simulate: Program, trace: Path, args: list[str], said: str) -> None:
    status, out, err = simulate(trace, *args)
    assert status != 0
    assert out == ""
    assert said in err
    assert "Traceback" not in err
