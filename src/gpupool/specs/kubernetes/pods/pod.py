"""A pod's template: its one program, its resources, and its nodes."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpupool.domain.errors import ErrorCode
from gpupool.specs.kubernetes.field_tables import (
    CONTAINER,
    EMPTY_DIR,
    HOST_PATH,
    METADATA,
    MOUNT,
    POD,
    RESOURCES,
    SECURITY,
    SERVER,
    TEMPLATE,
)
from gpupool.specs.kubernetes.pods.amounts import memory_mib, processors
from gpupool.specs.kubernetes.pods.environment import (
    INDEX,
    Environment,
    Meta,
    environment_of,
    expand,
    note_left_out,
)
from gpupool.specs.kubernetes.pods.gpus import FOR_CONTAINER, TopologyNote, gpu_body, speaks_of_gpus, topology_note
from gpupool.specs.kubernetes.pods.node_selection import places_of
from gpupool.specs.kubernetes.reading import ManifestView
from gpupool.specs.kubernetes.report import ManifestNotice, Place
from gpupool.specs.kubernetes.settings import Companions, PodSettings

Values = dict[str, Any]
DEFAULT_GRACE_S = 30
RUN_AS, CONTAINER_NOTE = "gpupool/run-as", "gpupool/container"
PULL = {"IfNotPresent": "missing", "Always": "always", "Never": "never"}
# KAI's and Run:ai's classes, and the plain words: the kind of work, whether it is preemptible, and its priority.
PRIORITY_CLASSES: Mapping[str, Values] = {
    "train": {},
    "build": {"preemptible": False},
    "build-preemptible": {"preemptible": True},
    "inference": {"preemptible": False, "priority": "high"},
    "low": {"priority": "low"},
    "normal": {},
    "high": {"priority": "high"},
}
_LEFT_ALONE = ("ephemeral-storage",)
SUPPORTED = ("hostPath", "emptyDir")
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a place inside a container
CLAIM = "persistentVolumeClaim"
_CLAIM = "There are no storage claims: mount a folder of the nodes with hostPath, or set --claim NAME=/folder."
_FILES = "Put the files into a folder of the nodes, and mount it with hostPath."
_HINTS = {CLAIM: _CLAIM, "ephemeral": _CLAIM, "configMap": _FILES, "secret": _FILES}


@dataclass(slots=True)
class PodParts:
    """A pod template as parts of a request."""

    command: list[str] = field(default_factory=list)
    env: Environment = field(default_factory=Environment)
    gpus: Values = field(default_factory=dict)
    host: Values = field(default_factory=dict)  # cpus, memory
    container: Values = field(default_factory=dict)  # image, pull, volumes, entrypoint, container_user
    course: Values = field(default_factory=dict)  # grace, max_time, workdir, tty, stdin, priority, preemptible
    labels: dict[str, str] = field(default_factory=dict)
    restart: str = ""
    place: Place = (1, 1)
    literal: bool = True
    main: ManifestView | None = None  # the container
    topology: TopologyNote | None = None


@dataclass(frozen=True, slots=True)
class Around:
    """The context of a pod: the metadata of its object, the settings, and the other objects of the file.

    ``indexed``: its program gets its index, as in an indexed Job. ``waits``: its own command is ignored, as for MPI's
    workers, which run what the launcher starts. ``server``: its readiness probe and its ports count.
    """

    metadata: ManifestView
    settings: PodSettings
    companions: Companions
    indexed: bool = False
    waits: bool = False
    server: bool = False


def template_parts(template: ManifestView, around: Around) -> PodParts:
    """Return the parts of a pod template (``metadata`` and ``spec``)."""
    template.check(TEMPLATE)
    meta, spec = template.get("metadata"), template.get("spec")
    if meta is not None:
        meta.check(METADATA)
    if spec is None:
        template.refuse("needs a 'spec' with containers.")
        return PodParts()
    notes = around.metadata.pairs("annotations") | (meta.pairs("annotations") if meta is not None else {})
    labels = around.metadata.pairs("labels") | (meta.pairs("labels") if meta is not None else {})
    return pod_parts(spec, labels, notes, around)


def pod_parts(
    spec: ManifestView, labels: Mapping[str, ManifestView], notes: Mapping[str, ManifestView], around: Around
) -> PodParts:
    """Return the parts of a pod's ``spec``, with its labels and annotations."""
    spec.check(POD)
    parts = PodParts(labels={key: value.scalar() for key, value in labels.items()})
    container = _main_container(spec, notes, around.settings)
    if container is None:
        return parts
    container.check(SERVER if around.server else CONTAINER)
    parts.main = container
    meta = Meta(parts.labels, {key: value.scalar() for key, value in notes.items()})
    parts.place = container.place
    parts.env = environment_of(container, meta, around.companions, indexed=around.indexed)
    resources = _resources(container)
    parts.gpus = _gpus(spec, resources, notes)
    parts.topology = topology_note(notes)
    parts.host = _host(resources)
    _program(parts, spec, container, around, containers=_run_in_container(notes, around.settings))
    _course(parts, spec, container, labels)
    return parts


def _run_in_container(notes: Mapping[str, ManifestView], settings: PodSettings) -> bool:
    note = notes.get(RUN_AS)
    if note is None:
        return settings.containers
    if note.scalar() not in {"process", "container"}:
        note.refuse("must be process or container.")
    return note.scalar() != "process"


def _main_container(
    spec: ManifestView, notes: Mapping[str, ManifestView], settings: PodSettings
) -> ManifestView | None:
    containers = spec.each("containers")
    if not containers:
        spec.refuse("needs 'containers' with one container.")
        return None
    names = [container.text("name") for container in containers]
    for note in (CONTAINER_NOTE, FOR_CONTAINER):
        if note in notes and notes[note].scalar() not in names:
            notes[note].refuse(f"is not a container of the pod; the containers are {', '.join(names)[:200]}.")
    wanted = notes[CONTAINER_NOTE].scalar() if CONTAINER_NOTE in notes else settings.container
    if wanted in names:
        main = containers[names.index(wanted)]
    else:
        main = containers[0]
        for extra in containers[1:]:
            name, best = extra.text("name")[:80], _likely(containers, notes)
            extra.report.refuse(
                extra.place,
                f"A pod can run only one program; the container '{name}' is another one.",
                f"Run one of them only: --container {best}, or the annotation {CONTAINER_NOTE}.",
                ErrorCode.UNSUPPORTED,
            )
    for left in containers:
        if left is not main and wanted in names:
            note_left_out(left, f"is ignored: only '{wanted}' runs.")
    return main


def _likely(containers: list[ManifestView], notes: Mapping[str, ManifestView]) -> str:
    """Return the container that is most likely meant: the one with the GPU, else the first."""
    if FOR_CONTAINER in notes:
        return notes[FOR_CONTAINER].scalar()[:80]
    with_gpu = [c for c in containers if (limits := c.follow("resources", "limits")) and limits.get("nvidia.com/gpu")]
    return (with_gpu or containers)[0].text("name")[:80]


def _resources(container: ManifestView) -> dict[str, ManifestView]:
    """Return the resources of a container: its limits, and requests where there is no limit."""
    resources = container.get("resources")
    if resources is None:
        return {}
    resources.check(RESOURCES)
    found = resources.pairs("requests") | resources.pairs("limits")
    for name, value in found.items():
        if name in _LEFT_ALONE or name.startswith("hugepages-"):
            value.warn(ManifestNotice.LIMIT_IGNORED, "is ignored: the pool does not manage this resource.")
        elif name not in {"cpu", "memory"} and not speaks_of_gpus(name):
            value.refuse("is not a resource of the nodes.", "Request nvidia.com/gpu, cpu and memory.")
    return found


def _gpus(spec: ManifestView, resources: Mapping[str, ManifestView], notes: Mapping[str, ManifestView]) -> Values:
    body = gpu_body(resources, notes)
    places = places_of(spec)
    if places.models and body["count"]:
        body["models"] = [*body.get("models", []), *places.models]
    return body | ({"labels": places.labels} if places.labels else {})


def _host(resources: Mapping[str, ManifestView]) -> Values:
    cpus = processors(resources["cpu"]) if "cpu" in resources else None
    memory = memory_mib(resources["memory"]) if "memory" in resources else None
    return {key: value for key, value in (("cpus", cpus), ("memory", memory)) if value is not None}


def _program(parts: PodParts, spec: ManifestView, container: ManifestView, around: Around, *, containers: bool) -> None:
    words: dict[str, list[str]] = {"command": [], "args": []}
    for key in () if around.waits else ("command", "args"):
        words[key] = [expand(item.scalar(), parts.env, item) for item in container.each(key)]
    parts.literal = _literal(container, [*words["command"], *words["args"]])
    if containers:
        _in_container(parts, spec, container, words)
        parts.container |= {"entrypoint": []} if around.waits else {}
        volumes = volume_bodies(spec, container, around.settings.claims)
        parts.container |= {"volumes": volumes} if volumes else {}
    else:
        _as_process(spec, container)
        if not around.waits:
            _command(parts, container, words)
    workdir = container.text("workingDir")
    if workdir:
        parts.course["workdir"] = workdir


def _literal(container: ManifestView, words: list[str]) -> bool:
    """Return whether ``{index}`` in a command is literal: only ``$(JOB_COMPLETION_INDEX)`` may be replaced."""
    written = [item for key in ("command", "args") for item in container.each(key) if INDEX in item.scalar()]
    drawn = sum(word.count(INDEX) for word in words) > sum(item.scalar().count(INDEX) for item in written)
    if drawn and written:
        written[0].refuse(f"has {INDEX}, which cannot be combined with a variable for the index.", "Use $(NAME) only.")
    return not drawn


def _in_container(parts: PodParts, spec: ManifestView, container: ManifestView, words: Mapping[str, list[str]]) -> None:
    image = container.text("image")
    if not image:
        container.refuse("needs an 'image'.", "Or run its command as a process: --no-container.")
    pull = container.choice("imagePullPolicy", list(PULL), "Always" if _moves(image) else "IfNotPresent")
    parts.container = {"image": image}
    if pull != "IfNotPresent":
        parts.container["pull"] = PULL[pull]
    if words["command"]:
        parts.container["entrypoint"] = words["command"]
    parts.command = words["args"]
    user = _user(spec, container)
    if user:
        parts.container["container_user"] = user


def _moves(image: str) -> bool:
    """Return whether an image's name may mean another image later: then a cluster always pulls it."""
    last = image.rpartition("/")[2]
    return "@" not in last and (":" not in last or last.endswith(":latest"))


def _user(spec: ManifestView, container: ManifestView) -> str:
    chosen: dict[str, int | None] = {}
    for holder in (spec, container):  # the container's own overrides the pod's
        security = holder.get("securityContext")
        if security is not None:
            security.check(SECURITY)
            for key in ("runAsUser", "runAsGroup"):
                chosen[key] = security.number(key, chosen.get(key))
    user, group = chosen.get("runAsUser"), chosen.get("runAsGroup")
    if user is None:
        return ""
    return str(user) if group is None else f"{user}:{group}"


def _as_process(spec: ManifestView, container: ManifestView) -> None:
    image = container.get("image")
    if image is not None:
        image.warn(ManifestNotice.IMAGE_IGNORED, "is ignored: the command runs as a process of the node.")
    _user(spec, container)
    note_not_mounted(spec, container)


def _command(parts: PodParts, container: ManifestView, words: Mapping[str, list[str]]) -> None:
    """Set a process's command: it is required, or the arguments must look like one."""
    parts.command = words["command"] + words["args"]
    args = container.get("args")
    if words["command"]:
        return
    if args is None or not words["args"]:
        container.refuse("needs a 'command' because its image is ignored.", "Add command: [...].")
    elif words["args"][0].startswith("-"):
        args.refuse("start with an option of the image's program, which is ignored.", "Add command: [...].")
    else:
        args.warn(ManifestNotice.ENTRYPOINT_UNKNOWN, "run as the command: the entry point of the image is unknown.")


def _course(parts: PodParts, spec: ManifestView, container: ManifestView, labels: Mapping[str, ManifestView]) -> None:
    parts.restart = spec.choice("restartPolicy", ("Always", "OnFailure", "Never"), "")
    grace = spec.number("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
    deadline = spec.number("activeDeadlineSeconds", least=1)
    tty, stdin = container.flag("tty"), container.flag("stdin")
    parts.course |= {"grace": grace} | ({"max_time": deadline} if deadline else {})
    parts.course |= {"tty": True} if tty else {"stdin": True} if stdin else {}
    parts.course |= priority(spec.get("priorityClassName") or labels.get("priorityClassName"))


def priority(value: ManifestView | None) -> Values:
    """Return the fields of a request for a priority class."""
    if value is None or not value.scalar():
        return {}
    found = PRIORITY_CLASSES.get(value.scalar())
    if found is None:
        known = ", ".join(PRIORITY_CLASSES)
        value.warn(ManifestNotice.PRIORITY_CLASS_UNKNOWN, f"is ignored: the known classes are {known}.")
    return dict(found or {})


def volume_bodies(pod: ManifestView, container: ManifestView, claims: Mapping[str, str]) -> list[Values]:
    """Return the field ``volumes`` of a request: the container's mounts of the pod's volumes; record faults."""
    volumes = {volume.text("name"): volume for volume in pod.each("volumes")}
    bodies = []
    for mount in container.each("volumeMounts"):
        mount.check(MOUNT)
        volume = volumes.get(mount.text("name"))
        if volume is None:
            mount.refuse(f"names the volume '{mount.text('name')[:80]}', which the pod does not have.")
            continue
        body = _body(volume, mount, claims)
        if body is not None:
            bodies.append(body | {"target": mount.text("mountPath")})
    return bodies


def note_not_mounted(pod: ManifestView, container: ManifestView) -> None:
    """Warn of each mount that a plain process does not have, unless it sees the same folder anyway."""
    volumes = {volume.text("name"): volume for volume in pod.each("volumes")}
    for mount in container.each("volumeMounts"):
        mount.check(MOUNT)
        volume, target = volumes.get(mount.text("name")), posixpath.normpath(mount.text("mountPath"))
        host = volume.follow("hostPath", "path") if volume is not None else None
        if host is not None and posixpath.normpath(host.scalar()) == target and not mount.flag("readOnly"):
            continue
        if target != SHARED_MEMORY:
            mount.report.warn(
                mount.place,
                ManifestNotice.VOLUME_NOT_MOUNTED,
                f"Nothing is mounted at {target[:200]}: the program runs as a process and uses the node's folders.",
            )


def _body(volume: ManifestView, mount: ManifestView, claims: Mapping[str, str]) -> Values | None:
    source = next((key for key in volume.keys() if key != "name"), "emptyDir")  # noqa: SIM118 - keys() notes faults
    described = volume.get(source)
    if source == "emptyDir":
        return _empty(described)
    if source == "hostPath" and described is not None:
        described.check(HOST_PATH)
        return _folder(described.text("path"), mount)
    claim = described.text("claimName") if source == CLAIM and described is not None else ""
    if claim in claims:
        return _folder(claims[claim], mount)
    if described is not None:
        hint = _HINTS.get(source, f"Supported volumes: {' and '.join(SUPPORTED)}.")
        described.refuse("is not a supported volume.", hint, ErrorCode.UNSUPPORTED)
    return None


def _folder(path: str, mount: ManifestView) -> Values:
    below = mount.text("subPath")
    if below.startswith("/") or ".." in below.split("/"):
        mount.refuse("must have a subPath below the volume's folder, without '..'.")
    whole = posixpath.join(path, below) if below else path
    return {"source": whole} | ({"read_only": True} if mount.flag("readOnly") else {})


def _empty(described: ManifestView | None) -> Values:
    if described is None:
        return {"kind": "empty"}
    described.check(EMPTY_DIR)
    if described.text("medium") != "Memory":
        return {"kind": "empty"}
    limit = described.get("sizeLimit")
    return {"kind": "memory"} | ({"size": memory_mib(limit)} if limit is not None else {})
