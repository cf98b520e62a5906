from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent.parent / room) for room in ("node", "e2e", "machines")]

from apart import machines_apart  # noqa: E402 - what it imports is found by the line above
from machines_harness import Machines  # noqa: E402 - from the path that was added above


@pytest.fixture(scope="session")
def four() -> Iterator[Machines]:
    """Four nodes with a GPU each."""
    with machines_apart(4, "1xT4") as made:
        yield made


@pytest.fixture
def pool(four: Machines) -> Iterator[Machines]:
    """Four free nodes; what a test leaves running is stopped."""
    yield four
    four.heal()
    four.clear()


@pytest.fixture
def needs() -> Callable[[str], None]:
    """Skip where a module or program is missing; in CI it must not be."""

    def check(name: str) -> None:
        there = shutil.which(name) is not None or find_spec(name) is not None
        if not there and os.environ.get("CI_REQUIRES_ALL") == "1":
            pytest.fail(f"{name} is not installed")
        if not there:
            pytest.skip(f"{name} is not installed")

    return check
