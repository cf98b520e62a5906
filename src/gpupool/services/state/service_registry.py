"""The services in memory; the store is authoritative."""

from __future__ import annotations

from collections.abc import Iterable

from gpupool.domain.work.service import Service
from gpupool.services.ports.store import ChangeSet


class ServiceRegistry:
    """Services by id."""

    def __init__(self) -> None:
        self.rows: dict[str, Service] = {}

    def load(self, rows: Iterable[Service]) -> None:
        """Load the rows of the store."""
        self.rows = {row.id: row for row in rows}

    def note(self, changes: ChangeSet) -> None:
        """Apply committed changes."""
        self.rows.update((row.id, row) for row in changes.services)

    def find(self, project: str, name: str) -> Service | None:
        """Return a service of a project by name."""
        return next((row for row in self.rows.values() if (row.project, row.name) == (project, name)), None)

    def trees(self) -> Iterable[tuple[str, str]]:
        """Yield the uploaded folders that revisions need, with their users: also while there is no replica."""
        for row in self.rows.values():
            for revision in row.revisions:
                if tree := revision.body.get("tree"):
                    yield row.user, str(tree)
