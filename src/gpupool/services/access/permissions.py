"""Permissions to see and manage workloads."""

from __future__ import annotations

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import DEFAULT_MAX_PRIORITY, Actor, Project, Role
from gpupool.domain.work.search import CommandScope
from gpupool.domain.work.workload import Workload
from gpupool.services.state.identity_cache import IdentityCache


class Permissions:
    """Rules: members manage their own workloads, managers those in their projects, administrators all."""

    def __init__(self, identities: IdentityCache) -> None:
        self._identities = identities

    def can_manage(self, actor: Actor, workload: Workload) -> bool:
        """Return True if the actor may stop, signal, attach to, or read the output of a workload."""
        return self.can_manage_of(actor, workload.user, workload.project)

    def can_manage_of(self, actor: Actor, user: str, project: str) -> bool:
        """Return True if the actor may manage what a user has in a project."""
        if actor.role is Role.ADMIN:
            return True
        if actor.role is Role.VIEWER:
            return False
        return actor.user == user or self._manages(actor, project)

    def can_see(self, actor: Actor, workload: Workload) -> bool:
        """Return True if the actor may see a workload's command, environment and output."""
        return self.can_manage(actor, workload) or actor.user == workload.user

    def commands_of(self, actor: Actor) -> CommandScope:
        """Return the commands that the actor may search: those that ``can_see`` allows."""
        managed = [name for name in self._identities.projects if self._manages(actor, name)]
        return CommandScope(actor.role is Role.ADMIN, actor.user, tuple(managed))

    def _manages(self, actor: Actor, project_name: str) -> bool:
        project = self._identities.projects.get(project_name)
        return actor.role is Role.MANAGER and project is not None and actor.user in project.members

    def managed_projects(self, actor: Actor) -> tuple[str, ...]:
        """Return the projects whose workloads a manager may manage; none for other roles."""
        return tuple(sorted(name for name in self._identities.projects if self._manages(actor, name)))

    def need_manage(self, actor: Actor, workload: Workload) -> None:
        """Raise ``GpupoolError(FORBIDDEN)`` unless the actor may manage the workload."""
        if not self.can_manage(actor, workload):
            raise forbidden(f"{workload.name} belongs to {workload.user}.")

    def need_see(self, actor: Actor, workload: Workload) -> None:
        """Raise ``GpupoolError(FORBIDDEN)`` unless the actor may see the workload's output."""
        if not self.can_see(actor, workload):
            raise forbidden(f"{workload.name} belongs to {workload.user}.")

    def need_role(self, actor: Actor, role: Role) -> None:
        """Raise ``GpupoolError(FORBIDDEN)`` unless the actor has at least this role."""
        require_role(actor, role)

    def need_project(self, actor: Actor, project: Project) -> None:
        """Raise ``GpupoolError(FORBIDDEN)`` unless the actor may submit to the project."""
        self.need_role(actor, Role.MEMBER)
        if not self.can_submit(actor, project):
            raise forbidden(f"{actor.user} is not a member of the project {project.name}.")

    def can_submit(self, actor: Actor, project: Project) -> bool:
        """Return True if the actor is a member of the project; one without members is for all."""
        return not project.members or actor.user in project.members or actor.role is Role.ADMIN

    def need_priority(self, actor: Actor, project: Project, priority: int) -> None:
        """Raise ``GpupoolError(OVER_LIMIT)`` if a member chooses a priority above the limit of the project."""
        rule = project.rules.max_priority
        limit = DEFAULT_MAX_PRIORITY if rule is None else rule
        if priority <= limit or actor.role is Role.ADMIN or self._manages(actor, project.name):
            return
        raise GpupoolError(
            ErrorCode.OVER_LIMIT,
            f"The priority is {priority}; members of the project {project.name} may choose at most {limit}.",
            "Order your own work with lower priorities (`--priority low`), or ask a manager of the project.",
        )


def require_role(actor: Actor, role: Role) -> None:
    """Raise ``GpupoolError(FORBIDDEN)`` unless the actor has at least this role."""
    if not actor.role.includes(role):
        raise forbidden(f"This needs the role {role}; {actor.user} is {actor.role}.")


def forbidden(sentence: str) -> GpupoolError:
    """Return the error of a refused action."""
    return GpupoolError(ErrorCode.FORBIDDEN, sentence, "Ask an administrator of the pool.")
