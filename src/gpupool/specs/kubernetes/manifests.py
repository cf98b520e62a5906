"""The entry point: reads a file of manifests, and returns their requests and warnings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.fields.request import WorkloadRequest
from gpupool.specs.kubernetes.field_tables import DOCUMENT, METADATA
from gpupool.specs.kubernetes.jobs.deployment import deployed_labels, deployment_body, read_services, stopped
from gpupool.specs.kubernetes.jobs.kubeflow import mpi_body, suspended, tf_body, torch_body
from gpupool.specs.kubernetes.jobs.pod_job import job_body, job_suspended, pod_body
from gpupool.specs.kubernetes.jobs.trainer import read_runtimes, train_body
from gpupool.specs.kubernetes.kinds import (
    BY_NAME,
    COMPANIONS,
    DEPLOYMENT,
    DIGEST_LABEL,
    KIND_LABEL,
    KINDS,
    SKIPPED,
    ManifestKind,
)
from gpupool.specs.kubernetes.pods.pod import Around, PodParts
from gpupool.specs.kubernetes.reading import ManifestView
from gpupool.specs.kubernetes.report import ManifestNotice, ManifestReport, Place, Remark
from gpupool.specs.kubernetes.settings import NAMESPACE_PREFIX, PROJECT_LABELS, Companions, PodSettings
from gpupool.specs.request import parse_request
from gpupool.specs.text.error_messages import RequestError
from gpupool.specs.text.yaml_nodes import YamlNode, read_yaml

Values = dict[str, Any]
Reader = Callable[[ManifestView, Around], tuple[Values, PodParts]]
OWN_PREFIX = "gpupool/"
READERS: dict[str, Reader] = {
    "Pod": pod_body,
    "Job": job_body,
    "TFJob": tf_body,
    "PyTorchJob": torch_body,
    "MPIJob": mpi_body,
    "TrainJob": train_body,
    "Deployment": deployment_body,
}
SUSPENDED: dict[str, Callable[[ManifestView], bool]] = {
    "Job": job_suspended,
    "TFJob": suspended,
    "PyTorchJob": suspended,
    "MPIJob": suspended,
    "TrainJob": suspended,
    "Deployment": stopped,
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object of a file. ``generated``: ``name`` is the prefix of a name that will be generated.

    ``request`` then has no name; it has no project if none is given. ``digest`` identifies the requested content.
    """

    kind: ManifestKind
    name: str
    generated: bool
    request: WorkloadRequest
    suspended: bool
    digest: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """An object without effect here."""

    kind: str
    name: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Manifests:
    """The objects of a file in order, and the warnings."""

    objects: tuple[Manifest, ...]
    skipped: tuple[Skipped, ...]
    remarks: tuple[Remark, ...]


def read_manifests(text: str, name: str, settings: PodSettings | None = None) -> Manifests:
    """Return the objects in a YAML or JSON text of one or more documents; ``name`` begins the messages.

    Raises ``GpupoolError``: the errors of ``read_yaml``, and one error for everything that is not supported, with all
    positions (``job.yml:12:3: ...``), a line for each.
    """
    report = ManifestReport(name)
    views = [view for root in read_yaml(text, name) for view in _objects(_view(report, root))]
    if not views:
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"{name} contains no manifest.", "Begin with 'apiVersion:' and 'kind:'."
        )
    companions = _companions(views)
    settings = settings or PodSettings()
    found = [_read(view, settings, companions) for view in views]
    if not any(isinstance(one, Manifest) for one in found):
        found += [_skip_alone(view) for view in views if view.keys() and view.text("kind") in COMPANIONS]
    objects = [one for one in found if isinstance(one, Manifest)]
    _check_names(report, objects)
    report.check()
    skipped = tuple(one for one in found if isinstance(one, Skipped))
    return Manifests(
        tuple(objects), skipped, tuple(sorted(report.remarks, key=lambda remark: (remark.line, remark.column)))
    )


def named_objects(text: str, name: str) -> list[tuple[str, str]]:
    """Return kind and name of each runnable object in a text; nothing else in it is checked."""
    report = ManifestReport(name)
    found = []
    for view in (view for root in read_yaml(text, name) for view in _objects(_view(report, root))):
        kind, of = view.text("kind"), view.follow("metadata", "name")
        if kind in BY_NAME and of is not None:
            found.append((kind, of.scalar()))
    report.check()
    return found


def _view(report: ManifestReport, node: YamlNode) -> ManifestView:
    return ManifestView(report, node, "", (node.line, node.column))


def _objects(view: ManifestView) -> Sequence[ManifestView]:
    """Return an object, or the items of a List."""
    if isinstance(view.node.value, dict) and view.text("kind").endswith("List") and "items" in view.keys():  # noqa: SIM118 - a ManifestView
        return [_view(item.report, item.node) for item in view.each("items")]
    return [view]


def _companions(views: Sequence[ManifestView]) -> Companions:
    maps: dict[str, Mapping[str, str]] = {}
    for view in views:
        if isinstance(view.node.value, dict) and view.text("kind") == "ConfigMap":
            name = view.follow("metadata", "name")
            data = {key: value.scalar() for key, value in view.pairs("data").items()}
            maps[name.scalar() if name is not None else ""] = data
    return Companions(maps, read_runtimes(views), read_services(views), deployed_labels(views))


def _read(view: ManifestView, settings: PodSettings, companions: Companions) -> Manifest | Skipped | None:
    kind_name, version = view.text("kind"), view.text("apiVersion")
    if not isinstance(view.node.value, dict) or not kind_name or not version:
        view.report.refuse(view.place, "A manifest must be a mapping with 'apiVersion' and 'kind'.")
        return None
    metadata = view.get("metadata")
    if kind_name in COMPANIONS or (kind_name == "Service" and _selects_deployment(view, companions)):
        return None  # read with the work that uses it
    if kind_name in SKIPPED:
        return _skip(view, kind_name, metadata, SKIPPED[kind_name])
    kind = _kind(view, kind_name, version)
    if kind is None:
        return None
    spec = view.get("spec")
    view.check(DOCUMENT)
    if metadata is None or spec is None:
        view.report.refuse(view.place, "It needs 'metadata' and 'spec'.", "", ErrorCode.INVALID_REQUEST)
        return None
    return _manifest(kind, spec, Around(metadata, settings, companions, server=kind is DEPLOYMENT))


def _selects_deployment(service: ManifestView, companions: Companions) -> bool:
    """Return whether a Service selects the pods of a Deployment of the same file."""
    own = next(each for each in companions.services if each.view is service)
    return any(own.selects(labels) for labels in companions.deployed)


def _skip(view: ManifestView, kind: str, metadata: ManifestView | None, why: str) -> Skipped:
    name = metadata.text("name") if metadata is not None else ""
    view.report.warn(view.place_of("kind"), ManifestNotice.KIND_SKIPPED, f"{kind} '{name[:80]}' is ignored: {why}.")
    return Skipped(kind, name, *view.place)


def _skip_alone(view: ManifestView) -> Skipped:
    """Skip an object that is only useful together with the work that uses it."""
    return _skip(view, view.text("kind"), view.get("metadata"), "put it into the file of the workload that uses it")


def _kind(view: ManifestView, name: str, version: str) -> ManifestKind | None:
    kind = BY_NAME.get(name)
    if kind is None:
        known = ", ".join(kind.name for kind in KINDS)
        place = view.place_of("kind")
        view.report.refuse(place, f"'{name[:80]}' is not a supported kind.", f"Supported: {known}.")
    elif version not in kind.versions:
        known = ", ".join(kind.versions)
        place = view.place_of("apiVersion")
        view.report.refuse(place, f"{name} of '{version[:80]}' is not supported.", f"Known: {known}.")
        return None
    return kind


def _manifest(kind: ManifestKind, spec: ManifestView, around: Around) -> Manifest | None:
    metadata, report = around.metadata, spec.report
    metadata.check(METADATA)
    _check_labels(metadata)
    prefix = metadata.text("generateName")
    name = metadata.text("name")
    if not name and not prefix:
        report.refuse(metadata.place, "It needs a name.", "Write metadata: {name: ...}.", ErrorCode.INVALID_NAME)
    waits = SUSPENDED[kind.name](spec) if kind.name in SUSPENDED else False
    body, parts = READERS[kind.name](spec, around)
    if report.faults:
        return None
    body["labels"] = {**body.get("labels", {}), KIND_LABEL: kind.name}
    body |= {"name": name} if name else {}
    if project := _project(metadata, around.settings):
        body["project"] = project
    digest = _digest(body)
    body["labels"][DIGEST_LABEL] = digest
    request = _request(report, body, metadata, parts.place)
    if request is None:
        return None
    line, column = metadata.place_of("name" if name else "generateName")
    return Manifest(kind, name or prefix, not name, request, waits, digest, line, column)


def _check_labels(metadata: ManifestView) -> None:
    for key, value in metadata.pairs("labels").items():
        if key.startswith(OWN_PREFIX):
            value.refuse("is a reserved label of the pool.", "Leave it out.")


def _project(metadata: ManifestView, settings: PodSettings) -> str | None:
    """Return the project: from the option, a queue's label, or the namespace, if the pool has it."""
    if settings.project is not None:
        return settings.project
    labels = metadata.pairs("labels")
    wanted = [labels[key] for key in PROJECT_LABELS if key in labels]
    namespace = metadata.get("namespace")
    wanted += [namespace] if namespace is not None else []
    names = [value.scalar() for value in wanted]
    known = (c for n in names for c in (n, n.removeprefix(NAMESPACE_PREFIX)) if c in settings.projects)
    project = next(known, None)
    for value in wanted[:1]:
        name = value.scalar()
        if name != "default" and project not in {name, name.removeprefix(NAMESPACE_PREFIX)}:
            runs_in = f"project '{project}'" if project is not None else "your default project"
            said = f"is not a project of the pool ('{name[:80]}'): the workload uses {runs_in}."
            value.warn(ManifestNotice.PROJECT_UNKNOWN, said)
    return project


def _digest(body: Values) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _request(report: ManifestReport, body: Values, metadata: ManifestView, place: Place) -> WorkloadRequest | None:
    try:
        return parse_request(body)
    except RequestError as error:
        field = error.path[0] if error.path else ""
        own = {"name": "name", "labels": "labels", "project": "namespace"}.get(str(field))
        report.refuse(metadata.place_of(own) if own else place, error.message, error.hint, error.code)
        return None


def _check_names(report: ManifestReport, objects: Sequence[Manifest]) -> None:
    """Check that a name occurs once. A Pod and a Job cannot share a name here, unlike in Kubernetes."""
    seen: dict[tuple[str, str | None], Manifest] = {}
    for one in objects:
        if one.generated:
            continue
        first = seen.setdefault((one.name, one.request.project), one)
        if first is not one:
            report.refuse(
                (one.line, one.column),
                f"The name '{one.name}' is used twice: also in line {first.line}, for a {first.kind.name}.",
                "Use another name.",
                ErrorCode.INVALID_REQUEST,
            )
