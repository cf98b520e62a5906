"""Replica specs of Kubeflow's jobs as roles of a gang: each role's own fields, and the common ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpupool.domain.errors import ErrorCode
from gpupool.specs.kubernetes.field_tables import ignored, not_needed, rejected, supported
from gpupool.specs.kubernetes.jobs.pod_job import RESTART, per_replica, retries
from gpupool.specs.kubernetes.pods.pod import Around, PodParts, priority, template_parts
from gpupool.specs.kubernetes.reading import Fields, ManifestView
from gpupool.specs.kubernetes.report import ManifestNotice

Values = dict[str, Any]

REPLICA: Fields = {
    "replicas": supported("default 1; 0 omits the role"),
    "template": supported(),
    "restartPolicy": supported("ExitCode works as OnFailure, with a warning"),
}
RUN_POLICY: Fields = {
    "cleanPodPolicy": supported("members that run are stopped with the job; output is kept until the job is deleted"),
    "ttlSecondsAfterFinished": supported(),
    "activeDeadlineSeconds": supported("the time limit of each program"),
    "backoffLimit": supported("for each member, or for the whole gang if it restarts together; default 6"),
    "suspend": supported(),
    "schedulingPolicy": supported("queue and priorityClass"),
    "managedBy": rejected("the pool runs it.", "Leave it out."),
}
SCHEDULING: Fields = {
    "queue": supported("the project"),
    "priorityClass": supported("as priorityClassName of a pod"),
    "minAvailable": not_needed("all members start together"),
    "minResources": not_needed("all members start together"),
    "scheduleTimeoutSeconds": ignored("it waits until GPUs are free, or until it is deleted"),
}
DEFAULT_BACKOFF = 6
CLEAN_UP = ("Running", "All", "None")
POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
_SHARED = ("pull", "container_user")
_OWN = ("image", "volumes", "entrypoint")


@dataclass(frozen=True, slots=True)
class PodRole:
    """A role: its name, its number of members, and its pod."""

    name: str
    replicas: int
    restart: str
    parts: PodParts
    view: ManifestView


def members(specs: ManifestView, names: Mapping[str, str], around: Around, waiting: str = "") -> list[PodRole]:
    """Return the roles in a mapping of replica specs, in the order of ``names`` (as written, lower case: the role).

    ``waiting`` is the role whose own commands are ignored.
    """
    written: dict[str, ManifestView] = {}
    for key in specs.keys():  # noqa: SIM118 - a View
        found = specs.get(key)
        if key.lower() not in names:
            place = specs.node.keys[key]
            known = ", ".join(name.upper() if name == "ps" else name.capitalize() for name in names)
            sentence = f"There is no role '{key[:80]}'."
            specs.report.refuse(place, sentence, f"The roles are {known}.", ErrorCode.INVALID_REQUEST)
        elif found is not None:
            written[key.lower()] = found
    return [
        member
        for key, role in names.items()
        if key in written
        and (member := _member(written[key], role, replace(around, waits=role == waiting))) is not None
    ]


def _member(spec: ManifestView, role: str, around: Around) -> PodRole | None:
    spec.check(REPLICA)
    replicas = spec.number("replicas", 1)
    template = spec.get("template")
    policy = spec.choice("restartPolicy", POLICIES, "")
    if policy == "ExitCode":
        found = spec.get("restartPolicy")
        if found is not None:
            found.warn(ManifestNotice.EXIT_CODES_ALIKE, "works as OnFailure: every exit status except 0 is retried.")
    if template is None:
        spec.refuse("needs a 'template'.")
        return None
    parts = template_parts(template, around)
    own = policy or parts.restart
    return PodRole(role, replicas, RESTART.get(own, "on-failure"), parts, spec) if replicas else None


def gang_body(found: Sequence[PodRole]) -> Values:
    """Return the fields that all members share, and the field ``roles``."""
    main = found[0]
    body: Values = {"kind": "training", "labels": {}, "env_from": {}}
    for member in found:
        body["labels"] |= member.parts.labels
        body["env_from"] |= _sources(body["env_from"], member)
        _agree(body, member, {**member.parts.course, **_of(member.parts.container, _SHARED)})
    body["gpus"] = next((member.parts.gpus for member in found if member.parts.gpus.get("count")), main.parts.gpus)
    body |= {"literal": True} if all(member.parts.literal for member in found) else {}
    if main.parts.container:
        body["image"] = main.parts.container["image"]
    body["roles"] = [_role(member) for member in found]
    body["gang"] = _topology(found)
    return {key: value for key, value in body.items() if value not in ({}, [], None)}


def _topology(found: Sequence[PodRole]) -> Values:
    """Return the field ``gang`` with the topology that the roles request; empty without one."""
    notes = [member.parts.topology for member in found if member.parts.topology is not None]
    for note in notes[1:]:
        if note.body() != notes[0].body():
            note.view.refuse("differs from another role.", "Use the same topology in all templates.")
    return {"workers": sum(member.replicas for member in found), **notes[0].body()} if notes else {}


def _sources(known: Values, member: PodRole) -> Values:
    """Check variables known only at the start: they apply to all members, so two roles must not differ."""
    found = {name: str(source) for name, source in member.parts.env.sources.items()}
    for name in found.keys() & known.keys():
        if found[name] != known[name]:
            member.view.refuse(f"has another source for the variable {name} than another role.", "Name it differently.")
    return found


def _agree(body: Values, member: PodRole, values: Values) -> None:
    for key, value in values.items():
        if body.setdefault(key, value) != value:
            member.view.report.refuse(
                member.parts.place,
                f"'{member.view.path}' differs from another role in a common field: {key}.",
                "Use the same value in all templates.",
                ErrorCode.UNSUPPORTED,
            )


def _of(values: Values, keys: Sequence[str]) -> Values:
    return {key: values[key] for key in keys if key in values}


def _role(member: PodRole) -> Values:
    parts = member.parts
    role: Values = {"name": member.name, "replicas": member.replicas, "gpus": parts.gpus, "env": parts.env.values}
    container = dict(parts.container)
    entry = container.pop("entrypoint", None)
    command = [*(entry or []), *parts.command]
    if entry is not None:
        container["entrypoint"] = []  # the command is complete: the image's entry point is not prepended
    role |= {"command": command, "restart": member.restart, **parts.host, **_of(container, _OWN)}
    return {key: value for key, value in role.items() if value not in ({}, None) and (value or key != "command")}


def policy_body(policy: ManifestView) -> Values:
    """Return the fields of a request in a run policy (in older versions part of the ``spec`` itself)."""
    body: Values = {}
    if policy.choice("cleanPodPolicy", CLEAN_UP, "Running") == "None":
        found = policy.get("cleanPodPolicy")
        if found is not None:
            found.warn(ManifestNotice.CLEAN_UP, "is ignored: members that still run are stopped when the job ends.")
    ttl, deadline = policy.number("ttlSecondsAfterFinished"), policy.number("activeDeadlineSeconds", least=1)
    body |= {"ttl": max(ttl, 1)} if ttl is not None else {}
    if deadline:
        body["max_time"] = deadline
        per_replica(policy, "activeDeadlineSeconds", "applies to each start of a program")
    scheduling = policy.get("schedulingPolicy")
    if scheduling is not None:
        scheduling.check(SCHEDULING)
        body |= priority(scheduling.get("priorityClass"))
    return body | retries(policy.number("backoffLimit", DEFAULT_BACKOFF) or 0)
