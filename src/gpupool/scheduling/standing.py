"""How everybody stands: what departments, projects and users hold, are due and used, and why in this order."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from gpupool.domain.units import format_permille
from gpupool.scheduling.division import EPSILON
from gpupool.scheduling.ledger import UNBOUNDED
from gpupool.scheduling.session import Session


@dataclass(frozen=True, slots=True)
class ModelStanding:
    """A project's quota of a GPU model, and what it holds of it, in thousandths."""

    model: str
    quota_permille: int
    held_permille: int


@dataclass(frozen=True, slots=True)
class ProjectStanding:
    """A project now. GPUs in thousandths, ``used_gpu_hours`` is decayed use; ``quota_permille`` None: none of its own.

    ``position`` is its place among the projects whose work waits, from 1; 0: nothing of it waits. ``reason`` says why
    in words. ``of_models`` are its quotas of GPU models.
    """

    project: str
    department: str
    quota_permille: int | None
    limit_permille: int | None
    weight: float
    held_permille: int
    protected_permille: int
    waiting_permille: int
    fair_permille: float
    recent_permille: float
    used_gpu_hours: float
    position: int
    reason: str
    of_models: tuple[ModelStanding, ...] = ()


@dataclass(frozen=True, slots=True)
class DepartmentStanding:
    """A department now, as ``ProjectStanding``; ``quota_permille`` None: the sum of its projects'."""

    department: str
    quota_permille: int | None
    limit_permille: int | None
    weight: float
    held_permille: int
    waiting_permille: int
    fair_permille: float
    recent_permille: float
    used_gpu_hours: float


@dataclass(frozen=True, slots=True)
class UserStanding:
    """A user in a project now; within a priority who holds and held less is served first."""

    project: str
    user: str
    held_permille: int
    recent_permille: float
    used_gpu_hours: float


@dataclass(frozen=True, slots=True)
class Standings:
    """All of it, in order of turns; ``half_life_s`` and ``usage_weight`` are those that the numbers rest on."""

    capacity_permille: int
    half_life_s: float
    usage_weight: float
    projects: tuple[ProjectStanding, ...]
    departments: tuple[DepartmentStanding, ...]
    users: tuple[UserStanding, ...]


def standings(session: Session) -> Standings:
    """How everybody stands in a session in which nothing has been tried yet."""
    ledger, shares = session.ledger, session.shares
    needs = {project: _need(session, project) for project in session.demand.lanes}
    turns = sorted(needs, key=lambda p: (shares.order(p, needs[p]), _since(session, p), p))
    position = {project: at for at, project in enumerate(turns, 1)}
    rest = [p for p in range(len(ledger.projects)) if p not in position]
    rest.sort(key=lambda p: ledger.projects[p].name)
    return Standings(
        capacity_permille=session.cluster.capacity_permille(),
        half_life_s=ledger.usage.decay.half_life_s,
        usage_weight=ledger.usage_weight,
        projects=tuple(_project(session, p, position.get(p, 0), needs.get(p, 0)) for p in [*turns, *rest]),
        departments=tuple(_department(session, d) for d in _departments(session)),
        users=tuple(_users(session)),
    )


def _need(session: Session, project: int) -> int:
    """Thousandths that the first of a project asks for."""
    heads = session.demand.heads(project).values()
    group = min(heads, key=lambda head: head[0])[1]
    return session.placer.least_permille(group.shape) * group.size


def _since(session: Session, project: int) -> float:
    return min((group.entries[0][0] for group in session.demand.groups(project)), default=inf)


def _departments(session: Session) -> list[int]:
    found = [(d.name, at) for at, d in enumerate(session.ledger.departments) if d is not None]
    return [at for _, at in sorted(found)]


def _hours(session: Session, recent: float) -> float:
    return recent * session.ledger.usage.decay.weight_s / 3_600_000


def _project(session: Session, p: int, position: int, need: int) -> ProjectStanding:
    ledger, shares, project = session.ledger, session.shares, session.ledger.projects[p]
    recent = float(shares.division.recent[p])
    return ProjectStanding(
        project=project.name,
        department=project.department,
        quota_permille=project.quota_permille,
        limit_permille=project.limit_permille,
        weight=project.weight,
        held_permille=int(ledger.used[p]),
        protected_permille=int(ledger.firm[p]),
        waiting_permille=int(ledger.waiting[p]),
        fair_permille=float(shares.division.fair[p]),
        recent_permille=recent,
        used_gpu_hours=_hours(session, recent),
        position=position,
        reason=_reason(session, p, need) if position else _at_rest(session, p),
        of_models=tuple(ModelStanding(*found) for found in session.guarantees().of_project(p)),
    )


def _at_rest(session: Session, p: int) -> str:
    over = float(session.ledger.used[p] - session.shares.division.fair[p])
    if session.ledger.used[p] == 0:
        return "wants nothing"
    return f"over its fair share by {_gpus(over)}" if over > EPSILON else "has all it wants"


def _reason(session: Session, p: int, need: int) -> str:
    ledger, shares = session.ledger, session.shares
    used, quota, fair = int(ledger.used[p]), int(ledger.quota[p]), float(shares.division.fair[p])
    dept = int(ledger.dept[p])
    over_department = float(ledger.dept_used[dept] - shares.division.dept_fair[dept])
    department = ledger.departments[dept]
    if used + EPSILON > fair:
        return f"over its fair share by {_gpus(used - fair)}" if used > fair + EPSILON else "at its fair share"
    if department is not None and over_department + EPSILON > 0:
        return f"department {department.name} is at its fair share"
    if quota < UNBOUNDED and used + need <= quota:
        return f"below quota by {_gpus(quota - used)}"
    beyond = ", beyond its quota" if quota < UNBOUNDED else ""
    return f"below its fair share by {_gpus(fair - used)}{beyond}"


def _gpus(permille: float) -> str:
    return f"{format_permille(round(permille))} GPU"


def _department(session: Session, d: int) -> DepartmentStanding:
    ledger, shares = session.ledger, session.shares
    department = ledger.departments[d]
    assert department is not None  # noqa: S101 - ``_departments`` leaves the others out
    inside = shares.division.dept == d
    recent = float(shares.division.recent[inside].sum())
    return DepartmentStanding(
        department=department.name,
        quota_permille=department.quota_permille,
        limit_permille=department.limit_permille,
        weight=department.weight,
        held_permille=int(ledger.dept_used[d]),
        waiting_permille=int(ledger.waiting[: len(inside)][inside].sum()),
        fair_permille=float(shares.division.dept_fair[d]),
        recent_permille=recent,
        used_gpu_hours=_hours(session, recent),
    )


def _users(session: Session) -> list[UserStanding]:
    ledger = session.ledger
    found = []
    for project, user, held, recent in ledger.pairs(session.now):
        if held or recent >= 1:
            found.append(UserStanding(project, user, held, recent, _hours(session, recent)))
    return sorted(found, key=lambda s: (s.project, s.held_permille + s.recent_permille, s.user))
