"""Cases of the scheduler as tables: a small world, its expected final state, and the function that runs all cases.

A case runs until nothing changes, then five more rounds in which nothing may change. The same happens after each step
of ``then``. The case runs again with other node names (in reverse order), which must give the same result under the new
names, and with the nodes declared in reverse order, which must give the same result up to indistinguishable nodes.

A step of ``then`` is a pair of an event and the expected places of running replicas after it:

"end r1" (it succeeds)   "stop p1" (waiting or running, it is removed)   "add p9 blue 1 train"   "run r9 red 1 on a:0"
"requeue p1.0" (that member failed and is queued again)
"down a", "up a", "cordon a", "lose a" (for good)   "node c 2xT4" (joins or reports again)   "fail a:0", "heal a:0"
"project red quota=2", "department ml quota=4", "user ann limit=1"   "unbook m1"   "wait 400" (seconds)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from scheduling_world import (
    World,
    as_pending,
    department,
    lines,
    node,
    pendings,
    project,
    reservation,
    running,
    user,
    words,
    world,
)

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import GpuHealth, NodeState
from gpupool.scheduling.scheduler import (
    DepartmentChanged,
    GpusChanged,
    LeaseReleased,
    LeaseTaken,
    NodeChanged,
    NodeRemoved,
    NodeStateChanged,
    PendingAdded,
    PendingRemoved,
    ProjectChanged,
    ReservationChanged,
    ReservationRemoved,
    UserChanged,
)
from gpupool.scheduling.values import HoldKind, ReplicaKey

Names = Callable[[str], str]


@dataclass(frozen=True)
class Case:
    """A small world in words, and the expected places at the end: ``p1@a``, each member of a gang separately."""

    name: str
    nodes: str
    pending: str
    expect: str
    running: str = ""
    projects: str = ""
    users: str = ""
    departments: str = ""
    reservations: str = ""
    past: str = ""
    evicted: str = ""  # all evicted replicas, once for each eviction, over the whole case
    then: tuple[tuple[str, str], ...] = ()
    slots: str = ""  # "p1:23": the GPUs it holds at the end
    reserved: str | None = None  # "p1@a": for whom space is reserved at the end; None: not compared
    settings: dict[str, Any] = field(default_factory=dict)
    slow: int = 0  # rounds that victims take to end

    def check(self) -> None:
        """Run the case with its own names, with other names, and with nodes in reverse order."""
        _same(_Run(self).outcome(), self.wanted(), "as it stands")
        renamed = _renamed(self, _other_names(self))
        _same(_Run(renamed, watch=False).outcome(), renamed.wanted(), "with other names of nodes")
        turned = replace(self, nodes="; ".join(reversed(lines(self.nodes))))
        anonymous = _Anonymous(self)
        _same(
            anonymous.of(_Run(turned, watch=False).outcome()),
            anonymous.of(self.wanted()),
            "with nodes declared in reverse",
        )

    def wanted(self) -> Outcome:
        """Return the expected outcome."""
        places = [_sorted(self.expect)] + [_sorted(expect) for _, expect in self.then]
        return Outcome(places, sorted(self.evicted.split()), self.slots, _sorted(self.reserved))


@dataclass(frozen=True)
class Outcome:
    """Places at the end of each step, evicted replicas, and GPUs and reservations where the case compares them."""

    places: list[str]
    evicted: list[str]
    slots: str
    reserved: str


def table(cases: Sequence[Case]) -> list[Any]:
    """Return the cases as pytest parameters with their names as ids."""
    found = [pytest.param(case, id=case.name) for case in cases]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), f"two cases of one name: {sorted(n for n in names if names.count(n) > 1)}"
    return found


def _same(found: object, wanted: object, how: str) -> None:
    assert found == wanted, f"{how}\n  found  {found}\n  wanted {wanted}"


class _Run:
    """One run of a case that checks invariants after each cycle."""

    def __init__(self, case: Case, *, watch: bool = True) -> None:
        self._case = case
        parts: dict[str, Any] = {
            "departments": case.departments,
            "reservations": case.reservations,
            "past": case.past,
            **case.settings,
        }
        self.world = Watched.around(world(case.nodes, case.pending, case.running, case.projects, case.users, **parts))
        self.world.slow = case.slow
        self.world.settle(watch=watch)
        self._places = [self.world.places()]
        for event, _ in case.then:
            happen(self.world, event)
            self.world.settle(watch=watch)
            self._places.append(self.world.places())

    def outcome(self) -> Outcome:
        """Return what is compared."""
        w, case = self.world, self._case
        slots = " ".join(f"{name}:{''.join(map(str, w.slots(name)))}" for name, _ in _pairs(case.slots))
        kept = [f"{h.workload}@{h.node}" for h in w.scheduler.holds if h.kind is HoldKind.RESERVED]
        reserved = "" if case.reserved is None else " ".join(sorted(kept))
        return Outcome(self._places, sorted(w.evicted), slots, reserved)


class Watched(World):
    """A world that checks each cycle."""

    @classmethod
    def around(cls, inner: World) -> Watched:
        """Return a watched copy of a world."""
        return cls(inner.scheduler, inner.waiting, inner.running)

    def step(self) -> bool:
        """Run one cycle; check that no GPU is granted twice, evictions are allowed, and the books match the leases."""
        before = {key: r for key, r in self.scheduler.demand.running.items() if not r.releasing}
        went = super().step()
        cluster = self.scheduler.cluster
        assert not len(cluster.log), "a trial is still open"
        for grant in self.last.grants:
            claim = cluster.claims.get(grant.key)
            if claim is not None:
                used = claim.gpu > 0
                assert (cluster.gpu_free[claim.row][used] >= 0).all(), f"{grant} on a GPU that is not free"
                assert (cluster.gmem_free[claim.row][used] >= 0).all(), f"{grant} on GPU memory that is not free"
                assert cluster.available[claim.row][used].all(), f"{grant} on a GPU that takes no work"
                assert cluster.up[claim.row], f"{grant} on a node that takes no work"
        for eviction in self.last.evictions:
            assert eviction.key in before, f"{eviction} of a replica that does not run"
            assert before[eviction.key].preemptible, f"{eviction} of protected work"
        assert len({e.key for e in self.last.evictions}) == len(self.last.evictions), "evicted twice at once"
        self._check_books()
        return went

    def _check_books(self) -> None:
        s = self.scheduler
        taken = np.zeros_like(s.cluster.gpu_free)
        for claim in s.cluster.claims.values():
            if claim.row >= 0:
                taken[claim.row] += claim.gpu
        whole = 1000 * (s.cluster.model > 0)
        assert (s.cluster.gpu_free == whole - taken).all(), "what is free is not what nobody holds"
        held = sum(r.lease.permille for r in s.demand.running.values())
        assert s.demand.ledger.used.sum() == held, "the ledger is not what is held"


# --- events


def happen(w: World, event: str) -> None:
    """Apply an event of ``then``; see the module."""
    verb, _, rest = event.partition(" ")
    _EVENTS[verb](w, rest)


def _end(w: World, name: str) -> None:
    for key in [key for key in w.scheduler.demand.running if key[0] == name]:
        _end_one(w, key)


def _requeue(w: World, name: str) -> None:
    workload, _, index = name.partition(".")
    key = (WorkloadId(workload), int(index))
    ended = w.scheduler.demand.running[key]
    again = replace(w.waiting.get(key) or as_pending(ended), queued_at=w.now)
    _end_one(w, key)
    w.waiting[key] = again
    w.scheduler.apply(PendingAdded(again, w.now))


def _end_one(w: World, key: ReplicaKey) -> None:
    w.running.pop(key, None)
    w.scheduler.apply(LeaseReleased(key))


def _stop(w: World, name: str) -> None:
    _end(w, name)
    for key in [key for key in w.scheduler.demand.pending if key[0] == name]:
        w.scheduler.apply(PendingRemoved(key))


def _add(w: World, line: str) -> None:
    for number, replica in enumerate(pendings(line, len(w.waiting))):
        late = replace(replica, queued_at=w.now + number / 1000)
        w.waiting[late.key] = late
        w.scheduler.apply(PendingAdded(late, w.now))


def _run(w: World, line: str) -> None:
    nodes = {n.name: n for n in w.scheduler.cluster.nodes if n is not None}
    begun = running(line, nodes)
    w.running[begun.key] = begun
    w.scheduler.apply(LeaseTaken(begun))


def _state(state: NodeState) -> Callable[[World, str], None]:
    return lambda w, name: w.scheduler.apply(NodeStateChanged(name, state))


def _health(health: GpuHealth) -> Callable[[World, str], None]:
    def change(w: World, where: str) -> None:
        name, _, index = where.partition(":")
        gpus = w.scheduler.cluster.gpus[w.scheduler.cluster.rows[name]]
        changed = tuple(replace(gpu, health=health) if gpu.index == int(index) else gpu for gpu in gpus)
        w.scheduler.apply(GpusChanged(name, changed))

    return change


def _wait(w: World, seconds: str) -> None:
    w.now += float(seconds)


_EVENTS: dict[str, Callable[[World, str], None]] = {
    "end": _end,
    "stop": _stop,
    "requeue": _requeue,
    "add": _add,
    "run": _run,
    "down": _state(NodeState.DOWN),
    "up": _state(NodeState.UP),
    "cordon": _state(NodeState.CORDONED),
    "lose": lambda w, name: w.scheduler.apply(NodeRemoved(name)),
    "node": lambda w, line: w.scheduler.apply(NodeChanged(node(line))),
    "fail": _health(GpuHealth.FAILED),
    "heal": _health(GpuHealth.OK),
    "book": lambda w, line: w.scheduler.apply(ReservationChanged(reservation(line))),
    "unbook": lambda w, name: w.scheduler.apply(ReservationRemoved(name)),
    "department": lambda w, line: w.scheduler.apply(DepartmentChanged(department(line))),
    "project": lambda w, line: w.scheduler.apply(ProjectChanged(project(line))),
    "user": lambda w, line: w.scheduler.apply(UserChanged(user(line))),
    "wait": _wait,
}
_ABOUT_NODES = {"down", "up", "cordon", "lose", "node", "fail", "heal"}


# --- other names, another order


def _pairs(text: str | None) -> list[tuple[str, str]]:
    return [
        (name, where) for name, _, where in (word.replace("@", ":").partition(":") for word in (text or "").split())
    ]


def _sorted(text: str | None) -> str:
    return " ".join(sorted((text or "").split()))


def _other_names(case: Case) -> Names:
    """Give the first node by name the last name, and so on."""
    come = [event[5:] for event, _ in case.then if event.startswith("node ")]
    names = sorted({line.split()[0] for line in [*lines(case.nodes), *come]})
    new = {name: f"n{len(names) - at:03}" for at, name in enumerate(names)}
    return lambda name: new.get(name, name)


def _renamed(case: Case, new: Names) -> Case:
    def first(line: str) -> str:
        name, space, rest = line.partition(" ")
        place, colon, index = name.partition(":")
        return new(place) + colon + index + space + rest

    def on(line: str) -> str:
        parts = line.split()
        at = parts.index("on") + 1
        return " ".join([*parts[:at], first(parts[at]), *parts[at + 1 :]])

    def told(event: str) -> str:
        verb, _, rest = event.partition(" ")
        return f"{verb} {first(rest) if verb in _ABOUT_NODES else on(rest) if verb == 'run' else rest}"

    def placed(text: str | None) -> str:
        return " ".join(sorted(f"{name}@{new(where)}" for name, where in _pairs(text)))

    return replace(
        case,
        nodes="; ".join(map(first, lines(case.nodes))),
        running="; ".join(map(on, lines(case.running))),
        expect=placed(case.expect),
        reserved=None if case.reserved is None else placed(case.reserved),
        then=tuple((told(event), placed(expect)) for event, expect in case.then),
        reservations="; ".join(_renamed_reservation(line, new) for line in lines(case.reservations)),
    )


def _renamed_reservation(line: str, new: Names) -> str:
    named = (
        "on=" + ",".join(map(new, word[3:].split(","))) if word.startswith("on=") else word for word in line.split()
    )
    return " ".join(named)


class _Anonymous:
    """Outcomes in which indistinguishable nodes, and the replicas that already ran on them, have no names."""

    def __init__(self, case: Case) -> None:
        told = case.then and " ".join(event for event, _ in case.then).split()
        self._alias: dict[str, str] = {}
        on: dict[str, list[str]] = {}
        for line in lines(case.running):
            plain, options = words(line)
            where, _, index = plain[plain.index("on") + 1].partition(":")
            known = (plain[0] if plain[0] in (told or ()) else "", *plain[1 : plain.index("on")], index)
            self._alias[plain[0].partition(".")[0]] = alias = f"{known}{sorted(options.items())}"
            on.setdefault(where, []).append(alias)
        self._kind = {}
        for line in lines(case.nodes):
            name, _, rest = line.partition(" ")
            self._kind[name] = f"{name if name in (told or ()) else ''} {rest} {sorted(on.get(name, ()))}"

    def of(self, outcome: Outcome) -> tuple[Any, ...]:
        """Return what is compared."""
        evicted = sorted(self._alias.get(name, name) for name in outcome.evicted)
        return [self._by_kind(text) for text in outcome.places], evicted, self._by_kind(outcome.reserved)

    def _by_kind(self, text: str) -> list[tuple[str, tuple[str, ...]]]:
        on: dict[str, list[str]] = {}
        for name, where in _pairs(text):
            on.setdefault(where, []).append(self._alias.get(name, name))
        return sorted((self._kind.get(where, where), tuple(sorted(who))) for where, who in on.items())
