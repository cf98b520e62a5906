"""The installed commands of Slurm on a real pool, with scripts as courses use them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_pool import RealPool, eventually

Run = Callable[..., subprocess.CompletedProcess[str]]

SERIAL = """#!/bin/bash
#SBATCH --job-name=hello
#SBATCH --output=hello_%j.out
#SBATCH --error=hello_%j.err
#SBATCH --time=00:05:00
#SBATCH --ntasks=1
#SBATCH --mem-per-cpu=100M
#SBATCH --partition=short
#SBATCH --mail-type=ALL
#SBATCH --mail-user=someone@example.org

echo "Running on $SLURM_JOB_NODELIST as job $SLURM_JOB_ID"
srun echo "task $SLURM_PROCID of $SLURM_NTASKS"
srun --ntasks=2 sh -c 'echo "rank $SLURM_PROCID of $SLURM_NTASKS"' | sort
echo trouble >&2
"""
ARRAY = """#!/bin/bash
#SBATCH -J array
#SBATCH -a 1-3%1
#SBATCH -c 1
#SBATCH -t 10
files=(none a b c)
echo "${files[$SLURM_ARRAY_TASK_ID]} $SLURM_ARRAY_JOB_ID"
"""


@pytest.fixture
def slurm(pool: RealPool, tmp_path: Path) -> Run:
    """Run an installed command in the folder of the test."""
    folder = tmp_path / "bin"
    pool("compat", "install", "slurm", "--dir", str(folder))
    env = pool.env | {"PATH": f"{folder}:/usr/bin:/bin"}

    def run(*words: str, status: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False, **more
        )
        assert done.returncode == status, done.stderr
        return done

    return run


def test_course_scripts(pool: RealPool, slurm: Run, tmp_path: Path) -> None:
    (tmp_path / "hello.sh").write_text(SERIAL)
    (tmp_path / "array.sh").write_text(ARRAY)
    said = slurm("sbatch", "hello.sh")
    job = said.stdout.removeprefix("Submitted batch job ").strip()
    assert "--mail-user has no effect" in said.stderr
    assert "--partition has no effect: there are no partitions" in said.stderr
    array = slurm("sbatch", "--parsable", f"--dependency=afterok:{job}", "array.sh").stdout.strip()
    failing = slurm("sbatch", "--parsable", "--wait", "--wrap", "echo wrapped; exit 3", status=3).stdout.strip()
    assert pool.becomes(array, "succeeded")
    assert (tmp_path / f"hello_{job}.out").read_text().splitlines()[1:] == [
        "task 0 of 1",
        "rank 0 of 2",
        "rank 1 of 2",
    ]
    assert (tmp_path / f"hello_{job}.err").read_text() == "trouble\n"
    assert [(tmp_path / f"slurm-{array}_{task}.out").read_text() for task in (1, 2, 3)] == [
        f"{name} {array}\n" for name in "abc"
    ]
    assert (tmp_path / f"slurm-{failing}.out").read_text() == "wrapped\n"
    listed = slurm("sacct", "-n", "-P", "--format=JobID,JobName,State,ExitCode").stdout.splitlines()
    assert {f"{job}|hello|COMPLETED|0:0", f"{failing}|wrap|FAILED|3:0"} <= set(listed)
    assert f"{array}|array|COMPLETED|0:0" in listed


def test_queue_and_cancel(pool: RealPool, slurm: Run) -> None:
    text = "#!/bin/sh\n#SBATCH -J night\n#SBATCH --gres=gpu:2\nsleep 1000\n"
    first = slurm("sbatch", "--parsable", input=text).stdout.strip()
    assert pool.becomes(first, "running")
    second = slurm("sbatch", "--parsable", input=text).stdout.strip()
    late = slurm("sbatch", "--parsable", "--begin=now+1hour", "-n", "1", input=text).stdout.strip()
    node = pool.json("list", "nodes")["nodes"][0]["name"]
    lines = slurm("squeue", "--me", "-h", "-o", "%i %j %t %T %D %R %r").stdout.splitlines()
    assert lines == [
        f"{first} night R RUNNING 1 {node} None",
        f"{second} night PD PENDING 1 (Resources) Resources",
        f"{late} night PD PENDING 1 (BeginTime) BeginTime",
    ]
    assert slurm("squeue", "-t", "PD", "-n", "night").stdout.split()[8:10] == [second, "gpupool"]
    assert slurm("sinfo", "-h", "-o", "%P %D %t").stdout.splitlines() == ["gpupool* 1 alloc"]
    slurm("scancel", "-n", "night", "-t", "PENDING")
    assert pool.becomes(second, "stopped")
    assert pool.becomes(late, "stopped")
    slurm("scancel", first)
    assert pool.becomes(first, "stopped")
    assert "There is no workload" in slurm("scancel", "nothing", status=1).stderr
    assert slurm("squeue", "-h").stdout == ""


def test_partition_and_comment_select_and_describe_jobs(pool: RealPool, slurm: Run) -> None:
    words = ("-p", "long", "--comment=paper: run 3", "--wrap", "echo $SLURM_JOB_PARTITION $SLURM_JOB_COMMENT; sleep 99")
    job = slurm("sbatch", "--parsable", *words).stdout.strip()
    other = slurm("sbatch", "--parsable", "--wrap", "sleep 99").stdout.strip()
    assert pool.becomes(job, "running")
    assert slurm("squeue", "-h", "-p", "long", "-o", "%i %P %k").stdout == f"{job} long paper: run 3\n"
    assert slurm("squeue", "-h", "-p", "gpupool", "-o", "%i %P %k").stdout == f"{other} gpupool (null)\n"
    assert slurm("squeue", "-h", "-p", "none").stdout == ""
    assert slurm("sacct", "-nP", "-j", job, "-o", "Partition,Comment").stdout == "long|paper: run 3\n"
    assert "RUNNING" in slurm("squeue", "-l", "-j", job).stdout
    slurm("scancel", "-p", "long")
    assert pool.becomes(job, "stopped")
    slurm("scancel", "-i", other, input="")
    assert pool.json("describe", other)["state"] == "running"
    slurm("scancel", "-s", "KILL", other)
    assert pool.becomes(other, "stopped")
    assert slurm("scancel", "-q", "nothing", status=1).stderr == ""


def test_queue_is_listed_again_and_again(slurm: Run) -> None:
    done = slurm("timeout", "-s", "INT", "4", "squeue", "-i", "1", status=124)
    assert done.stdout.count("NODELIST(REASON)") >= 2
    assert done.stderr == ""


def test_signal_is_sent_to_a_job(pool: RealPool, slurm: Run, tmp_path: Path) -> None:
    wrap = "trap 'echo saved; exit 4' USR1; echo ready; while :; do sleep 0.1; done"
    job = slurm("sbatch", "--parsable", "-o", "out.txt", "--wrap", wrap).stdout.strip()
    assert eventually(lambda: (tmp_path / "out.txt").exists() and "ready" in (tmp_path / "out.txt").read_text())
    slurm("scancel", "--signal=USR1", job)
    assert pool.becomes(job, "failed")
    assert (tmp_path / "out.txt").read_text().endswith("saved\n")


def test_tasks_are_started_by_srun_outside_a_job(slurm: Run) -> None:
    script = 'read line; echo "$SLURM_PROCID of $SLURM_NTASKS: $line"; exit $SLURM_PROCID'
    done = slurm("srun", "-n", "2", "--mem=50M", "sh", "-c", script, status=1, input="first\n")
    assert sorted(done.stdout.splitlines()) == ["0 of 2: first", "1 of 2: "]


def test_allocation_runs_tasks_on_its_gpus(slurm: Run) -> None:
    script = "srun sh -c 'echo $CUDA_VISIBLE_DEVICES'; echo $CUDA_VISIBLE_DEVICES; exit 5"
    first, second = slurm("salloc", "--gres=gpu:1", "sh", "-c", script, status=5).stdout.split()
    assert first == second


def test_scontrol_shows_and_changes_jobs(pool: RealPool, slurm: Run) -> None:
    words = ("-J", "my job", "-t", "10", "--mem=64M", "--wrap", "sleep 1000")
    job = slurm("sbatch", "--parsable", *words).stdout.strip()
    assert pool.becomes(job, "running")
    shown = slurm("scontrol", "show", "job", job).stdout
    node = pool.json("list", "nodes")["nodes"][0]["name"]
    for text in (f"JobId={job} JobName=my-job", "JobState=RUNNING Reason=None", "TimeLimit=10:00", f"NodeList={node} "):
        assert text in shown
    slurm("scontrol", "hold", f"JobId={job}")
    assert pool.becomes(job, "suspended")
    slurm("scontrol", "release", job)
    assert pool.becomes(job, "running")
    assert f"NodeName={node} State=" in slurm("scontrol", "show", "nodes").stdout
    assert slurm("scontrol", "show", "hostnames", "a,b").stdout == "a\nb\n"
    assert "is not known" in slurm("scontrol", "update", f"JobId={job}", status=125).stderr
    assert "There is no node 'none'" in slurm("scontrol", "show", "node", "none", status=125).stderr
    fields = slurm("sacct", "-nP", "-j", job, "-o", "NCPUS,ElapsedRaw,MaxRSS,Reason,NNodes").stdout
    assert re.fullmatch(r"1\|\d+\|(\d+M)?\|None\|1\n", fields)
    slurm("scancel", job)


def test_tasks_of_an_array(pool: RealPool, slurm: Run) -> None:
    wrap = "[ $SLURM_ARRAY_TASK_ID != 2 ] || exit 3; sleep 1000"
    array = slurm("sbatch", "--parsable", "-J", "sweep", "-a", "2-8:2", "--wrap", wrap).stdout.strip()
    assert pool.becomes(array, "running")
    assert eventually(lambda: pool.json("describe", array)["counts"]["failed"] == 1)
    assert f" {array}_4 " in slurm("squeue", "-r").stdout
    listed = slurm("squeue", "-r", "-h", "-o", "%i %j").stdout.splitlines()
    assert listed == [f"{array}_{task} sweep" for task in (4, 6, 8)]
    slurm("scancel", f"{array}_[4,6]")
    left = f"{array}_8\n"
    assert eventually(lambda: slurm("squeue", "-h", "-o", "%i", "-j", f"{array}_[4-8:2],{array}_2").stdout == left)
    slurm("scancel", f"{array}_8")
    assert pool.becomes(array, "failed")
    rows = slurm("sacct", "-nP", "-o", "JobID,State,ExitCode", "-j", array, "--array").stdout.splitlines()
    assert rows[0] == f"{array}_2|FAILED|3:0"
    assert [row.split("|")[1] for row in rows[1:]] == ["CANCELLED"] * 3
    assert slurm("sacct", "-nP", "-o", "JobID,ExitCode", "-j", f"{array}_2").stdout == f"{array}_2|3:0\n"
    assert slurm("sacct", "-nP", "-o", "State,ExitCode", "-j", array).stdout == "FAILED|3:0\n"
    assert "has no task 3" in slurm("scancel", f"{array}_3", status=1).stderr


def test_sacct_tells_kinds_of_failures_apart_and_selects_by_time(pool: RealPool, slurm: Run) -> None:
    def submit(command: str, *words: str) -> str:
        return slurm("sbatch", "--parsable", "-J", "kinds", *words, "--wrap", command).stdout.strip()

    def listed(*words: str) -> list[str]:
        return slurm("sacct", "-nP", "--name", "kinds", *words).stdout.splitlines()

    late = submit("sleep 1000", "-t", "0:01")
    failed = submit("exit 1")
    after = submit("true", "-d", f"afterok:{failed}")
    for job in (late, failed, after):
        assert pool.becomes(job, "failed")
    assert listed("-o", "JobID,State") == [f"{late}|TIMEOUT", f"{failed}|FAILED", f"{after}|CANCELLED"]
    assert listed("-o", "JobID", "-s", "TO,CA") == [late, after]
    assert listed("-o", "JobID", "-S", "now-1hour", "-E", "now") == [late, failed, after]
    for words in (("-S", "2031-01-01"), ("-E", "2021-01-01"), ("-A", "none")):
        assert listed(*words) == []


def test_run_and_refusals(slurm: Run) -> None:
    done = slurm("srun", "--gres=gpu:1", "-t", "5", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 4", status=4)
    assert done.stdout.strip()
    for words in (
        ("srun",),
        ("srun", "--array=1-2", "true"),
        ("sbatch", "--wrap", "true", "script"),
        ("sbatch", "--nodes=2", "--wrap", "true"),
        ("sbatch", "missing.sh"),
        ("sbatch", "-d", "afterok:w0123456789_2", "--wrap", "true"),
        ("squeue", "--bogus"),
        ("squeue", "-O", "jobid"),
        ("squeue", "--start"),
        ("sacct", "-S", "never"),
        ("squeue", "-i", "0"),
        ("sinfo", "-p", "gpu"),
        ("squeue", "-o", "%K"),
        ("squeue", "-t", "ASLEEP"),
        ("sacct", "-o", "Bogus"),
        ("scancel",),
    ):
        assert slurm(*words, status=125).stderr.startswith("gpupool: "), words


def test_folder_with_other_programs_is_not_changed(pool: RealPool, tmp_path: Path) -> None:
    (tmp_path / "squeue").write_text("mine")
    refused = pool("compat", "install", "slurm", "--dir", str(tmp_path), ok=False)
    assert b"exists and is not gpupool's" in refused.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name in {"sbatch", "squeue"}] == ["squeue"]
    pool("compat", "install", "slurm", "--dir", str(tmp_path / "new"))
    assert len(list((tmp_path / "new").iterdir())) == 8
    pool("compat", "remove", "slurm", "--dir", str(tmp_path / "new"))
    assert not list((tmp_path / "new").iterdir())
