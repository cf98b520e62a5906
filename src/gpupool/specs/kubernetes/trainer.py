"""TrainJob, and the training runtimes that it names: those of the same file, and two that every cluster has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.specs.kubernetes.amounts import processors
from gpupool.specs.kubernetes.nodes import mapping, merged, text_node
from gpupool.specs.kubernetes.plain import DEFAULT_BACKOFF, ending, retries
from gpupool.specs.kubernetes.pod import Around, PodParts, template_parts
from gpupool.specs.kubernetes.reading import Fields, View
from gpupool.specs.kubernetes.report import Notice
from gpupool.specs.kubernetes.roles import Member, gang_body
from gpupool.specs.kubernetes.tables import JOB, honoured, met, refused, warned
from gpupool.specs.yamlnodes import Node

Values = dict[str, Any]
RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
NODE, LAUNCHER = "node", "launcher"
# Runtimes that come with Kubeflow Trainer: their framework, and the image of their nodes.
BUILT_IN = {
    "torch-distributed": ("torch", "docker.io/pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"),
    "deepspeed-distributed": ("mpi", "ghcr.io/kubeflow/trainer/deepspeed-runtime"),
}
FRAMEWORKS = ("torch", "mpi", "jax", "xgboost", "flux")

TRAINJOB: Fields = {
    "runtimeRef": honoured(f"a runtime in the same file, or {' or '.join(BUILT_IN)}"),
    "trainer": honoured(),
    "runtimePatches": honoured("those of the pods called node"),
    "podTemplateOverrides": honoured("those of the pods called node"),
    "suspend": honoured(),
    "activeDeadlineSeconds": honoured("the longest running time of each program"),
    "labels": honoured(),
    "annotations": honoured("those for GPUs"),
    "initializer": warned(
        "nothing is fetched before the start: have the data in a folder of the nodes, or fetch it first"
    ),
    "managedBy": refused("the pool itself runs it.", "Leave it out."),
}
REF: Fields = {"apiGroup": met("the name says it"), "kind": met("the name says it"), "name": honoured()}
TRAINER: Fields = {
    "image": honoured(),
    "command": honoured(),
    "args": honoured(),
    "env": honoured(),
    "numNodes": honoured("1, or the runtime's, when absent"),
    "numProcPerNode": honoured("as many as GPUs when absent; without GPUs as many as processors"),
    "resourcesPerNode": honoured(),
}
RUNTIME: Fields = {
    "mlPolicy": honoured("numNodes; torch, mpi or none"),
    "template": honoured("the pods called node"),
    "podGroupPolicy": met("all nodes start together"),
}
POLICY: Fields = {
    "numNodes": honoured(),
    "torch": honoured(),
    "mpi": honoured(),
    "jax": refused("the pool does not wire JAX.", "Use a runtime with torch or mpi."),
    "xgboost": refused("the pool does not wire XGBoost.", "Use a runtime with torch or mpi."),
    "flux": refused("the pool does not wire Flux.", "Use a runtime with torch or mpi."),
}
REPLICATED: Fields = {
    "name": honoured("node, and launcher for mpi"),
    "template": honoured(),
    "replicas": met("numNodes says how many"),
    "dependsOn": met("all start together"),
    "groupName": met("there is one group"),
}


@dataclass(frozen=True, slots=True)
class _Runtime:
    """What a runtime says: its framework (empty: none), numbers, and the template of its nodes."""

    framework: str
    nodes: int
    processes: int | None
    template: Node | None
    backoff: int


def read_runtimes(views: Sequence[View]) -> dict[str, View]:
    """The training runtimes among the documents of a file, by name."""
    found: dict[str, View] = {}
    for view in views:
        if isinstance(view.node.value, dict) and view.text("kind") in RUNTIMES:
            name, spec = view.follow("metadata", "name"), view.get("spec")
            if name is not None and spec is not None:
                found[name.scalar()] = spec
    return found


def train_body(spec: View, around: Around) -> tuple[Values, PodParts]:
    """A TrainJob: the nodes of its runtime, with what the job puts over them."""
    spec.check(TRAINJOB)
    trainer = spec.get("trainer") or View(spec.report, mapping(spec.node), "spec.trainer", spec.place)
    trainer.check(TRAINER)
    runtime = _runtime(spec, around)
    if runtime is None:
        return {}, PodParts()
    template = _template(runtime, spec, trainer)
    parts = template_parts(View(spec.report, template, "spec.trainer", trainer.place), around)
    nodes = trainer.number("numNodes", runtime.nodes, least=1) or 1
    member = Member(NODE, nodes, "on-failure", parts, trainer)
    body = gang_body(_with_launcher(member) if runtime.framework == "mpi" else [member])
    body |= retries(runtime.backoff) | ending(spec)
    if not runtime.framework:
        return body, parts
    processes = trainer.number("numProcPerNode", runtime.processes, least=1) or _by_processors(trainer, parts)
    return body | {"framework": runtime.framework} | ({"processes": processes} if processes else {}), parts


def _with_launcher(member: Member) -> list[Member]:
    """The first node's program is the launcher's; the nodes run what it starts."""
    launcher = PodParts(
        command=member.parts.command,
        env=member.parts.env,
        gpus={"count": 0},
        container=dict(member.parts.container),
        course=dict(member.parts.course),
        labels=member.parts.labels,
        place=member.parts.place,
        literal=member.parts.literal,
    )
    container = {key: value for key, value in member.parts.container.items() if key != "entrypoint"}
    member.parts.container = container | ({"entrypoint": []} if container else {})
    worker = Member(NODE, member.replicas, member.restart, _silent(member.parts), member.view)
    return [Member(LAUNCHER, 1, member.restart, launcher, member.view), worker]


def _silent(parts: PodParts) -> PodParts:
    parts.command = []
    return parts


def _by_processors(trainer: View, parts: PodParts) -> int | None:
    """Without GPUs, Kubeflow runs one process for each processor that a node asks for."""
    if parts.gpus.get("count"):
        return None
    for kind in ("requests", "limits"):
        asked = trainer.follow("resourcesPerNode", kind, "cpu")
        if asked is not None:
            return max(1, int(processors(asked) or 0))
    return None


def _runtime(spec: View, around: Around) -> _Runtime | None:
    ref = spec.get("runtimeRef")
    name = ref.text("name") if ref is not None else ""
    if ref is not None:
        ref.check(REF)
    if name in around.companions.runtimes:
        return _of_file(around.companions.runtimes[name])
    if name in BUILT_IN and ref is not None:
        framework, image = BUILT_IN[name]
        container = mapping(ref.node, name=text_node(NODE, ref.node), image=text_node(image, ref.node))
        listed = Node(ref.node.line, ref.node.column, [container])
        pod = mapping(ref.node, spec=mapping(ref.node, containers=listed))
        return _Runtime(framework, 1, None, pod, DEFAULT_BACKOFF)
    place = ref.place_of("name") if ref is not None else spec.place
    spec.report.refuse(
        place,
        f"There is no training runtime '{name[:80]}'.",
        f"Put its document into the same file, or use {' or '.join(BUILT_IN)}.",
    )
    return None


def _of_file(runtime: View) -> _Runtime:
    runtime.check(RUNTIME)
    policy = runtime.get("mlPolicy")
    framework, nodes, processes = "", 1, None
    if policy is not None:
        policy.check(POLICY)
        framework = next((key for key in FRAMEWORKS if key in policy.keys()), "")  # noqa: SIM118 - a View
        nodes = policy.number("numNodes", 1, least=1) or 1
        own = policy.get(framework) if framework else None
        processes = own.number("numProcPerNode", least=1) if own is not None else None
    template, backoff = None, DEFAULT_BACKOFF
    jobs = runtime.follow("template", "spec")
    for job in jobs.each("replicatedJobs") if jobs is not None else []:
        job.check(REPLICATED)
        if job.text("name") == NODE:
            template, backoff = _job(job)
        elif job.text("name") != LAUNCHER:
            said = f"The job '{job.text('name')[:80]}' of the runtime is left out: only its nodes run."
            job.report.warn(job.place, Notice.CONTAINER_LEFT_OUT, said)
    return _Runtime(framework, nodes, processes, template, backoff)


def _job(job: View) -> tuple[Node | None, int]:
    inner = job.follow("template", "spec")
    if inner is None:
        return None, DEFAULT_BACKOFF
    inner.check(JOB)
    template = inner.get("template")
    return template.node if template is not None else None, inner.number("backoffLimit", DEFAULT_BACKOFF) or 0


def _template(runtime: _Runtime, spec: View, trainer: View) -> Node:
    """The pod template of the nodes: the runtime's, the patches for it, and the trainer's own words over both."""
    template = runtime.template
    for patch in _patches(spec):
        template = merged(template, patch)
    own: Mapping[str, str] = {
        "image": "image", "command": "command", "args": "args", "env": "env", "resourcesPerNode": "resources",
    }  # fmt: skip
    words = {key: found.node for name, key in own.items() if (found := trainer.get(name)) is not None}
    if "command" in words or "args" in words:
        template = _without(template, [key for key in ("command", "args") if key in words or "command" in words])
    container = mapping(trainer.node, name=text_node(NODE, trainer.node), **words)
    for name, key in own.items():
        if key in container.keys and name in trainer.node.keys:
            container.keys[key] = trainer.node.keys[name]
    over = mapping(
        trainer.node, spec=mapping(trainer.node, containers=Node(trainer.node.line, trainer.node.column, [container]))
    )
    labels, notes = spec.get("labels"), spec.get("annotations")
    meta = {key: found.node for key, found in (("labels", labels), ("annotations", notes)) if found is not None}
    if meta:
        over = mapping(trainer.node, metadata=mapping(spec.node, **meta), **_children(over))
    return merged(template, over) or over


def _children(node: Node) -> dict[str, Node]:
    return node.value if isinstance(node.value, dict) else {}


def _without(template: Node | None, keys: Sequence[str]) -> Node | None:
    """The template without the command or arguments of its nodes: those of the job stand in their place."""
    if template is None:
        return None
    pod = _children(template).get("spec")
    listed = _children(pod).get("containers") if pod is not None else None
    for container in listed.value if listed is not None and isinstance(listed.value, list) else []:
        name = _children(container).get("name")
        if name is not None and name.value == NODE:
            for key in keys:
                _children(container).pop(key, None)
    return template


def _patches(spec: View) -> list[Node]:
    """What is to be put over the pod template of the nodes."""
    found: list[Node] = []
    for patch in spec.each("runtimePatches"):
        jobs = patch.follow("trainingRuntimeSpec", "template", "spec")
        for job in jobs.each("replicatedJobs") if jobs is not None else []:
            template = job.follow("template", "spec", "template")
            if job.text("name") == NODE and template is not None:
                found.append(template.node)
    for override in spec.each("podTemplateOverrides"):
        targets = [target.text("name") for target in override.each("targetJobs")]
        if NODE in targets or not targets:
            parts = {key: view.node for key in ("metadata", "spec") if (view := override.get(key)) is not None}
            found.append(mapping(override.node, **parts))
    return found
