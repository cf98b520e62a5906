"""Packed or spread, on a real pool of two GPUs."""

from __future__ import annotations

from e2e_pool import RealPool


def gpus_of(pool: RealPool, *names: str) -> list[int]:
    rows = [pool.json("describe", name)["replicas"][0] for name in names]
    return [gpu["index"] for row in rows for gpu in row["gpus"]]


def test_slices_are_packed_unless_spread_is_requested(pool: RealPool) -> None:
    for name in ("p1", "p2"):
        pool("submit", name, "-g", "0.5", "--", "sleep", "1000")
        assert pool.becomes(name, "running")
    first, second = gpus_of(pool, "p1", "p2")
    assert first == second
    pool.clear()
    for name in ("s1", "s2"):
        pool("submit", name, "-g", "0.5", "--placement", "spread", "--", "sleep", "1000")
        assert pool.becomes(name, "running")
    assert sorted(gpus_of(pool, "s1", "s2")) == [0, 1]
    assert pool.json("describe", "s1")["gpus"]["placement"] == "spread"


def test_job_file_sets_placement_and_unknown_values_are_refused(pool: RealPool) -> None:
    (pool.work / "job.yaml").write_text(
        "name: filed\ncommand: [sleep, '1000']\ngpus: {count: 1, fraction: 0.5, placement: spread}\n"
    )
    pool("submit", "-g", "0.5", "there", "--", "sleep", "1000")
    assert pool.becomes("there", "running")
    pool("submit", "-f", "job.yaml")
    assert pool.becomes("filed", "running")
    assert sorted(gpus_of(pool, "there", "filed")) == [0, 1]
    refused = pool("submit", "x", "--placement", "scatter", "--", "true", ok=False)
    assert b"must be pack or spread. [INVALID_REQUEST]" in refused.stderr
