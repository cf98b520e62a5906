"""Adoption of programs that run on a node and that the database does not know; others are left alone and listed.

The database is authoritative for decisions, nodes for what runs. A new database, or one restored from a backup, has
lost the latest submissions, but the folders of the nodes have records of them (``adoption_records``). Nobody decided to
stop such a program, so it continues: its workload, replica and lease are written again. A program that has ended
according to the database, or was replaced by a newer attempt, is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import MAX_NAME_LENGTH, WorkloadId, split_attempt_key
from gpupool.domain.nodes.gpu import NodeReport
from gpupool.domain.people.access import DEFAULT_PROJECT, Role, User
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.lifecycle import POOL
from gpupool.domain.work.program.supervision import ProcessPhase, ProcessSpec, ProcessStatus
from gpupool.domain.work.workload import (
    GpuLease,
    Replica,
    ReplicaState,
    Workload,
    WorkloadKind,
    WorkloadState,
    holder_index,
)
from gpupool.services.control.engine import Engine
from gpupool.services.lifecycle.adoption_records import AdoptionRecord, pool_of, read_record, runs_on_another
from gpupool.services.ports.fabric import NodeLink
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.state.mirror import Draft

UNKNOWN_END = "the database has no record of its end; submit it again if needed"
_REPLACEABLE = frozenset({ReplicaState.PENDING, ReplicaState.STARTING, ReplicaState.RUNNING})

log = structlog.get_logger("gpupool.adoption")


@dataclass(frozen=True, slots=True)
class OtherPools:
    """An administrator's decision about programs that belong to other pools.

    ``adopt`` and ``abandon`` have ids of other pools; ``abandon_all`` also stops programs that cannot be adopted.
    """

    adopt: frozenset[str] = frozenset()
    abandon: frozenset[str] = frozenset()
    abandon_all: bool = False


class _LeftAlone(Exception):  # noqa: N818 - not an error: a decision with its reason
    """Raised when a program is neither adopted nor stopped; ``foreign``: it belongs to another pool."""

    def __init__(self, reason: str, *, foreign: bool = False) -> None:
        super().__init__(reason)
        self.foreign = foreign


class _Abandoned(Exception):  # noqa: N818 - likewise
    """Raised when an administrator wants the program to be stopped."""


@dataclass(slots=True)
class AdoptionResult:
    """The result for programs of one node that the database did not know.

    ``left_alone`` has reasons by key. ``forget`` has the keys of ended programs that cannot be adopted: only their
    output stays on the node. All other programs are stopped.
    """

    adopted: list[ProcessStatus] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)
    forget: list[str] = field(default_factory=list)


class Adoption:
    """Adopts programs; ``left_alone`` has the programs of each node that are left alone."""

    def __init__(self, engine: Engine, identities: IdentityCache, pool_id: str, others: OtherPools) -> None:
        self._engine = engine
        self._identities = identities
        self._pool_id = pool_id
        self._others = others
        self.left_alone: dict[str, Mapping[str, str]] = {}  # by node, then by key

    async def unknown(self, statuses: Sequence[ProcessStatus]) -> list[ProcessStatus]:
        """Return the programs that the database has no row for, neither as running nor as ended."""
        lost, asked = [], []
        for status in statuses:
            workload, index, attempt = split_attempt_key(status.key)
            row = self._engine.mirror.replica(workload, index)
            if row is None:
                asked.append(status)
            elif attempt > row.attempt and _may_be_replaced(row):
                lost.append(status)
        names = list({split_attempt_key(status.key)[0] for status in asked})
        known = await self._engine.ports.store.known(names) if names else frozenset()
        return lost + [status for status in asked if split_attempt_key(status.key)[0] not in known]

    async def keep_epochs_ahead(self, report: NodeReport, statuses: Sequence[ProcessStatus]) -> None:
        """Raise the next epoch above all that a node has seen, because a restored database would reuse them."""
        seen = max([report.last_epoch, *(status.epoch for status in statuses)])
        if seen <= self._engine.mirror.last_epoch:
            return
        log.warning("the database is older than a node", node=report.name, epoch=seen)

        async def raise_them() -> None:
            self._engine.mirror.last_epoch = await self._engine.ports.store.raise_epochs(seen)

        await self._engine.run_exclusive(raise_them)

    async def adopt(self, link: NodeLink, report: NodeReport, statuses: Sequence[ProcessStatus]) -> AdoptionResult:
        """Adopt programs that the database does not know; the result lists those left alone, with reasons."""
        outcome = AdoptionResult()
        specs = [(status, await self._spec(link, status)) for status in statuses]
        for status, spec in sorted(specs, key=_holders_first):
            try:
                await self._adopt_one(link.name, report, status, spec)
            except _Abandoned:
                log.warning("stopping a program of another pool", node=link.name, key=status.key)
                self._dismiss(outcome, status)
            except _LeftAlone as reason:
                self._leave(outcome, link.name, status, reason)
            else:
                outcome.adopted.append(status)
        self.left_alone[link.name] = outcome.left_alone
        return outcome

    async def _spec(self, link: NodeLink, status: ProcessStatus) -> ProcessSpec | None:
        try:
            return await link.spec(status.key)
        except GpupoolError as error:
            if error.code not in {ErrorCode.UNSUPPORTED, ErrorCode.NOT_FOUND}:
                raise
            return None  # an older agent

    def _leave(self, outcome: AdoptionResult, node: str, status: ProcessStatus, reason: _LeftAlone) -> None:
        ended = status.phase is ProcessPhase.EXITED
        if self._others.abandon_all or (ended and not reason.foreign):
            what = "cannot record the end of a program; its log stays on the node" if ended else "stopping a program"
            log.warning(what, node=node, key=status.key, why=str(reason))
            self._dismiss(outcome, status)
            return
        if not ended:
            outcome.left_alone[status.key] = str(reason)
        if self.left_alone.get(node, {}).get(status.key) != str(reason):
            log.warning("program not changed", node=node, key=status.key, why=str(reason))

    def _dismiss(self, outcome: AdoptionResult, status: ProcessStatus) -> None:
        if status.phase is ProcessPhase.EXITED:
            outcome.forget.append(status.key)

    async def _adopt_one(self, node: str, report: NodeReport, status: ProcessStatus, spec: ProcessSpec | None) -> None:
        if spec is None:
            raise _LeftAlone("its node has no record of it")
        pool = pool_of(spec)
        if pool and pool != self._pool_id:
            if pool in self._others.abandon:
                raise _Abandoned
            if pool not in self._others.adopt:
                raise _LeftAlone(f"it belongs to another pool ({pool[:8]})", foreign=True)
        try:
            record = read_record(self._engine.ports.store.records, spec, node)
        except GpupoolError as error:
            raise _LeftAlone(error.message) from error
        for lease in filter(None, (record.lease, record.gpu_lease)):
            holder = await self._engine.ports.store.lease_holder(lease.epoch)
            if holder is not None and holder != (lease.workload, lease.index, lease.attempt):
                raise _LeftAlone(f"its epoch {lease.epoch} now belongs to {holder[0]}")
        record = record.granted_after(await self._engine.ports.store.usage_books.summed_until())
        request = record.workload.request_id
        if request is not None and await self._engine.ports.store.by_request_id(request) is not None:
            record = replace(record, workload=replace(record.workload, request_id=None))
        for each in filter(None, (record.host, record.workload)):
            await self._ensure_user(each)
        lost = pool == self._pool_id
        await self._engine.transact(lambda draft: _Writer(self, draft, report, lost=lost).write(record))
        self._engine.feed.invalidate()
        log.warning("adopted", node=node, key=status.key, workload=record.workload.name)

    async def _ensure_user(self, workload: Workload) -> None:
        """Create the workload's user if a new database does not have it; roles and limits must be set again."""
        name = workload.user
        if name in self._identities.users:
            return
        taken = workload.uid is None or self._identities.user_by_uid(workload.uid) is not None
        user = User(name, Role.MEMBER, None if taken else workload.uid)
        event = self._engine.change_event(POOL, "adopted program", f"user {name}", Reason.ADOPTED)

        async def write() -> None:
            await self._engine.ports.store.users.save(user, event)
            self._identities.users[name] = user
            self._engine.feed.user_changed(user)

        await self._engine.run_exclusive(write)

    def project_for(self, workload: Workload) -> str:
        """Return its project, or the default project if a new database does not have it."""
        return workload.project if workload.project in self._identities.projects else DEFAULT_PROJECT

    def name_for(self, workload: Workload, project: str) -> str:
        """Return its name, or a longer one if another live workload of the project has it."""
        live = self._engine.mirror.workloads.values()
        taken = {each.name for each in live if each.project == project and each.id != workload.id}
        if workload.name not in taken:
            return workload.name
        return f"{workload.name[: MAX_NAME_LENGTH - 12]}-{workload.id[-4:]}-old"

    def leases_on(self, gpu_uuid: str) -> list[GpuLease]:
        """Return the leases of a GPU in the database."""
        held = self._engine.mirror.leases.values()
        return [lease for lease in held if any(share.gpu_uuid == gpu_uuid for share in lease.shares)]

    def leases_of(self, newer: GpuLease) -> list[GpuLease]:
        """Return the leases of the same replica in the database."""
        return [lease for lease in self._engine.mirror.leases.values() if _of(lease, newer)]


class _Writer:
    """Drafts the rows of one program; raises ``_LeftAlone`` if they contradict the database."""

    def __init__(self, adoption: Adoption, draft: Draft, report: NodeReport, *, lost: bool) -> None:
        self._adoption = adoption
        self._draft = draft
        self._report = report
        self._why = "adopted: the database had no record of it" if lost else "adopted: another pool started it"

    def write(self, record: AdoptionRecord) -> None:
        host = record.host
        if host is not None:
            self._write_host(host, record.lease)
        else:
            self._write_lease(record.lease, record.workload)
        self._write_replica(record.workload, record.index, record.attempt, record.lease, record.replica)
        row = self._draft.replica(record.workload.id, record.index)
        if record.gpu_lease is not None and row is not None:
            self._check_room(record.gpu_lease)
            self._draft.put_lease(replace(record.gpu_lease, project=self._adoption.project_for(record.workload)))
            wanted_at = record.gpu_lease.granted_at
            self._draft.put_replica(replace(row, gpu_lease=record.gpu_lease.epoch, gpu_wanted_at=wanted_at))

    def _write_host(self, host: Workload, lease: GpuLease) -> None:
        """Write the lease that an EXEC runs on if it is missing; a bare lease has no program with a record."""
        row = self._draft.replica(host.id, lease.index)
        if row is not None and row.state.placed and row.lease == lease.epoch:
            return
        if host.kind is not WorkloadKind.LEASE or self._draft.workload(host.id) is not None:
            raise _LeftAlone("the workload whose GPUs it uses does not exist")
        self._write_lease(lease, host)
        self._write_replica(host, lease.index, lease.attempt, lease, {"queued_at": host.created_at})
        row = self._draft.replica(host.id, lease.index)
        if row is not None:
            self._draft.put_replica(replace(row, state=ReplicaState.RUNNING, started_at=lease.granted_at))

    def _write_lease(self, lease: GpuLease, holder: Workload) -> None:
        self._check_room(lease)
        for old in self._adoption.leases_of(lease):
            self._draft.put_lease(replace(old, released_at=max(old.granted_at, lease.granted_at)))
        self._draft.put_lease(replace(lease, project=self._adoption.project_for(holder)))

    def _check_room(self, lease: GpuLease) -> None:
        """Raise ``_LeftAlone`` if the database gives GPUs of the lease to others, or the node does not have them."""
        there = {gpu.uuid for gpu in self._report.gpus}
        for share in lease.shares:
            if share.gpu_uuid not in there:
                raise _LeftAlone(f"its GPU {share.gpu_uuid} is not on the node")
            others = [each for each in self._adoption.leases_on(share.gpu_uuid) if not _of(each, lease)]
            given = sum(s.permille for each in others for s in each.shares if s.gpu_uuid == share.gpu_uuid)
            if given + share.permille > WHOLE_GPU:
                names = ", ".join(sorted({self._name_of(each.workload) for each in others}))
                raise _LeftAlone(f"its slice of GPU {share.gpu_index} now belongs to {names}")

    def _name_of(self, workload: WorkloadId) -> str:
        found = self._draft.workload(workload)
        return found.name if found is not None else workload

    def _write_replica(
        self, workload: Workload, index: int, attempt: int, lease: GpuLease, record: Mapping[str, float]
    ) -> None:
        draft = self._draft
        if draft.workload(workload.id) is None:
            self._write_workload(workload, index)
        elif workload.parameters and (now := draft.workload(workload.id)) is not None and now.parameters:
            own = tuple(workload.parameters[at] if at == index else each for at, each in enumerate(now.parameters))
            draft.put_workload(replace(now, parameters=own))
        old = draft.replica(workload.id, index) or Replica(workload.id, index)
        draft.put_replica(
            replace(
                old,
                state=ReplicaState.STARTING,
                attempt=attempt,
                node=lease.node,
                lease=lease.epoch,
                pid=None,
                exit_status=None,
                reason=Reason.ADOPTED,
                message=self._why,
                next_reason=None,
                failures=max(old.failures, int(record.get("failures", 0))),
                interruptions=max(old.interruptions, int(record.get("interruptions", 0))),
                queued_at=float(record["queued_at"]),
                not_before=0.0,
                finished_at=None,
                last_active_at=draft.now,
                gpu_lease=None,
                gpu_wanted_at=None,
                suspend_asked_at=None,
                suspended_gpu="",
            )
        )
        began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(lease.granted_at))
        sentence = f"found running on {lease.node}, with GPUs since {began}; {self._why}"
        project = self._adoption.project_for(workload)
        if project != workload.project:
            sentence += f"; project {workload.project} does not exist, so it is in {project}"
        draft.note(Event(draft.now, POOL, Reason.ADOPTED, sentence, workload.id, index))

    def _write_workload(self, workload: Workload, index: int) -> None:
        """Draft the workload and its other replicas, whose state is unknown, as stopped."""
        project = self._adoption.project_for(workload)
        adopted = replace(
            workload,
            name=self._adoption.name_for(workload, project),
            project=project,
            after=(),  # it has started
            state=WorkloadState.RUNNING,
            suspended=False,
            stop_reason=None,
            finished_at=None,
            deleted_at=None,
            version=0,
        )
        self._draft.put_workload(adopted)
        for at in range(workload.completions):
            if at != index:
                gone = Replica(workload.id, at, ReplicaState.STOPPED, reason=Reason.ADOPTED, message=UNKNOWN_END)
                self._draft.put_replica(replace(gone, queued_at=workload.created_at, finished_at=self._draft.now))


def _may_be_replaced(row: Replica) -> bool:
    """Return True if a newer attempt may run without the database's knowledge."""
    not_seen_yet = row.state is ReplicaState.STOPPED and row.reason is Reason.ADOPTED
    return row.state in _REPLACEABLE or not_seen_yet


def _of(lease: GpuLease, newer: GpuLease) -> bool:
    """Return True if both leases belong to the same replica."""
    return (lease.workload, holder_index(lease.index)) == (newer.workload, holder_index(newer.index))


def _holders_first(found: tuple[ProcessStatus, ProcessSpec | None]) -> bool:
    """Return the sort key that puts programs on the GPUs of others after those with their own lease."""
    return found[1] is not None and runs_on_another(found[1])
