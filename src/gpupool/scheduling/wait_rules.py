"""The rules that may stand in the way of a waiting replica, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gpupool.domain.units import format_duration, format_permille
from gpupool.scheduling.bookings import told
from gpupool.scheduling.feasible import lacking, no_such_model, present_models
from gpupool.scheduling.gang import capacity
from gpupool.scheduling.ledger import Bound
from gpupool.scheduling.topology import ALONE, domains
from gpupool.scheduling.usable import EMPTY, Relax, fitting_rows
from gpupool.scheduling.values import Held, HoldKind
from gpupool.scheduling.wait_case import Case, Finding, Numbers, WaitCode
from gpupool.scheduling.words import pools_text

MOST_RIVALS = 256  # projects that are looked at to say who is served before


# --- the rules, in order


def _model(case: Case) -> Finding | None:
    if not no_such_model(case.placer, case.shape):
        return None
    wanted, models = " or ".join(case.replica.request.models), sorted(present_models(case.placer))
    sentence = f"no node has a GPU of model {wanted}; the pool has {', '.join(models) or 'no GPUs'}"
    return Finding(WaitCode.NO_SUCH_MODEL, sentence, {"models": ", ".join(models)}, ("ask for a model the pool has",))


def _size(case: Case) -> Finding | None:
    if case.fits_if(EMPTY):
        return None
    reason = lacking(case.placer, case.shape)
    sentence = f"needs {case.wants}, more than any node has: {reason[0].lower()}{reason[1:].rstrip('.')}"
    return Finding(WaitCode.TOO_LARGE, sentence, {"need_permille": case.need}, ("ask for less", "add a larger node"))


_HELD = {
    Held.DEPENDENCY: WaitCode.DEPENDENCY,
    Held.SUSPENDED: WaitCode.SUSPENDED,
    Held.WINDOW: WaitCode.WINDOW,
    Held.PARALLELISM: WaitCode.PARALLELISM,
    Held.FOLDER: WaitCode.FOLDER,
}
_HELD_SENTENCES = {
    Held.DEPENDENCY: "waits for other work to end",
    Held.SUSPENDED: "is suspended",
    Held.WINDOW: "waits for its time window to open",
    Held.PARALLELISM: "waits for other replicas of its workload: as many as it allows at once run",
    Held.FOLDER: "waits for its folder, which is on another head",
}


def _held(case: Case) -> Finding | None:
    held = case.replica.held
    if held is None:
        return None
    help_ = ("resume it",) if held is Held.SUSPENDED else ()
    return Finding(_HELD[held], case.replica.held_note or _HELD_SENTENCES[held], {}, help_)


def _back_off(case: Case) -> Finding | None:
    left = case.replica.not_before - case.session.now
    if left <= 0:
        return None
    return Finding(WaitCode.BACK_OFF, f"is tried again in {format_duration(left)}", {"seconds": left})


_BOUND_CODES: Mapping[Bound, WaitCode] = {
    Bound.PROJECT_QUOTA: WaitCode.PROJECT_QUOTA,
    Bound.MODEL_QUOTA: WaitCode.PROJECT_QUOTA,
    Bound.PROJECT_LIMIT: WaitCode.PROJECT_LIMIT,
    Bound.DEPARTMENT_QUOTA: WaitCode.DEPARTMENT_QUOTA,
    Bound.DEPARTMENT_LIMIT: WaitCode.DEPARTMENT_LIMIT,
    Bound.USER_IN_PROJECT: WaitCode.USER_LIMIT,
    Bound.USER: WaitCode.USER_LIMIT,
}


_QUOTAS = frozenset({Bound.PROJECT_QUOTA, Bound.MODEL_QUOTA, Bound.DEPARTMENT_QUOTA})


def _whose(case: Case, bound: Bound) -> str:
    if bound in {Bound.USER, Bound.USER_IN_PROJECT}:
        return case.replica.user
    department = case.session.ledger.projects[case.account.project].department
    return department if bound in {Bound.DEPARTMENT_QUOTA, Bound.DEPARTMENT_LIMIT} else case.replica.project


def _bounds(case: Case) -> Finding | None:
    if case.ghost is not None:
        return None  # its own hold is counted already
    for bound, value, left in case.session.ledger.rooms(case.account):
        if case.need > left and case.need:
            whose = _whose(case, bound)
            used = value - left
            sentence = (
                f"needs {case.wants}; the {bound} {whose} is {format_permille(value)} GPU, "
                f"{format_permille(used)} in use"
            )
            numbers: Numbers = {"need_permille": case.need, "bound_permille": value, "used_permille": used}
            helps = [f"wait until {whose} frees {format_permille(case.need - left)} GPU"]
            if bound in _QUOTAS:
                helps.append("submit it as preemptible training, which may exceed the quota")
            return Finding(_BOUND_CODES[bound], sentence, numbers, tuple(helps))
    return None


def _soon(case: Case) -> Finding | None:
    if case.ghost is not None and case.ghost.hold.kind is HoldKind.NOMINATED:
        node = case.ghost.hold.node
        return Finding(WaitCode.STARTING_SOON, f"starts on {node} as soon as work there has ended", {"node": node})
    if case.ghost is None and case.fits():
        return Finding(WaitCode.STARTING_SOON, f"fits now; {_behind(case)}", {"ahead": case.ahead})
    return None


def _reserved(case: Case) -> Finding | None:
    others = [ghost for key, ghost in case.session.ghosts.items() if key != case.replica.key]
    if not others or case.ghost is not None:
        return None
    mark = case.session.log.checkpoint()
    for ghost in others:
        case.cluster.discharge(ghost.claim)
    fits = case.fits()
    case.session.log.rollback(mark)
    if not fits:
        return None
    helps = ("give it a time limit: short work may run in reserved space",) if case.replica.max_time_s is None else ()
    sentence = f"needs {case.wants}; what is free is kept for work that has waited longer or is owed it"
    return Finding(WaitCode.RESERVED_FOR_OTHERS, sentence, {"reservations": len(others)}, helps)


def _host(case: Case) -> Finding | None:
    if not case.fits_if(Relax(host=True)):
        return None
    c = case.cluster
    cpus, memory = int(c.cpu_free[c.up].max(initial=0)) / 1000, int(c.mem_free[c.up].max(initial=0))
    sentence = f"needs {case.wants}; a GPU is free, but no node has the CPUs and memory beside it"
    numbers: Numbers = {"most_cpus_free": cpus, "most_memory_free_mib": memory}
    return Finding(WaitCode.CPU_OR_MEMORY, sentence, numbers, ("ask for fewer CPUs or less memory",))


def _booked(case: Case) -> Finding | None:
    guest, rows = case.shape.guest, fitting_rows(case.cluster, case.shape, Relax(bookings=True))
    if guest is None or not len(rows):
        return None
    bookings, node = case.cluster.bookings, case.cluster.name_of(int(rows[0]))
    found = bookings.in_the_way(guest, node)
    if found is None:
        return None
    span, helps = told(found, case.session.now)
    numbers: Numbers = {"starts_at": found.starts_at, "ends_at": found.ends_at, "booking": found.id, "nodes": len(rows)}
    sentence = f"needs {case.wants}; {node} is free, but booked for others ({found.name}) {span}"
    return Finding(WaitCode.BOOKED, sentence, numbers, helps)


def _pool(case: Case) -> Finding | None:
    pools = case.shape.pools
    nodes = case.fits_if(Relax(pools=True)) if pools else 0
    if not nodes:
        return None
    because = f"work of {case.replica.project} runs on nodes of {pools_text(pools)} only, and it is free on others"
    helps = ("wait for a node of its pools", "ask an administrator to add a pool to the project")
    return Finding(
        WaitCode.OTHER_NODE_POOL,
        f"needs {case.wants}; {because}",
        {"nodes": nodes, "pools": ", ".join(pools)},
        helps,
    )


def _gang(case: Case) -> Finding | None:
    gang = case.replica.gang
    if gang is None or case.size == 1:
        return None
    c = case.cluster
    rows = np.flatnonzero(c.present & c.up)
    fit = capacity(case.placer, case.shape, rows, case.size)
    most, where = int(fit.sum()), ""
    if gang.strict:
        domain = domains(c, gang.within)[rows]
        known = domain != ALONE
        most = int(np.bincount(domain[known], fit[known]).max(initial=0))
        where = f" in one {gang.within}"
    if not 0 < most < case.size:
        return None
    sentence = f"needs {case.wants}, who start together; {most} of {case.size} would fit{where}; {_behind(case)}"
    numbers: Numbers = {"members": case.size, "would_fit": most, "ahead": case.ahead}
    helps = [f"let {most} members be enough to start with"]
    if gang.strict and int(fit.sum()) >= case.size:
        helps.append(f"prefer one {gang.within} without insisting on it")
    return Finding(WaitCode.GANG, sentence, numbers, tuple(helps))


def _relaxed(code: WaitCode, relax: Relax, because: str, helps: str) -> Callable[[Case], Finding | None]:
    def rule(case: Case) -> Finding | None:
        nodes = case.fits_if(relax)
        if not nodes:
            return None
        return Finding(code, f"needs {case.wants}; {because}", {"nodes": nodes}, (helps,))

    return rule


def _waiting(case: Case) -> Finding:
    free = case.most_free()
    unit = "free" if case.shape.request.count == 1 else "free at most on one node"
    sentence = f"needs {case.wants}; {format_permille(free)} {unit}; {_behind(case)}"
    numbers: Numbers = {"need_permille": case.need, "free_permille": free, "ahead": case.ahead}
    if case.ghost is not None:
        sentence += f"; the next space on {case.ghost.hold.node} is kept for it"
    helps = [] if case.shape.request.permille == 1 else ["ask for a smaller share of a GPU"]
    if case.shape.request.count > 1:
        helps = ["ask for fewer GPUs"]
    if case.replica.request.models:
        helps.append("accept other models")
    return Finding(WaitCode.WAITING_FOR_GPU, sentence, numbers, tuple(helps))


def _behind(case: Case) -> str:
    text = f"{case.ahead} ahead of you in {case.replica.project}"
    rival = None if case.ahead else _rival(case)
    return text if rival is None else f"{text}, but {_standing(case, rival)} is served before it"


def _rival(case: Case) -> int | None:
    """The other project with waiting work that is served first, if one is served before this one's."""
    demand, order = case.session.demand, case.session.shares.order
    first, rival = order(case.account.project, case.need), None
    for project in list(demand.lanes)[:MOST_RIVALS]:
        if project != case.account.project:
            shape = next(iter(demand.lanes[project]))
            other = order(project, case.placer.least_permille(shape))
            first, rival = (other, project) if other < first else (first, rival)
    return rival


def _standing(case: Case, project: int) -> str:
    """``blue, which is below its fair share (1.00 of 4.00 GPU)``."""
    shares, ledger = case.session.shares, case.session.ledger
    used, fair = int(ledger.used[project]), int(shares.fair[project])
    held = f"{format_permille(used)} of {format_permille(fair)} GPU"
    name = ledger.projects[project].name
    if used < fair:
        return f"{name}, which is below its fair share ({held}),"
    return f"{name}, which holds a smaller part of its due ({format_permille(used)} GPU),"


RULES: tuple[Callable[[Case], Finding | None], ...] = (
    _model,
    _size,
    _held,
    _back_off,
    _bounds,
    _soon,
    _reserved,
    _gang,
    _host,
    _booked,
    _pool,
    _relaxed(
        WaitCode.NODE_CORDONED, Relax(state=True), "it is free on a node that takes no work now", "uncordon the node"
    ),
    _relaxed(
        WaitCode.GPU_IN_USE_BY_OTHERS,
        Relax(foreign=True),
        "it would be free, but for processes that the pool did not start",
        "end those processes",
    ),
    _relaxed(WaitCode.GPU_UNHEALTHY, Relax(health=True), "the GPU that is free has failed", "repair the GPU"),
    _relaxed(
        WaitCode.OTHER_SHARING_MODE,
        Relax(mode=True),
        "it is free on a GPU whose parts are shared in another mode, or by MPS with another user: "
        "one GPU has one mode at a time",
        "leave the sharing mode to the pool, or wait until the others there have ended",
    ),
    _waiting,
)
