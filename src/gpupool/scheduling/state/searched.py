"""The work for which victims were searched in vain, by projects and shapes."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.values import EvictionKind


@dataclass(slots=True)
class Searched:
    """For each kind of eviction and each shape the projects whose work was searched for."""

    _projects: dict[tuple[EvictionKind, Shape], set[int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._projects)

    def copy(self) -> Searched:
        """Return a copy."""
        return Searched({key: projects.copy() for key, projects in self._projects.items()})

    def has(self, kind: EvictionKind, project: int, shape: Shape) -> bool:
        """Return whether a project's work of a shape was searched for."""
        return project in self._projects.get((kind, shape), ())

    def add(self, kind: EvictionKind, shape: Shape, projects: AbstractSet[int]) -> None:
        """Add the work of a shape in some projects."""
        self._projects.setdefault((kind, shape), set()).update(projects)

    def update(self, other: Searched) -> None:
        """Add all of another one."""
        for (kind, shape), projects in other._projects.items():
            self.add(kind, shape, projects)

    def clear(self) -> None:
        """Remove everything."""
        self._projects.clear()
