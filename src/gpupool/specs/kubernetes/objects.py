"""Workloads, replicas and nodes from the API, in the form of Kubernetes objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gpupool.domain.units import WHOLE_GPU
from gpupool.specs.kubernetes.kinds import BY_NAME, DEPLOYMENT, KIND_LABEL, POD, ManifestKind

Json = dict[str, Any]

PHASES = {
    "succeeded": "Succeeded",
    "failed": "Failed",
    "stopped": "Failed",
    "running": "Running",
    "stopping": "Running",
}
STATUSES = {
    "starting": "ContainerCreating",
    "running": "Running",
    "stopping": "Terminating",
    "succeeded": "Completed",
    "failed": "Error",
    "stopped": "Stopped",
}
STATES = {
    "queued": "Created",
    "running": "Running",
    "suspended": "Suspended",
    "stopping": "Terminating",
    "succeeded": "Succeeded",
    "failed": "Failed",
    "stopped": "Stopped",
}
GPU = "nvidia.com/gpu"
GPU_MEMORY = "nvidia.com/gpumem"
GPU_PERCENT = "nvidia.com/gpumem-percentage"
OWN_PREFIX = "gpupool/"


def kind_of(workload: Mapping[str, Any]) -> ManifestKind:
    """Return the kind of object that a workload was created from; Pod if there was none."""
    return BY_NAME.get(workload["labels"].get(KIND_LABEL, ""), POD)


def list_object(items: Sequence[Json]) -> Json:
    """Return several objects as a List."""
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": list(items)}


def pod_status(replica: Mapping[str, Any], now: float, *, suspended: bool = False) -> str:
    """Return the status that ``kubectl get pods`` would show for a replica."""
    if replica["state"] != "pending":
        return STATUSES[replica["state"]]
    if suspended:
        return "Suspended"
    return "CrashLoopBackOff" if replica["failures"] and replica["not_before"] > now else "Pending"


def job_state(workload: Mapping[str, Any]) -> str:
    """Return the content of the column STATE of a training job."""
    return STATES[workload["state"]]


def object_of(workload: Json, now: float) -> Json:
    """Return a workload in detail as the object that it was created from."""
    kind = kind_of(workload)
    if kind is POD:
        return pod_object(workload, workload["replicas"][0], now)
    return {
        "apiVersion": kind.versions[0],
        "kind": kind.name,
        "metadata": _metadata(workload, workload["name"], workload["id"]),
        "spec": _job_spec(workload),
        "status": _job_status(workload, kind),
    }


def pod_object(workload: Json, replica: Json, now: float) -> Json:
    """Return a replica as a Pod."""
    status: Json = {"phase": PHASES.get(replica["state"], "Pending"), "conditions": []}
    if replica["started_at"] is not None:
        status["startTime"] = moment(replica["started_at"])
    if replica["reason"]:
        status |= {"reason": replica["reason"], "message": replica["message"]}
    status["containerStatuses"] = [_container(workload, replica, now)]
    spec: Json = {"containers": [_program(workload)], "restartPolicy": _policy(workload)}
    if replica["node"]:
        spec["nodeName"] = replica["node"]
    metadata = _metadata(workload, replica["member"] or workload["name"], f"{workload['id']}-{replica['index']}")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def deployment_object(service: Json) -> Json:
    """Return a service as a Deployment."""
    definition = service["definition"] or {}
    labels = {k: v for k, v in definition.get("labels", {}).items() if not k.startswith(OWN_PREFIX)}
    container: Json = {"name": "main"}
    container |= {name: definition[name] for name in ("image", "command") if definition.get(name)}
    if limits := gpu_limits(requested_gpus(definition.get("gpus"))):
        container["resources"] = {"limits": limits}
    ready, wanted = service["ready"], service["desired"]
    available = "True" if ready >= wanted else "False"
    current = sum(1 for each in service["replicas"] if each["revision"] == service["target"])
    return {
        "apiVersion": DEPLOYMENT.versions[0],
        "kind": DEPLOYMENT.name,
        "metadata": {
            "name": service["name"],
            "namespace": service["project"],
            "uid": service["id"],
            "creationTimestamp": moment(service["created_at"]),
            "labels": labels,
            "annotations": {"gpupool/service": service["id"], "gpupool/user": service["user"]},
        },
        "spec": {"replicas": wanted, "template": {"spec": {"containers": [container]}}},
        "status": {
            "replicas": len(service["replicas"]),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "updatedReplicas": current,
            "conditions": [{"type": "Available", "status": available, "message": service["failure"]}],
        },
    }


def node_object(node: Json) -> Json:
    """Return a node with its capacity and allocatable resources."""
    ready = node["state"] != "down"
    labels = {"kubernetes.io/hostname": node["name"], **node["labels"]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node["name"], "labels": labels},
        "spec": {"unschedulable": True} if node["state"] == "cordoned" else {},
        "status": {
            "capacity": capacity(node),
            "allocatable": allocatable(node),
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
            "nodeInfo": {"kubeletVersion": f"gpupool-{node['agent_version']}", "operatingSystem": "linux"},
        },
    }


def capacity(node: Mapping[str, Any]) -> dict[str, str]:
    """Return the resources of a node."""
    return {"cpu": f"{node['cpus']:g}", "memory": f"{node['memory_mib']}Mi", GPU: str(len(node["gpus"]))}


def allocatable(node: Mapping[str, Any]) -> dict[str, str]:
    """Return its allocatable resources: GPUs that are healthy and have no foreign process."""
    usable = sum(1 for gpu in node["gpus"] if gpu["available"])
    return capacity(node) | {GPU: str(usable)}


def allocated(node: Mapping[str, Any]) -> dict[str, str]:
    """Return its allocated resources; shares of GPUs are added up."""
    held = sum(gpu["allocated_permille"] for gpu in node["gpus"]) / 1000
    return {"cpu": f"{node['cpus_allocated']:g}", "memory": f"{node['memory_allocated_mib']}Mi", GPU: f"{held:g}"}


def moment(at: float) -> str:
    """Return seconds since the epoch in Kubernetes' format."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _metadata(workload: Json, name: str, uid: str) -> Json:
    own = {key: value for key, value in workload["labels"].items() if key.startswith(OWN_PREFIX)}
    return {
        "name": name,
        "namespace": workload["project"],
        "uid": uid,
        "creationTimestamp": moment(workload["created_at"]),
        "labels": {key: value for key, value in workload["labels"].items() if key not in own},
        "annotations": {**own, "gpupool/workload": workload["id"], "gpupool/user": workload["user"]},
    }


def _program(workload: Json) -> Json:
    container: Json = {"name": "main", "command": workload["command"] or []}
    if limits := gpu_limits(workload["gpus"]):
        container["resources"] = {"limits": limits}
    return container


def requested_gpus(request: Json | None) -> Json:
    """Return the GPUs of a job file with the fields that workloads have."""
    given = {"count": 0} if request is None else request
    permille = round(given.get("fraction", 1) * WHOLE_GPU)
    return {"count": given.get("count", 1), "permille": permille, "memory_mib": given.get("memory_mib")}


def gpu_limits(gpus: Json) -> dict[str, str]:
    """Return the resources that request these GPUs, or parts of GPUs."""
    count, permille, memory_mib = gpus["count"], gpus["permille"], gpus["memory_mib"]
    if not count:
        return {}
    if memory_mib:
        return {GPU: str(count), GPU_MEMORY: str(memory_mib)}
    if permille == WHOLE_GPU or count == 1:
        return {GPU: f"{count * permille / WHOLE_GPU:g}"}
    return {GPU: str(count), GPU_PERCENT: f"{permille * 100 / WHOLE_GPU:g}"}


def _policy(workload: Json) -> str:
    return {"always": "Always", "on-failure": "OnFailure"}.get(workload["retry"]["policy"], "Never")


def _container(workload: Json, replica: Json, now: float) -> Json:
    running = replica["state"] in {"running", "stopping"}
    status: Json = {
        "name": "main",
        "ready": running,
        "started": running,
        "restartCount": max(0, replica["attempt"] - 1),
    }
    if running:
        status["state"] = {"running": {"startedAt": moment(replica["started_at"] or now)}}
    elif replica["state"] in {"succeeded", "failed", "stopped"}:
        code = replica["exit_status"] if replica["exit_status"] is not None else 1
        ended = moment(replica["finished_at"] or now)
        status["state"] = {"terminated": {"exitCode": code, "reason": replica["reason"], "finishedAt": ended}}
    else:
        waiting = pod_status(replica, now, suspended=workload["suspended"])
        status["state"] = {"waiting": {"reason": waiting, "message": replica["message"]}}
    return status


def _job_spec(workload: Json) -> Json:
    template = {"spec": {"containers": [_program(workload)], "restartPolicy": _policy(workload)}}
    return {
        "parallelism": workload["parallelism"],
        "completions": workload["completions"],
        "backoffLimit": workload["retry"]["backoff_limit"],
        "suspend": workload["suspended"],
        "template": template,
    }


def _job_status(workload: Json, kind: ManifestKind) -> Json:
    counts = workload["counts"]
    status: Json = {
        "active": sum(counts[state] for state in ("pending", "starting", "running", "stopping")),
        "succeeded": counts["succeeded"],
        "failed": counts["failed"] + counts["stopped"],
        "conditions": list(_conditions(workload, kind)),
    }
    if workload["state"] == "queued":
        status["active"] = 0
    if workload["started_at"] is not None:
        status["startTime"] = moment(workload["started_at"])
    if workload["finished_at"] is not None:
        status["completionTime"] = moment(workload["finished_at"])
    roles = Counter(
        (replica["member"].removeprefix(workload["name"] + "-").rpartition("-")[0], replica["state"])
        for replica in workload["replicas"]
    )
    named = {role for role, _ in roles if role}
    if named:
        status["replicaStatuses"] = {
            role.capitalize(): {
                "active": sum(roles[role, state] for state in ("starting", "running", "stopping")),
                "succeeded": roles[role, "succeeded"],
                "failed": roles[role, "failed"] + roles[role, "stopped"],
            }
            for role in sorted(named)
        }
    return status


def _conditions(workload: Json, kind: ManifestKind) -> Iterator[Json]:
    names = {"succeeded": "Complete" if kind.group == "batch" else "Succeeded", "failed": "Failed", "stopped": "Failed"}
    names |= {"suspended": "Suspended", "running": "Running"}
    name = names.get(workload["state"])
    if name is None or (name == "Running" and kind.group == "batch"):
        return
    at = workload["finished_at"] or workload["started_at"] or workload["created_at"]
    reason = workload["reason"] or {"code": "", "message": ""}
    yield {
        "type": name,
        "status": "True",
        "lastTransitionTime": moment(at),
        "reason": reason["code"],
        "message": reason["message"],
    }
