"""Projects, departments and users in memory; the store is authoritative."""

from __future__ import annotations

from collections.abc import Iterable

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Department, Project, User


class IdentityCache:
    """Projects, departments and users by name."""

    def __init__(self) -> None:
        self.projects: dict[str, Project] = {}
        self.departments: dict[str, Department] = {}
        self.users: dict[str, User] = {}

    def load(self, projects: Iterable[Project], users: Iterable[User], departments: Iterable[Department] = ()) -> None:
        """Load the rows of the store."""
        self.projects = {project.name: project for project in projects}
        self.users = {user.name: user for user in users}
        self.departments = {department.name: department for department in departments}

    def project(self, name: str) -> Project:
        """Return a project; raises ``GpupoolError(UNKNOWN_PROJECT)``."""
        found = self.projects.get(name)
        if found is None:
            known = ", ".join(sorted(self.projects)[:8])
            raise GpupoolError(
                ErrorCode.UNKNOWN_PROJECT, f"There is no project '{name[:80]}'.", f"Projects: {known or 'none'}."
            )
        return found

    def department(self, name: str) -> Department:
        """Return a department; raises ``GpupoolError(UNKNOWN_DEPARTMENT)``."""
        found = self.departments.get(name)
        if found is None:
            known = ", ".join(sorted(self.departments)[:8])
            raise GpupoolError(
                ErrorCode.UNKNOWN_DEPARTMENT,
                f"There is no department '{name[:80]}'.",
                f"Departments: {known or 'none; create one with `gpupool department create`'}.",
            )
        return found

    def user(self, name: str) -> User:
        """Return a user; raises ``GpupoolError(UNKNOWN_USER)``."""
        found = self.users.get(name)
        if found is None:
            raise GpupoolError(
                ErrorCode.UNKNOWN_USER,
                f"There is no user '{name[:80]}'.",
                f"Add the user: gpupool user set {name[:80]} --role member",
            )
        return found

    def user_by_uid(self, uid: int) -> User | None:
        """Return the user whose jobs run as this account, or None."""
        return next((user for user in self.users.values() if user.uid == uid), None)
