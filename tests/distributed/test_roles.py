"""Roles of a gang's members in requests, and the resulting workloads."""

from __future__ import annotations

from typing import Any

import pytest

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.work.workload import Framework, OnMemberEnd, Workload
from gpupool.specs.request import Submitter, parse_request, program_for, to_workload
from gpupool.specs.resubmit import request_of


def workload_of(**fields: Any) -> Workload:
    request = parse_request({"command": ["python3", "train.py"], **fields})
    who = Submitter("ada", None, "default", 1.0)
    return to_workload(request, id=WorkloadId("w0123456789"), submitter=who, resolve={})[0]


PARAMETER_SERVERS = {
    "framework": "tf",
    "roles": [
        {"name": "chief", "command": ["python3", "chief.py"]},
        {"name": "ps", "replicas": 2, "gpus": {"count": 0}, "cpus": 2, "memory": "1G", "env": {"A": "ps"}},
        {"name": "worker", "replicas": 3, "restart": "never"},
    ],
}


def test_members_are_numbered_role_by_role() -> None:
    made = workload_of(**PARAMETER_SERVERS, env={"A": "all", "B": "all"})
    assert made.completions == 6
    assert [made.role_of(index).name for index in range(6)] == ["chief", "ps", "ps", "worker", "worker", "worker"]
    assert [made.gpus_of(index).count for index in range(6)] == [1, 0, 0, 1, 1, 1]
    assert (made.cpus_of(2), made.memory_of(2), made.cpus_of(3)) == (2, 1024, None)
    assert (made.gang.least, made.gang.most, made.on_member_end) == (6, 6, OnMemberEnd.CONTINUE)
    argv, env = program_for(made, 2)
    assert argv == ("python3", "train.py")
    assert {"A": "ps", "B": "all", "GPUPOOL_ROLE": "ps", "GPUPOOL_ROLE_INDEX": "1"}.items() <= env.items()
    assert program_for(made, 0)[0] == ("python3", "chief.py")


def test_mpi_gets_a_launcher_without_a_gpu() -> None:
    made = workload_of(framework="mpi", gang={"workers": 4}, gpus={"count": 2})
    assert [(role.name, role.replicas) for role in made.roles] == [("launcher", 1), ("worker", 4)]
    assert made.gpus_of(0) == GpuRequest(count=0)
    assert made.processes_of(1) == 2
    assert (made.gang.least, made.framework, made.on_member_end) == (5, Framework.MPI, OnMemberEnd.RESTART)


@pytest.mark.parametrize(
    "fields",
    [
        PARAMETER_SERVERS,
        {"framework": "torch", "gang": {"workers": 4, "min": 2}, "processes": 2, "on_member_end": "fail"},
        {"framework": "mpi", "roles": [{"name": "launcher", "gpus": {"count": 0}}, {"name": "worker", "replicas": 2}]},
        {"gang": {"workers": 3, "within": "rack", "strict": True}},
    ],
)
def test_resubmission_has_equal_roles(fields: dict[str, Any]) -> None:
    made = workload_of(**fields)
    assert workload_of(**{k: v for k, v in request_of(made).items() if k != "command"}) == made


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"framework": "torch"}, "needs a gang"),
        ({"framework": "mpi", "gang": {"workers": 4, "min": 2}}, "fixed size"),
        ({"framework": "mpi", "roles": [{"name": "worker"}]}, "one launcher"),
        ({"framework": "mpi", "gang": {"workers": 2}, "on_member_end": "continue"}, "without a rank"),
        ({"roles": [{"name": "a"}, {"name": "a"}]}, "same name"),
        ({"roles": [{"name": "a", "replicas": 2}], "gang": {"workers": 3}}, "2 members"),
        ({"roles": [{"name": "a"}], "completions": 2}, "must be omitted"),
        ({"roles": [{"name": "a"}, {"name": "b"}], "gang": {"workers": 2, "min": 1}}, "several roles"),
        ({"framework": "tf", "gang": {"workers": 2}, "processes": 2}, "torch and mpi"),
        ({"on_member_end": "fail"}, "for gangs"),
        ({"kind": "interactive", "roles": [{"name": "a"}]}, "one replica"),
    ],
)
def test_invalid_roles_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(GpupoolError, match=words):
        workload_of(**fields)
