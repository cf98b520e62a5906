"""A workload that was made from a manifest can be asked for once more."""

from pathlib import Path

import pytest
from manifest_texts import read

from gpupool.domain.ids import WorkloadId
from gpupool.specs.request import Submitter, parse_request, to_workload
from gpupool.specs.resubmit import request_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "kubernetes"
ME = Submitter("ann", None, "default", 0.0)


@pytest.mark.parametrize("containers", [True, False])
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_stored_workload_converts_back_to_equal_request(path: Path, containers: bool) -> None:
    request = read(path.read_text(), containers=containers).objects[0].request
    made, _ = to_workload(request, id=WorkloadId("w0123456789"), submitter=ME, resolve={})
    again, _ = to_workload(parse_request(request_of(made)), id=WorkloadId("w0123456789"), submitter=ME, resolve={})
    assert again == made
