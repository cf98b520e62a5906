"""Faults between and in the machines of ``spaces``, by role: leader, standby, node, database."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from spaces import DATABASE, HEADS, Spaces, longest_silence_s, worst_overlap_s

LASTS_S = 30.0  # longer than a failover and the retry of a lost node's work
RECOVERY_S = 120.0
LEADER, STANDBY, NODE = "leader", "standby", "node"
MACHINES = (LEADER, STANDBY, NODE)
Roles = dict[str, str]


@dataclass(frozen=True)
class Case:
    """A fault: what happens, how long it lasts, and what ends it besides healing all links and processes."""

    name: str
    happen: Callable[[Spaces, Roles], None]
    lasts_s: float = LASTS_S
    end: Callable[[Spaces, Roles], None] = lambda _spaces, _roles: None


@dataclass(frozen=True)
class Found:
    """The result of a case. ``recovery_s`` counts from the end of the fault; None: not in time."""

    case: str
    overlap_s: float
    double_leases: str
    lost_jobs: tuple[str, ...]
    recovery_s: float | None
    silence_s: float  # the longest time in which a job did not run
    attempts: int

    @property
    def ok(self) -> bool:
        return self.overlap_s < 0 and not self.double_leases and not self.lost_jobs and self.recovery_s is not None


def play(spaces: Spaces, case: Case, number: int) -> Found:
    """Let a fault happen while each machine runs a job, heal it, and look at what the jobs have written."""
    files = spaces.begin_jobs(f"case{number}")
    leader = spaces.leader()
    assert leader is not None
    standby = next(name for name in HEADS if name != leader.name)
    roles = {LEADER: leader.name, STANDBY: standby, NODE: "n1", DATABASE: DATABASE}
    case.happen(spaces, roles)
    until = time.monotonic() + case.lasts_s
    while time.monotonic() < until:
        time.sleep(0.2)
        for machine in spaces.machines.values():
            machine.supervise()
    case.end(spaces, roles)
    spaces.heal()
    healed = time.monotonic()
    recovered = spaces.wait_for_recovery(files, RECOVERY_S)
    recovery_s = round(time.monotonic() - healed, 1) if recovered else None
    lost = spaces.end_jobs(files) if recovered else list(files)
    return Found(
        case.name,
        worst_overlap_s(files),
        spaces.double_leases(),
        tuple(lost),
        recovery_s,
        round(longest_silence_s(files), 1),
        spaces.count_attempts(files),
    )


def cuts() -> Iterator[Case]:
    """Yield cuts between each two machines, in both and in single directions, and of each machine from all others."""
    for here, there in itertools.combinations((*MACHINES, DATABASE), 2):
        for ways in ("both", "to", "from"):

            def happen(spaces: Spaces, roles: Roles, here: str = here, there: str = there, ways: str = ways) -> None:
                if ways != "from":
                    spaces.cut(roles[here], roles[there])
                if ways != "to":
                    spaces.cut(roles[there], roles[here])

            arrow = {"both": "-/-", "to": "-/>", "from": "</-"}[ways]
            yield Case(f"cut {here} {arrow} {there}", happen)
    for one in (*MACHINES, DATABASE):

        def pull(spaces: Spaces, roles: Roles, one: str = one) -> None:
            spaces.pull(roles[one])

        yield Case(f"cable of the {one}", pull)


def in_machines() -> Iterator[Case]:
    """Yield kills, freezes, slow machines, and machines with a full disk."""
    for one in MACHINES:

        def kill(spaces: Spaces, roles: Roles, one: str = one) -> None:
            spaces.machines[roles[one]].signal_pool(signal.SIGKILL)

        def freeze(spaces: Spaces, roles: Roles, one: str = one) -> None:
            spaces.machines[roles[one]].signal_pool(signal.SIGSTOP)

        def freeze_and_cut(spaces: Spaces, roles: Roles, one: str = one) -> None:
            spaces.machines[roles[one]].signal_pool(signal.SIGSTOP)
            spaces.pull(roles[one])

        def thaw(spaces: Spaces, roles: Roles, one: str = one) -> None:
            spaces.machines[roles[one]].signal_pool(signal.SIGCONT)
            time.sleep(15.0)  # the cable stays pulled: what it does alone shows

        def slow(spaces: Spaces, roles: Roles, one: str = one) -> None:
            spaces.machines[roles[one]].slow(on=True)

        def fill(spaces: Spaces, roles: Roles, one: str = one) -> None:
            spaces.machines[roles[one]].fill_disk()

        yield Case(f"kill -9 of the {one}'s pool", kill, 5.0)
        yield Case(f"freeze the {one}'s pool", freeze)
        yield Case(f"freeze the {one}'s pool, thaw it while its cable is pulled", freeze_and_cut, 20.0, thaw)
        yield Case(f"slow link of the {one}", slow)
        yield Case(f"full disk of the {one}", fill, 15.0)


def in_database() -> Iterator[Case]:
    """Yield a database that is restarted, absent for a while, or frozen."""
    yield Case("database restarted", lambda spaces, _roles: restart(spaces), 5.0)
    yield Case("database away", lambda spaces, _roles: spaces.server.stop(), 20.0, lambda s, _roles: s.server.start())
    yield Case("database frozen", lambda s, _roles: to_database(s, signal.SIGSTOP), 20.0, thaw_database)
    yield Case(
        "database restarted, leader cut off from it",
        lambda spaces, roles: (spaces.cut(roles[LEADER], DATABASE), restart(spaces))[1],
    )


def restart(spaces: Spaces) -> None:
    spaces.server.stop()
    spaces.server.start()


def to_database(spaces: Spaces, signum: int) -> None:
    done = subprocess.run(["ip", "netns", "pids", spaces.server.space], capture_output=True, check=True, text=True)
    for pid in map(int, done.stdout.split()):
        with suppress(ProcessLookupError):
            os.kill(pid, signum)


def thaw_database(spaces: Spaces, _roles: Roles) -> None:
    to_database(spaces, signal.SIGCONT)


CASES = {case.name: case for case in (*cuts(), *in_machines(), *in_database())}
