"""Projects, departments and users as the control plane keeps them in memory; the store has the truth."""

from __future__ import annotations

from collections.abc import Iterable

from gpupool.domain.access import Department, Project, User
from gpupool.domain.errors import ErrorCode, GpupoolError


class Register:
    """Projects, departments and users by name."""

    def __init__(self) -> None:
        self.projects: dict[str, Project] = {}
        self.departments: dict[str, Department] = {}
        self.users: dict[str, User] = {}

    def load(self, projects: Iterable[Project], users: Iterable[User], departments: Iterable[Department] = ()) -> None:
        """Take over what the store holds."""
        self.projects = {project.name: project for project in projects}
        self.users = {user.name: user for user in users}
        self.departments = {department.name: department for department in departments}

    def find_project(self, name: str) -> Project | None:
        """One project or None."""
        return self.projects.get(name)

    def project(self, name: str) -> Project:
        """One project; raises ``GpupoolError(UNKNOWN_PROJECT)``."""
        found = self.projects.get(name)
        if found is None:
            known = ", ".join(sorted(self.projects)[:8])
            raise GpupoolError(
                ErrorCode.UNKNOWN_PROJECT, f"There is no project '{name[:80]}'.", f"Projects: {known or 'none'}."
            )
        return found

    def department(self, name: str) -> Department:
        """One department; raises ``GpupoolError(UNKNOWN_DEPARTMENT)``."""
        found = self.departments.get(name)
        if found is None:
            known = ", ".join(sorted(self.departments)[:8])
            raise GpupoolError(
                ErrorCode.UNKNOWN_DEPARTMENT,
                f"There is no department '{name[:80]}'.",
                f"Departments: {known or 'none; make one with `gpupool department create`'}.",
            )
        return found

    def user(self, name: str) -> User:
        """One user; raises ``GpupoolError(UNKNOWN_USER)``."""
        found = self.users.get(name)
        if found is None:
            raise GpupoolError(ErrorCode.UNKNOWN_USER, f"There is no user '{name[:80]}'.", "See `gpupool user list`.")
        return found

    def user_by_uid(self, uid: int) -> User | None:
        """The user whose jobs run as this account."""
        return next((user for user in self.users.values() if user.uid == uid), None)
