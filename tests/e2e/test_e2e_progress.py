"""A real program reports its checkpoints: evictions lose less, and every place that shows it agrees."""

from __future__ import annotations

import csv
import io
import sys

from e2e_pool import RealPool, eventually

PROGRAM = """
import gpupool, os, time
gpupool.progress(41)
gpupool.checkpointed(42)
time.sleep(1000)
"""


def test_reported_checkpoint_is_shown_and_its_loss_counted(pool: RealPool) -> None:
    pool("project", "create", "saving", "--min-runtime", "1s")
    where = ["--project", "saving", "-g", "1"]
    pool("submit", "saver", *where, "--", sys.executable, "-c", PROGRAM)
    assert pool.becomes("saver", "running")
    assert eventually(lambda: pool.json("describe", "saver")["replicas"][0]["step"] == 42)
    [row] = pool.json("describe", "saver")["replicas"]
    assert row["saved_at"] >= row["started_at"] - 1
    assert "step 42, last checkpoint " in pool("describe", "saver").stdout.decode()
    pool("submit", "rest", *where, "--", "sleep", "1000")
    pool("submit", "urgent", "--project", "saving", "-g", "2", "--priority", "high", "--", "sleep", "1000")
    assert pool.becomes("urgent", "running")
    assert eventually(lambda: pool.json("describe", "saver")["replicas"][0]["lost_gpu_s"] > 0)
    [row] = pool.json("describe", "saver")["replicas"]
    assert (row["interruptions"], row["step"]) == (1, 42)
    report = pool.json("report", "--by", "project")
    [line] = [line for line in report["losses"] if line["key"] == "saving"]
    both = sum(pool.json("describe", name)["replicas"][0]["lost_gpu_s"] for name in ("saver", "rest"))
    assert abs(line["lost_gpu_s"] - both) < 0.01
    assert abs(report["lost_gpu_s"] - sum(line["lost_gpu_s"] for line in report["losses"])) < 0.01
    header = pool("report", "--by", "project").stdout.decode().splitlines()[1]
    assert "LOST" in header.split()
    rows = list(csv.DictReader(io.StringIO(pool("report", "--by", "project", "--csv").stdout.decode())))
    [own] = [row for row in rows if row["key"] == "saving"]
    assert abs(float(own["lost_gpu_hours"]) * 3600 - both) < 0.01
