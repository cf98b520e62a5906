from __future__ import annotations

from pathlib import Path

import pytest

from gpupool.specs.jobfile import load_job_file

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yml")), ids=lambda file: file.name)
def test_example_job_file_can_be_submitted(file: Path) -> None:
    (request,) = load_job_file(str(file), folder=str(EXAMPLES.parent))
    assert request.sweep is not None
    assert request.sweep.size == 6
    assert (EXAMPLES.parent / request.command[1]).is_file()
