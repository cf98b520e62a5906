"""Settings of the pool and the user for reading manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpupool.specs.kubernetes.reading import View

PROJECT_LABELS = ("kai.scheduler/queue", "runai/queue", "kueue.x-k8s.io/queue-name", "project")
NAMESPACE_PREFIX = "runai-"  # Run:ai's namespaces are named runai-PROJECT


@dataclass(frozen=True, slots=True)
class Settings:
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
class Companions:
    """Other objects of a file that its work refers to: data of ConfigMaps, and training runtimes, by name."""

    config_maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    runtimes: Mapping[str, View] = field(default_factory=dict)
