"""What all tests need: signals as a program expects them, and the machine for itself where a test measures it."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The same cases in each run: what passes here passes there. `pytest --hypothesis-profile=search` draws new ones.
settings.register_profile("same", derandomize=True, database=None)
settings.register_profile("search", derandomize=False)
settings.load_profile("same")

# A shell starts what it puts into the background with these ignored, and so would everything be that tests start.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)

_LOCKS = "alone_locks"
_FOLDER = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """In the process that hands tests to others: one folder for the locks of all of them."""
    if _FOLDER not in node.config.stash:
        folder = tempfile.TemporaryDirectory(prefix="gpupool-tests-")
        node.config.add_cleanup(folder.cleanup)
        node.config.stash[_FOLDER] = folder.name
    node.workerinput[_LOCKS] = node.config.stash[_FOLDER]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """No other test of this run is under way during one that is marked ``alone``; waiting is not in its time."""
    worker: dict[str, Any] = getattr(item.config, "workerinput", {})
    if _LOCKS not in worker:
        return (yield)
    with _turn(Path(worker[_LOCKS]), alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextlib.contextmanager
def _turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Share the machine, or have it: who waits for the others to end keeps new ones at the door."""
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
