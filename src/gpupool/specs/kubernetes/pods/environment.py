"""A container's variables, and ``$(NAME)`` for them in its command and arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpupool.domain.errors import ErrorCode
from gpupool.domain.work.workload import EnvSource
from gpupool.specs.kubernetes.field_tables import ENV_FROM, VALUE_FROM, VARIABLE
from gpupool.specs.kubernetes.pods.amounts import amount
from gpupool.specs.kubernetes.reading import ManifestView
from gpupool.specs.kubernetes.report import ManifestNotice
from gpupool.specs.kubernetes.settings import Companions

COMPLETION_INDEX = "JOB_COMPLETION_INDEX"
INDEX = "{index}"
_REFERENCE = re.compile(r"\$(?:\$\([^()\s]*\)|\(([^()\s]+)\))")
_FIELDS = {
    "metadata.name": EnvSource.MEMBER,
    "metadata.namespace": EnvSource.PROJECT,
    "metadata.uid": EnvSource.ID,
    "spec.nodeName": EnvSource.NODE,
    "status.hostIP": EnvSource.ADDRESS,
    "status.hostIPs": EnvSource.ADDRESS,
    "status.podIP": EnvSource.ADDRESS,
    "status.podIPs": EnvSource.ADDRESS,
    "metadata.annotations['batch.kubernetes.io/job-completion-index']": EnvSource.INDEX,
    "metadata.labels['batch.kubernetes.io/job-completion-index']": EnvSource.INDEX,
    "metadata.labels['training.kubeflow.org/replica-index']": EnvSource.INDEX,
}
_OWN = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


@dataclass(slots=True)
class Environment:
    """Variables with their values, and those that get a value at the start."""

    values: dict[str, str] = field(default_factory=dict)
    sources: dict[str, EnvSource] = field(default_factory=dict)

    def set(self, name: str, value: str) -> None:
        """Set a variable's value; the last one wins."""
        self.sources.pop(name, None)
        self.values[name] = value

    def draw(self, name: str, source: EnvSource) -> None:
        """Let a variable get its value at the start."""
        self.values.pop(name, None)
        self.sources[name] = source


@dataclass(frozen=True, slots=True)
class Meta:
    """A pod's own labels and annotations, for variables that repeat them."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def environment_of(
    container: ManifestView, meta: Meta, companions: Companions, *, indexed: bool = False
) -> Environment:
    """Return the variables of a container; record unknown sources as faults. ``indexed``: it gets its index."""
    env = Environment()
    if indexed:
        env.draw(COMPLETION_INDEX, EnvSource.INDEX)
    for source in container.each("envFrom"):
        _take_all(env, source, companions)
    for item in container.each("env"):
        item.check(VARIABLE)
        name = item.text("name")
        if not name or "=" in name:
            item.refuse("must have a name without '='.", code=ErrorCode.INVALID_NAME)
            continue
        origin = item.get("valueFrom")
        if origin is not None:
            origin.check(VALUE_FROM)
            _draw(env, name, origin, container, meta, companions)
            continue
        value = item.get("value")
        text = "" if value is None else value.scalar()
        env.set(name, text if value is None else expand(text, env, value))
    return env


def expand(text: str, env: Environment, where: ManifestView) -> str:
    """Replace ``$(NAME)`` by the variable's value, if there is one; ``$$(NAME)`` stands for ``$(NAME)``."""

    def replacement(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return match.group(0)[1:]
        if name in env.sources:
            return _placeholder(env.sources[name], match.group(0), where)
        return env.values.get(name, match.group(0))

    return _REFERENCE.sub(replacement, text)


def _placeholder(source: EnvSource, text: str, where: ManifestView) -> str:
    if source is EnvSource.INDEX:
        return INDEX
    where.refuse(
        f"has {text}, whose value is known only when the program starts.",
        'Let a shell expand it: command: ["sh", "-c", "... $NAME ..."].',
        ErrorCode.UNSUPPORTED,
    )
    return text


def _draw(
    env: Environment, name: str, origin: ManifestView, container: ManifestView, meta: Meta, companions: Companions
) -> None:
    if (field_ref := origin.get("fieldRef")) is not None:
        _field(env, name, field_ref, meta)
    elif (resource := origin.get("resourceFieldRef")) is not None:
        env.set(name, _resource(resource, container))
    elif (entry := origin.get("configMapKeyRef")) is not None:
        data = companions.config_maps.get(entry.text("name"))
        key = entry.text("key")
        if data is not None and key in data:
            env.set(name, data[key])
        elif not entry.flag("optional"):
            _no_config_map(entry)


def _field(env: Environment, name: str, ref: ManifestView, meta: Meta) -> None:
    path = ref.text("fieldPath")
    own = _OWN.fullmatch(path)
    if path in _FIELDS:
        env.draw(name, _FIELDS[path])
    elif own is not None:
        found = meta.labels if own.group(1) == "labels" else meta.annotations
        env.set(name, found.get(own.group(2), ""))
    elif path == "spec.serviceAccountName":
        env.set(name, "default")
    else:
        ref.refuse(f"names '{path[:80]}', which is not supported.", "docs/kubernetes-fields.md lists the fields.")


def _resource(ref: ManifestView, container: ManifestView) -> str:
    path = ref.text("resource")
    kind, _, resource = path.partition(".")
    value = container.follow("resources", kind, resource) if kind in {"limits", "requests"} else None
    if value is None:
        ref.refuse(f"names '{path[:80]}', which the container does not have.", "Use one of its limits or requests.")
        return ""
    divisor = ref.get("divisor")
    unit = amount(divisor) if divisor is not None else None
    return str(math.ceil((amount(value) or 0) / (unit or 1)))


def _take_all(env: Environment, source: ManifestView, companions: Companions) -> None:
    source.check(ENV_FROM)
    ref = source.get("configMapRef")
    if ref is None:
        return
    data = companions.config_maps.get(ref.text("name"))
    if data is None:
        if not ref.flag("optional"):
            _no_config_map(ref)
        return
    prefix = source.text("prefix")
    for key, value in data.items():
        env.set(prefix + key, value)


def _no_config_map(ref: ManifestView) -> None:
    name = ref.text("name")[:80]
    ref.refuse(
        f"needs the ConfigMap '{name}', which is not in this file.",
        "Add the ConfigMap to the same file, or write the values.",
        ErrorCode.UNSUPPORTED,
    )


def note_left_out(container: ManifestView, why: str) -> None:
    """Warn that a container of a pod does not run."""
    container.report.warn(
        container.place, ManifestNotice.CONTAINER_LEFT_OUT, f"The container '{container.text('name')}' {why}"
    )
