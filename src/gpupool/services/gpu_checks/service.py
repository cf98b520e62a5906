"""Active checks of idle GPUs: ``gpupool verify`` without an administrator, and the latest result of each GPU.

The policy says how often. A check takes the idle GPUs of a node in the transaction that submits it, so it never waits
in the queue and never takes GPUs from anybody. As soon as other work waits, all checks are stopped without a grace
period. A GPU that fails is cordoned, and only that one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import Gpu, GpuShare, Node, NodeState
from gpupool.domain.nodes.gpu_check import GpuCheck
from gpupool.domain.nodes.sharing import mode_of_whole
from gpupool.domain.people.access import Actor, Project, Role
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.lifecycle import grant_lease
from gpupool.domain.work.workload import Workload
from gpupool.scheduling.policy import Policy
from gpupool.scheduling.values import Grant
from gpupool.services.access.service import AccessService
from gpupool.services.control.engine import Engine
from gpupool.services.control.scheduling_loop import lease_of
from gpupool.services.lifecycle import transitions
from gpupool.services.nodes.service import NodeService
from gpupool.services.ports.store import ChangeSet
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.state.mirror import Draft
from gpupool.services.state.node_registry import NodeRegistry
from gpupool.services.workloads.output import OutputService
from gpupool.services.workloads.submission import Prepared, SubmissionService
from gpupool.specs.request import parse_request
from gpupool.verify.results import RATES, Check, CheckOutcome, Subject, VerifyReport, compare_with_peers, worst
from gpupool.verify.workload import (
    IDLE_LABEL,
    LABEL,
    PROJECT,
    cordon_reason,
    findings,
    read_report,
    request_body,
    time_limit_s,
)

INTERVAL_S = 1.0
BURN_S = 60.0  # the load of level 3 for each GPU
MAX_IDLE_S = 300.0  # a GPU without work for this long, or for a tenth of the interval, is idle
IDLE_PART = 0.1
RETRY_S = 600.0  # after a check that could not be started, or has no report
MAX_NODES = 16  # that are checked at the same time
RESERVED_WITHIN_S = 3600.0  # nodes with a reservation that begins earlier are left alone
MAX_YIELD_S = 10.0  # that requests which do not wait are kept for the end of stopped checks
MAX_OUTPUT_BYTES = 1 << 20
PAGE = 1000
KEEP_S = 366 * 86_400.0  # of the latest result of a GPU that has disappeared

log = structlog.get_logger("gpupool.gpu_checks")


class GpuChecks:
    """Checks idle GPUs, cordons those that fail, and keeps the latest result of each GPU (``latest``, by UUID).

    Results of ``gpupool verify`` by administrators count too. ``owner_uid`` is the account of the pool.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the services that it uses
        self,
        engine: Engine,
        registry: NodeRegistry,
        identities: IdentityCache,
        nodes: NodeService,
        access: AccessService,
        submission: SubmissionService,
        output: OutputService,
        policy: Callable[[], Policy],
        owner_uid: int,
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._identities = identities
        self._nodes = nodes
        self._access = access
        self._submission = submission
        self._output = output
        self._policy = policy
        self._owner_uid = owner_uid
        self.latest: dict[str, GpuCheck] = {}
        self._live: dict[WorkloadId, tuple[str, ...]] = {}  # checks that the pool started, with their GPUs
        self._ended: list[tuple[Workload, tuple[str, ...]]] = []
        self._used_at: dict[str, float] = {}  # when a GPU was in use last, or seen first
        self._retry_at: dict[str, float] = {}
        self._yield_since: float | None = None
        self._stopping: asyncio.Task[None] | None = None
        engine.on_commit(self._note)

    @property
    def yielding(self) -> bool:
        """Return True while stopped checks are about to release GPUs that waiting work can use."""
        since = self._yield_since
        return bool(self._live) and since is not None and self._monotonic() - since < MAX_YIELD_S

    async def load(self) -> None:
        """Load the latest results, and the checks that run."""
        text = await self._engine.ports.store.documents.load("gpu_checks")
        try:
            self.latest = {uuid: GpuCheck(**row) for uuid, row in json.loads(text or "{}").items()}
        except (ValueError, TypeError, AttributeError):
            log.exception("the results of earlier checks cannot be read")
        for workload in self._engine.mirror.workloads.values():
            if self._is_own(workload):
                mirror = self._engine.mirror
                held = (mirror.leases[epoch] for epoch in mirror.leases_by_workload.get(workload.id, ()))
                self._live[workload.id] = tuple(share.gpu_uuid for lease in held for share in lease.shares)

    def _is_own(self, workload: Workload) -> bool:
        """Return True for a check that the pool started: members cannot submit as an administrator."""
        return IDLE_LABEL in workload.labels and self._is_trusted(workload)

    def _is_trusted(self, workload: Workload) -> bool:
        user = self._identities.users.get(workload.user)
        return user is not None and user.role is Role.ADMIN and workload.project == PROJECT

    def _now(self) -> float:
        return self._engine.ports.clock.now()

    def _monotonic(self) -> float:
        return self._engine.ports.clock.monotonic()

    # After each change

    def _note(self, changes: ChangeSet) -> None:
        for workload in changes.workloads:
            if workload.state.final and LABEL in workload.labels and self._is_trusted(workload):
                self._ended.append((workload, self._live.pop(workload.id, ())))
        if not self._live or self._engine.feed.queue_length <= 0:
            self._yield_since = None
        else:
            self._yield_since = self._yield_since or self._monotonic()
            if self._stopping is None or self._stopping.done():
                # Before the scheduler decides, so that it waits for these GPUs and evicts nobody.
                self._stopping = asyncio.create_task(self._stop())

    async def _stop(self) -> None:
        """Stop all checks without a grace period."""

        def build(draft: Draft) -> None:
            for each in self._live:
                workload = draft.workload(each)
                if workload is not None and workload.stop_reason is None and not workload.state.final:
                    sentence = "other work waits for GPUs"
                    transitions.stop_all(draft, workload, Reason.PREEMPTED, 0.0, sentence)

        try:
            await self._engine.transact(build)
        except GpupoolError as error:
            log.warning("checks were not stopped", code=error.code)

    # The loop

    async def run(self) -> None:
        """Check idle GPUs for ever."""
        while True:
            await self._engine.ports.sleep(INTERVAL_S)
            try:
                await self._step()
            except GpupoolError as error:
                log.warning("idle GPUs were not checked", code=error.code, message=error.message)

    async def _step(self) -> None:
        while self._ended:
            await self._take(*self._ended.pop(0))
        if self._live and self._engine.feed.queue_length > 0:
            await self._stop()
        every_s = self._policy().verify_idle_s
        if every_s is None:
            self._used_at.clear()
            return
        self._note_use()
        if self._engine.feed.queue_length != 0:
            return
        for node in self._registry.all():
            cards = self._due(node, every_s)
            if cards and len(self._live) < MAX_NODES:
                await self._try_start(node, cards)

    def _note_use(self) -> None:
        now = self._monotonic()
        held = {share.gpu_uuid for lease in self._engine.mirror.leases.values() for share in lease.shares}
        seen = {gpu.uuid for node in self._registry.all() for gpu in node.report.gpus}
        self._used_at = {uuid: now if uuid in held else self._used_at.get(uuid, now) for uuid in seen}

    def _due(self, node: Node, every_s: float) -> tuple[Gpu, ...]:
        """Return all idle GPUs of a node if one of them has to be checked, except for MIG instances.

        Nodes with a reservation that begins soon are left alone.
        """
        now, monotonic = self._now(), self._monotonic()
        reserved = any(
            node.name in each.nodes and each.starts_at < now + RESERVED_WITHIN_S
            for each in self._engine.feed.reservations.values()
        )
        if node.state is not NodeState.UP or reserved:
            return ()
        idle_s = min(MAX_IDLE_S, IDLE_PART * every_s)
        idle = tuple(
            gpu
            for gpu in node.report.gpus
            if node.accepts(gpu)
            and not (gpu.mig_profile or gpu.parent_uuid)
            and monotonic - self._used_at[gpu.uuid] >= idle_s
            and monotonic >= self._retry_at.get(gpu.uuid, 0.0)
        )
        known = (self.latest.get(gpu.uuid) for gpu in idle)
        return idle if any(each is None or now - each.at >= every_s for each in known) else ()

    async def _try_start(self, node: Node, cards: tuple[Gpu, ...]) -> None:
        """Start a check; after an error, such as a limit of the project, try again later."""
        try:
            await self._start(node, cards)
        except GpupoolError as error:
            self._retry_at |= dict.fromkeys((gpu.uuid for gpu in cards), self._monotonic() + RETRY_S)
            log.warning("a check was not started", node=node.name, code=error.code, message=error.message)

    async def _start(self, node: Node, cards: tuple[Gpu, ...]) -> None:
        actor = await self._access.actor_for_uid(self._owner_uid)
        if PROJECT not in self._identities.projects:
            await self._access.create_project(actor, Project(PROJECT, members=(actor.user,), note="checks of GPUs"))
        level = self._policy().verify_level
        words = ["--level", str(level), "--burn", f"{BURN_S:g}"]
        labels = {LABEL: node.name, IDLE_LABEL: node.name}
        body = request_body(node.name, {"count": len(cards)}, labels, words, time_limit_s(level, BURN_S))
        prepared = await self._submission.prepare(actor, parse_request(body))
        await self._engine.transact(lambda draft: self._grant(draft, actor, prepared, node, cards))

    def _grant(self, draft: Draft, actor: Actor, prepared: Prepared, node: Node, cards: Sequence[Gpu]) -> None:
        """Submit a check and give it the GPUs; do nothing if one of them was taken or work waits."""
        held = {share.gpu_uuid for lease in self._engine.mirror.leases.values() for share in lease.shares}
        if self._engine.feed.queue_length != 0 or held.intersection(gpu.uuid for gpu in cards):
            return
        self._submission.put(draft, actor, prepared)
        workload, replica = prepared.workload, prepared.replicas[0]
        shares = tuple(GpuShare(gpu.uuid, gpu.index, WHOLE_GPU, gpu.memory_mib) for gpu in cards)
        grant = Grant(workload.id, replica.index, node.name, shares, mode_of_whole(partitioned=False))
        lease = lease_of(draft.next_epoch(), workload, replica, grant, draft.now)
        draft.put_lease(lease)
        draft.take(grant_lease(workload, replica, lease.epoch, node.name, draft.now))
        self._live[workload.id] = tuple(gpu.uuid for gpu in cards)

    # Results

    async def _take(self, workload: Workload, cards: Sequence[str]) -> None:
        """Record the report of an ended check, and cordon the GPUs that failed in one that the pool started."""
        report = read_report(await self._read(workload))
        if report is None:
            if workload.stop_reason is None:
                self._retry_at |= dict.fromkeys(cards, self._monotonic() + RETRY_S)
                log.warning("a check of GPUs has no report", workload=workload.id, node=workload.labels[LABEL])
            return
        gpus = self._compared(report)
        for gpu in gpus:
            rates = {name: value for check in gpu.checks for name, value in check.values.items() if name in RATES}
            row = (str(gpu.outcome), report.level, gpu.model, findings(gpu), workload.id, rates)
            self.latest[gpu.uuid] = GpuCheck(self._now(), *row)
        await self._save(workload, report, gpus)
        if self._is_own(workload):
            await self._cordon(gpus)

    async def _read(self, workload: Workload) -> bytes:
        actor = await self._access.actor_for_uid(self._owner_uid)
        found, cursor, done = b"", "", False
        while not done and len(found) < MAX_OUTPUT_BYTES:
            page = await self._output.read(actor, workload.id, index=0, attempt=None, cursor=cursor, limit=PAGE)
            cursor, done = page.cursor, page.end
            found += b"".join(data for batch in page.batches for stream, data in batch.runs() if stream == "out")
        return found

    def _compared(self, report: VerifyReport) -> tuple[Subject, ...]:
        """Return the GPUs with their rates compared with those of the same model in the pool."""
        others = (
            Subject(0, uuid, each.model, (Check("copies", values=each.rates),)) for uuid, each in self.latest.items()
        )
        return compare_with_peers(report.gpus, others)

    async def _save(self, workload: Workload, report: VerifyReport, gpus: Sequence[Subject]) -> None:
        oldest = self._now() - KEEP_S
        self.latest = {uuid: each for uuid, each in self.latest.items() if each.at >= oldest}
        outcome = worst([*(gpu.outcome for gpu in gpus), *(check.outcome for check in report.checks)])
        bad = [f"GPU {gpu.index} {gpu.outcome}: {findings(gpu)}" for gpu in gpus if findings(gpu)]
        what = "; ".join([f"verified {len(gpus)} GPUs at level {report.level}: {outcome}", *bad])
        target = f"node {workload.labels[LABEL]}"
        event = self._engine.change_event(workload.user, what[:1000], target, Reason.GPU_CHECKED)
        document = json.dumps({uuid: asdict(each) for uuid, each in self.latest.items()})
        await self._engine.run_exclusive(lambda: self._engine.ports.store.documents.save("gpu_checks", document, event))

    async def _cordon(self, gpus: Iterable[Subject]) -> None:
        actor = await self._access.actor_for_uid(self._owner_uid)
        for gpu in gpus:
            found = self._registry.find_gpu(gpu.uuid)
            if gpu.outcome is CheckOutcome.FAIL and found is not None and not found[0].cordon_of(found[1]):
                await self._nodes.cordon_gpu(actor, found[0].name, found[1].index, cordon_reason(gpu))
