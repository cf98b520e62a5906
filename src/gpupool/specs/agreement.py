"""What the fields of a request may not say together."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.workload import Framework, OnMemberEnd, RestartPolicy, WorkloadKind
from gpupool.specs.containers import check_container
from gpupool.specs.limits import MAX_ARGV_BYTES, MAX_MEMBERS, MAX_REPLICAS
from gpupool.specs.problems import Path, refusal, reworded
from gpupool.specs.templates import as_text, check_placeholders, placeholders

if TYPE_CHECKING:
    from gpupool.specs.models import RoleSpec, WorkloadRequest
    from gpupool.specs.parts import SweepSpec

LAUNCHER = "launcher"
SINGLE = {WorkloadKind.INTERACTIVE, WorkloadKind.LEASE, WorkloadKind.EXEC}


def check_agreement(request: WorkloadRequest) -> None:
    """Raise pydantic's custom error for fields that contradict each other or the kind."""
    check_container(request)
    _check_command(request)
    _check_exec(request)
    _check_lease(request)
    _check_replicas(request)
    _check_gang(request)
    _check_roles(request)
    _check_framework(request)
    if request.sweep is not None:
        _check_template(request.command, request.sweep)


def _refuse_if(wrong: bool, sentence: str, path: Path, hint: str = "") -> None:
    if wrong:
        raise refusal(ErrorCode.INVALID_REQUEST, sentence, hint, path)


def _check_command(request: WorkloadRequest) -> None:
    lease = request.kind is WorkloadKind.LEASE
    _refuse_if(lease and bool(request.command), "must be left out: a lease runs nothing by itself.", ("command",))
    told = (
        bool(request.command)
        or request.image is not None
        or (bool(request.roles) and all(_has_program(request, r) for r in request.roles))
    )
    _refuse_if(not lease and not told, "is missing: say what to run.", ("command",))


def _has_program(request: WorkloadRequest, role: RoleSpec) -> bool:
    """Whether a role says what to run; the workers of MPI run what the launcher starts."""
    return (
        bool(role.command)
        or role.image is not None
        or (request.framework is Framework.MPI and role.name.lower() != LAUNCHER)
    )


def _check_exec(request: WorkloadRequest) -> None:
    on_others = request.kind is WorkloadKind.EXEC
    _refuse_if(on_others and request.on is None, "is missing: say on whose GPUs to run.", ("on",))
    _refuse_if(not on_others and request.on is not None, "is for the kind exec only.", ("on",))
    _refuse_if(not on_others and request.on_index != 0, "is for the kind exec only.", ("on_index",))
    asks = request.gpus != type(request.gpus)()
    _refuse_if(on_others and asks, "must be left out: an exec uses the GPUs of another workload.", ("gpus",))


def _check_lease(request: WorkloadRequest) -> None:
    lease = request.kind is WorkloadKind.LEASE
    _refuse_if(not lease and request.lifetime is not None, "is for the kind lease only; see max_time.", ("lifetime",))
    _refuse_if(lease and request.gpus.count == 0, "must be at least 1: a lease holds GPUs.", ("gpus", "count"))
    both = request.lifetime is not None and request.max_time is not None
    _refuse_if(both, "must be left out where lifetime is given.", ("max_time",))


def _check_replicas(request: WorkloadRequest) -> None:
    many = request.sweep is not None or (request.completions or 1) > 1 or (request.parallelism or 1) > 1
    path = "sweep" if request.sweep is not None else "completions"
    if request.kind in SINGLE:
        _refuse_if(many, f"must be left out: the kind {request.kind.value} has one replica.", (path,))
        again = request.restart not in {None, RestartPolicy.NEVER} or (request.backoff_limit or 0) > 0
        _refuse_if(again and request.kind is not WorkloadKind.INTERACTIVE, "must be never here.", ("restart",))
    _refuse_if(many and request.client_bound, "must be false where there are several replicas.", ("client_bound",))
    if request.sweep is not None and request.completions not in {None, request.sweep.size}:
        sentence = f"is {request.completions}, but the sweep has {request.sweep.size} runs."
        raise refusal(
            ErrorCode.INVALID_COUNT,
            sentence,
            "Leave completions out; parallelism bounds how many run.",
            ("completions",),
        )


def _check_gang(request: WorkloadRequest) -> None:
    if request.gang is None and not request.roles:
        _refuse_if(request.on_member_end is not None, "is for gangs: add gang.", ("on_member_end",))
        return
    path = "gang" if request.gang is not None else "roles"
    _refuse_if(request.kind in SINGLE, f"must be left out: the kind {request.kind.value} has one replica.", (path,))
    _refuse_if(request.client_bound, "must be false for a gang.", ("client_bound",))
    for field in ("sweep", "completions", "parallelism"):
        given = getattr(request, field) is not None
        _refuse_if(given, f"must be left out where {path} says how many start together.", (field,))


def _check_roles(request: WorkloadRequest) -> None:
    if not request.roles:
        return
    total, gang = sum(role.replicas for role in request.roles), request.gang
    if len({role.name for role in request.roles}) < len(request.roles):
        raise refusal(ErrorCode.INVALID_NAME, "has two roles of the same name.", path=("roles",))
    if total > MAX_REPLICAS:
        sentence = f"has {total} members; at most {MAX_REPLICAS} are possible."
        raise refusal(ErrorCode.INVALID_COUNT, sentence, path=("roles",))
    if gang is not None and gang.workers != total:
        sentence = f"is {gang.workers}, but the roles have {total} members."
        raise refusal(ErrorCode.INVALID_COUNT, sentence, path=("gang", "workers"))
    elastic = gang is not None and gang.min not in {None, gang.workers}
    _refuse_if(elastic and len(request.roles) > 1, "must be left out where there are several roles.", ("gang", "min"))


def _check_framework(request: WorkloadRequest) -> None:
    framework = request.framework
    ranks = framework in {Framework.TORCH, Framework.MPI}
    _refuse_if(request.processes is not None and not ranks, "is for the frameworks torch and mpi.", ("processes",))
    if framework is None:
        return
    gang = request.gang
    members = sum(role.replicas for role in request.roles) or (gang.workers if gang is not None else 0)
    if members > MAX_MEMBERS:
        sentence = f"is for at most {MAX_MEMBERS} members; there are {members}."
        raise refusal(ErrorCode.INVALID_COUNT, sentence, path=("framework",))
    _refuse_if(gang is None and not request.roles, "needs a gang: say how many workers.", ("framework",), "Add gang.")
    elastic = gang is not None and gang.min not in {None, gang.workers}
    fixed = framework is not Framework.TORCH
    _refuse_if(elastic and fixed, f"must be left out: {framework.value} has a fixed size.", ("gang", "min"))
    alone = request.on_member_end is OnMemberEnd.CONTINUE and framework is Framework.MPI
    _refuse_if(alone, "must be restart or fail: MPI cannot go on without a rank.", ("on_member_end",))
    if framework is Framework.MPI:
        _check_mpi(request)


def _check_mpi(request: WorkloadRequest) -> None:
    launchers = [role.replicas for role in request.roles if role.name.lower() == LAUNCHER]
    _refuse_if(bool(request.roles) and launchers != [1], "must have one launcher (replicas: 1).", ("roles",))
    for number, role in enumerate(request.roles):
        told = role.name.lower() != LAUNCHER and bool(role.command)
        _refuse_if(told, "must be left out: workers run what the launcher starts.", ("roles", number, "command"))


def _check_template(command: list[str], sweep: SweepSpec) -> None:
    try:
        check_placeholders(command, set.intersection(*map(set, sweep.name_sets())))
    except GpupoolError as error:
        refused = reworded(error)
        raise refusal(error.code, error.message, error.hint, ("command",)) from refused
    widths = _widths(sweep)
    uses = Counter(name for argument in command for name in placeholders(argument))
    if sum(widths.get(name, 8) * times for name, times in uses.items()) > MAX_ARGV_BYTES:
        raise refusal(ErrorCode.TOO_LARGE, "is longer than 1 MiB once the parameters are in it.", path=("command",))


def _widths(sweep: SweepSpec) -> dict[str, int]:
    """The most bytes each parameter can take."""
    widths: dict[str, int] = {}
    values = [(name, value) for name, many in (sweep.grid or {}).items() for value in many]
    values += [(name, value) for row in sweep.rows or () for name, value in row.items()]
    if sweep.random is not None:
        for name, drawn in sweep.random.parameters.items():
            widths[name] = 32
            values += [(name, value) for value in drawn.choices or ()]
    for name, value in values:
        widths[name] = max(widths.get(name, 0), len(as_text(value).encode()))
    return widths
