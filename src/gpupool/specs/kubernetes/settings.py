"""Settings of the pool and the user for reading manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpupool.specs.kubernetes.reading import ManifestView

PROJECT_LABELS = ("kai.scheduler/queue", "runai/queue", "kueue.x-k8s.io/queue-name", "project")
NAMESPACE_PREFIX = "runai-"  # Run:ai's namespaces are named runai-PROJECT


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Options for reading manifests.

    ``projects`` are those of the pool. ``project`` is the option on the command line; it overrides the manifests.
    ``containers``: images are run; else commands run as processes of the machine and images are ignored. ``container``
    is the one to run of a pod with several. ``claims``: folders of the nodes for persistent volume claims, by the
    claims' names.
    """

    projects: frozenset[str] = frozenset()
    project: str | None = None
    containers: bool = True
    container: str = ""
    claims: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KubernetesService:
    """A Service of the file: its name, the labels that it selects, and its first port."""

    name: str
    selector: dict[str, str]
    port: str
    view: ManifestView

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether pods with these labels belong to it."""
        return bool(self.selector) and self.selector.items() <= labels.items()


@dataclass(frozen=True, slots=True)
class Companions:
    """Other objects of a file that its work refers to: data of ConfigMaps and training runtimes by name, Services."""

    config_maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    runtimes: Mapping[str, ManifestView] = field(default_factory=dict)
    services: Sequence[KubernetesService] = ()
    deployed: Sequence[Mapping[str, str]] = ()  # the labels of the pods of each Deployment
