"""Random histories with crashes: no GPU is granted twice, nothing leaks, and every workload ends."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pool_world import ADMIN, ANN, BOB, World, world_in

from gpupool.domain.errors import GpupoolError
from gpupool.domain.people.access import Actor, Project
from gpupool.domain.work.program.supervision import ExitReason
from gpupool.domain.work.workload import RestartPolicy, WorkloadKind
from gpupool.specs.request import parse_request

MEMORY_DISK = "/dev/shm" if Path("/dev/shm").is_dir() else None  # commits wait for the disk; these need not
SHARES = st.sampled_from(
    [
        {"fraction": 0.05},
        {"fraction": 0.3},
        {"fraction": 0.5},
        {"fraction": 0.7},
        {},
        {"count": 2},
        {"memory_mib": 5000},
    ]
)
ACTORS = st.sampled_from([ANN, BOB])
MOMENTS = st.sampled_from(["before", "after"])


class Histories(RuleBasedStateMachine):
    """Two GPUs, three projects, two users, one agent, and a sequence of control planes."""

    @initialize(polite=st.booleans())
    def begin(self, polite: bool) -> None:
        self.stack = ExitStack()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY_DISK)))
        self.world: World = self.stack.enter_context(world_in(folder))
        self.world.agent.polite = polite
        self.last_request: dict[str, Any] | None = None
        for name, quota in (("red", 500), ("blue", 1500)):
            self.do(self.world.services.access.create_project(ADMIN, Project(name, quota_permille=quota)))

    def do(self, work: Any) -> Any:
        """Make a user's call: it may be refused, and the control plane may crash during it (and is started again)."""

        async def call() -> Any:
            try:
                return await self.world.attempt(work)
            except GpupoolError:
                return None
            finally:
                await self.recover()

        return self.world.do(call())

    async def recover(self) -> None:
        await self.world.settle()
        assert self.world.store is not None
        if self.world.store.dying.is_set():
            await self.world.reboot()
        assert not self.world.now.engine.broken.done(), self.world.now.engine.broken
        for task in self.world.now._tasks:
            assert not task.done(), task

    def submit(self, actor: Actor, **body: Any) -> None:
        body["request_id"] = f"r{next(self.world.request_ids)}"
        self.last_request = {"actor": actor, "body": body}
        self.do(self.world.services.workloads.submit(actor, parse_request(body)))

    def live(self, *kinds: WorkloadKind) -> list[Any]:
        mirror = self.world.now.engine.mirror
        return [w for w in mirror.workloads.values() if not kinds or w.kind in kinds]

    # Actions of users

    @rule(
        actor=ACTORS,
        gpus=SHARES,
        project=st.sampled_from(["default", "red", "blue"]),
        kind=st.sampled_from(["training", "training", "interactive", "run"]),
        priority=st.sampled_from([0, 0, 100]),
        shape=st.sampled_from([{}, {}, {"completions": 3, "parallelism": 2}, {"completions": 4}]),
        more=st.sampled_from(
            [{}, {}, {"wait": 0}, {"wait": 30}, {"restart": "always"}, {"restart": "never"}, {"cpus": 6}]
        ),
    )
    def submits(self, actor: Actor, kind: str, shape: Any, more: Any, **body: Any) -> None:
        if kind == "interactive":
            shape = {}
        self.submit(actor, command=["work"], kind=kind, **shape, **more, **body)

    @precondition(lambda self: self.last_request is not None)
    @rule()
    def submits_the_same_again(self) -> None:
        assert self.last_request is not None
        request = parse_request(self.last_request["body"])
        self.do(self.world.services.workloads.submit(self.last_request["actor"], request))

    @rule(actor=ACTORS, pick=st.integers(0, 20), success=st.booleans())
    def submits_after_another(self, actor: Actor, pick: int, success: bool) -> None:
        if live := self.live():
            after = [{"workload": live[pick % len(live)].id, "condition": "success" if success else "any"}]
            self.submit(actor, command=["work"], gpus={"fraction": 0.2}, after=after)

    @rule(actor=ACTORS, gpus=SHARES, lifetime=st.sampled_from([None, 50]))
    def requests_gpus(self, actor: Actor, gpus: Any, lifetime: int | None) -> None:
        self.submit(actor, kind="lease", gpus=gpus, **({"lifetime": lifetime} if lifetime else {}))

    @rule(pick=st.integers(0, 20))
    def runs_on_what_is_held(self, pick: int) -> None:
        if live := self.live(WorkloadKind.LEASE, WorkloadKind.TRAINING, WorkloadKind.INTERACTIVE):
            self.submit(ADMIN, kind="exec", command=["work"], on=live[pick % len(live)].id)

    @rule(pick=st.integers(0, 20), force=st.booleans(), index=st.none() | st.integers(0, 2))
    def stops(self, pick: int, force: bool, index: int | None) -> None:
        if live := self.live():
            self.do(self.world.services.workloads.stop(ADMIN, live[pick % len(live)].id, force=force, index=index))

    @rule(pick=st.integers(0, 20), resume=st.booleans())
    def suspends_or_resumes(self, pick: int, resume: bool) -> None:
        if live := self.live():
            calls = self.world.services.workloads
            self.do((calls.resume if resume else calls.suspend)(ADMIN, live[pick % len(live)].id))

    @rule(pick=st.integers(0, 20), force=st.booleans())
    def restarts(self, pick: int, force: bool) -> None:
        if live := self.live():
            self.do(self.world.services.workloads.restart(ADMIN, live[pick % len(live)].id, force=force))

    @rule(pick=st.integers(0, 20))
    def asks_why(self, pick: int) -> None:
        if live := self.live():
            assert self.do(self.world.services.workloads.why(ANN, live[pick % len(live)].id)) is not None

    # Actions of programs and machines

    @rule(pick=st.integers(0, 20), how=st.sampled_from([0, 0, 0, 1, -9, None]))
    def a_program_ends(self, pick: int, how: int | None) -> None:
        if running := self.world.agent.running():
            key = running[pick % len(running)].spec.key
            if how is None:
                self.world.agent.end(key, None, 9, ExitReason.SHEPHERD_LOST)
            elif how < 0:
                self.world.agent.end(key, None, -how)
            else:
                self.world.agent.end(key, how)
            self.world.do(self.recover())

    @rule(seconds=st.sampled_from([1, 5, 70, 400]))
    def time_passes(self, seconds: int) -> None:
        async def wait() -> None:
            await self.world.pass_time(seconds)
            await self.recover()

        self.world.do(wait())

    @rule(fates=st.lists(st.sampled_from(["ok", "before", "after"]), max_size=4))
    def messages_get_lost(self, fates: list[str]) -> None:
        self.world.agent.losses = fates

    @rule(up=st.booleans())
    def the_node_comes_or_goes(self, up: bool) -> None:
        self.world.agent.go(up=up)
        self.world.do(self.recover())

    @rule()
    def the_machine_restarts(self) -> None:
        self.world.agent.reboot()
        self.world.do(self.recover())

    # Faults of control planes

    @rule()
    def the_control_plane_is_killed(self) -> None:
        self.world.do(self.world.reboot())

    @rule(commits=st.integers(0, 3), moment=MOMENTS)
    def the_control_plane_will_die_around_a_commit(self, commits: int, moment: str) -> None:
        assert self.world.store is not None
        self.world.store.die = (commits, moment)

    @rule(pick=st.integers(0, 20), actor=ACTORS, gpus=SHARES)
    def it_is_killed_while_the_agent_answers_late(self, pick: int, actor: Actor, gpus: Any) -> None:
        agent = self.world.agent
        agent.holding = asyncio.Event()
        self.submit(actor, command=["work"], gpus=gpus)
        if running := agent.running():
            agent.end(running[pick % len(running)].spec.key, 0)
            self.world.do(self.world.settle())
        agent.holding.set()
        agent.holding = None
        self.world.do(self.world.reboot())

    @rule(commits=st.integers(1, 3))
    def the_disk_is_full_for_a_while(self, commits: int) -> None:
        assert self.world.store is not None
        self.world.store.refuse = commits

    # Invariants

    @invariant()
    def nothing_is_given_twice(self) -> None:
        if hasattr(self, "world"):
            self.world.check_always()

    def teardown(self) -> None:
        if not hasattr(self, "stack"):
            return
        with self.stack:
            self.world.do(self.wind_down())

    async def wind_down(self) -> None:
        """Stop all faults; programs succeed when they run; held and suspended work is released."""
        world = self.world
        assert world.store is not None
        world.agent.losses, world.store.refuse, world.store.die = [], 0, None
        if not world.agent.reachable:
            world.agent.go(up=True)
        for _ in range(200):
            await self.recover()
            await world.pass_time(3)
            if world.agent.reachable and not world.store.refuse:
                await world.pass_time(1.2)
                await world.check_at_rest()
            if not world.now.engine.mirror.workloads:
                break
            await self.let_go()
        assert not world.now.engine.mirror.workloads, "not everything ended"
        await world.settle()
        world.check_always()
        await world.check_at_rest()
        world.check_counts()
        assert world.rows("select count(*) from leases where released_at is null") == [(0,)]
        assert world.agent.programs == {}, "an end that nobody has taken in"

    async def let_go(self) -> None:
        calls, mirror = self.world.services.workloads, self.world.now.engine.mirror
        for workload in list(mirror.workloads.values()):
            endless = workload.kind is WorkloadKind.LEASE or workload.retry.policy is RestartPolicy.ALWAYS
            if endless and workload.id in mirror.workloads:
                await calls.stop(ADMIN, workload.id)
            elif workload.suspended and workload.id in mirror.workloads:
                await calls.resume(ADMIN, workload.id)
        await self.world.settle()
        for program in self.world.agent.running():
            self.world.agent.end(program.spec.key, 0)
        await self.world.pass_time(400)


Histories.TestCase.settings = settings(
    phases=(
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ),  # failures are reported at once; each shrink step takes seconds
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestHistories = pytest.mark.timeout(400)(Histories.TestCase)  # half a minute, on a machine that is not busy
