"""What the pool, and whoever applies, say of how manifests are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpupool.specs.kubernetes.reading import View

PROJECT_LABELS = ("kai.scheduler/queue", "runai/queue", "kueue.x-k8s.io/queue-name", "project")
NAMESPACE_PREFIX = "runai-"  # Run:ai's namespaces are named runai-PROJECT


@dataclass(frozen=True, slots=True)
class Settings:
    """How to read manifests.

    ``projects`` are those of the pool. ``project`` is the one that was named beside the file; it goes before what the
    manifests say. ``containers``: images are run; else commands run as processes of the machine and images are left
    out. ``container`` is the one to run of a pod that has several. ``claims``: folders of the nodes that stand for
    persistent volume claims, by the claims' names.
    """

    projects: frozenset[str] = frozenset()
    project: str | None = None
    containers: bool = True
    container: str = ""
    claims: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Companions:
    """What else a file holds that its work speaks of: data of ConfigMaps, and training runtimes, by name."""

    config_maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    runtimes: Mapping[str, View] = field(default_factory=dict)
