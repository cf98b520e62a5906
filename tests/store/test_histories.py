"""Random histories with crashes: acknowledged changes are loaded exactly, and no GPU is overcommitted."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from store_values import EVENTS, IDS, LIMITS, PROGRAMS, event, share, workload

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.work.workload import GpuLease, Replica, ReplicaState, Workload, WorkloadState
from gpupool.services.ports.store import ChangeSet, EventFilter
from gpupool.store import open_store

GPUS = ("g0", "g1")
ENDED = [state for state in WorkloadState if state.final]
LIVE = [state for state in WorkloadState if not state.final]


class Histories(RuleBasedStateMachine):
    """A store next to a model in dictionaries."""

    live = Bundle("live")
    held = Bundle("held")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpupool-test-"))
        self.loop = asyncio.Runner()
        self.generation = 0
        self.store = self.loop.run(open_store(self.folder / "pool0.db"))
        self.workloads: dict[WorkloadId, Workload] = {}
        self.replicas: dict[tuple[WorkloadId, int], Replica] = {}
        self.leases: dict[Epoch, GpuLease] = {}
        self.events = 0
        self.epoch = 0

    def commit(self, changes: ChangeSet) -> None:
        """Write to the store and, after its answer, to the model."""
        self.loop.run(self.store.commit(changes))
        self.workloads.update({w.id: w for w in changes.workloads})
        self.replicas.update({(r.workload, r.index): r for r in changes.replicas})
        self.leases.update({lease.epoch: lease for lease in changes.leases})
        self.events += len(changes.events)

    @rule(target=live, key=IDS, program=PROGRAMS, limits=LIMITS, size=st.integers(1, 3), events=st.lists(EVENTS))
    def submit(self, key: WorkloadId, program: object, limits: object, size: int, events: list) -> WorkloadId:
        if key not in self.workloads:
            new = workload(key, program=program, limits=limits, completions=size)
            self.commit(ChangeSet((new,), tuple(Replica(key, i) for i in range(size)), (), tuple(events)))
        return key

    @rule(key=live, state=st.sampled_from(LIVE), suspended=st.booleans())
    def go_on(self, key: WorkloadId, state: WorkloadState, suspended: bool) -> None:
        old = self.workloads[key]
        self.commit(ChangeSet((replace(old, state=state, suspended=suspended, version=old.version + 1),)))

    @rule(key=consumes(live), state=st.sampled_from(ENDED))
    def end(self, key: WorkloadId, state: WorkloadState) -> None:
        old = self.workloads[key]
        self.commit(
            ChangeSet((replace(old, state=state, finished_at=9.0, version=old.version + 1),), events=(event(),))
        )

    @rule(target=held, key=live, index=st.integers(0, 2), gpu=st.sampled_from(GPUS), permille=st.integers(1, 1000))
    def grant(self, key: WorkloadId, index: int, gpu: str, permille: int) -> Epoch:
        """Grant without a check: the store must refuse an overcommitted GPU and change nothing."""
        self.epoch += 1
        epoch = Epoch(self.epoch)
        old = self.replicas.get((key, index), Replica(key, index, version=-1))
        held = GpuLease(epoch, key, index, 1, "p", "u", "here", (share(gpu, permille),), 1.0, 64, float(epoch))
        taken = sum(s.permille for lease in self.unreleased() for s in lease.shares if s.gpu_uuid == gpu)
        busy = any((lease.workload, lease.index) == (key, index) for lease in self.unreleased())
        member = replace(old, state=ReplicaState.STARTING, lease=epoch, version=old.version + 1)
        changes = ChangeSet((), (member,), (held,), (event(),))
        if taken + permille <= 1000 and not busy:
            self.commit(changes)
        else:
            self.refuse(changes)
        return epoch

    @rule(epoch=consumes(held), at=st.floats(1, 1e9))
    def release(self, epoch: Epoch, at: float) -> None:
        if epoch in self.leases:
            self.commit(ChangeSet(leases=(replace(self.leases[epoch], released_at=at),)))
            self.refuse(ChangeSet(leases=(replace(self.leases[epoch], released_at=at),), events=(event(),)))

    @rule(key=live, lag=st.sampled_from([0, 2]))
    def write_with_a_wrong_version(self, key: WorkloadId, lag: int) -> None:
        old = self.workloads[key]
        self.refuse(ChangeSet((replace(old, name="other", priority=7, version=old.version + lag),), (), (), (event(),)))

    def refuse(self, changes: ChangeSet) -> None:
        with pytest.raises(GpupoolError) as caught:
            self.loop.run(self.store.commit(changes))
        assert caught.value.code is ErrorCode.STALE_WRITE

    @rule(polite=st.booleans())
    def crash(self, polite: bool) -> None:
        """Reopen the store after a close, or from the files that a killed process leaves."""
        old = self.folder / f"pool{self.generation}.db"
        if not polite:
            self.generation += 1
            for end in ("", "-wal"):
                shutil.copy(f"{old}{end}", self.folder / f"pool{self.generation}.db{end}")
        self.loop.run(self.store.close())
        self.store = self.loop.run(open_store(self.folder / f"pool{self.generation}.db"))

    def unreleased(self) -> list[GpuLease]:
        return [lease for lease in self.leases.values() if lease.released_at is None]

    @invariant()
    def what_is_loaded_is_what_was_acknowledged(self) -> None:
        loaded = self.loop.run(self.store.load_live())
        unreleased = self.unreleased()
        alive = {w.id for w in self.workloads.values() if not w.state.final} | {v.workload for v in unreleased}
        assert {w.id: w for w in loaded.workloads} == {key: self.workloads[key] for key in alive}
        assert {(r.workload, r.index): r for r in loaded.replicas} == {
            at: r for at, r in self.replicas.items() if r.workload in alive
        }
        assert {lease.epoch: lease for lease in loaded.leases} == {v.epoch: v for v in unreleased}
        assert loaded.last_epoch == max(self.leases, default=0)
        assert loaded.last_event_id == self.events
        assert len(self.loop.run(self.store.list_events(EventFilter(limit=10_000)))) == self.events
        taken = Counter[str]()
        for lease in loaded.leases:
            taken.update({s.gpu_uuid: s.permille for s in lease.shares})
        assert all(permille <= 1000 for permille in taken.values())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.loop.run(self.store.close())
            self.loop.close()
            shutil.rmtree(self.folder)


Histories.TestCase.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHistories = Histories.TestCase
