"""TFJob, PyTorchJob and MPIJob as requests for gangs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpupool.domain.errors import ErrorCode
from gpupool.specs.kubernetes.pod import Around, PodParts
from gpupool.specs.kubernetes.reading import Fields, View
from gpupool.specs.kubernetes.report import Notice
from gpupool.specs.kubernetes.roles import RUN_POLICY, Member, gang_body, members, policy_body
from gpupool.specs.kubernetes.tables import honoured, met, warned
from gpupool.specs.limits import MAX_BACKOFF

Values = dict[str, Any]
Read = tuple[Values, PodParts]
NOTHING: Read = ({}, PodParts())

TF: Fields = {
    "tfReplicaSpecs": honoured("Chief (or Master), Worker, PS and Evaluator"),
    "runPolicy": honoured(),
    "successPolicy": honoured("AllWorkers; when absent the chief decides, or worker 0"),
    "enableDynamicWorker": warned("a worker that is run again finds the others where they were"),
    **RUN_POLICY,
}
TORCH: Fields = {
    "pytorchReplicaSpecs": honoured("Master and Worker"),
    "runPolicy": honoured(),
    "nprocPerNode": honoured("a number; auto, gpu and cpu: as many as GPUs"),
    "elasticPolicy": honoured(),
    **RUN_POLICY,
}
ELASTIC: Fields = {
    "minReplicas": honoured("with so many workers it starts already"),
    "maxReplicas": honoured("the most workers; others join as GPUs come free"),
    "maxRestarts": honoured("as backoffLimit"),
    "nProcPerNode": honoured("as nprocPerNode"),
    "metrics": met("workers join whenever GPUs are free"),
    "rdzvBackend": honoured("c10d"),
    "rdzvHost": warned("the pool says where the workers meet"),
    "rdzvPort": warned("the pool says where the workers meet"),
    "rdzvId": warned("the pool says where the workers meet"),
    "rdzvConf": warned("the pool says where the workers meet"),
    "standalone": warned("the pool says where the workers meet"),
}
MPI: Fields = {
    "mpiReplicaSpecs": honoured("Launcher and Worker"),
    "slotsPerWorker": honoured("1 when absent"),
    "runPolicy": honoured(),
    "runLauncherAsWorker": honoured("one worker more takes its part"),
    "mpiImplementation": honoured("OpenMPI"),
    "launcherCreationPolicy": met("launcher and workers start together; mpirun waits for the workers"),
    "sshAuthMountPath": met("ranks are started without ssh"),
    "mainContainer": met("a pod runs one program"),
    **RUN_POLICY,
}
TF_ROLES = {"chief": "chief", "master": "chief", "worker": "worker", "ps": "ps", "evaluator": "evaluator"}
TORCH_ROLES = {"master": "master", "worker": "worker"}
MPI_ROLES = {"launcher": "launcher", "worker": "worker"}


def tf_body(spec: View, around: Around) -> Read:
    """A TFJob: chief, workers, parameter servers and evaluators, told of each other by TF_CONFIG."""
    spec.check(TF)
    found, policy = _members(spec, "tfReplicaSpecs", TF_ROLES, around)
    if not found:
        return NOTHING
    spec.choice("successPolicy", ("", "AllWorkers"), "")
    return _whole(gang_body(found), policy) | {"framework": "tf"}, found[0].parts


def torch_body(spec: View, around: Around) -> Read:
    """A PyTorchJob: master and workers, told of each other as torchrun's environment has it."""
    spec.check(TORCH)
    found, policy = _members(spec, "pytorchReplicaSpecs", TORCH_ROLES, around)
    if not found:
        return NOTHING
    body = _whole(gang_body(found), policy) | {"framework": "torch", "env": {"PYTHONUNBUFFERED": "1"}}
    elastic = spec.get("elasticPolicy")
    processes = _processes(spec, "nprocPerNode")
    if elastic is not None:
        elastic.check(ELASTIC)
        processes = processes or _processes(elastic, "nProcPerNode")
        body |= _elastic(elastic, found, body)
    return body | ({"processes": processes} if processes else {}), found[0].parts


def mpi_body(spec: View, around: Around) -> Read:
    """An MPIJob: a launcher with mpirun, and workers that run what it starts."""
    spec.check(MPI)
    found, policy = _members(spec, "mpiReplicaSpecs", MPI_ROLES, around, waiting="worker")
    implementation = spec.text("mpiImplementation", "OpenMPI")
    if implementation != "OpenMPI":
        place = spec.place_of("mpiImplementation")
        sentence = f"'{implementation[:40]}' is no MPI that the pool starts."
        spec.report.refuse(place, sentence, "Use an image with Open MPI, and mpiImplementation: OpenMPI.")
    launcher = [member for member in found if member.name == "launcher"]
    if not launcher or launcher[0].replicas != 1:
        spec.refuse("needs one 'Launcher'.", "Write mpiReplicaSpecs: {Launcher: {replicas: 1, template: ...}, ...}.")
        return NOTHING
    found = _workers(spec, found)
    if not found:
        return NOTHING
    body = _whole(gang_body(found), policy)
    processes = spec.number("slotsPerWorker", 1, least=1)
    return body | {"framework": "mpi", "processes": processes}, found[0].parts


def suspended(spec: View) -> bool:
    """Whether a training job is to wait until it is resumed."""
    return spec.flag("suspend") or ((policy := spec.get("runPolicy")) is not None and policy.flag("suspend"))


def _members(
    spec: View, key: str, roles: Mapping[str, str], around: Around, waiting: str = ""
) -> tuple[list[Member], View]:
    policy = spec.get("runPolicy") or spec
    if policy is not spec:
        policy.check(RUN_POLICY)
    specs = spec.get(key)
    found = [] if specs is None else members(specs, roles, around, waiting)
    if not found:
        spec.refuse(f"needs '{key}' with at least one replica.")
    return found, policy


def _whole(body: Values, policy: View) -> Values:
    return body | policy_body(policy)


def _processes(view: View, key: str) -> int | None:
    value = view.get(key)
    if value is None or value.scalar() in {"auto", "gpu", "cpu", ""}:
        return None
    return view.number(key, least=1)


def _elastic(policy: View, found: list[Member], body: Values) -> Values:
    backend = policy.text("rdzvBackend", "c10d")
    if backend != "c10d":
        value = policy.get("rdzvBackend")
        if value is not None:
            value.warn(Notice.FIELD_IGNORED, "is not honoured: workers meet by c10d.")
    if len(found) > 1:
        policy.refuse("needs workers only, no master.", "Leave Master out.", ErrorCode.UNSUPPORTED)
        return {}
    most = policy.number("maxReplicas", found[0].replicas, least=1) or 1
    least = policy.number("minReplicas", min(found[0].replicas, most), least=1) or 1
    if least > most:
        policy.refuse("has a minReplicas above its maxReplicas.", code=ErrorCode.INVALID_COUNT)
        return {}
    body["roles"][0]["replicas"] = most
    restarts = policy.number("maxRestarts")
    again = {} if restarts is None else {"restart": "on-failure", "backoff_limit": min(restarts, MAX_BACKOFF)}
    return {"gang": {"workers": most, "min": least}, "on_member_end": "continue"} | again


def _workers(spec: View, found: list[Member]) -> list[Member]:
    launcher, workers = found[0], found[1:]
    if not spec.flag("runLauncherAsWorker"):
        if not workers:
            spec.refuse("needs 'Worker' replicas.")
        return found if workers else []
    if workers:
        one = workers[0]
        return [launcher, Member("worker", one.replicas + 1, one.restart, one.parts, one.view)]
    alone = replace(launcher.parts, command=[], container=_opened(launcher.parts.container))
    return [launcher, Member("worker", 1, launcher.restart, alone, launcher.view)]


def _opened(container: Values) -> Values:
    return container and {**container, "entrypoint": []}
