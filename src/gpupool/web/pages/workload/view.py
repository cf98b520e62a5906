"""Values of the page of a workload: state, replicas, and the actions that the visitor may take."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.nodes.gpu import LOOPBACK
from gpupool.domain.nodes.telemetry import ReplicaSample
from gpupool.domain.people.access import Actor, Role
from gpupool.domain.units import format_permille
from gpupool.domain.work.ending import Ending, Retrying, ending_of, retrying
from gpupool.domain.work.program.supervision import ListeningPort, Stdio
from gpupool.domain.work.workload import (
    GpuLease,
    Replica,
    ReplicaState,
    RestartPolicy,
    Workload,
    WorkloadKind,
    holder_index,
)
from gpupool.services.pool import PoolServices
from gpupool.services.ports.store import EventFilter
from gpupool.services.workloads.service import restart_obstacle
from gpupool.specs.fields.templates import as_text
from gpupool.web.pages.leases import is_extendable
from gpupool.web.pages.queue import AheadRow, WaitReason, rows_ahead, wait_reasons
from gpupool.web.pages.workload.timeline import Timeline, timeline

MAX_EVENTS = 2_000


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica; ``gpus`` are those held now. ``parameters`` are empty if the visitor may not see them."""

    index: int
    state: ReplicaState
    attempt: int
    node: str | None
    gpus: str
    exit_status: int | None
    started_at: float | None
    ran_s: float | None
    about: str
    parameters: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AllowedActions:
    """Actions that the visitor may take in the present state; ``see``: command, environment and output."""

    see: bool = False
    stop: bool = False
    suspend: bool = False
    restart: bool = False
    resume: bool = False
    extend: bool = False
    delete: bool = False
    resubmit: bool = False
    shell: bool = False
    prioritise: bool = False


@dataclass(frozen=True, slots=True)
class ShownAttempt:
    """The replica and attempt whose output and terminal are shown; ``live``: more output may come.

    ``terminal``: it runs on a terminal, which can be typed into.
    """

    index: int
    attempt: int
    attempts: int
    live: bool
    terminal: bool
    key: str


@dataclass(frozen=True, slots=True)
class WorkloadPage:
    """Values of the page; ``sent_back`` counts evictions."""

    workload: Workload
    allowed: AllowedActions
    reason: str
    message: str
    why: WaitReason | None
    above: Sequence[AheadRow]
    timeline: Timeline
    replicas: tuple[ReplicaRow, ...]
    events: Sequence[Event]
    chosen: ShownAttempt
    host: str
    measured: ReplicaSample | None
    chart_query: str
    sent_back: int
    lost_gpu_s: float
    step: int | None
    saved_at: float | None
    ending: Ending | None = None
    retrying: Retrying | None = None
    dependency_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def served(self) -> bool:
        """Return True if the visitor may connect to ports of the shown attempt."""
        return self.allowed.stop and self.chosen.live and self.workload.kind is not WorkloadKind.LEASE


async def workload_page(
    services: PoolServices,
    actor: Actor,
    workload: Workload,
    choice: tuple[int | None, int | None],
    now: float,
) -> WorkloadPage:
    """Return the page of a workload; ``choice`` is the requested replica and attempt."""
    replicas = await services.workloads.replicas_of(workload)
    leases = await services.workloads.leases_of(workload)
    events = await services.history.events(actor, EventFilter(workload=workload.id, newest=True, limit=MAX_EVENTS))
    allowed = _allowed(services, actor, workload, replicas)
    waits = any(replica.state is ReplicaState.PENDING for replica in replicas) and not workload.state.final
    why = (await wait_reasons(services, actor, [workload.id])).get(workload.id) if waits else None
    queue = await services.workloads.queue.queue() if waits else None
    reason, message = _reason(workload, replicas)
    chosen = _shown_attempt(workload, replicas, choice)
    return WorkloadPage(
        workload=workload,
        allowed=allowed,
        reason=reason,
        message=message,
        why=why,
        above=rows_ahead(services, queue, workload) if queue is not None else (),
        timeline=timeline(workload, replicas, events, now),
        replicas=tuple(_replica(workload, row, leases, allowed, now) for row in replicas),
        events=events,
        chosen=chosen,
        host=await _host(services, actor, workload),
        measured=services.telemetry.latest_replica(chosen.key) if chosen.live else None,
        chart_query=_chart_query(workload, chosen),
        sent_back=sum(replica.interruptions for replica in replicas),
        lost_gpu_s=sum(replica.lost_gpu_s for replica in replicas),
        step=max((replica.step for replica in replicas if replica.step is not None), default=None),
        saved_at=max((replica.saved_at for replica in replicas if replica.saved_at is not None), default=None),
        ending=ending_of(workload, replicas),
        retrying=next((again for replica in replicas if (again := retrying(workload, replica)) is not None), None),
        dependency_names=await services.workloads.dependency_names(actor, workload),
    )


def _chart_query(workload: Workload, chosen: ShownAttempt) -> str:
    """Return the time range of the charts: from the start of the run to its end, or to now."""
    if workload.started_at is None:
        return ""
    query = f"index={chosen.index}&since={workload.started_at - 30:.0f}"
    if workload.finished_at is None:
        return query
    return f"{query}&until={max(workload.finished_at + 30, workload.started_at + 120):.0f}"


async def _host(services: PoolServices, actor: Actor, workload: Workload) -> str:
    """Return the name of the workload whose GPUs it uses."""
    return (await services.workloads.get(actor, workload.on)).name if workload.on else ""


def _allowed(services: PoolServices, actor: Actor, workload: Workload, replicas: Sequence[Replica]) -> AllowedActions:
    see = services.workloads.can_see(actor, workload)
    submits = actor.role.includes(Role.MEMBER)
    if not services.workloads.can_manage(actor, workload):
        return AllowedActions(see=see, resubmit=see and submits)
    ended = workload.state.final
    suspendable = workload.kind not in {WorkloadKind.LEASE, WorkloadKind.EXEC} and not workload.program.client_bound
    runs = any(replica.state is ReplicaState.RUNNING for replica in replicas)
    return AllowedActions(
        see=see,
        stop=not ended,
        suspend=not ended and suspendable and not workload.suspended and workload.stop_reason is None,
        restart=runs and restart_obstacle(workload) is None and workload.stop_reason is None and not workload.suspended,
        resume=not ended and workload.suspended,
        extend=is_extendable(workload),
        delete=ended,
        resubmit=submits and workload.kind is not WorkloadKind.EXEC,
        shell=runs and submits and workload.kind is not WorkloadKind.EXEC,
        prioritise=any(replica.state is ReplicaState.PENDING for replica in replicas),
    )


def _reason(workload: Workload, replicas: Sequence[Replica]) -> tuple[str, str]:
    """Return code and message of the latest change, as in the API."""
    if not replicas:
        return "", ""
    latest = max(replicas, key=lambda r: max(r.finished_at or 0.0, r.started_at or 0.0, r.queued_at))
    if workload.stop_reason is not None and not latest.state.final:
        return workload.stop_reason.value, latest.message
    return latest.reason.value, latest.message


def _replica(
    workload: Workload, replica: Replica, leases: Sequence[GpuLease], allowed: AllowedActions, now: float
) -> ReplicaRow:
    open_leases = [each for each in leases if holder_index(each.index) == replica.index and each.released_at is None]
    held = max(open_leases, key=lambda lease: lease.epoch, default=None)
    own = workload.parameters[replica.index] if replica.index < len(workload.parameters) else {}
    return ReplicaRow(
        replica.index,
        replica.state,
        replica.attempt,
        replica.node,
        ", ".join(f"{s.gpu_index}: {format_permille(s.permille)}" for s in held.shares) if held else "",
        replica.exit_status,
        replica.started_at,
        _ran_s(replica, now),
        replica.message or ("" if replica.reason is Reason.SUBMITTED else replica.reason.value.lower()),
        ", ".join(f"{name}={as_text(value)}" for name, value in own.items()) if allowed.see else "",
        replica.notes if allowed.see else (),
    )


def _ran_s(replica: Replica, now: float) -> float | None:
    if replica.started_at is None or replica.state is ReplicaState.PENDING:
        return None
    return (replica.finished_at or now) - replica.started_at


def _shown_attempt(
    workload: Workload, replicas: Sequence[Replica], choice: tuple[int | None, int | None]
) -> ShownAttempt:
    wanted, attempt = choice
    replica = next((row for row in replicas if row.index == wanted), None) or _most_informative(replicas)
    if replica is None:
        return ShownAttempt(0, 0, 0, live=False, terminal=False, key=workload.key(0, 0))
    shown = attempt if attempt is not None and 1 <= attempt <= replica.attempt else replica.attempt
    latest = shown == replica.attempt
    runs = latest and replica.state in {ReplicaState.RUNNING, ReplicaState.STOPPING}
    return ShownAttempt(
        replica.index,
        shown,
        replica.attempt,
        live=latest and replica.state.placed,
        terminal=runs and workload.program.stdio is Stdio.TTY,
        key=workload.key(replica.index, shown),
    )


def _most_informative(replicas: Sequence[Replica]) -> Replica | None:
    """Return the replica to show: a running one, else a failed one, else the first that ran."""
    for state in (ReplicaState.RUNNING, ReplicaState.STOPPING, ReplicaState.STARTING, ReplicaState.FAILED):
        found = next((row for row in replicas if row.state is state), None)
        if found is not None:
            return found
    return next((row for row in replicas if row.attempt), replicas[0] if replicas else None)


def retry_text(workload: Workload) -> str:
    """Return ``on-failure, up to 6 retries``; empty if it is never retried."""
    retry = workload.retry
    if retry.policy is RestartPolicy.NEVER:
        return ""
    return f"{retry.policy.value}, up to {retry.backoff_limit} retries"


TIMEOUT_S = 1.0  # a page does not wait longer for a node


@dataclass(frozen=True, slots=True)
class ServedPort:
    """A port of a program.

    ``url`` opens it in the browser (empty: the browser does not reach it), ``link`` through the gateway (empty: not
    possible), and ``command`` by a tunnel.
    """

    port: int
    program: str
    address: str
    url: str
    command: str
    link: str = ""


async def served_ports(
    services: PoolServices, actor: Actor, workload: Workload, chosen: ShownAttempt, *, same_machine: bool
) -> list[ServedPort]:
    """Return the ports of a running replica; none if its node does not answer in time.

    ``same_machine``: the visitor's browser runs on the control plane's machine.
    """
    try:
        async with asyncio.timeout(TIMEOUT_S):
            found = await services.files.listening_ports(actor, workload.id, chosen.index)
    except (GpupoolError, TimeoutError):
        return []
    replicas = await services.workloads.replicas_of(workload)
    name = next((row.node for row in replicas if row.index == chosen.index), None)
    node = next((node for node in await services.nodes.nodes() if node.name == name), None)
    local = same_machine and name == services.info.own_node
    ref = workload.name if workload.completions == 1 else f"{workload.name}/{chosen.index}"
    rows = ports_shown(found, ref, LOOPBACK if node is None else node.report.address, local=local)
    if not services.open_ports.possible(here=same_machine):
        return rows
    path = f"/workloads/{workload.id}/ports"
    return [replace(row, link=f"{path}/{row.port}/open?replica={chosen.index}") for row in rows]


def ports_shown(found: Sequence[ListeningPort], ref: str, node_address: str, *, local: bool) -> list[ServedPort]:
    """Return one row for each port; ``local``: the browser runs on the node at ``node_address``."""
    rows = {port.port: port for port in reversed(found)}  # the first listener of a port is shown
    return [
        ServedPort(number, port.program, port.address, _url(port, node_address, local=local), _command(ref, number))
        for number, port in sorted(rows.items())
    ]


def _url(port: ListeningPort, node_address: str, *, local: bool) -> str:
    listens = ip_address(port.address)
    if local and (listens.is_unspecified or port.address == LOOPBACK):
        return f"http://{LOOPBACK}:{port.port}/"
    if listens.is_loopback or node_address in {"", LOOPBACK}:
        return ""
    host = node_address if listens.is_unspecified else port.address
    return f"http://[{host}]:{port.port}/" if ":" in host else f"http://{host}:{port.port}/"


def _command(ref: str, port: int) -> str:
    return f"gpupool open {ref} {port}"
