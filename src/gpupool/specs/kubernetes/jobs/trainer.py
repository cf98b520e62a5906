"""TrainJob and its training runtimes: those of the same file, and two that every cluster has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.specs.kubernetes.field_tables import JOB, ignored, not_needed, rejected, supported
from gpupool.specs.kubernetes.jobs.pod_job import DEFAULT_BACKOFF, ending, retries
from gpupool.specs.kubernetes.jobs.roles import PodRole, gang_body
from gpupool.specs.kubernetes.pods.amounts import processors
from gpupool.specs.kubernetes.pods.pod import Around, PodParts, template_parts
from gpupool.specs.kubernetes.reading import Fields, ManifestView
from gpupool.specs.kubernetes.report import ManifestNotice
from gpupool.specs.text.yaml_nodes import YamlNode

Values = dict[str, Any]
RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
NODE, LAUNCHER = "node", "launcher"
# Runtimes of Kubeflow Trainer: their framework, and the image of their nodes.
BUILT_IN = {
    "torch-distributed": ("torch", "docker.io/pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"),
    "deepspeed-distributed": ("mpi", "ghcr.io/kubeflow/trainer/deepspeed-runtime"),
}
FRAMEWORKS = ("torch", "mpi", "jax", "xgboost", "flux")

TRAINJOB: Fields = {
    "runtimeRef": supported(f"a runtime in the same file, or {' or '.join(BUILT_IN)}"),
    "trainer": supported(),
    "runtimePatches": supported("for pods with the name node"),
    "podTemplateOverrides": supported("for pods with the name node"),
    "suspend": supported(),
    "activeDeadlineSeconds": supported("the time limit of each program"),
    "labels": supported(),
    "annotations": supported("annotations for GPUs"),
    "initializer": ignored("nothing is downloaded before the start: put the data into a folder of the nodes first"),
    "managedBy": rejected("the pool runs it.", "Leave it out."),
}
REF: Fields = {
    "apiGroup": not_needed("name identifies it"),
    "kind": not_needed("name identifies it"),
    "name": supported(),
}
TRAINER: Fields = {
    "image": supported(),
    "command": supported(),
    "args": supported(),
    "env": supported(),
    "numNodes": supported("default: the value of the runtime, or 1"),
    "numProcPerNode": supported("default: the number of GPUs, or of CPUs without GPUs"),
    "resourcesPerNode": supported(),
}
RUNTIME: Fields = {
    "mlPolicy": supported("numNodes; torch, mpi or none"),
    "template": supported("pods with the name node"),
    "podGroupPolicy": not_needed("all nodes start together"),
}
POLICY: Fields = {
    "numNodes": supported(),
    "torch": supported(),
    "mpi": supported(),
    "jax": rejected("the pool does not support JAX.", "Use a runtime with torch or mpi."),
    "xgboost": rejected("the pool does not support XGBoost.", "Use a runtime with torch or mpi."),
    "flux": rejected("the pool does not support Flux.", "Use a runtime with torch or mpi."),
}
REPLICATED: Fields = {
    "name": supported("node, and launcher for mpi"),
    "template": supported(),
    "replicas": not_needed("numNodes is the number"),
    "dependsOn": not_needed("all start together"),
    "groupName": not_needed("there is one group"),
}


@dataclass(frozen=True, slots=True)
class _Runtime:
    """A training runtime: its framework (empty: none), numbers, and the template of its nodes."""

    framework: str
    nodes: int
    processes: int | None
    template: YamlNode | None
    backoff: int


def read_runtimes(views: Sequence[ManifestView]) -> dict[str, ManifestView]:
    """Return the training runtimes among the documents of a file, by name."""
    found: dict[str, ManifestView] = {}
    for view in views:
        if isinstance(view.node.value, dict) and view.text("kind") in RUNTIMES:
            name, spec = view.follow("metadata", "name"), view.get("spec")
            if name is not None and spec is not None:
                found[name.scalar()] = spec
    return found


def train_body(spec: ManifestView, around: Around) -> tuple[Values, PodParts]:
    """Read a TrainJob: the nodes of its runtime, with the job's overrides."""
    spec.check(TRAINJOB)
    trainer = spec.get("trainer") or ManifestView(spec.report, mapping(spec.node), "spec.trainer", spec.place)
    trainer.check(TRAINER)
    runtime = _runtime(spec, around)
    if runtime is None:
        return {}, PodParts()
    template = _template(runtime, spec, trainer)
    parts = template_parts(ManifestView(spec.report, template, "spec.trainer", trainer.place), around)
    nodes = trainer.number("numNodes", runtime.nodes, least=1) or 1
    member = PodRole(NODE, nodes, "on-failure", parts, trainer)
    body = gang_body(_with_launcher(member) if runtime.framework == "mpi" else [member])
    body |= retries(runtime.backoff) | ending(spec)
    if not runtime.framework:
        return body, parts
    processes = trainer.number("numProcPerNode", runtime.processes, least=1) or _by_processors(trainer, parts)
    return body | {"framework": runtime.framework} | ({"processes": processes} if processes else {}), parts


def _with_launcher(member: PodRole) -> list[PodRole]:
    """Make the first node's program the launcher's; the nodes run its processes."""
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
    worker = PodRole(NODE, member.replicas, member.restart, _silent(member.parts), member.view)
    return [PodRole(LAUNCHER, 1, member.restart, launcher, member.view), worker]


def _silent(parts: PodParts) -> PodParts:
    parts.command = []
    return parts


def _by_processors(trainer: ManifestView, parts: PodParts) -> int | None:
    """Return the number of processors per node: without GPUs, Kubeflow runs one process for each of them."""
    if parts.gpus.get("count"):
        return None
    for kind in ("requests", "limits"):
        asked = trainer.follow("resourcesPerNode", kind, "cpu")
        if asked is not None:
            return max(1, int(processors(asked) or 0))
    return None


def _runtime(spec: ManifestView, around: Around) -> _Runtime | None:
    ref = spec.get("runtimeRef")
    name = ref.text("name") if ref is not None else ""
    if ref is not None:
        ref.check(REF)
    if name in around.companions.runtimes:
        return _of_file(around.companions.runtimes[name])
    if name in BUILT_IN and ref is not None:
        framework, image = BUILT_IN[name]
        container = mapping(ref.node, name=text_node(NODE, ref.node), image=text_node(image, ref.node))
        listed = YamlNode(ref.node.line, ref.node.column, [container])
        pod = mapping(ref.node, spec=mapping(ref.node, containers=listed))
        return _Runtime(framework, 1, None, pod, DEFAULT_BACKOFF)
    place = ref.place_of("name") if ref is not None else spec.place
    spec.report.refuse(
        place,
        f"There is no training runtime '{name[:80]}'.",
        f"Add its document to the same file, or use {' or '.join(BUILT_IN)}.",
    )
    return None


def _of_file(runtime: ManifestView) -> _Runtime:
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
            said = f"The job '{job.text('name')[:80]}' of the runtime is ignored: only its nodes run."
            job.report.warn(job.place, ManifestNotice.CONTAINER_LEFT_OUT, said)
    return _Runtime(framework, nodes, processes, template, backoff)


def _job(job: ManifestView) -> tuple[YamlNode | None, int]:
    inner = job.follow("template", "spec")
    if inner is None:
        return None, DEFAULT_BACKOFF
    inner.check(JOB)
    template = inner.get("template")
    return template.node if template is not None else None, inner.number("backoffLimit", DEFAULT_BACKOFF) or 0


def _template(runtime: _Runtime, spec: ManifestView, trainer: ManifestView) -> YamlNode:
    """Return the pod template of the nodes: the runtime's, its patches, and the trainer's own fields over both."""
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
        trainer.node,
        spec=mapping(trainer.node, containers=YamlNode(trainer.node.line, trainer.node.column, [container])),
    )
    labels, notes = spec.get("labels"), spec.get("annotations")
    meta = {key: found.node for key, found in (("labels", labels), ("annotations", notes)) if found is not None}
    if meta:
        over = mapping(trainer.node, metadata=mapping(spec.node, **meta), **_children(over))
    return merged(template, over) or over


def _children(node: YamlNode) -> dict[str, YamlNode]:
    return node.value if isinstance(node.value, dict) else {}


def _without(template: YamlNode | None, keys: Sequence[str]) -> YamlNode | None:
    """Return the template without the command and arguments of its nodes: the job has its own."""
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


def _patches(spec: ManifestView) -> list[YamlNode]:
    """Return the patches of the pod template of the nodes."""
    found: list[YamlNode] = []
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


def text_node(text: str, at: YamlNode) -> YamlNode:
    """Return a text node that is in no file, with the position of another node."""
    return YamlNode(at.line, at.column, text, plain_style=False)


def mapping(at: YamlNode, **values: YamlNode) -> YamlNode:
    """Return a mapping node that is in no file."""
    made = YamlNode(at.line, at.column, dict(values))
    made.keys = {key: (node.line, node.column) for key, node in values.items()}
    return made


def merged(base: YamlNode | None, over: YamlNode | None) -> YamlNode | None:
    """Merge two mappings: nested mappings are merged, lists of named items by name, all else is replaced."""
    if base is None or over is None:
        return over if base is None else base
    if isinstance(base.value, dict) and isinstance(over.value, dict):
        made = YamlNode(over.line, over.column, dict(base.value), keys={**base.keys, **over.keys})
        values = made.value
        if isinstance(values, dict):
            for key, node in over.value.items():
                values[key] = merged(base.value.get(key), node) or node
        return made
    if isinstance(base.value, list) and isinstance(over.value, list) and _all_named(base) and _all_named(over):
        return _merged_lists(base, over)
    return over


def _all_named(node: YamlNode) -> bool:
    return isinstance(node.value, list) and all(_name(item) is not None for item in node.value)


def _name(node: YamlNode) -> str | None:
    name = node.value.get("name") if isinstance(node.value, dict) else None
    return name.value if name is not None and isinstance(name.value, str) else None


def _merged_lists(base: YamlNode, over: YamlNode) -> YamlNode:
    items: dict[str | None, YamlNode] = {}
    for node in (base, over):
        for item in node.value if isinstance(node.value, list) else []:
            items[_name(item)] = merged(items.get(_name(item)), item) or item
    return YamlNode(over.line, over.column, list(items.values()))
