"""Background work of the agent: activity, and deletion of old logs."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

from node_harness import spec

from gpupool.domain.work.program.supervision import ExitReason, ExitReport, ProcessPhase, ProcessStatus
from gpupool.node.agent.attempt import AttemptEntry, Epochs, first_status
from gpupool.node.agent_main import prune
from gpupool.node.host.paths import ReplicaFolder
from gpupool.node.host.records import ShepherdRecord, StartRequest, read_exit, reserve_exit, write_exit
from gpupool.node.shepherd.termination import Termination, gentle_signals


def entry(tmp_path: Path) -> AttemptEntry:
    order = StartRequest(spec("true"), {}, ("a note",), "boot", tmp_path)
    return AttemptEntry(ReplicaFolder(tmp_path / order.spec.key), order, first_status(order, "/sock"))


def test_activity_is_more_than_one_percent_of_a_cpu(tmp_path: Path) -> None:
    one = entry(tmp_path)
    assert not one.sample(10.0, at=100.0)  # the first reading has no difference yet
    assert not one.sample(10.04, at=105.0)
    assert one.sample(10.11, at=110.0)
    assert not one.sample(10.11, at=115.0)
    assert not one.sample(11.0, at=115.0)


def test_status_follows_reports_of_the_shepherd(tmp_path: Path) -> None:
    one = entry(tmp_path)
    record = ShepherdRecord(5, 6, "boot")
    assert not one.update(record)
    assert one.status.phase is ProcessPhase.STARTING
    assert one.update(ShepherdRecord(5, 6, "boot", 7, 8, 1000.0, ("b note",)))
    assert one.status == ProcessStatus(
        one.request.spec.key,
        one.request.spec.epoch,
        ProcessPhase.RUNNING,
        pid=7,
        started_at=1000.0,
        last_active_at=1000.0,
        attach_path="/sock",
        notes=("a note", "b note"),
    )


def test_orders_and_ends_are_read_back_unchanged(tmp_path: Path) -> None:
    folder = ReplicaFolder(tmp_path)
    order = StartRequest(spec("true", env={"A": "\udcff"}), {"B": "c"}, ("n",), "boot", tmp_path)
    order.write(folder)
    assert StartRequest.read(folder) == order
    report = ExitReport(ExitReason.STOPPED, None, 9, "why" * 1000, 12.5, 1.5, 64)
    assert read_exit(folder) is None
    write_exit(folder, report)
    read = read_exit(folder)
    assert read is not None
    assert (read.reason, read.signal, read.message) == (ExitReason.STOPPED, 9, report.message[:300])
    assert folder.exit.stat().st_size == 4096  # the reserved space, and no more


def test_end_is_written_into_reserved_space(tmp_path: Path) -> None:
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


def test_old_logs_are_deleted_by_age_then_by_size(tmp_path: Path) -> None:
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


def test_ending_kills_at_its_deadline_and_repeats() -> None:
    ending = Termination(ExitReason.STOPPED, kill_at=10.0)
    assert not ending.must_kill(9.9)
    ending.shorten_to(50.0)
    ending.shorten_to(5.0)
    kills = [now / 100 for now in range(3000) if ending.must_kill(now / 100)]
    assert kills[0] == 5.0
    gaps = [b - a for a, b in itertools.pairwise(kills)]
    assert all(gap <= 1.02 for gap in gaps)
    assert gaps == sorted(gaps)


def test_terminal_program_gets_hangup_first() -> None:
    assert [s.name for s in gentle_signals(tty=True)] == ["SIGHUP", "SIGTERM", "SIGCONT"]  # type: ignore[attr-defined]
    assert [s.name for s in gentle_signals(tty=False)] == ["SIGTERM", "SIGCONT"]  # type: ignore[attr-defined]
