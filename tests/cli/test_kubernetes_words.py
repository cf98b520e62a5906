"""What people type for Kubernetes' objects, and how kubectl's options are read."""

import pytest

from gpupool.cli.kubernetes import Target, plain_flags, targets_of
from gpupool.cli.kubernetes_delete import objects_named
from gpupool.domain.errors import GpupoolError
from gpupool.specs.kubernetes.words import JOB, KINDS, POD, TFJOB


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["pods"], [Target(POD)]),
        (["po", "a", "b"], [Target(POD, ("a", "b"))]),
        (["pods,job.batch"], [Target(POD), Target(JOB)]),
        (["pod/a", "tfjobs.kubeflow.org/b"], [Target(POD, ("a",)), Target(TFJOB, ("b",))]),
        (["no"], [Target(None)]),
        (["all"], [Target(kind) for kind in KINDS]),
    ],
)
def test_kinds_and_names(typed: list[str], meant: list[Target]) -> None:
    assert targets_of(typed) == meant


@pytest.mark.parametrize("typed", [["deployments"], ["pod/"], ["pod/a", "b"], ["pods,svc"]])
def test_what_is_no_kind_is_refused(typed: list[str]) -> None:
    with pytest.raises(GpupoolError, match="There are no objects called"):
        targets_of(typed)


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
def test_options_as_kubectl_writes_them(typed: list[str], read: list[str]) -> None:
    assert plain_flags(typed) == read


@pytest.mark.parametrize(
    ("words", "labelled", "meant"),
    [
        (["train"], False, None),
        (["pod"], False, None),  # a workload of that name
        (["job/3"], False, None),  # a replica of a workload called job
        (["pod", "a"], False, [Target(POD, ("a",))]),
        (["pods"], True, [Target(POD)]),
    ],
)
def test_plain_names_stay_names_of_workloads(words: list[str], labelled: bool, meant: list[Target] | None) -> None:
    assert objects_named(words, [], every=False, labelled=labelled) == meant
