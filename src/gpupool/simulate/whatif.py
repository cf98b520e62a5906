"""What if: a change to the nodes or the projects, to be simulated beside what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpupool.domain.access import Project
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Node


@dataclass(frozen=True, slots=True)
class Change:
    """Nodes that come, names of those that go, other quotas (thousandths; None: no bound) and weights of projects."""

    added: tuple[Node, ...] = ()
    without: tuple[str, ...] = ()
    quotas: Mapping[str, int | None] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.without or self.quotas or self.weights)

    def nodes(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """The nodes with the change; raises ``GpupoolError`` (UNKNOWN_NODE, INVALID_REQUEST)."""
        names = {node.name for node in nodes}
        if unknown := [name for name in self.without if name not in names]:
            known = ", ".join(sorted(names)[:5])
            raise GpupoolError(ErrorCode.UNKNOWN_NODE, f"There is no node {unknown[0]}.", f"There are: {known} ...")
        kept = tuple(node for node in nodes if node.name not in self.without)
        found = kept + tuple(_renamed(node, number) for number, node in enumerate(self.added, 1))
        if not found:
            raise GpupoolError(ErrorCode.INVALID_REQUEST, "No node would be left.", "Leave at least one.")
        return found

    def projects(self, projects: Sequence[Project]) -> tuple[Project, ...]:
        """The projects with the change; one that is named for the first time has no other bounds."""
        found = {project.name: project for project in projects}
        for name, quota in self.quotas.items():
            found[name] = replace(found.get(name, Project(name)), quota_permille=quota)
        for name, weight in self.weights.items():
            found[name] = replace(found.get(name, Project(name)), weight=weight)
        return tuple(found.values())


def _renamed(node: Node, number: int) -> Node:
    name = f"added{number:05}"
    gpus = tuple(replace(gpu, uuid=f"{name}/{gpu.index}") for gpu in node.report.gpus)
    return replace(node, report=replace(node.report, name=name, gpus=gpus))
