"""Progress that programs report through a file: the agent reads it, and any content is harmless."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from node_harness import Node, eventually, spec

from gpupool.domain.work.program.supervision import ExitReason, Progress
from gpupool.node.host.paths import RunFolder
from gpupool.node.host.progress_file import MAX_BYTES, MAX_METRICS, create_progress, read_progress

KEY = "w0123456789.0.1"
NOW = 1_800_000_000.0


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.make(shared=False)
    create_progress(folder, KEY, None)
    return folder


@pytest.mark.parametrize(
    ("content", "progress"),
    [
        ("", Progress(NOW - 5)),
        ("anything", Progress(NOW - 5)),
        ('{"saved_at": 1799999000.5, "step": 12}', Progress(1799999000.5, 12)),
        ('{"saved_at": null, "step": 12}', Progress(None, 12)),
        ('{"step": 0}', Progress(NOW - 5, 0)),
        ('{"step": -1}', Progress(NOW - 5)),
        ('{"step": true}', Progress(NOW - 5)),
        ('{"step": 1e400}', Progress(NOW - 5)),
        ('{"step": 99999999999999999999999}', Progress(NOW - 5)),
        ('{"saved_at": 1800000001}', Progress()),
        ('{"saved_at": NaN}', Progress()),
        ('{"saved_at": -1}', Progress()),
        ('{"saved_at": "now"}', Progress()),
        ('{"saved_at": null, "metrics": {"loss": 0.5, "acc": 1}}', Progress(metrics=(("acc", 1.0), ("loss", 0.5)))),
        ('{"saved_at": null, "metrics": {"a": NaN, "b": 1e999, "c": true, "d": "1", "e": null}}', Progress()),
        ('{"saved_at": null, "metrics": {"<b>": 1, "": 2, "a b": 3, "' + "x" * 41 + '": 4}}', Progress()),
        ('{"saved_at": null, "metrics": [1]}', Progress()),
        (
            json.dumps({"saved_at": None, "metrics": {f"m{number:03d}": number for number in range(50)}}),
            Progress(metrics=tuple((f"m{number:03d}", float(number)) for number in range(MAX_METRICS))),
        ),
        ("[1]", Progress(NOW - 5)),
        ("[" * 4000, Progress(NOW - 5)),
        ("x" * (MAX_BYTES + 1), Progress(NOW - 5)),
    ],
)
def test_report_is_read_and_invalid_parts_are_ignored(run: RunFolder, content: str, progress: Progress) -> None:
    path = run.progress(KEY)
    path.write_text(content)
    os.utime(path, (NOW - 5, NOW - 5))
    assert read_progress(run, KEY, NOW) == progress


def test_nothing_is_reported_before_the_first_change(run: RunFolder) -> None:
    assert read_progress(run, KEY, NOW) == Progress()
    assert read_progress(run, "w0123456789.0.2", NOW) == Progress()


def test_future_time_counts_as_now(run: RunFolder) -> None:
    os.utime(run.progress(KEY), (NOW + 1e6, NOW + 1e6))
    assert read_progress(run, KEY, NOW) == Progress(NOW)


def test_growing_file_is_emptied(run: RunFolder) -> None:
    run.progress(KEY).write_bytes(b"x" * 1_000_000)
    read_progress(run, KEY, NOW)
    assert run.progress(KEY).stat().st_size == 0


def test_pipe_or_link_in_its_place_is_not_followed(run: RunFolder, tmp_path: Path) -> None:
    path = run.progress(KEY)
    path.unlink()
    os.mkfifo(path)
    assert read_progress(run, KEY, NOW) == Progress()
    path.unlink()
    secret = tmp_path / "secret"
    secret.write_text('{"step": 1}')
    path.symlink_to(secret)
    assert read_progress(run, KEY, NOW) == Progress()


@pytest.mark.parametrize(
    "how",
    [
        "touch $GPUPOOL_PROGRESS_FILE",
        f"{sys.executable} -m gpupool checkpointed --step 7",
        f"{sys.executable} -c 'import gpupool; gpupool.checkpointed(7)'",
        f"{sys.executable} -c 'import gpupool; gpupool.progress(6, saved=True); gpupool.progress(7)'",
    ],
)
def test_checkpoint_of_a_program_is_in_its_last_status(node: Node, how: str) -> None:
    wanted = spec("sh", "-c", how)
    node.start(wanted)
    assert node.ended(wanted.key).reason is ExitReason.EXITED
    status = node.status(wanted.key)
    assert status.saved_at is not None
    assert status.started_at is not None
    assert status.saved_at >= status.started_at - 0.1  # file systems round times
    assert status.step == (None if "touch" in how else 7)
    assert not RunFolder(node.run).progress(wanted.key).exists()


def test_running_program_reports_its_checkpoint_before_it_ends(node: Node) -> None:
    wanted = spec("sh", "-c", "touch $GPUPOOL_PROGRESS_FILE; sleep 60")
    node.start(wanted)
    assert eventually(lambda: node.status(wanted.key).saved_at is not None, "the checkpoint to be reported")


def test_reports_outside_of_the_pool_do_nothing() -> None:
    env = {name: value for name, value in os.environ.items() if name != "GPUPOOL_PROGRESS_FILE"}
    code = "import gpupool, json; print(json.dumps([gpupool.progress(1), gpupool.checkpointed()]))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert json.loads(done.stdout) == [False, False]
    done = subprocess.run([sys.executable, "-m", "gpupool", "checkpointed"], env=env, capture_output=True, check=True)
    assert b"not called by a program of a pool" in done.stderr
