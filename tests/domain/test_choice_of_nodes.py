"""Choice of whole nodes for a reservation: the least work in the way, compared with a search of all choices."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.nodes.reservation import Candidate, Reservation, choose_nodes

CANDIDATES = st.lists(
    st.builds(Candidate, st.just(""), st.integers(0, 4), st.integers(0, 2), st.integers(0, 3)), max_size=7
).map(lambda many: [Candidate(f"n{i}", c.gpus, c.protected, c.preemptible) for i, c in enumerate(many)])


def cost(chosen: list[Candidate]) -> tuple[int, int, int, int]:
    return (
        sum(c.protected for c in chosen),
        sum(c.preemptible for c in chosen),
        sum(c.gpus for c in chosen),
        len(chosen),
    )


@given(CANDIDATES, st.integers(1, 10))
def test_choice_of_nodes_is_optimal(candidates: list[Candidate], gpus: int) -> None:
    ways = [list(c) for size in range(len(candidates) + 1) for c in combinations(candidates, size)]
    enough = [way for way in ways if sum(c.gpus for c in way) >= gpus]
    found = choose_nodes(candidates, gpus)
    if not enough:
        assert found is None
        return
    assert found is not None
    assert sum(c.gpus for c in found) >= gpus
    assert len({c.node for c in found}) == len(found)
    assert cost(found)[:2] == min(map(cost, enough))[:2]


def test_large_choice_is_approximate_and_sufficient() -> None:
    candidates = [Candidate(f"n{i}", 8, 0, i % 3) for i in range(2000)]
    found = choose_nodes(candidates, 4000)
    assert found is not None
    assert sum(c.gpus for c in found) == 4000
    assert max(c.preemptible for c in found) == 0


def test_overlaps_need_common_nodes_and_times() -> None:
    one = Reservation("b1", "", ("a", "b"), 0, 10, ("x",))
    assert one.overlaps(Reservation("b2", "", ("b",), 9, 20))
    assert not one.overlaps(Reservation("b2", "", ("b",), 10, 20))
    assert not one.overlaps(Reservation("b2", "", ("c",), 0, 10))
    assert Reservation("b3", "", ("a",), 0, 1).maintenance
    assert not one.maintenance
