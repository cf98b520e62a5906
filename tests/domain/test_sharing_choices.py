"""Choice of compute policy and sharing mode: precedence of settings, and refusals."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import gpupool
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.nodes.sharing import TRAITS, ComputePolicy, Sharing, describe_guarantee
from gpupool.domain.people.access import Project
from gpupool.domain.work.sharing_policy import (
    check_project,
    resolve_compute,
    resolve_request,
    slice_mode,
)

GUARANTEE, CAP, NONE = ComputePolicy.GUARANTEE, ComputePolicy.CAP, ComputePolicy.NONE
WHOLE, SHARE, MPS, MIG, ADVISORY = Sharing.WHOLE, Sharing.SHARE, Sharing.MPS, Sharing.MIG, Sharing.ADVISORY
PART, ONE = GpuRequest(permille=250), GpuRequest()
FORBIDDEN = None


@pytest.mark.parametrize(
    ("asked", "default", "allowed", "expected"),
    [
        (None, None, (), GUARANTEE),
        (CAP, None, (), CAP),
        (None, CAP, (), CAP),
        (NONE, CAP, (), NONE),
        (None, None, (CAP, GUARANTEE), CAP),
        (None, GUARANTEE, (CAP, GUARANTEE), GUARANTEE),
        (GUARANTEE, None, (CAP, GUARANTEE), GUARANTEE),
        (NONE, None, (CAP, GUARANTEE), FORBIDDEN),
        (NONE, NONE, (CAP,), FORBIDDEN),
    ],
)
def test_compute_policy_of_job_precedes_project_default(
    asked: ComputePolicy | None,
    default: ComputePolicy | None,
    allowed: tuple[ComputePolicy, ...],
    expected: ComputePolicy | None,
) -> None:
    project = Project("red", compute_default=default, compute_allowed=allowed)
    if expected is not FORBIDDEN:
        assert resolve_compute(asked, project) is expected
        return
    with pytest.raises(GpupoolError) as refused:
        resolve_compute(asked, project)
    assert refused.value.code is ErrorCode.FORBIDDEN
    assert "red" in refused.value.message


@pytest.mark.parametrize(
    ("request_", "default", "allowed", "expected"),
    [
        (PART, None, (), PART),
        (PART, MPS, (), GpuRequest(permille=250, sharing=MPS)),
        (GpuRequest(permille=250, sharing=SHARE), MPS, (), GpuRequest(permille=250, sharing=SHARE)),
        (PART, None, (WHOLE, SHARE), GpuRequest(permille=250, sharing=SHARE)),
        (GpuRequest(permille=250, sharing=MPS), None, (WHOLE, SHARE), FORBIDDEN),
        (PART, None, (WHOLE,), FORBIDDEN),
        (ONE, MPS, (), ONE),
        (ONE, None, (SHARE,), FORBIDDEN),
        (ONE, None, (WHOLE, SHARE), ONE),
        (GpuRequest(sharing=SHARE), None, (SHARE,), GpuRequest(sharing=SHARE)),
        (GpuRequest(models=("1g.10gb",)), None, (MIG,), GpuRequest(models=("1g.10gb",))),
        (GpuRequest(models=("1g.10gb",)), None, (WHOLE,), FORBIDDEN),
        (GpuRequest(models=("1g.10gb", "t4")), None, (MIG,), FORBIDDEN),
        (GpuRequest(sharing=MIG), None, (), GpuRequest(sharing=MIG, models=("mig",))),
        (GpuRequest(sharing=MIG, models=("a100",)), None, (), GpuRequest(sharing=MIG, models=("a100 mig",))),
        (GpuRequest(sharing=MIG, models=("3g.40gb",)), None, (), GpuRequest(sharing=MIG, models=("3g.40gb",))),
        (GpuRequest(count=0), None, (SHARE,), GpuRequest(count=0)),
        (GpuRequest(memory_mib=2048), ADVISORY, (), GpuRequest(memory_mib=2048, sharing=ADVISORY)),
    ],
)
def test_sharing_mode_of_job_precedes_project_default(
    request_: GpuRequest, default: Sharing | None, allowed: tuple[Sharing, ...], expected: GpuRequest | None
) -> None:
    project = Project("red", sharing_default=default, sharing_allowed=allowed)
    if expected is not FORBIDDEN:
        assert resolve_request(request_, project) == expected
        return
    with pytest.raises(GpupoolError) as refused:
        resolve_request(request_, project)
    assert refused.value.code is ErrorCode.FORBIDDEN


NOT_HERE = None


@pytest.mark.parametrize(
    ("asked", "policy", "offered", "expected"),
    [
        ("", "", (), ""),
        ("", "", ("share", "mps"), "share"),
        ("", "", ("advisory",), "advisory"),
        ("", "mps", ("share", "mps"), "mps"),
        ("", "mps", ("share",), NOT_HERE),
        ("", "mps", (), "mps"),
        ("", "whole", ("share",), NOT_HERE),
        ("mps", "", ("share", "mps"), "mps"),
        ("mps", "", ("share",), NOT_HERE),
        ("mps", "", (), "mps"),
        ("mps", "mps", ("share", "mps"), "mps"),
        ("mps", "share", ("share", "mps"), NOT_HERE),
        ("share", "whole", ("share",), NOT_HERE),
    ],
)
def test_sharing_mode_of_a_slice(asked: str, policy: str, offered: tuple[str, ...], expected: str | None) -> None:
    assert slice_mode(asked, policy, offered) == expected


@pytest.mark.parametrize(
    "project",
    [
        Project("red", compute_default=NONE, compute_allowed=(CAP,)),
        Project("red", sharing_default=MPS, sharing_allowed=(SHARE,)),
        Project("red", sharing_default=WHOLE),
        Project("red", sharing_default=MIG, sharing_allowed=(MIG,)),
    ],
)
def test_contradictory_project_is_refused(project: Project) -> None:
    with pytest.raises(GpupoolError) as refused:
        check_project(project)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert refused.value.hint


def test_every_mode_and_policy_has_a_description() -> None:
    said = {describe_guarantee(mode, policy) for mode in (SHARE, MPS) for policy in ComputePolicy}
    said |= {describe_guarantee(mode, GUARANTEE) for mode in (WHOLE, MIG, ADVISORY, "")}
    assert len(said) == 10
    assert "nothing enforces" in describe_guarantee("advisory", CAP)


NAME_OF_A_MODE = re.compile(r"\bSharing\.(?:WHOLE|SHARE|MPS|MIG|ADVISORY)\b|\"(?:mps|advisory)\"")
MODULES_OF_MODES = ("node/sharing/advisory", "node/sharing/mps/")
WITH_NAMES = {
    "domain/nodes/sharing.py",  # declares the modes
    "node/sharing/choose.py",  # the default for slices
    "cli/fast/launch.py",  # imports no enums, which take milliseconds
}


def test_code_outside_of_a_modes_own_module_asks_for_its_traits() -> None:
    root = Path(gpupool.__file__).parent
    modules = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    found = {name for name, text in modules.items() if NAME_OF_A_MODE.search(text)}
    assert {name for name in found if not name.startswith(MODULES_OF_MODES)} == WITH_NAMES


def test_every_mode_is_declared_once_and_has_an_implementation() -> None:
    assert list(TRAITS) == list(Sharing)
    assert entry_points(group="gpupool.sharing").names >= set(Sharing)
