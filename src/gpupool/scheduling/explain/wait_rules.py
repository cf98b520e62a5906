"""The wait rules: each may keep a replica waiting; they are checked in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gpupool.domain.nodes.gpu import MIG_LABEL, MIG_ON_DEMAND, mentions_mig
from gpupool.domain.units import WHOLE_GPU, format_duration, format_permille
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.explain.feasibility import CREATE_INSTANCE, lacking, no_such_model, present_models
from gpupool.scheduling.explain.formatting import pools_text
from gpupool.scheduling.explain.wait_case import Case, Numbers, WaitCode, WaitFinding
from gpupool.scheduling.gang_placement import model_choices
from gpupool.scheduling.placement.capacity import Need, capacity
from gpupool.scheduling.placement.mig_sites import mig_sites
from gpupool.scheduling.placement.node_filter import EMPTY, Relax, fitting_rows
from gpupool.scheduling.state.cluster import ALONE, Shape, domains
from gpupool.scheduling.state.ledger import UNBOUNDED, Bound
from gpupool.scheduling.state.queue_window import MAX_SHAPES
from gpupool.scheduling.state.reservations import reservation_texts
from gpupool.scheduling.values import BlockReason, HoldKind

# --- the rules, in order


def _model(case: Case) -> WaitFinding | None:
    if case.may_be_created or not no_such_model(case.placer, case.shape):
        return None
    wanted, models = " or ".join(case.replica.request.models), sorted(present_models(case.placer))
    sentence = f"no node has a GPU of model {wanted}; the pool has {', '.join(models) or 'no GPUs'}"
    advice = ["request an available model"]
    if any(map(mentions_mig, case.replica.request.models)):
        advice.append(f"the pool creates no such MIG instance; {CREATE_INSTANCE}")
    return WaitFinding(WaitCode.NO_SUCH_MODEL, sentence, {"models": ", ".join(models)}, tuple(advice))


def _size(case: Case) -> WaitFinding | None:
    if case.may_be_created or case.fits_if(EMPTY):
        return None
    reason = lacking(case.placer, case.shape)
    sentence = f"needs {case.wants}, more than any node has: {reason[0].lower()}{reason[1:].rstrip('.')}"
    return WaitFinding(
        WaitCode.TOO_LARGE, sentence, {"need_permille": case.need}, ("request less", "add a larger node")
    )


_HELD = {
    BlockReason.DEPENDENCY: WaitCode.DEPENDENCY,
    BlockReason.SUSPENDED: WaitCode.SUSPENDED,
    BlockReason.WINDOW: WaitCode.WINDOW,
    BlockReason.PARALLELISM: WaitCode.PARALLELISM,
    BlockReason.FOLDER: WaitCode.FOLDER,
    BlockReason.BUDGET: WaitCode.GPU_HOURS,
}
_HELD_SENTENCES = {
    BlockReason.DEPENDENCY: "waits for other work to end",
    BlockReason.SUSPENDED: "is suspended",
    BlockReason.WINDOW: "waits for its time window to open",
    BlockReason.PARALLELISM: "waits for other replicas of its workload: its parallelism is reached",
    BlockReason.FOLDER: "waits for its folder, which is on another head",
    BlockReason.BUDGET: "waits for the GPU hours of the next month",
}


def _held(case: Case) -> WaitFinding | None:
    held = case.replica.held
    if held is None:
        return None
    help_ = ("resume it",) if held is BlockReason.SUSPENDED else ()
    return WaitFinding(_HELD[held], case.replica.held_note or _HELD_SENTENCES[held], {}, help_)


def _back_off(case: Case) -> WaitFinding | None:
    left = case.replica.not_before - case.session.now
    if left <= 0:
        return None
    return WaitFinding(WaitCode.BACK_OFF, f"is retried in {format_duration(left)}", {"seconds": left})


def _parked(case: Case) -> WaitFinding | None:
    """Find a user with more different requests than a cycle considers."""
    demand, replica = case.session.demand, case.replica
    if replica.key not in demand.window:
        return None
    account = case.account
    count = demand.window.shapes((account.project, replica.priority, account.user))
    return WaitFinding(
        WaitCode.MANY_REQUESTS,
        f"{replica.user} waits with {count:,} different requests; {MAX_SHAPES} of them are considered at a time, "
        "and this one is not among them now",
        {"requests": count, "considered": MAX_SHAPES},
        ("use the same GPUs, CPUs and memory for jobs of one kind",),
    )


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


def _owner(case: Case, bound: Bound) -> str:
    """Return the name of the user, project or department that a limit belongs to."""
    if bound is Bound.USER:
        return case.replica.user
    department = case.session.ledger.projects[case.account.project].department
    return department if bound in {Bound.DEPARTMENT_QUOTA, Bound.DEPARTMENT_LIMIT} else case.replica.project


def _bounds(case: Case) -> WaitFinding | None:
    if case.active is not None:
        return None  # its own hold is counted already
    for bound, value, left in case.session.ledger.rooms(case.account):
        if case.need > left and case.need:
            owner = _owner(case, bound)
            holder = case.replica.user if bound is Bound.USER_IN_PROJECT else owner
            used = value - left
            by = f" by {holder}" if holder != owner else ""
            sentence = (
                f"needs {case.wants}; the {bound} {owner} is {format_permille(value)} GPU, "
                f"{format_permille(used)} in use{by}"
            )
            numbers: Numbers = {"need_permille": case.need, "bound_permille": value, "used_permille": used}
            helps = [f"wait until {holder} frees {format_permille(case.need - left)} GPU"]
            if bound in _QUOTAS:
                helps.append("submit it as preemptible training, which may exceed the quota")
            return WaitFinding(_BOUND_CODES[bound], sentence, numbers, tuple(helps))
    return None


def _whole_quotas(case: Case) -> WaitFinding | None:
    session, project = case.session, case.replica.project
    if case.active is not None or case.size > 1 or not case.fits():
        return None
    if session.find(case.shape, case.account) is not None:
        return None
    sentence = (
        f"needs {case.wants}; protected work of {project} may not start on another GPU: "
        "quotas guarantee the free ones as whole GPUs"
    )
    helps = ("submit it as preemptible training", "give the project a larger quota")
    return WaitFinding(WaitCode.PROJECT_QUOTA, sentence, {"need_permille": case.need}, helps)


def _soon(case: Case) -> WaitFinding | None:
    if case.active is not None and case.active.hold.kind is HoldKind.NOMINATED:
        node = case.active.hold.node
        return WaitFinding(WaitCode.STARTING_SOON, f"starts on {node} as soon as work there has ended", {"node": node})
    if case.active is None and case.fits():
        return WaitFinding(WaitCode.STARTING_SOON, f"fits now; {_behind(case)}", {"ahead": case.ahead})
    return None


def _mig_instance(case: Case) -> WaitFinding | None:
    """Find a card on which the pool can create a MIG instance for the request."""
    sites = mig_sites(case.cluster, case.shape) if case.may_be_created and case.active is None else []
    if not sites:
        return None
    node, card, profile = sites[0].node.name, sites[0].card.index, sites[0].profile.name
    after = "" if sites[0].ready else "; unused instances are removed first"
    sentence = f"needs {case.wants}; {node} creates a MIG instance {profile} on GPU {card}{after}"
    return WaitFinding(WaitCode.MIG_INSTANCE, sentence, {"node": node, "gpu": card, "profile": profile})


def _no_mig_instance(case: Case) -> WaitFinding | None:
    """Explain why the pool creates no MIG instance for the request, although a card has its profile."""
    if not case.may_be_created:
        return None
    nodes = [node for node in case.cluster.nodes if node is not None and node.mig_choices(case.shape.request)]
    name = nodes[0].mig_choices(case.shape.request)[0][1].name
    exists = case.fits_if(EMPTY) > 0
    if any(node.creates_mig for node in nodes):
        code = WaitCode.WAITING_FOR_GPU if exists else WaitCode.MIG_INSTANCE  # others end, or release their slices
        sentence = f"needs {case.wants}; no card has room for another MIG instance {name}; {_behind(case)}"
        return WaitFinding(code, sentence, {"profile": name, "ahead": case.ahead}, ("request a smaller instance",))
    if exists:
        return None
    where = nodes[0].name
    sentence = f"needs {case.wants}; a card of {where} has such a profile, but the pool may not create instances there"
    allow = f"an administrator can allow it: gpupool node label {where} {MIG_LABEL}={MIG_ON_DEMAND}"
    return WaitFinding(WaitCode.MIG_INSTANCE, sentence, {"profile": name}, (allow,))


def _reserved(case: Case) -> WaitFinding | None:
    others = [active for key, active in case.session.holds.active.items() if key != case.replica.key]
    if not others or case.active is not None:
        return None
    mark = case.session.log.checkpoint()
    for active in others:
        case.cluster.discharge(active.claim)
    fits = case.fits()
    case.session.log.rollback(mark)
    if not fits:
        return None
    helps = ("set a time limit: short work may start as backfill",) if case.replica.max_time_s is None else ()
    sentence = f"needs {case.wants}; the free space is held for work that has waited longer or reclaims it"
    return WaitFinding(WaitCode.RESERVED_FOR_OTHERS, sentence, {"reservations": len(others)}, helps)


_GPU_WITHOUT_HOST = "a GPU is free, but its node lacks the CPUs or memory"


def _host(case: Case) -> WaitFinding | None:
    if not case.fits_if(Relax(host=True)):
        return None
    c = case.cluster
    cpus, memory = int(c.cpu_free[c.up].max(initial=0)) / 1000, int(c.mem_free[c.up].max(initial=0))
    free = "no node has the CPUs or memory free" if not case.shape.request.count else _GPU_WITHOUT_HOST
    sentence = f"needs {case.wants}; {free}"
    numbers: Numbers = {"most_cpus_free": cpus, "most_memory_free_mib": memory}
    return WaitFinding(WaitCode.CPU_OR_MEMORY, sentence, numbers, ("request fewer CPUs or less memory",))


def _reserved_nodes(case: Case) -> WaitFinding | None:
    guest, rows = case.shape.guest, fitting_rows(case.cluster, case.shape, Relax(reservations=True))
    if guest is None or not len(rows):
        return None
    reservations, node = case.cluster.reservations, case.cluster.name_of(int(rows[0]))
    found = reservations.in_the_way(guest, node)
    if found is None:
        return None
    span, helps = reservation_texts(found, case.session.now)
    numbers: Numbers = {"starts_at": found.starts_at, "ends_at": found.ends_at, "booking": found.id, "nodes": len(rows)}
    sentence = f"needs {case.wants}; {node} is free, but reserved for others ({found.name}) {span}"
    return WaitFinding(WaitCode.BOOKED, sentence, numbers, helps)


def _pool(case: Case) -> WaitFinding | None:
    pools = case.shape.pools
    nodes = case.fits_if(Relax(pools=True)) if pools else 0
    if not nodes:
        return None
    because = f"{case.replica.project} may use only nodes of {pools_text(pools)}; other nodes have free space"
    helps = ("wait for a node of its pools", "ask an administrator to add a pool to the project")
    return WaitFinding(
        WaitCode.OTHER_NODE_POOL,
        f"needs {case.wants}; {because}",
        {"nodes": nodes, "pools": ", ".join(pools)},
        helps,
    )


def _gang(case: Case) -> WaitFinding | None:
    gang, group = case.replica.gang, case.session.demand.group_of(case.replica.key)
    if gang is None or group is None:
        return None
    if case.size == 1:
        return _joiner(case, gang)
    shapes = [choice.shape for choice in model_choices(case.session, group)]
    most, where = max(_most_members(case, shape, gang.within, strict=gang.strict) for shape in shapes), ""
    if gang.strict:
        where = f" in one {gang.within}"
    if len(shapes) > 1:
        where += " on GPUs of one model"
    if not 0 < most < case.size:
        return None
    sentence = f"needs {case.wants}, which start together; {most} of {case.size} fit{where}; {_behind(case)}"
    numbers: Numbers = {"members": case.size, "would_fit": most, "ahead": case.ahead}
    helps = [f"allow the gang to start with {most} members"]
    levels = case.cluster.topology
    larger = levels[: levels.index(gang.within)][::-1] if gang.strict and gang.within in levels else ()
    for label in larger:
        if any(_most_members(case, shape, label, strict=True) >= case.size for shape in shapes):
            helps.append(f"require one {label} instead of one {gang.within} (--within-strictly {label})")
            break
    if gang.strict and any(_most_members(case, shape, "", strict=False) >= case.size for shape in shapes):
        helps.append(f"prefer one {gang.within} instead of requiring it")
    if len(shapes) > 1 and _most_members(case, case.shape, gang.within, strict=gang.strict) >= case.size:
        helps.append("allow several GPU models (--mixed-models)")
    return WaitFinding(WaitCode.GANG, sentence, numbers, tuple(helps))


def _most_members(case: Case, shape: Shape, label: str, *, strict: bool) -> int:
    """Return how many members fit now, within one value of a label if ``strict``."""
    c = case.cluster
    rows = np.flatnonzero(c.present & c.up)
    fit = capacity(c, Need(shape, case.placer.accepted(shape), UNBOUNDED, case.size), rows)
    if not strict:
        return int(fit.sum())
    domain = domains(c, label)[rows]
    known = domain != ALONE
    return int(np.bincount(domain[known], fit[known]).max(initial=0))


def _joiner(case: Case, gang: Gang) -> WaitFinding | None:
    """Explain why a member does not join its running gang although other GPUs are free."""
    if not case.placer.fits_anywhere(case.shape) or case.fits():
        return None
    same = [] if gang.mixed_models else ["the GPU model"]
    same += [f"the {gang.within}"] if gang.strict else []
    if not same:
        return None
    sentence = f"needs {case.wants} of {' and '.join(same)} of the other members; only others are free"
    return WaitFinding(WaitCode.GANG, sentence, {"members": 1, "would_fit": 0, "ahead": case.ahead})


def _relaxed(code: WaitCode, relax: Relax, because: str, helps: str) -> Callable[[Case], WaitFinding | None]:
    def rule(case: Case) -> WaitFinding | None:
        nodes = case.fits_if(relax)
        if not nodes:
            return None
        return WaitFinding(code, f"needs {case.wants}; {because}", {"nodes": nodes}, (helps,))

    return rule


def _waiting(case: Case) -> WaitFinding:
    free = case.most_free()
    sentence = f"needs {case.wants}; {_free_amount(case, free)}; {_behind(case)}"
    numbers: Numbers = {"need_permille": case.need, "free_permille": free, "ahead": case.ahead}
    if case.active is not None:
        sentence += f"; the next free space on {case.active.hold.node} is held for it"
    helps = [] if case.shape.request.permille == 1 else ["request a smaller share of a GPU"]
    if case.shape.request.count > 1:
        helps = ["request fewer GPUs"]
    if case.replica.request.models:
        helps.append("accept other models")
    return WaitFinding(WaitCode.WAITING_FOR_GPU, sentence, numbers, tuple(helps))


def _free_amount(case: Case, free_permille: int) -> str:
    """Return the free amount; parts of GPUs do not count for several whole GPUs."""
    if case.shape.request.count == 1:
        return f"{format_permille(free_permille)} free"
    if not case.shape.whole:
        return f"at most {format_permille(free_permille)} free on one node"
    whole = free_permille // WHOLE_GPU
    return f"at most {whole} whole GPU{'' if whole == 1 else 's'} free on one node"


def _behind(case: Case) -> str:
    project = case.replica.project
    text = f"{case.ahead} ahead of you in {project}" if case.ahead else f"next in {project}"
    first = next(iter(case.turns), case.account.project)
    if case.ahead or first == case.account.project:
        return text
    return f"{text}, but {_standing(case, first)} is served first"


def _standing(case: Case, project: int) -> str:
    """Return text such as ``blue, which is below its fair share (1.00 of 4.00 GPU),``."""
    shares, ledger = case.session.shares, case.session.ledger
    used, fair = int(ledger.used[project]), int(shares.fair[project])
    held = f"{format_permille(used)} of {format_permille(fair)} GPU"
    name = ledger.projects[project].name
    if used < fair:
        return f"{name}, which is below its fair share ({held}),"
    return f"{name}, which uses a smaller part of its fair share ({format_permille(used)} GPU),"


RULES: tuple[Callable[[Case], WaitFinding | None], ...] = (
    _model,
    _size,
    _held,
    _back_off,
    _parked,
    _bounds,
    _whole_quotas,
    _soon,
    _mig_instance,
    _reserved,
    _gang,
    _host,
    _reserved_nodes,
    _pool,
    _relaxed(
        WaitCode.NODE_CORDONED,
        Relax(state=True),
        "it fits on a node or GPU that accepts no work now",
        "uncordon the node or GPU",
    ),
    _relaxed(
        WaitCode.GPU_IN_USE_BY_OTHERS,
        Relax(foreign=True),
        "processes that the pool did not start use the GPU",
        "end those processes",
    ),
    _relaxed(WaitCode.GPU_UNHEALTHY, Relax(health=True), "the free GPU has failed", "repair the GPU"),
    _relaxed(
        WaitCode.OTHER_SHARING_MODE,
        Relax(mode=True),
        "the GPU with free parts is in another sharing mode, or in use by another user with MPS: "
        "one GPU has one mode at a time",
        "let the pool choose the sharing mode, or wait until the other workloads on that GPU have ended",
    ),
    _no_mig_instance,
    _waiting,
)
