"""Share report: allocations of departments, projects and users, fair shares, past use, and the reason of the order."""

from __future__ import annotations

from math import inf

from gpupool.domain.people.shares import DepartmentShare, ModelShare, ProjectShare, ShareReport, UserShare
from gpupool.domain.units import format_permille
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import EPSILON
from gpupool.scheduling.state.ledger import UNBOUNDED


def share_report(session: SchedulingSession) -> ShareReport:
    """Return the shares of projects, departments and users in a session in which nothing was tried yet."""
    ledger = session.ledger
    needs = _needs(session)
    turns = project_order(session)
    position = {project: at for at, project in enumerate(turns, 1)}
    rest = [p for p in range(len(ledger.projects)) if p not in position]
    rest.sort(key=lambda p: ledger.projects[p].name)
    return ShareReport(
        capacity_permille=session.cluster.capacity_permille(),
        half_life_s=ledger.usage.decay.half_life_s,
        usage_weight=ledger.usage_weight,
        projects=tuple(_project(session, p, position.get(p, 0), needs.get(p, 0)) for p in [*turns, *rest]),
        departments=tuple(_department(session, d) for d in _departments(session)),
        users=tuple(_users(session)),
    )


def project_order(session: SchedulingSession) -> list[int]:
    """Return the projects with queued work in scheduling order."""
    needs, order = _needs(session), session.shares.order
    return sorted(needs, key=lambda p: (order(p, needs[p]), _since(session, p), p))


def _needs(session: SchedulingSession) -> dict[int, int]:
    return {project: _need(session, project) for project in session.demand.project_queues}


def _need(session: SchedulingSession, project: int) -> int:
    """Return the thousandths that the first queued work of a project requests."""
    heads = session.demand.heads(project).values()
    group = min(heads, key=lambda head: head[0])[1]
    return session.placer.least_permille(group.shape) * group.size


def _since(session: SchedulingSession, project: int) -> float:
    return min((group.entries[0][0] for group in session.demand.groups(project)), default=inf)


def _departments(session: SchedulingSession) -> list[int]:
    found = [(d.name, at) for at, d in enumerate(session.ledger.departments) if d is not None]
    return [at for _, at in sorted(found)]


def _hours(session: SchedulingSession, recent: float) -> float:
    return recent * session.ledger.usage.decay.weight_s / 3_600_000


def _project(session: SchedulingSession, p: int, position: int, need: int) -> ProjectShare:
    ledger, shares, project = session.ledger, session.shares, session.ledger.projects[p]
    recent = float(shares.division.recent[p])
    return ProjectShare(
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
        of_models=tuple(ModelShare(*found) for found in session.guarantees().of_project(p)),
    )


def _at_rest(session: SchedulingSession, p: int) -> str:
    over = float(session.ledger.used[p] - session.shares.division.fair[p])
    if session.ledger.used[p] == 0:
        return "has no demand"
    return f"above its fair share by {_gpus(over)}" if over > EPSILON else "demand is met"


def _reason(session: SchedulingSession, p: int, need: int) -> str:
    ledger, shares = session.ledger, session.shares
    used, quota, fair = int(ledger.used[p]), int(ledger.quota[p]), float(shares.division.fair[p])
    dept = int(ledger.dept[p])
    over_department = float(ledger.dept_used[dept] - shares.division.dept_fair[dept])
    department = ledger.departments[dept]
    if used + EPSILON > fair:
        return f"above its fair share by {_gpus(used - fair)}" if used > fair + EPSILON else "at its fair share"
    if department is not None and over_department + EPSILON > 0:
        return f"department {department.name} is at its fair share"
    if quota < UNBOUNDED and used + need <= quota:
        return f"below quota by {_gpus(quota - used)}"
    beyond = ", above its quota" if quota < UNBOUNDED else ""
    return f"below its fair share by {_gpus(fair - used)}{beyond}"


def _gpus(permille: float) -> str:
    return f"{format_permille(round(permille))} GPU"


def _department(session: SchedulingSession, d: int) -> DepartmentShare:
    ledger, shares = session.ledger, session.shares
    department = ledger.departments[d]
    assert department is not None  # noqa: S101 - ``_departments`` leaves the others out
    inside = shares.division.dept == d
    recent = float(shares.division.recent[inside].sum())
    return DepartmentShare(
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


def _users(session: SchedulingSession) -> list[UserShare]:
    ledger = session.ledger
    found = []
    for project, user, held, recent in ledger.pairs(session.now):
        if held or recent >= 1:
            found.append(UserShare(project, user, held, recent, _hours(session, recent)))
    return sorted(found, key=lambda s: (s.project, s.held_permille + s.recent_permille, s.user))
