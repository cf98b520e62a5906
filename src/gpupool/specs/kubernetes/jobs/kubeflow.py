"""TFJob, PyTorchJob and MPIJob as requests for gangs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpupool.domain.errors import ErrorCode
from gpupool.domain.work.workload import SuccessPolicy
from gpupool.specs.kubernetes.field_tables import ignored, not_needed, supported
from gpupool.specs.kubernetes.jobs.roles import RUN_POLICY, PodRole, gang_body, members, policy_body
from gpupool.specs.kubernetes.pods.pod import Around, PodParts
from gpupool.specs.kubernetes.reading import Fields, ManifestView
from gpupool.specs.kubernetes.report import ManifestNotice
from gpupool.specs.limits import MAX_BACKOFF

Values = dict[str, Any]
Read = tuple[Values, PodParts]
NOTHING: Read = ({}, PodParts())

TF: Fields = {
    "tfReplicaSpecs": supported("Chief (or Master), Worker, PS and Evaluator"),
    "runPolicy": supported(),
    "successPolicy": supported("the chief decides; without a chief worker 0, or all workers with AllWorkers"),
    "enableDynamicWorker": ignored("a restarted worker finds the others at the same addresses"),
    **RUN_POLICY,
}
TORCH: Fields = {
    "pytorchReplicaSpecs": supported("Master and Worker"),
    "runPolicy": supported(),
    "nprocPerNode": supported("a number; auto, gpu and cpu: as many as GPUs"),
    "elasticPolicy": supported(),
    **RUN_POLICY,
}
ELASTIC: Fields = {
    "minReplicas": supported("the number of workers that can start"),
    "maxReplicas": supported("the maximum number of workers; workers join when GPUs become free"),
    "maxRestarts": supported("as backoffLimit"),
    "nProcPerNode": supported("as nprocPerNode"),
    "metrics": not_needed("workers join when GPUs are free"),
    "rdzvBackend": supported("c10d"),
    "rdzvHost": ignored("the pool sets the rendezvous of the workers"),
    "rdzvPort": ignored("the pool sets the rendezvous of the workers"),
    "rdzvId": ignored("the pool sets the rendezvous of the workers"),
    "rdzvConf": ignored("the pool sets the rendezvous of the workers"),
    "standalone": ignored("the pool sets the rendezvous of the workers"),
}
MPI: Fields = {
    "mpiReplicaSpecs": supported("Launcher and Worker"),
    "slotsPerWorker": supported("default 1"),
    "runPolicy": supported(),
    "runLauncherAsWorker": supported("the launcher also runs as a worker"),
    "mpiImplementation": supported("OpenMPI"),
    "launcherCreationPolicy": not_needed("launcher and workers start together; mpirun waits for the workers"),
    "sshAuthMountPath": not_needed("ranks are started without ssh"),
    "mainContainer": not_needed("a pod runs one program"),
    **RUN_POLICY,
}
TF_ROLES = {"chief": "chief", "master": "chief", "worker": "worker", "ps": "ps", "evaluator": "evaluator"}
TORCH_ROLES = {"master": "master", "worker": "worker"}
MPI_ROLES = {"launcher": "launcher", "worker": "worker"}


def tf_body(spec: ManifestView, around: Around) -> Read:
    """Read a TFJob: chief, workers, parameter servers and evaluators, which find each other by TF_CONFIG."""
    spec.check(TF)
    found, policy = _members(spec, "tfReplicaSpecs", TF_ROLES, around)
    if not found:
        return NOTHING
    body = _whole(gang_body(found), policy) | {"framework": "tf"}
    # The training operator lets worker 0 decide unless there is a chief or successPolicy is AllWorkers.
    if spec.choice("successPolicy", ("", "AllWorkers"), "") == "" and not any(m.name == "chief" for m in found):
        body["success_policy"] = SuccessPolicy.FIRST_WORKER.value
    return body, found[0].parts


def torch_body(spec: ManifestView, around: Around) -> Read:
    """Read a PyTorchJob: master and workers, with the environment that torchrun sets."""
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


def mpi_body(spec: ManifestView, around: Around) -> Read:
    """Read an MPIJob: a launcher with mpirun, and workers that run its processes."""
    spec.check(MPI)
    found, policy = _members(spec, "mpiReplicaSpecs", MPI_ROLES, around, waiting="worker")
    implementation = spec.text("mpiImplementation", "OpenMPI")
    if implementation != "OpenMPI":
        place = spec.place_of("mpiImplementation")
        sentence = f"'{implementation[:40]}' is not a supported MPI."
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


def suspended(spec: ManifestView) -> bool:
    """Return whether a training job waits until it is resumed."""
    return spec.flag("suspend") or ((policy := spec.get("runPolicy")) is not None and policy.flag("suspend"))


def _members(
    spec: ManifestView, key: str, roles: Mapping[str, str], around: Around, waiting: str = ""
) -> tuple[list[PodRole], ManifestView]:
    policy = spec.get("runPolicy") or spec
    if policy is not spec:
        policy.check(RUN_POLICY)
    specs = spec.get(key)
    found = [] if specs is None else members(specs, roles, around, waiting)
    if not found:
        spec.refuse(f"needs '{key}' with at least one replica.")
    return found, policy


def _whole(body: Values, policy: ManifestView) -> Values:
    return body | policy_body(policy)


def _processes(view: ManifestView, key: str) -> int | None:
    value = view.get(key)
    if value is None or value.scalar() in {"auto", "gpu", "cpu", ""}:
        return None
    return view.number(key, least=1)


def _elastic(policy: ManifestView, found: list[PodRole], body: Values) -> Values:
    backend = policy.text("rdzvBackend", "c10d")
    if backend != "c10d":
        value = policy.get("rdzvBackend")
        if value is not None:
            value.warn(ManifestNotice.FIELD_IGNORED, "is ignored: the rendezvous uses c10d.")
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
    gang = {**body.get("gang", {}), "workers": most, "min": least}
    return {"gang": gang, "on_member_end": "continue"} | again


def _workers(spec: ManifestView, found: list[PodRole]) -> list[PodRole]:
    launcher, workers = found[0], found[1:]
    if not spec.flag("runLauncherAsWorker"):
        if not workers:
            spec.refuse("needs 'Worker' replicas.")
        return found if workers else []
    if workers:
        one = workers[0]
        return [launcher, PodRole("worker", one.replicas + 1, one.restart, one.parts, one.view)]
    alone = replace(launcher.parts, command=[], container=_opened(launcher.parts.container))
    return [launcher, PodRole("worker", 1, launcher.restart, alone, launcher.view)]


def _opened(container: Values) -> Values:
    return container and {**container, "entrypoint": []}
