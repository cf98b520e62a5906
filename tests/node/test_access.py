"""Several users on one node: programs run as their user and cannot be reached by others."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from pathlib import Path

import pytest
from node_harness import AS_ROOT, PIPES, TTY, Node, RefusedError, eventually, spec

from gpupool.domain.errors import GpupoolError
from gpupool.domain.work.program.supervision import ExitReason
from gpupool.node.agent.attempt import check_spec
from gpupool.node.host import cgroups, process_tree

pytestmark = [pytest.mark.root, pytest.mark.skipif(not AS_ROOT, reason="changing users needs root")]

STRANGER = 54321  # not in a user database
NOBODY = pwd.getpwnam("nobody").pw_uid

ATTACH = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(20)
sock.connect(sys.argv[1])
hello = b'{"version": 1}'
sock.sendall(b"\\x06" + len(hello).to_bytes(4, "big") + hello + b"\\x01\\0\\0\\0\\x05hello\\x02\\0\\0\\0\\0")
while data := sock.recv(10000):
    sys.stdout.buffer.write(data)
"""


def as_user(uid: int, *command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command, user=uid, group=uid, extra_groups=(), capture_output=True, timeout=60, check=False, cwd="/"
    )


def attach_as(uid: int, path: str) -> subprocess.CompletedProcess[bytes]:
    return as_user(uid, "/usr/bin/env", "python3", "-I", "-c", ATTACH, path)


@pytest.fixture(autouse=True)
def python_for_all() -> None:
    if as_user(NOBODY, "/usr/bin/env", "python3", "-I", "-c", "pass").returncode != 0:
        pytest.skip("no Python that other users may run")


@pytest.mark.parametrize("uid", [STRANGER, NOBODY])
@pytest.mark.parametrize("stdio", [PIPES, TTY])
def test_program_runs_as_its_user(node: Node, uid: int, stdio: object) -> None:
    gid = pwd.getpwuid(uid).pw_gid if uid == NOBODY else uid
    line = "id -u; id -g; id -G; grep -E '^(CapEff|CapPrm):' /proc/self/status; touch /etc/x 2>&1 | wc -l"
    wanted = spec(line, uid=uid, stdio=stdio)
    assert node.run_to_end(wanted).exit_code == 0
    lines = node.log(wanted.key).replace(b"\r", b"").splitlines()
    assert lines[:3] == [b"%d" % uid, b"%d" % gid, b"%d" % gid]
    assert {line.split()[1].strip(b"0") for line in lines[3:5]} == {b""}
    assert lines[5] == b"1"


def test_given_group_is_used(node: Node) -> None:
    wanted = spec("id -g", uid=STRANGER, gid=12345)
    node.run_to_end(wanted)
    assert node.log(wanted.key) == b"12345\n"


def test_inaccessible_folder_is_reported(node: Node, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    report = node.run_to_end(spec("true", uid=STRANGER, cwd=str(tmp_path)))
    assert (report.reason, report.exit_code) == (ExitReason.START_FAILED, 126)
    assert "Permission denied" in report.message


def test_only_the_user_may_attach(node: Node) -> None:
    wanted = spec("cat; echo done >&2", uid=STRANGER, stdio=PIPES, client_bound=True)
    path = node.start(wanted).attach_path
    assert b"PermissionError" in attach_as(NOBODY, path).stderr
    own = attach_as(STRANGER, path)
    assert own.returncode == 0, own.stderr
    assert b"hello" in own.stdout
    assert node.ended(wanted.key).exit_code == 0


def test_attach_checks_peer_credentials_despite_open_permissions(node: Node) -> None:
    wanted = spec("cat", uid=STRANGER, stdio=PIPES)
    path = Path(node.start(wanted).attach_path)
    node.running(wanted.key)
    path.chmod(0o666)
    other = attach_as(NOBODY, str(path))
    assert b"hello" not in other.stdout
    assert b"denied" in other.stdout or b"BrokenPipe" in other.stderr or b"ConnectionReset" in other.stderr
    agent = attach_as(NOBODY, str(node.run / "agent.sock"))
    assert b"PermissionError" in agent.stderr


def test_logs_and_sockets_of_others_are_inaccessible(node: Node) -> None:
    wanted = spec("echo secret; sleep 100", uid=NOBODY)
    node.start(wanted)
    eventually(lambda: node.log(wanted.key))
    folder = node.state.replica(wanted.key)
    assert as_user(STRANGER, "cat", str(folder.log / "000001.log")).returncode != 0
    assert as_user(NOBODY, "cat", str(folder.log / "000001.log")).returncode != 0
    assert as_user(STRANGER, "ls", str(node.run / "attach")).returncode != 0
    status = node.status(wanted.key)
    assert status is not None
    assert as_user(STRANGER, "kill", str(status.pid)).returncode != 0
    assert as_user(NOBODY, "kill", str(node.shepherd(wanted.key))).returncode != 0
    assert as_user(STRANGER, "cat", f"/proc/{status.pid}/environ").returncode != 0


def test_program_of_user_ends_with_its_lost_shepherd(node: Node) -> None:
    """Includes processes with a cleared environment in their own session, if control groups can hold them."""
    wanted = spec("(setsid env -i sleep 1000 &) ; echo ready; sleep 1000", uid=STRANGER)
    node.start(wanted)
    node.running(wanted.key)
    shepherd = node.shepherd(wanted.key)

    def tree() -> set[int]:
        return set(process_tree.descendants([shepherd], process_tree.children_of(process_tree.scan())))

    eventually(lambda: len(tree()) == 3)
    members = tree()
    os.kill(shepherd, signal.SIGKILL)
    assert node.ended(wanted.key).reason is ExitReason.SHEPHERD_LOST
    if cgroups.make("probe", None, None).own is not None:
        assert process_tree.alive(members, process_tree.scan()) == set()


def test_agent_without_root_runs_programs_as_its_user_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users are refused with a message before the exec."""
    monkeypatch.setattr("os.geteuid", lambda: STRANGER)
    check_spec(spec("true", uid=STRANGER), has_command=False)
    with pytest.raises(GpupoolError, match="runs programs as user 54321 only") as caught:
        check_spec(spec("true", uid=NOBODY), has_command=False)
    assert caught.value.code == "FORBIDDEN"


def test_unknown_keys_are_refused(node: Node) -> None:
    with pytest.raises(RefusedError) as caught:
        node.ask("attach", key="w0123456789.0.1")
    assert caught.value.code == "NOT_FOUND"
