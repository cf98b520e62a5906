"""What the fields of a request may not say together."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.workload import RestartPolicy, WorkloadKind
from gpupool.specs.limits import MAX_ARGV_BYTES
from gpupool.specs.problems import Path, refusal, reworded
from gpupool.specs.templates import as_text, check_placeholders, placeholders

if TYPE_CHECKING:
    from gpupool.specs.models import SweepSpec, WorkloadRequest

SINGLE = {WorkloadKind.INTERACTIVE, WorkloadKind.LEASE, WorkloadKind.EXEC}


def check_agreement(request: WorkloadRequest) -> None:
    """Raise pydantic's custom error for fields that contradict each other or the kind."""
    _check_command(request)
    _check_exec(request)
    _check_lease(request)
    _check_replicas(request)
    _check_gang(request)
    if request.sweep is not None:
        _check_template(request.command, request.sweep)


def _refuse_if(wrong: bool, sentence: str, path: Path, hint: str = "") -> None:
    if wrong:
        raise refusal(ErrorCode.INVALID_REQUEST, sentence, hint, path)


def _check_command(request: WorkloadRequest) -> None:
    lease = request.kind is WorkloadKind.LEASE
    _refuse_if(lease and bool(request.command), "must be left out: a lease runs nothing by itself.", ("command",))
    _refuse_if(not lease and not request.command, "is missing: say what to run.", ("command",))


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
    if request.gang is None:
        return
    _refuse_if(request.kind in SINGLE, f"must be left out: the kind {request.kind.value} has one replica.", ("gang",))
    _refuse_if(request.client_bound, "must be false for a gang.", ("client_bound",))
    for field in ("sweep", "completions", "parallelism"):
        given = getattr(request, field) is not None
        _refuse_if(given, "must be left out where gang says how many start together.", (field,))


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
