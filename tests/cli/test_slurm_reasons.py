"""Slurm's names of the reasons for a wait."""

from __future__ import annotations

import pytest

from gpupool.cli.render.slurm import REASONS, reason
from gpupool.scheduling.explain.wait_reason import WaitCode


def test_each_reason_has_a_name_of_slurm() -> None:
    assert REASONS.keys() == set(WaitCode) - {WaitCode.STARTING_SOON, WaitCode.NOT_WAITING}


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ({"state": "queued", "waiting": {"code": "GPU_HOURS"}}, "AssocGrpGRESMinutes"),
        ({"state": "queued", "waiting": {"code": "STARTING_SOON"}}, "None"),
        ({"state": "queued", "waiting": None}, "None"),
        ({"state": "running"}, "None"),
    ],
)
def test_only_pending_jobs_with_a_known_reason_have_one(job: dict[str, object], name: str) -> None:
    assert reason(job) == name
