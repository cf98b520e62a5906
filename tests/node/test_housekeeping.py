"""What the agent does by itself: notices activity, lets old logs go."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

from node_harness import spec

from gpupool.domain.supervision import ExitReason, ExitReport, ProcessPhase, ProcessStatus
from gpupool.node.ending import Ending, gentle_signals
from gpupool.node.entry import Entry, first_status
from gpupool.node.epochs import Epochs
from gpupool.node.housekeeping import prune
from gpupool.node.paths import ReplicaFolder
from gpupool.node.record import Order, ShepherdRecord, read_exit, reserve_exit, write_exit


def entry(tmp_path: Path) -> Entry:
    order = Order(spec("true"), {}, ("a note",), "boot", tmp_path)
    return Entry(ReplicaFolder(tmp_path / order.spec.key), order, first_status(order, "/sock"))


def test_activity_is_more_than_a_hundredth_of_a_processor(tmp_path: Path) -> None:
    one = entry(tmp_path)
    assert not one.sample(10.0, at=100.0)  # the first reading says nothing yet
    assert not one.sample(10.04, at=105.0)
    assert one.sample(10.11, at=110.0)
    assert not one.sample(10.11, at=115.0)
    assert not one.sample(11.0, at=115.0)


def test_a_status_grows_with_what_the_shepherd_says(tmp_path: Path) -> None:
    one = entry(tmp_path)
    record = ShepherdRecord(5, 6, "boot")
    assert not one.learn(record)
    assert one.status.phase is ProcessPhase.STARTING
    assert one.learn(ShepherdRecord(5, 6, "boot", 7, 8, 1000.0, ("b note",)))
    assert one.status == ProcessStatus(
        one.order.spec.key,
        one.order.spec.epoch,
        ProcessPhase.RUNNING,
        pid=7,
        started_at=1000.0,
        last_active_at=1000.0,
        attach_path="/sock",
        notes=("a note", "b note"),
    )


def test_orders_and_ends_come_back_as_they_were_written(tmp_path: Path) -> None:
    folder = ReplicaFolder(tmp_path)
    order = Order(spec("true", env={"A": "\udcff"}), {"B": "c"}, ("n",), "boot", tmp_path)
    order.write(folder)
    assert Order.read(folder) == order
    report = ExitReport(ExitReason.STOPPED, None, 9, "why" * 1000, 12.5, 1.5, 64)
    assert read_exit(folder) is None
    write_exit(folder, report)
    read = read_exit(folder)
    assert read is not None
    assert (read.reason, read.signal, read.message) == (ExitReason.STOPPED, 9, report.message[:300])
    assert folder.exit.stat().st_size == 4096  # the room that was reserved, no more


def test_an_end_can_be_written_without_new_room(tmp_path: Path) -> None:
    folder = ReplicaFolder(tmp_path)
    reserve_exit(folder)
    before = folder.reserve.stat()
    write_exit(folder, ExitReport(ExitReason.EXITED, 0, None, "é" * 5000, 1.0))
    after = folder.exit.stat()
    assert (after.st_ino, after.st_blocks) == (before.st_ino, before.st_blocks)


def make_ended(folder: Path, name: str, age_s: float, size: int) -> None:
    (folder / name / "log").mkdir(parents=True)
    (folder / name / "log" / "000001.log").write_bytes(b"x" * size)
    when = time.time() - age_s
    os.utime(folder / name, (when, when))


def test_old_logs_go_by_age_then_by_size(tmp_path: Path) -> None:
    for number in range(6):
        make_ended(tmp_path, str(number), age_s=number * 100.0, size=1000)
    assert prune(tmp_path, keep_age_s=450.0, keep_bytes=3500) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_epochs_are_kept_and_pruned(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    epochs.keep("w0123456789.0.3", 17)
    (tmp_path / "stray").touch()
    later = Epochs(tmp_path)
    later.load()
    later.check_new("w0123456789.0.4", 17)
    later.check_new("w0123456789.1.1", 1)
    later.prune(-10.0)
    assert list(tmp_path.iterdir()) == []


def test_an_ending_kills_when_due_and_again_and_again() -> None:
    ending = Ending(ExitReason.STOPPED, kill_at=10.0)
    assert not ending.due(9.9)
    ending.hasten(50.0)
    ending.hasten(5.0)
    kills = [now / 100 for now in range(3000) if ending.due(now / 100)]
    assert kills[0] == 5.0
    gaps = [b - a for a, b in itertools.pairwise(kills)]
    assert all(gap <= 1.02 for gap in gaps)
    assert gaps == sorted(gaps)


def test_a_terminal_hangs_up_first() -> None:
    assert [s.name for s in gentle_signals(tty=True)] == ["SIGHUP", "SIGTERM", "SIGCONT"]  # type: ignore[attr-defined]
    assert [s.name for s in gentle_signals(tty=False)] == ["SIGTERM", "SIGCONT"]  # type: ignore[attr-defined]
