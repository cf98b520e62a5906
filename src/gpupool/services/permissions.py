"""Who may see and manage what."""

from __future__ import annotations

from gpupool.domain.access import Actor, Project, Role
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.workload import Workload
from gpupool.services.register import Register


class Permissions:
    """The rules: one's own work; a manager's, everything in the projects the manager belongs to; an admin's, all."""

    def __init__(self, register: Register) -> None:
        self._register = register

    def can_manage(self, actor: Actor, workload: Workload) -> bool:
        """Whether the actor may stop, signal, attach to, or read the output of a workload."""
        if actor.role is Role.ADMIN:
            return True
        if actor.role is Role.VIEWER:
            return False
        return actor.user == workload.user or self._manages(actor, workload.project)

    def can_see(self, actor: Actor, workload: Workload) -> bool:
        """Whether the actor may see a workload's command, environment and output."""
        return self.can_manage(actor, workload) or actor.user == workload.user

    def _manages(self, actor: Actor, project_name: str) -> bool:
        project = self._register.find_project(project_name)
        return actor.role is Role.MANAGER and project is not None and actor.user in project.members

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
        if not actor.role.includes(role):
            raise forbidden(f"This needs the role {role}; {actor.user} is {actor.role}.")

    def need_project(self, actor: Actor, project: Project) -> None:
        """Raise ``GpupoolError(FORBIDDEN)`` unless the actor may submit to the project."""
        self.need_role(actor, Role.MEMBER)
        if project.members and actor.user not in project.members and actor.role is not Role.ADMIN:
            raise forbidden(f"{actor.user} is not a member of the project {project.name}.")


def forbidden(sentence: str) -> GpupoolError:
    """The refusal that every rule gives."""
    return GpupoolError(ErrorCode.FORBIDDEN, sentence, "Ask an administrator of the pool.")
