"""Pod and Job as requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpupool.domain.errors import ErrorCode
from gpupool.specs.kubernetes.field_tables import JOB
from gpupool.specs.kubernetes.pods.pod import Around, PodParts, pod_parts, template_parts
from gpupool.specs.kubernetes.reading import ManifestView
from gpupool.specs.kubernetes.report import ManifestNotice
from gpupool.specs.limits import MAX_BACKOFF, MAX_REPLICAS

Values = dict[str, Any]
DEFAULT_BACKOFF = 6
RESTART = {"Always": "always", "OnFailure": "on-failure", "Never": "never"}


def body_of(parts: PodParts) -> Values:
    """Return a pod's parts as fields of a request."""
    body: Values = {"kind": "training", "command": parts.command, "gpus": parts.gpus}
    body |= {"env": parts.env.values, "env_from": {name: str(s) for name, s in parts.env.sources.items()}}
    body |= {"literal": True} if parts.literal else {}
    if parts.topology is not None:
        parts.topology.refuse_alone()
    body |= parts.host | parts.container | parts.course
    body["labels"] = parts.labels
    return {key: value for key, value in body.items() if value not in ({}, [], None) or key == "gpus"}


def retries(limit: int) -> Values:
    """Return the fields of a request for a number of retries."""
    return {"restart": "on-failure", "backoff_limit": min(limit, MAX_BACKOFF)} if limit else {"restart": "never"}


def pod_body(spec: ManifestView, around: Around) -> tuple[Values, PodParts]:
    """Read a Pod: one program; without a restart policy it is restarted whenever it ends, as in a cluster."""
    metadata = around.metadata
    parts = pod_parts(spec, metadata.pairs("labels"), metadata.pairs("annotations"), around)
    restart = RESTART[parts.restart or "Always"]
    again = {"restart": restart} if restart == "never" else {"restart": restart, "backoff_limit": MAX_BACKOFF}
    return body_of(parts) | again, parts


def job_body(spec: ManifestView, around: Around) -> tuple[Values, PodParts]:
    """Read a Job: its completions as replicas, each with its own number of retries."""
    spec.check(JOB)
    indexed = spec.choice("completionMode", ("NonIndexed", "Indexed"), "NonIndexed") == "Indexed"
    template = spec.get("template")
    if template is None:
        spec.refuse("needs a 'template'.")
        return {}, PodParts()
    around = replace(around, indexed=indexed)
    parts = template_parts(template, around)
    if parts.restart in {"", "Always"}:
        where = template.get("spec") or template
        where.report.refuse(
            where.place_of("restartPolicy"),
            "A Job's 'restartPolicy' must be OnFailure or Never.",
            "Write it next to 'containers'.",
            ErrorCode.INVALID_REQUEST,
        )
    body = body_of(parts) | _replicas(spec, indexed=indexed)
    body |= _backoff(spec, body.get("completions", 1)) | ending(spec)
    if "activeDeadlineSeconds" in spec.keys() and (body.get("completions", 1) > 1 or "backoff_limit" in body):  # noqa: SIM118 - a View
        per_replica(spec, "activeDeadlineSeconds", "applies to each run of a program")
    return body, parts


def _replicas(spec: ManifestView, *, indexed: bool) -> Values:
    parallel = spec.number("parallelism")
    completions = spec.number("completions", least=1)
    at_once = min(parallel or 1, MAX_REPLICAS)
    if completions is None and indexed:
        spec.refuse("needs 'completions' where completionMode is Indexed.")
    if completions is None:
        if at_once > 1:
            found = spec.get("parallelism")
            if found is not None:
                said = f"without completions: all {at_once} must succeed; replicas are not notified of each other."
                found.warn(ManifestNotice.WORK_QUEUE, said)
        completions = at_once
    return {"completions": completions, "parallelism": min(at_once, completions)} if completions > 1 else {}


def _backoff(spec: ManifestView, completions: int) -> Values:
    by_index = spec.number("backoffLimitPerIndex")
    limit = spec.number("backoffLimit", DEFAULT_BACKOFF if by_index is None else by_index)
    if by_index is None and completions > 1 and spec.get("backoffLimit") is not None:
        per_replica(spec, "backoffLimit", "applies to each replica separately")
    return retries((limit if by_index is None else by_index) or 0)


def per_replica(spec: ManifestView, key: str, said: str) -> None:
    """Warn that a limit of the whole job applies to each of its replicas."""
    found = spec.get(key)
    if found is not None:
        found.warn(ManifestNotice.PER_REPLICA, f"{said}.")


def ending(spec: ManifestView) -> Values:
    """Return how long a job may run, and how long it is stored after its end."""
    deadline = spec.number("activeDeadlineSeconds", least=1)
    ttl = spec.number("ttlSecondsAfterFinished")
    found: Values = {"max_time": deadline} if deadline else {}
    return found | ({"ttl": max(ttl, 1)} if ttl is not None else {})


def job_suspended(spec: ManifestView) -> bool:
    """Return whether a Job waits until it is resumed."""
    return spec.flag("suspend") or spec.number("parallelism") == 0
