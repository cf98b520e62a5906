"""Tables in the form of kubectl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpupool.cli.render.text import Style, since, table
from gpupool.cli.render.workloads import gpus_text
from gpupool.domain.units import format_duration, format_mib, format_permille
from gpupool.specs.kubernetes.kinds import JOB, POD, ManifestKind
from gpupool.specs.kubernetes.objects import GPU, allocatable, capacity, job_state, pod_status

Json = dict[str, Any]

JOB_STATUSES = {"succeeded": "Complete", "queued": "Pending"}


def rows_of(
    kind: ManifestKind, workloads: Sequence[Json], now: float, *, wide: bool
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the headers and rows of a kind: name first, then namespace and user, which may be left out."""
    if kind is POD:
        return _pods(workloads, now, wide=wide)
    headers = ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"] if kind is JOB else ["NAME", "STATE", "AGE"]
    more = ["PODS", "GPUS", "ID"] if wide else []
    rows = [_job(kind, workload, now) + (_wide(workload) if wide else ()) for workload in workloads]
    return headers + more, rows


def _pods(workloads: Sequence[Json], now: float, *, wide: bool) -> tuple[list[str], list[tuple[str, ...]]]:
    headers = ["NAME", "READY", "STATUS", "RESTARTS", "AGE"] + (["NODE", "GPUS", "ABOUT"] if wide else [])
    rows = []
    for workload in workloads:
        for replica in workload["replicas"]:
            ready = "1/1" if replica["state"] == "running" else "0/1"
            status = pod_status(replica, now, suspended=workload["suspended"])
            restarts = str(max(0, replica["attempt"] - 1))
            row = (replica["member"], ready, status, restarts, since(workload["created_at"], now))
            rows.append(row + (_pod_wide(replica) if wide else ()))
    return headers, rows


def _pod_wide(replica: Json) -> tuple[str, ...]:
    held = ", ".join(f"{gpu['index']}:{format_permille(gpu['permille'])}" for gpu in replica["gpus"])
    return replica["node"] or "<none>", held or "<none>", replica["message"] or replica["reason"]


def _job(kind: ManifestKind, workload: Json, now: float) -> tuple[str, ...]:
    age = since(workload["created_at"], now)
    if kind is not JOB:
        return workload["name"], job_state(workload), age
    done, started = workload["counts"]["succeeded"], workload["started_at"]
    duration = "" if started is None else format_duration((workload["finished_at"] or now) - started)
    status = JOB_STATUSES.get(workload["state"], workload["state"].capitalize())
    return workload["name"], status, f"{done}/{workload['completions']}", duration, age


def _wide(workload: Json) -> tuple[str, ...]:
    return str(workload["completions"]), gpus_text(workload["gpus"]), workload["id"]


def deployment_rows(services: Sequence[Json], now: float, *, wide: bool) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the table of services as Deployments."""
    headers = ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"] + (["STATE", "ADDRESS", "ID"] if wide else [])
    rows = []
    for service in services:
        ready = str(service["ready"])
        current = sum(1 for each in service["replicas"] if each["revision"] == service["target"])
        age = since(service["created_at"], now)
        row = (service["name"], f"{ready}/{service['desired']}", str(current), ready, age)
        rows.append(row + ((service["state"], service["url"] or service["path"], service["id"]) if wide else ()))
    return headers, rows


def node_rows(nodes: Sequence[Json], *, wide: bool) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the table of nodes with capacity, allocatable and free resources."""
    headers = ["NAME", "STATUS", "GPUS", "ALLOCATABLE", "FREE", "CPU", "MEMORY", "VERSION"]
    rows = [_node(node) + (_node_wide(node) if wide else ()) for node in nodes]
    return headers + (["MODELS", "LABELS"] if wide else []), rows


def _node(node: Json) -> tuple[str, ...]:
    status = {"up": "Ready", "down": "NotReady", "cordoned": "Ready,SchedulingDisabled"}[node["state"]]
    free = sum(1000 - gpu["allocated_permille"] for gpu in node["gpus"] if gpu["available"])
    has, may = capacity(node), allocatable(node)
    return (
        node["name"],
        status,
        has[GPU],
        may[GPU],
        format_permille(free),
        has["cpu"],
        format_mib(node["memory_mib"]),
        node["agent_version"],
    )


def _node_wide(node: Json) -> tuple[str, ...]:
    models = ", ".join(dict.fromkeys(gpu["model"] for gpu in node["gpus"]))
    return models or "<none>", ",".join(f"{key}={value}" for key, value in node["labels"].items()) or "<none>"


def lines(headers: Sequence[str], rows: Sequence[tuple[str, ...]], style: Style, *, header: bool = True) -> list[str]:
    """Return the table as lines."""
    made = table(headers, rows, style)
    return made if header else made[1:]
