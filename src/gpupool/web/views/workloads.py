"""The list of workloads, of all states and times, with filters that are part of the address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from gpupool.api.deps import decode_page, encode_page
from gpupool.domain.access import Actor
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.workload import Workload, WorkloadKind, WorkloadState
from gpupool.services.pool import PoolServices
from gpupool.services.ports import WorkloadFilter
from gpupool.web.views.words import command_text, gpus_text

MOST_READ = 200  # of the store at a time; older ones are one step away
MOST_WORD = 128
LIVE = tuple(state for state in WorkloadState if not state.final)
STATE_CHOICES = (
    ("", "all"),
    ("live", "not ended"),
    *((state.value, state.value) for state in WorkloadState),
    ("ended", "ended"),
)


@dataclass(frozen=True, slots=True)
class Filters:
    """What the address asks for; ``state`` is a state, ``live`` (not ended), ``ended``, or empty for all."""

    state: str = ""
    project: str = ""
    user: str = ""
    name: str = ""
    label: str = ""
    before: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Filters:
        """Out of query parameters; those that are not known are not looked at."""
        return cls(**{field: query.get(field, "")[:MOST_WORD].strip() for field in cls.__dataclass_fields__})

    @property
    def any(self) -> bool:
        """Whether anything but the newest of all is asked for."""
        return self != Filters()

    def wanted(self) -> WorkloadFilter:
        """For the store; raises ``GpupoolError(INVALID_REQUEST)`` for what cannot be asked."""
        return WorkloadFilter(
            states=_states(self.state),
            project=self.project or None,
            user=self.user or None,
            name=self.name or None,
            labels=(_label(self.label),) if self.label else (),
            before=decode_page(self.before) if self.before else None,
            limit=MOST_READ,
        )

    def url(self, before: str = "") -> str:
        """The same further back."""
        fields = {field: getattr(self, field) for field in self.__dataclass_fields__} | {"before": before}
        kept = {field: value for field, value in fields.items() if value}
        return f"/workloads?{urlencode(kept)}" if kept else "/workloads"


def _states(state: str) -> tuple[WorkloadState, ...]:
    match state:
        case "":
            return ()
        case "live":
            return LIVE
        case "ended":
            return tuple(state for state in WorkloadState if state.final)
    if state not in {known.value for known in WorkloadState}:
        listed = ", ".join(known.value for known in WorkloadState)
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{state}' is not a state.", f"There are {listed}.")
    return (WorkloadState(state),)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"label: '{text}' is not key=value.", "Write team=vision.")
    return key, value


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One line; ``command`` is None for those who may not see it. ``ran_s`` counts from the first start."""

    id: WorkloadId
    name: str
    state: WorkloadState
    kind: str
    project: str
    user: str
    gpus: str
    replicas: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    ran_s: float | None
    command: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """What there is; ``older`` is the address of what came before it, if there may be more."""

    rows: tuple[WorkloadRow, ...]
    older: str | None


async def find(services: PoolServices, actor: Actor, filters: Filters, now: float) -> Found:
    """The newest ``MOST_READ`` workloads that the filters let through."""
    found = await services.workloads.list(actor, filters.wanted())
    rows = tuple([await _row(services, actor, workload, now) for workload in found])
    last = found[-1] if len(found) == MOST_READ else None
    return Found(rows, filters.url(encode_page(last.created_at, last.id)) if last else None)


async def _row(services: PoolServices, actor: Actor, workload: Workload, now: float) -> WorkloadRow:
    ended = workload.finished_at or now
    seen = services.workloads.can_see(actor, workload)
    return WorkloadRow(
        workload.id,
        workload.name,
        workload.state,
        workload.kind.value,
        workload.project,
        workload.user,
        gpus_text(workload.gpus) if workload.kind is not WorkloadKind.EXEC else "shared",
        await _replicas(services, actor, workload),
        workload.created_at,
        workload.started_at,
        workload.finished_at,
        None if workload.started_at is None else ended - workload.started_at,
        command_text(workload) if seen else None,
    )


async def _replicas(services: PoolServices, actor: Actor, workload: Workload) -> str:
    """``2 of 4 done, 2 running`` of a live workload with several; those of an ended one are not read for a list."""
    if workload.completions == 1:
        return ""
    if workload.state.final:
        return str(workload.completions)
    replicas = await services.workloads.replicas_of(actor, workload)
    running = sum(replica.state.placed for replica in replicas)
    done = sum(replica.state.final for replica in replicas)
    return f"{done} of {workload.completions} done" + (f", {running} running" if running else "")


def names(rows: Sequence[WorkloadRow]) -> tuple[list[str], list[str]]:
    """The projects and users among rows, for the lists of suggestions."""
    return sorted({row.project for row in rows}), sorted({row.user for row in rows})
