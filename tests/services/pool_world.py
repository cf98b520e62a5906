"""A real pool (services and store) over a fake agent, with a clock that the test moves.

``World`` outlives control planes: ``crash`` drops one as kill -9 would (nothing is closed in order, background tasks
vanish at any point), and ``boot`` starts the next one on the same database while the agent continues.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fake_fabric import FakeAgent, FakeFabric

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Actor, Role
from gpupool.domain.work.workload import ReplicaState, Workload, WorkloadKind, WorkloadState
from gpupool.services.pool import Pool, PoolInfo, PoolServices
from gpupool.services.ports.adapters import Ports
from gpupool.services.ports.files import BlobStore, OtherHeads
from gpupool.services.ports.storage import Storage, StoredFiles
from gpupool.services.ports.store import ChangeSet, EventFilter
from gpupool.specs.request import parse_request
from gpupool.store import SqlStore, open_store

T = TypeVar("T")
BEGIN = 1_800_000_000.0
ADMIN = Actor("root", Role.ADMIN, "uid 0", 0)
ANN = Actor("ann", Role.MEMBER, "uid 1001", 1001)
BOB = Actor("bob", Role.MEMBER, "uid 1002", 1002)


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers expire when ``skew`` is moved, in seconds."""

    skew = 0.0

    def time(self) -> float:
        return super().time() + self.skew


class HandClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.at = BEGIN

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


class FaultyStore(SqlStore):
    """The real store, which can refuse commits or stop the process before or after one."""

    def arm(self) -> FaultyStore:
        self.refuse = 0
        self.die: tuple[int, str] | None = None  # number of commits to skip; then "before" or "after" the next
        self.dying = asyncio.Event()
        return self

    async def commit(self, changes: ChangeSet) -> int:
        if self.refuse:
            self.refuse -= 1
            raise GpupoolError(ErrorCode.DATABASE_UNWRITABLE, "The disk is full.", "Make room.")
        moment = self._moment()
        if moment == "before":
            await self._stand_still()
        result = await super().commit(changes)
        if moment == "after":
            await self._stand_still()
        return result

    def _moment(self) -> str | None:
        if self.die is None:
            return None
        left, moment = self.die
        self.die = (left - 1, moment) if left else None
        return None if left else moment

    async def _stand_still(self) -> None:
        self.dying.set()
        await asyncio.Event().wait()


class FixedStorage:
    """Files of the control plane's machine that a test sets."""

    def __init__(self) -> None:
        self.files: list[StoredFiles] = []

    def read(self) -> Storage:
        return Storage(tuple(self.files), 30 << 30, 100 << 30)


class World:
    """One machine, one database, and the current control plane."""

    def __init__(self, folder: Path, gpus: int = 2) -> None:
        self.loop = MovableLoop()
        self.clock = HandClock()
        self.agent = FakeAgent(self.clock.now, gpus)
        self.database = folder / "pool.db"
        self._bits = itertools.count(1)
        self.request_ids = itertools.count(1)
        self.blobs: BlobStore | None = None  # of the control plane's machine
        self.other_heads: OtherHeads | None = None
        self.storage = FixedStorage()
        self.pool_id: str | None = None  # id of a new database; None: a random one
        self.pool: Pool | None = None
        self.store: FaultyStore | None = None

    # Driving

    def do(self, work: Awaitable[T]) -> T:
        async def main() -> T:
            return await work

        return self.loop.run_until_complete(main())

    @property
    def now(self) -> Pool:
        assert self.pool is not None
        return self.pool

    @property
    def services(self) -> PoolServices:
        return self.now.services

    async def boot(self) -> None:
        opened = await open_store(self.database, self.pool_id)
        self.store = FaultyStore(opened._database, {"pool_id": opened.pool_id}).arm()
        ports = Ports(
            self.store,
            FakeFabric(self.agent),
            self.clock,
            lambda _bits: next(self._bits) * 7919,
            asyncio.sleep,
            blobs=self.blobs,
            other_heads=self.other_heads,
            storage=self.storage,
        )
        info = PoolInfo("0", self.store.pool_id, "user", self.clock.at, "", None, 0)
        self.pool = Pool(ports, info)
        await self.pool.start()
        await self.settle()

    async def crash(self) -> None:
        """Kill -9 the control plane: unfinished work stays unfinished."""
        assert self.store is not None
        self.agent.listener = None
        me = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not me]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.store.close()
        self.pool = self.store = None

    async def reboot(self) -> None:
        await self.crash()
        await self.boot()

    async def settle(self) -> None:
        """Run until all tasks are idle (or the process has stopped at an armed crash)."""
        calm = 0
        for _ in range(10_000):
            await asyncio.sleep(0.0005)
            calm = calm + 1 if self._idle() else 0
            if calm == 3:
                return
        raise AssertionError(f"the pool does not come to rest: {self._at_work()}")

    def _at_work(self) -> dict[str, object]:
        engine, observer = self.now.engine, self.now._observer
        return {
            "writing": engine._writing.locked(),
            "scheduling": engine.work.is_set(),
            "heard": observer.busy,
            "sending": dict(engine._outboxes),
            "asking": self.agent.in_flight,
        }

    def _idle(self) -> bool:
        assert self.store is not None
        if self.store.dying.is_set():
            return True
        engine, fabric = self.now.engine, self.now.engine.ports.fabric
        assert isinstance(fabric, FakeFabric)
        queues = [self.now._observer._inbox, fabric.inbox]
        held_up = self.agent.holding is not None or self.store.refuse  # then it waits, or retries forever
        heard = self.now._observer.busy and not held_up
        boxes = engine._outboxes.values()
        sending = not held_up and any(not box.empty() if isinstance(box, asyncio.Queue) else box for box in boxes)
        unread = not held_up and any(not queue.empty() for queue in queues)
        acting = engine._writing.locked() or engine.work.is_set() or unread
        busy = heard or sending or acting
        return not busy and (self.agent.in_flight == 0 or self.agent.holding is not None)

    async def attempt(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Make a client's call; return None if the control plane stopped during it."""
        assert self.store is not None
        call, dying = asyncio.ensure_future(work), asyncio.ensure_future(self.store.dying.wait())
        await asyncio.wait({call, dying}, return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if call.done():
            return call.result()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return None

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock and run the periodic work once (twice from 2 s on, for its consequences)."""
        for part in (seconds - 1.1, 1.1) if seconds > 2.2 else (max(seconds, 1.1),):
            self.clock.at += part
            self.loop.skew += part
            self.agent.time_passes()
            await asyncio.sleep(0)
            await self.settle()

    # Actions of users

    async def allow_priorities(self, project: str = "default") -> None:
        """Let members of a project choose any priority."""
        await self.services.access.change_project(ADMIN, project, {"rules": {"max_priority": 1000}})

    async def submit(self, actor: Actor = ANN, **body: Any) -> Workload:
        """Submit a request; its project allows the priority."""
        if body.get("priority", 0) not in {0, "low", "normal"}:
            await self.allow_priorities(body.get("project", "default"))
        body.setdefault("kind", "training")
        if body["kind"] != "lease":
            body.setdefault("command", ["work"])
        made, _ = await self.services.workloads.submit(actor, parse_request(body))
        await self.settle()
        return await self.get(made.id)

    async def get(self, ref: str) -> Workload:
        return await self.services.workloads.get(ADMIN, ref)

    async def state(self, ref: str) -> WorkloadState:
        return (await self.get(ref)).state

    async def replicas(self, ref: str) -> list[Any]:
        return list(await self.services.workloads.replicas_of(await self.get(ref)))

    async def reasons(self, ref: str) -> list[str]:
        found = await self.services.history.events(ADMIN, EventFilter(workload=(await self.get(ref)).id, limit=500))
        return [str(event.reason) for event in found]

    def program(self, workload: Workload, index: int = 0) -> str:
        """Return the key of the running attempt."""
        found = [p.spec.key for p in self.agent.running() if p.spec.key.startswith(f"{workload.id}.{index}.")]
        assert len(found) == 1, found
        return found[0]

    def is_running(self, workload: Workload) -> bool:
        return any(p.spec.key.startswith(f"{workload.id}.") for p in self.agent.running())

    async def end(self, workload: Workload, code: int = 0, index: int = 0) -> None:
        self.agent.end(self.program(workload, index), code)
        await self.settle()

    # Invariants

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"file:{self.database}?mode=ro", uri=True) as connection:
            return connection.execute(query).fetchall()

    def check_always(self) -> None:
        """Check database and running programs; this holds at every moment, also after crashes."""
        shares = self.rows(
            "select gpu_uuid, sum(permille) from lease_shares where released_at is null group by gpu_uuid"
        )
        assert all(permille <= 1000 for _, permille in shares), shares
        held = {epoch for (epoch,) in self.rows("select epoch from leases where released_at is null")}
        used: dict[int, Any] = {}
        for program in self.agent.running():
            assert program.spec.epoch in held, f"{program.spec.key} runs on a lease that is released"
            assert program.spec.gpu_epoch in held | {0}, f"{program.spec.key} has GPUs of a lease that is released"
            used[program.spec.epoch] = program.spec.gpus
        real = Counter[str]()
        for gpus in used.values():
            for share in gpus:
                real[share.gpu_uuid] += share.permille
        assert all(permille <= 1000 for permille in real.values()), real
        assert all(count == 1 for count in self.agent.starts.values()), "an attempt was started twice"

    async def check_at_rest(self) -> None:
        """Check that memory equals the store and every lease has an owner, when nothing happens."""
        assert self.store is not None
        mirror, stored = self.now.engine.mirror, await self.store.load_live()
        assert {w.id: w for w in stored.workloads if not w.state.final} == mirror.workloads
        assert {lease.epoch: lease for lease in stored.leases} == mirror.leases
        rows = {(r.workload, r.index): r for r in stored.replicas if r.workload in mirror.workloads}
        assert rows == {(r.workload, r.index): r for many in mirror.replicas.values() for r in many.values()}
        holders = {epoch for r in rows.values() if r.state.placed for epoch in r.leases}
        assert set(mirror.leases) == holders, "a lease without a holder, or a holder without a lease"
        for row in rows.values():
            if (
                row.state.placed
                and mirror.workloads[row.workload].kind is not WorkloadKind.LEASE
                and self.agent.reachable
            ):
                assert row.key in self.agent.programs, f"{row.key} is {row.state} but nothing runs"
        if self.agent.reachable:
            live = {r.key for r in rows.values() if r.state.placed}
            assert {p.spec.key for p in self.agent.programs.values()} <= live, "the agent keeps what nobody wants"
        scheduler = self.now.engine.feed.scheduler
        assert (
            set(scheduler.placer.running) == {(e.workload, e.index) for e in mirror.leases.values()}
            if hasattr(scheduler.placer, "running")
            else True
        )

    def check_counts(self) -> None:
        """Check that each replica that succeeded did so in exactly one attempt."""
        ended = Counter(
            key.rpartition(".")[0]
            for key, report in self.agent.ends.items()
            if report.reason == "exited" and report.status == 0
        )
        for workload, index, kind in self.rows(
            "select r.workload, r.replica_index, w.kind from replicas r join workloads w on w.id = r.workload"
            f" where r.state = '{ReplicaState.SUCCEEDED}'"
        ):
            if kind != WorkloadKind.LEASE:
                assert ended[f"{workload}.{index}"] == 1, (
                    f"{workload}.{index} succeeded in {ended[f'{workload}.{index}']} runs"
                )


@contextmanager
def world_in(folder: Path, gpus: int = 2) -> Iterator[World]:
    made = World(folder, gpus)
    asyncio.set_event_loop(made.loop)
    try:
        made.do(made.boot())
        yield made
    finally:
        if made.pool is not None:
            made.do(made.crash())
        made.loop.close()
        asyncio.set_event_loop(None)


def refused(work: Callable[[], Awaitable[Any]], code: ErrorCode) -> Coroutine[Any, Any, GpupoolError]:
    async def call() -> GpupoolError:
        with pytest.raises(GpupoolError) as caught:
            await work()
        assert caught.value.code is code, caught.value
        return caught.value

    return call()
