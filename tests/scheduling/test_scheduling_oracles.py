"""Small worlds with exhaustive search: results of the scheduler compared with the optimum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduling_world import World, world

small = settings(
    max_examples=80, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)


@dataclass(frozen=True)
class Held:
    """A running replica: ``each`` thousandths of the GPUs ``slots`` of node ``node``."""

    node: int
    slots: tuple[int, ...]
    each: int
    training: bool
    priority: int
    age: int

    def line(self, name: str, *, stays: bool = False) -> str:
        part = f"{len(self.slots)}x{self.each / 1000}" if self.each < 1000 else str(len(self.slots))
        options = f"prio={self.priority} age={self.age}{' train' if self.training and not stays else ''}"
        return f"{name} red {part} on n{self.node}:{''.join(map(str, self.slots))} {options}"


Wanted = tuple[int, int]  # GPUs, thousandths of each
Free = tuple[tuple[int, ...], ...]  # free thousandths of each GPU of each node

simple = [(1, 1000), (2, 1000), (3, 1000), (4, 1000), (1, 300), (1, 500), (1, 700), (2, 600)]
wanted = st.sampled_from([*simple, (2, 500)])
# Two jobs with half of two GPUs each share the same two: three of them need three whole GPUs, and two get them.
several = st.sampled_from(simple)


@st.composite
def crowded(draw: st.DrawFn) -> tuple[list[int], list[Held]]:
    """Generate nodes of at most four GPUs with running work that fits."""
    nodes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    free = {(node, slot): 1000 for node, gpus in enumerate(nodes) for slot in range(gpus)}
    held: list[Held] = []
    for _ in range(draw(st.integers(1, 9))):
        node = draw(st.integers(0, len(nodes) - 1))
        each = draw(st.sampled_from([1000, 1000, 500, 300, 700]))
        room = [slot for slot in range(nodes[node]) if free[node, slot] >= each]
        if not room:
            continue
        slots = tuple(sorted(draw(st.permutations(room))[: draw(st.integers(1, 2))]))
        for slot in slots:
            free[node, slot] -= each
        held.append(Held(node, slots, each, draw(st.integers(0, 3)) > 0, draw(st.integers(0, 1)), 100 + len(held)))
    return nodes, held


def nodes_line(nodes: list[int]) -> str:
    return "; ".join(f"n{at} {gpus}xT4" for at, gpus in enumerate(nodes))


def request_word(want: Wanted) -> str:
    return str(want[0]) if want[1] == 1000 else f"{want[0]}x{want[1] / 1000}"


def left(nodes: list[int], held: list[Held]) -> Free:
    free = [[1000] * gpus for gpus in nodes]
    for one in held:
        for slot in one.slots:
            free[one.node][slot] -= one.each
    return tuple(map(tuple, free))


def fits(free: Free, want: Wanted) -> bool:
    return any(sum(gpu >= want[1] for gpu in node) >= want[0] for node in free)


# --- reclaim


def fewest_victims(nodes: list[int], held: list[Held], want: Wanted, quota: int) -> int | None:
    """Return the size of the smallest sufficient set of training, each above its quota when it is chosen."""
    training = [one for one in held if one.training]
    total = sum(one.each * len(one.slots) for one in held)
    for size in range(len(training) + 1):
        for victims in combinations(training, size):
            sizes = sorted(one.each * len(one.slots) for one in victims)
            legal = not sizes or total - sum(sizes[:-1]) > quota  # the largest is evicted last
            if legal and fits(left(nodes, [one for one in held if one not in victims]), want):
                return size
    return None


def reclaimed(nodes: list[int], held: list[Held], want: Wanted, quota: int) -> tuple[bool, int]:
    """Return whether the workload started, and the number of evictions."""
    running = "; ".join(one.line(f"r{at}") for at, one in enumerate(held))
    bounds = f"red quota={quota / 1000}; blue quota=99"
    w = world(nodes_line(nodes), f"p1 blue {request_word(want)}", running, bounds)
    evicted = settle(w)
    return "p1@" in w.places(), evicted


def settle(w: World) -> int:
    """Return the number of evictions for p1; evicted workloads may evict others in turn."""
    evicted = 0
    for _ in range(6):
        if not w.step():
            break
        evicted += sum(eviction.for_workload == "p1" for eviction in w.last.evictions)
        w.now += 1
    return evicted


@small
@given(crowded(), wanted)
def test_victims_are_found_if_and_only_if_they_exist(crowd: tuple[list[int], list[Held]], want: Wanted) -> None:
    nodes, held = crowd
    least = fewest_victims(nodes, held, want, 0)
    started, evicted = reclaimed(nodes, held, want, 0)
    assert started == (least is not None)
    assert evicted == (least or 0)


# --- batches


@lru_cache(maxsize=100_000)
def most_jobs(node: tuple[int, ...], want: Wanted) -> int:
    """Return the maximum number of equal jobs on one node."""
    gpus, each = want
    best = 0
    for slots in combinations(range(len(node)), gpus):
        if all(node[slot] >= each for slot in slots):
            rest = tuple(sorted(free - each * (at in slots) for at, free in enumerate(node)))
            best = max(best, 1 + most_jobs(rest, want))
    return best


@small
@given(crowded(), several)
def test_maximum_number_of_equal_jobs_starts(crowd: tuple[list[int], list[Held]], want: Wanted) -> None:
    nodes, held = crowd
    running = "; ".join(one.line(f"r{at}", stays=True) for at, one in enumerate(held))
    w = world(nodes_line(nodes), "; ".join(f"p{at} blue {request_word(want)}" for at in range(30)), running)
    settle(w)
    possible = sum(most_jobs(tuple(sorted(node)), want) for node in left(nodes, held))
    assert len(w.granted) == min(possible, 30)


# --- gangs


def most_members(free: Free, racks: list[str], want: Wanted, *, strict: bool) -> int:
    """Return the maximum number of members that fit at once, in one rack for a strict gang."""
    per_node = [most_jobs(tuple(sorted(node)), want) for node in free]
    if not strict:
        return sum(per_node)
    return max(sum(n for n, rack in zip(per_node, racks, strict=True) if rack == which) for which in racks)


@small
@given(
    crowded(), several, st.integers(2, 5), st.integers(0, 2), st.booleans(), st.lists(st.sampled_from("xy"), min_size=3)
)
def test_gang_starts_if_possible_with_maximum_size(
    crowd: tuple[list[int], list[Held]], want: Wanted, least: int, more: int, strict: bool, racks: list[str]
) -> None:
    nodes, held = crowd
    racks = racks[: len(nodes)]
    lines = "; ".join(f"n{at} {gpus}xT4 rack={racks[at]}" for at, gpus in enumerate(nodes))
    running = "; ".join(one.line(f"r{at}", stays=True) for at, one in enumerate(held))
    within = f"within=rack{'!' if strict else ''}"
    w = world(lines, f"p1 blue {request_word(want)} gang={least}-{least + more} {within}", running)
    settle(w)
    possible = min(least + more, most_members(left(nodes, held), racks, want, strict=strict))
    assert len(w.granted) == (possible if possible >= least else 0)


def gang_cost(nodes: list[int], held: list[Held], want: Wanted, size: int) -> int | None:
    """Return the smallest number of victims that makes room for all members."""
    training = [one for one in held if one.training]
    for number in range(len(training) + 1):
        for victims in combinations(training, number):
            rest = left(nodes, [one for one in held if one not in victims])
            if sum(most_jobs(tuple(sorted(node)), want) for node in rest) >= size:
                return number
    return None


@small
@given(crowded(), several, st.integers(2, 4))
def test_victims_of_gang_are_found_if_and_only_if_they_exist(
    crowd: tuple[list[int], list[Held]], want: Wanted, size: int
) -> None:
    nodes, held = crowd
    running = "; ".join(one.line(f"r{at}") for at, one in enumerate(held))
    w = world(nodes_line(nodes), f"p1 blue {request_word(want)} gang={size}", running, "red quota=0; blue quota=99")
    evicted = settle(w)
    least = gang_cost(nodes, held, want, size)
    assert ("p1@" in w.places()) == (least is not None)
    assert (least or 0) <= evicted <= (0 if least is None else least + 1)  # one of higher or two of lower priority
