"""Notices before a stop: a file, and a chosen signal if the program handles it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from node_harness import AS_ROOT, Node, eventually, spec

from gpupool.domain.protocol import frames
from gpupool.node.agent.server import _is_note
from gpupool.node.host.paths import RunFolder
from gpupool.node.shepherd.termination import Termination, ask_at

NOTICE = {"reason": "PREEMPTED", "message": "blue reclaims its share."}
CATCHER = (
    "import json, os, signal, sys, time\n"
    "def told(signum, frame):\n"
    "    notice = json.load(open(os.environ['GPUPOOL_NOTICE_FILE']))\n"
    "    print(signum, notice['reason'], notice['message'], notice['deadline'] > time.time(), flush=True)\n"
    "    sys.exit(0)\n"
    "signal.signal(signal.SIGUSR1, told)\n"
    "print('ready', flush=True)\n"
    "time.sleep(60)\n"
)


def python(text: str, **changes: Any) -> Any:
    import sys

    return spec(sys.executable, "-c", text, **changes)


def ready(node: Node, key: str) -> None:
    eventually(lambda: b"ready" in node.log(key), "the program to be ready")


def test_notice_is_written_before_the_signal(node: Node) -> None:
    wanted = python(CATCHER, notice_signal="USR1", grace_s=30.0)
    node.start(wanted)
    ready(node, wanted.key)
    node.ask("stop", key=wanted.key, grace_s=30.0, notice=NOTICE)
    report = node.ended(wanted.key)
    assert (report.exit_code, report.reason) == (0, "stopped")
    assert b"10 PREEMPTED blue reclaims its share. True" in node.log(wanted.key)
    assert not RunFolder(node.run).notice(wanted.key).exists()


def test_wrapper_without_handler_runs_until_sigterm(node: Node) -> None:
    """The shell has no handler for USR1, which would kill it; its child saves, and the shell continues."""
    import sys

    line = f'{sys.executable} -c "$PROGRAM"; echo after $?'
    wanted = spec(
        "sh", "-c", line, notice_signal="USR1", grace_s=30.0, env={"PROGRAM": CATCHER, "PATH": "/usr/bin:/bin"}
    )
    node.start(wanted)
    ready(node, wanted.key)
    node.ask("stop", key=wanted.key, grace_s=30.0, notice=NOTICE)
    assert node.ended(wanted.key).exit_code == 0
    assert b"after 0" in node.log(wanted.key)


def test_sigterm_precedes_kill_and_user_stop_is_immediate(node: Node) -> None:
    polite = (
        "import signal,sys,time; signal.signal(15, lambda *_: sys.exit(7)); print('ready', flush=True); time.sleep(60)"
    )
    late, soon = (python(polite, notice_signal="USR1", grace_s=30.0) for _ in range(2))
    for one in (late, soon):
        node.start(one)
        ready(node, one.key)
    node.ask("stop", key=late.key, grace_s=2.0, notice=NOTICE)
    node.ask("stop", key=soon.key, grace_s=60.0, notice=NOTICE)
    assert node.ended(late.key).exit_code == 7
    assert soon.key in {status["key"] for status in node.ask("list") if status["phase"] == "running"}
    node.ask("stop", key=soon.key, grace_s=60.0)
    assert node.ended(soon.key).exit_code == 7


@pytest.mark.parametrize(("reason", "in_file"), [("IDLE_WARNING", True), ("TIME_WARNING", False)])
def test_warning_is_shown_to_attached_clients(node: Node, reason: str, in_file: bool) -> None:
    wanted = spec("echo here; exec sleep 60", stdio="pipes", client_bound=True)
    client = node.start_attached(wanted)
    client.until(lambda: b"here" in client.out)
    node.ask("notify", key=wanted.key, notice={"reason": reason, "message": "it ends soon", "deadline": 5.0})
    client.until(lambda: "warning: it ends soon [" + reason + "]" in client.notes)
    assert RunFolder(node.run).notice(wanted.key).exists() is in_file
    node.ask("stop", key=wanted.key, grace_s=0.0)
    client.finish()


def test_shown_warning_is_no_activity() -> None:
    note = frames.encode(frames.NOTE, b"warning")
    assert _is_note(note)
    assert not any(map(_is_note, (note + b"x", note[:-1], note[:3], b"", frames.encode(frames.STDOUT, b"warning"))))


def test_notice_can_be_withdrawn(node: Node) -> None:
    wanted = spec("sleep 60")
    node.start(wanted)
    pid = node.running(wanted.key).pid
    path = RunFolder(node.run).notice(wanted.key)
    node.ask("notify", key=wanted.key, notice={"reason": "IDLE_WARNING", "message": "idle", "deadline": 5.0})
    assert json.loads(path.read_text()) | {"at": 0} == {
        "reason": "IDLE_WARNING",
        "message": "idle",
        "deadline": 5.0,
        "at": 0,
    }
    env = Path(f"/proc/{pid}/environ").read_bytes()
    assert f"GPUPOOL_NOTICE_FILE={path}".encode() in env
    node.ask("notify", key=wanted.key, notice=None)
    assert not path.exists()
    node.ask("notify", key="w00000000000.0.1", notice=NOTICE)
    node.ask("stop", key=wanted.key, grace_s=0.0)
    node.ended(wanted.key)


@pytest.mark.skipif(not AS_ROOT, reason="only root runs programs as others")
def test_notice_is_readable_by_its_owner_only(node: Node) -> None:
    wanted = spec("sleep 60", uid=65534)
    node.start(wanted)
    node.running(wanted.key)
    node.ask("notify", key=wanted.key, notice=NOTICE)
    found = RunFolder(node.run).notice(wanted.key).stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (65534, 0o600)
    node.ask("stop", key=wanted.key, grace_s=0.0)
    node.ended(wanted.key)


def test_sigterm_time_after_a_notice() -> None:
    assert ask_at(100.0, 120.0) == 215.0
    assert ask_at(100.0, 4.0) == 103.0
    ending = Termination("stopped", 110.0, ask_at=105.0)  # type: ignore[arg-type]
    assert ending.next_at() == 105.0
    assert not ending.must_ask(104.0)
    assert ending.must_ask(105.0)
    assert not ending.must_ask(106.0)
    assert ending.next_at() == 110.0
