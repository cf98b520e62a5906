"""A selection of faults between real machines: attempts never overlap, nothing is leased twice or lost.

`python benchmarks/cluster/fault_matrix.py` runs all faults.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fault_cases import CASES, play
from spaces import Spaces, can_make_spaces, spaces

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(400),  # it only bounds a failing test, and machines may be busy
    pytest.mark.skipif(not can_make_spaces(), reason="needs root and network namespaces"),
]


@pytest.fixture(scope="module")
def machines() -> Iterator[Spaces]:
    with spaces() as made:
        yield made


@pytest.mark.parametrize("name", ["cable of the leader", "kill -9 of the leader's pool"])
def test_work_runs_once_and_continues_after_faults(machines: Spaces, name: str) -> None:
    found = play(machines, CASES[name], list(CASES).index(name))
    assert found.ok, (found, machines.logs())
