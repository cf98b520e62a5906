import os
import resource
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpupool.daemon.doctor import host
from gpupool.daemon.doctor.check import Check
from gpupool.daemon.doctor.host import (
    clock,
    clock_synchronised,
    control_groups,
    descriptors,
    hidden_processes,
    port,
    python,
    socket_path,
)
from gpupool.daemon.doctor.run import DoctorContext, Finding, Severity
from gpupool.daemon.folders import POOL_LOCK
from gpupool.node.host.locks import take as take_lock


def only(check: Check, context: DoctorContext) -> Finding:
    (found,) = check(context)
    return found


@pytest.mark.parametrize(
    ("synchronised", "level"), [(True, Severity.OK), (None, Severity.OK), (False, Severity.WARNING)]
)
def test_unsynchronised_clock_is_a_warning(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch, synchronised: bool | None, level: Severity
) -> None:
    monkeypatch.setattr(host, "clock_synchronised", lambda: synchronised)
    assert only(clock, context).level is level


@pytest.mark.parametrize("now", [0.0, 1e9, 5e9])
def test_impossible_year_is_a_problem(context: DoctorContext, monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    monkeypatch.setattr(time, "time", lambda: now)
    assert only(clock, context).level is Severity.PROBLEM


def test_future_files_reveal_a_clock_set_back(context: DoctorContext) -> None:
    file = context.state_dir / "pool.db"
    file.touch()
    os.utime(file, (time.time() + 7200, time.time() + 7200))
    found = only(clock, context)
    assert (found.level, "pool.db" in found.sentence) == (Severity.WARNING, True)


def test_clock_state_is_read_from_the_kernel() -> None:
    assert clock_synchronised() in {True, False, None}


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_used_port_is_a_problem_unless_the_pool_runs(context: DoctorContext, taken: str) -> None:
    listening = replace(context, listen=taken)
    assert only(port, listening).level is Severity.PROBLEM
    lock = take_lock(context.state_dir / POOL_LOCK)
    assert lock is not None
    assert only(port, listening).level is Severity.OK
    os.close(lock)
    assert only(port, listening).level is Severity.PROBLEM


def test_free_port_passes_and_missing_port_is_not_checked(context: DoctorContext, taken: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert only(port, replace(context, listen=f"127.0.0.1:{free}")).level is Severity.OK
    assert only(port, replace(context, listen=f":{free}")).level is Severity.OK
    assert list(port(context)) == []


@pytest.mark.parametrize("listen", ["", "host:", "host:0", "host:65536", "host:x", "203.0.113.9:8443"])
def test_unusable_listen_address_is_a_problem(context: DoctorContext, listen: str) -> None:
    found = only(port, replace(context, listen=listen))
    assert (found.level, bool(found.remedy)) == (Severity.PROBLEM, True)


def test_long_socket_names_need_proc(context: DoctorContext) -> None:
    assert only(socket_path, replace(context, run_dir=Path("/run/gpupool"))).level is Severity.OK
    long = replace(context, run_dir=Path("/run/" + "x" * 100))
    assert only(socket_path, long).level is Severity.PROBLEM
    (context.root / "proc/self/fd").mkdir(parents=True)
    assert only(socket_path, long).level is Severity.OK


def groups(context: DoctorContext, controllers: str) -> Path:
    own = context.root / "sys/fs/cgroup/user/me"
    own.mkdir(parents=True)
    for folder in (own.parent, own.parent.parent):
        (folder / "cgroup.controllers").write_text(controllers)
    (context.root / "proc/self").mkdir()
    (context.root / "proc/self/cgroup").write_text("0::/user/me\n")
    return own


@pytest.mark.parametrize("uid", [0, 1717])
@pytest.mark.parametrize(("controllers", "level"), [("cpu io memory pids", Severity.OK), ("pids", Severity.WARNING)])
def test_unified_control_groups_need_controllers(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch, uid: int, controllers: str, level: Severity
) -> None:
    groups(context, controllers)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    found = only(control_groups, context)
    assert (found.level, "version 2" in found.sentence) == (level, True)


def test_unwritable_control_groups_are_reported(context: DoctorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    groups(context, "cpu memory")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = only(control_groups, context)
    assert (found.level, "cpu and memory" in found.sentence) == (Severity.WARNING, True)


def test_control_groups_of_version_one_are_supported(context: DoctorContext) -> None:
    assert only(control_groups, context).sentence == "There are no control groups."
    for name in ("cpu", "memory", "pids"):
        (context.root / "sys/fs/cgroup" / name).mkdir(parents=True)
    found = only(control_groups, context)
    assert (found.level, "version 1" in found.sentence) == (Severity.OK, True)


@pytest.mark.parametrize(
    ("hard", "level"),
    [(resource.RLIM_INFINITY, Severity.OK), (65536, Severity.OK), (1024, Severity.WARNING), (256, Severity.PROBLEM)],
)
def test_low_descriptor_limit_is_reported(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch, hard: int, level: Severity
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (256, hard))
    assert only(descriptors, context).level is level


@pytest.mark.parametrize(
    ("uid", "options", "level"),
    [
        (1717, "rw", Severity.OK),
        (1717, "rw,hidepid=0", Severity.OK),
        (1717, "rw,hidepid=2", Severity.WARNING),
        (1717, "rw,gid=5,hidepid=invisible", Severity.WARNING),
        (0, "rw,hidepid=2", Severity.OK),
    ],
)
def test_hidden_processes_are_reported_to_affected_users(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch, uid: int, options: str, level: Severity
) -> None:
    (context.root / "proc/self").mkdir()
    (context.root / "proc/self/mountinfo").write_text(f"22 27 0:21 / /proc rw,relatime - proc proc {options}\n")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert only(hidden_processes, context).level is level


def test_old_versions_are_a_problem(context: DoctorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(python, context).level is Severity.OK
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 0))
    assert only(python, context).level is Severity.PROBLEM
    monkeypatch.undo()
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    assert only(python, context).level is Severity.PROBLEM
