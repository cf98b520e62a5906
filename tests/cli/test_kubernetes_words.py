"""Names of Kubernetes objects, and options of kubectl."""

import pytest

from gpupool.cli.kubernetes.listing import find_targets
from gpupool.cli.kubernetes.names import ObjectTarget, normalize_flags, parse_targets
from gpupool.domain.errors import GpupoolError
from gpupool.specs.kubernetes.kinds import JOB, KINDS, POD, TFJOB


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["pods"], [ObjectTarget(POD)]),
        (["po", "a", "b"], [ObjectTarget(POD, ("a", "b"))]),
        (["pods,job.batch"], [ObjectTarget(POD), ObjectTarget(JOB)]),
        (["pod/a", "tfjobs.kubeflow.org/b"], [ObjectTarget(POD, ("a",)), ObjectTarget(TFJOB, ("b",))]),
        (["no"], [ObjectTarget(None)]),
        (["all"], [ObjectTarget(kind) for kind in KINDS]),
    ],
)
def test_kinds_and_names(typed: list[str], meant: list[ObjectTarget]) -> None:
    assert parse_targets(typed) == meant


@pytest.mark.parametrize("typed", [["statefulsets"], ["pod/"], ["pod/a", "b"], ["pods,svc"]])
def test_unknown_kind_is_refused(typed: list[str]) -> None:
    with pytest.raises(GpupoolError, match="Unknown kind of object"):
        parse_targets(typed)


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["--dry-run=client"], ["--dry-run"]),
        (["--dry-run=none", "-f", "x"], ["-f", "x"]),
        (["--wait=false"], ["--no-wait"]),
        (["--force=false", "--ignore-not-found=true"], ["--ignore-not-found"]),
        (["-o=json"], ["-o", "json"]),
        (["--grace-period=1", "-l", "a=b"], ["--grace-period=1", "-l", "a=b"]),
        (["-o", "jsonpath={.a}"], ["-o", "jsonpath={.a}"]),
    ],
)
def test_kubectl_options_are_accepted(typed: list[str], read: list[str]) -> None:
    assert normalize_flags(typed) == read


@pytest.mark.parametrize(
    ("words", "labelled", "meant"),
    [
        (["train"], False, None),
        (["pod"], False, None),  # a workload of that name
        (["job/3"], False, None),  # a replica of a workload called job
        (["pod", "a"], False, [ObjectTarget(POD, ("a",))]),
        (["pods"], True, [ObjectTarget(POD)]),
    ],
)
def test_plain_names_are_workload_names(words: list[str], labelled: bool, meant: list[ObjectTarget] | None) -> None:
    assert find_targets(words, [], every=False, labelled=labelled) == meant
