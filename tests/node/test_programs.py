"""Programs under a shepherd: streams, exit, time limits, remaining processes."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

import pytest
from node_harness import PATIENCE_S, PIPES, TTY, Node, RefusedError, eventually, new_key, spec

from gpupool.domain.protocol import frames
from gpupool.domain.work.program.supervision import ExitReason, ProcessPhase
from gpupool.node.host import process_tree

TERM_DEAF = "trap '' TERM; echo ready; while :; do sleep 0.2; done"


def test_output_of_both_streams_is_logged(node: Node) -> None:
    wanted = spec("printf 'a\\0b'; printf err >&2; exit 3")
    report = node.run_to_end(wanted)
    assert (report.reason, report.exit_code, report.status) == (ExitReason.EXITED, 3, 3)
    assert node.log(wanted.key, "out") == b"a\0b"
    assert node.log(wanted.key, "err") == b"err"


def test_signal_is_reported_as_exit(node: Node) -> None:
    report = node.run_to_end(spec("kill -9 $$"))
    assert (report.exit_code, report.signal, report.status) == (None, 9, 137)


def test_used_time_and_memory_are_reported(node: Node) -> None:
    report = node.run_to_end(spec(sys.executable, "-c", "x = bytearray(60 << 20); sum(range(4_000_000))"))
    assert report.max_rss_mib >= 60
    assert report.cpu_seconds > 0.02


def test_batch_input_is_empty(node: Node) -> None:
    wanted = spec("cat; echo end")
    node.run_to_end(wanted)
    assert node.log(wanted.key) == b"end\n"


def test_environment_is_exactly_the_given_one(node: Node) -> None:
    wanted = spec("env", env={"PATH": "/usr/bin:/bin", "A": "b c\n", "LANG_\udcff": "\udcfe"})
    node.run_to_end(wanted)
    lines = node.log(wanted.key)
    names = {line.split(b"=")[0] for line in lines.split(b"\n") if b"=" in line}
    ours = {b"GPUPOOL_REPLICA_KEY", b"GPUPOOL_WORKLOAD_ID", b"GPUPOOL_REPLICA_INDEX", b"GPUPOOL_GPUS"}
    added = {b"CUDA_VISIBLE_DEVICES", b"NVIDIA_VISIBLE_DEVICES", b"CUDA_DEVICE_ORDER"}
    assert {b"PATH", b"A", b"LANG_\xff"} <= names
    assert names - {b"PATH", b"A", b"LANG_\xff"} - added >= ours
    assert not {n for n in names if n in {b"HOME", b"PWD", b"USER", b"VIRTUAL_ENV"}}
    assert b"LANG_\xff=\xfe\n" in lines


def test_only_the_standard_streams_are_inherited(node: Node) -> None:
    code = "import os; print(sorted(os.listdir('/proc/self/fd'), key=int), os.getsid(0) == os.getpid())"
    wanted = spec(sys.executable, "-c", code)
    node.run_to_end(wanted)
    assert node.log(wanted.key) == b"['0', '1', '2', '3'] True\n"  # 3: the listing itself
    wanted = spec(sys.executable, "-c", "import signal as s; print(s.getsignal(s.SIGTERM), s.pthread_sigmask(0, ()))")
    node.run_to_end(wanted)
    assert node.log(wanted.key) == b"0 set()\n"


def test_program_has_given_folder_and_umask(node: Node, tmp_path: Path) -> None:
    wanted = spec("pwd; umask", cwd=str(tmp_path), umask=0o077)
    node.run_to_end(wanted)
    assert node.log(wanted.key) == f"{tmp_path}\n0077\n".encode()


@pytest.mark.parametrize(
    ("argv", "changes", "code", "message"),
    [
        (("no-such-program-here",), {}, 127, "No such program: no-such-program-here"),
        (("./nothing",), {}, 127, "No such program: ./nothing"),
        (("/etc/passwd",), {}, 126, "Permission denied: /etc/passwd"),
        (("true",), {"cwd": "/gone/away"}, 127, "Working directory is gone: /gone/away"),
        (("true",), {"cwd": "/etc/passwd"}, 126, "Cannot enter working directory /etc/passwd: Not a directory"),
        (("true", "y" * 200_000), {}, 126, "Argument list too long"),
    ],
)
def test_failed_start_reports_its_reason(
    node: Node, argv: tuple[str, ...], changes: dict[str, str], code: int, message: str
) -> None:
    report = node.run_to_end(spec(*argv, **changes))
    assert (report.reason, report.exit_code) == (ExitReason.START_FAILED, code)
    assert message in report.message


def test_path_of_program_environment_is_used(node: Node, tmp_path: Path) -> None:
    script = tmp_path / "hello"
    script.write_text("echo hello from $0\n")  # no #! line: a shell runs it, as execvp would
    script.chmod(0o755)
    wanted = spec("hello", cwd=str(tmp_path), env={"PATH": f"relative:{tmp_path}:/usr/bin:/bin"})
    assert node.run_to_end(wanted).exit_code == 0
    assert node.log(wanted.key) == f"hello from {script}\n".encode()
    assert node.run_to_end(spec("hello", cwd=str(tmp_path), env={"PATH": ":/bin"})).exit_code == 0


def test_all_bytes_are_transferred_in_both_directions(node: Node) -> None:
    """Transfer ten MiB through `cat`, both ways at once; the log has them, too."""
    wanted = spec("cat", stdio=PIPES, client_bound=True)
    client = node.start_attached(wanted)
    data = os.urandom(10 << 20)
    outgoing = bytearray()
    for at in range(0, len(data), 1 << 18):
        outgoing += frames.encode(frames.STDIN, data[at : at + (1 << 18)])
    outgoing += frames.encode(frames.STDIN_EOF)
    while client.exit is None:
        readable, writable, _ = select.select([client.sock], [client.sock] if outgoing else [], [], PATIENCE_S)
        assert readable or writable, "stalled"
        if writable:
            del outgoing[: client.sock.send(outgoing[: 1 << 16], socket.MSG_DONTWAIT)]
        if readable:
            client.pump()
    assert client.exit["exit_code"] == 0
    assert hashlib.sha256(client.out).digest() == hashlib.sha256(data).digest()
    assert node.ended(wanted.key).exit_code == 0
    assert hashlib.sha256(node.log(wanted.key)).digest() == hashlib.sha256(data).digest()


def test_streams_are_separate_over_pipes(node: Node) -> None:
    client = node.start_attached(spec("echo out; echo err >&2; exit 7", stdio=PIPES, client_bound=True))
    assert client.finish()["status"] == 7
    assert (bytes(client.out), bytes(client.err)) == (b"out\n", b"err\n")


def test_input_after_program_closed_it_is_dropped(node: Node) -> None:
    client = node.start_attached(spec("exec <&-; sleep 0.3; echo done", stdio=PIPES, client_bound=True))
    client.until(lambda: client.pid)
    for _ in range(20):
        client.send(frames.STDIN, b"x" * 10_000)
    assert client.finish()["exit_code"] == 0
    assert client.out == b"done\n"


def test_slow_client_blocks_its_program_and_loses_nothing(node: Node) -> None:
    wanted = spec("head -c 20000000 /dev/zero; echo end >&2", stdio=PIPES, client_bound=True)
    client = node.start_attached(wanted)
    client.until(lambda: client.out)
    status = node.running(wanted.key)
    eventually(lambda: _asleep_writing(node, wanted.key), "the writer waits")
    assert status.exit is None
    assert client.finish()["exit_code"] == 0
    assert len(client.out) == 20_000_000
    assert client.err == b"end\n"


def _asleep_writing(node: Node, key: str) -> bool:
    waits = [Path(f"/proc/{pid}/wchan").read_text() for pid in node.living(key)]
    return any("pipe_write" in wait for wait in waits) or not any(waits)


def test_slow_viewer_is_disconnected_and_program_continues(node: Node) -> None:
    """Only the bound client blocks a program; a viewer does not."""
    wanted = spec("read go; head -c 30000000 /dev/zero; echo end >&2", stdio=PIPES, client_bound=True)
    bound = node.start_attached(wanted)
    bound.until(lambda: bound.pid)
    idle = node.attach(wanted.key)
    idle.until(lambda: idle.pid)
    bound.send(frames.STDIN, b"go\n")
    assert bound.finish()["exit_code"] == 0
    assert len(bound.out) == 30_000_000
    while idle.pump():
        pass
    assert idle.exit is None
    assert len(idle.out) < 30_000_000


def test_terminal_size_follows_the_client(node: Node) -> None:
    line = "trap 'stty size; exit 0' WINCH; stty size; while :; do sleep 0.05; done"
    client = node.start_attached(spec(line, stdio=TTY, client_bound=True), rows=31, columns=99)
    client.until(lambda: b"31 99" in client.out)
    client.send(frames.RESIZE, frames.pack_size(44, 120))
    assert client.finish()["exit_code"] == 0
    assert b"44 120" in client.out


def test_control_c_and_end_of_input_work_on_a_terminal(node: Node) -> None:
    client = node.start_attached(spec("echo ready; exec sleep 60", stdio=TTY, client_bound=True))
    client.until(lambda: b"ready" in client.out)
    client.send(frames.STDIN, b"\x03")
    assert client.finish()["status"] == 130
    client = node.start_attached(spec("cat", stdio=TTY, client_bound=True))
    client.send(frames.STDIN, b"line\n")
    client.send(frames.STDIN_EOF)
    assert client.finish()["exit_code"] == 0
    assert client.out == b"line\r\nline\r\n"


def test_program_that_closed_its_terminal_gets_no_hangup(node: Node, tmp_path: Path) -> None:
    line = f"exec 3>{tmp_path}/said <&- >&- 2>&-; sleep 0.5; echo still here >&3; echo again >/dev/tty; exit 4"
    client = node.start_attached(spec("sh", "-c", line, stdio=TTY, client_bound=True))
    assert client.finish()["exit_code"] == 4
    assert (tmp_path / "said").read_text() == "still here\n"
    assert client.out == b"again\r\n"


def test_terminal_output_is_complete_at_the_end(node: Node) -> None:
    client = node.start_attached(spec("stty -opost; seq 1 20000", stdio=TTY, client_bound=True))
    assert client.finish()["exit_code"] == 0
    assert client.out == b"".join(b"%d\n" % i for i in range(1, 20001))


def test_signals_reach_the_foreground_process(node: Node) -> None:
    line = "trap 'echo usr1; exit 9' USR1; echo ready; while :; do sleep 0.05; done"
    for stdio in (PIPES, TTY):
        wanted = spec(line, stdio=stdio, client_bound=True)
        client = node.start_attached(wanted)
        client.until(lambda client=client: b"ready" in client.out)
        if stdio is TTY:
            node.ask("signal", key=wanted.key, signum=int(signal.SIGUSR1))
        else:
            client.send(frames.SIGNAL, bytes([signal.SIGUSR1]))
        assert client.finish()["status"] == 9


def test_disconnected_client_ends_its_program(node: Node) -> None:
    wanted = spec("echo ready; sleep 60", stdio=PIPES, client_bound=True)
    client = node.start_attached(wanted)
    client.until(lambda: client.out)
    client.close()
    report = node.ended(wanted.key)
    assert (report.reason, report.signal) == (ExitReason.CLIENT_GONE, signal.SIGTERM)


def test_parents_are_signalled_before_their_children() -> None:
    """A shell whose child is signalled first could exit with a status instead of dying from the signal."""
    tree = {9: [50, 3], 50: [4, 700], 3: [8], 4: [2], 700: [1]}
    order = process_tree.descendants([9], tree)
    assert sorted(order) == [1, 2, 3, 4, 8, 50, 700]
    assert all(order.index(parent) < order.index(child) for parent in order for child in tree.get(parent, ()))


def test_program_continues_after_detach(node: Node) -> None:
    wanted = spec("echo ready; read line; echo got $line", stdio=TTY, client_bound=True)
    client = node.start_attached(wanted)
    client.until(lambda: b"ready" in client.out)
    client.send(frames.DETACH)
    while client.pump():
        pass
    again = node.attach(wanted.key, rows=10, columns=10)
    again.until(lambda: b"ready" in again.out)  # what it missed comes first
    again.send(frames.STDIN, b"hello\n")
    assert again.finish()["exit_code"] == 0
    assert b"got hello" in again.out


def test_viewers_connect_and_disconnect(node: Node) -> None:
    wanted = spec("read line; echo got $line", stdio=PIPES)
    node.start(wanted)
    node.running(wanted.key)
    first, second = node.attach(wanted.key), node.attach(wanted.key, stdin=False)
    first.until(lambda: first.pid)
    second.until(lambda: second.pid)
    second.send(frames.STDIN, b"not mine\n")
    first.close()
    third = node.attach(wanted.key)
    third.until(lambda: third.pid)
    third.send(frames.STDIN, b"hello\n")
    assert third.finish()["exit_code"] == 0
    assert second.finish()["exit_code"] == 0
    assert second.out == b"got hello\n"


@pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, frames.encode(frames.STDIN, b"x")])
def test_invalid_data_on_the_attach_socket_is_harmless(node: Node, nonsense: bytes) -> None:
    wanted = spec("read line; echo $line", stdio=PIPES)
    node.start(wanted)
    stranger = node.attach(wanted.key, say_hello=False)
    stranger.sock.sendall(nonsense)
    friend = node.attach(wanted.key)
    friend.send(frames.STDIN, b"fine\n")
    assert friend.finish()["exit_code"] == 0
    assert friend.out == b"fine\n"
    stranger.close()


def test_invalid_hello_is_refused(node: Node) -> None:
    wanted = spec("echo ran", stdio=PIPES, client_bound=True)
    bad = node.start_attached(wanted, say_hello=False)
    bad.send(frames.HELLO, b"[]")
    bad.send(frames.HELLO, json.dumps({"version": 99}).encode())
    good = node.attach(wanted.key)
    assert good.finish()["exit_code"] == 0
    assert good.out == b"ran\n"
    bad.close()


def test_daemons_end_with_their_program(node: Node) -> None:
    line = "(setsid sh -c 'trap \"\" TERM HUP; (sleep 1000 &) ; sleep 1000' >/dev/null 2>&1 &) ; sleep 0.3; exit 5"
    wanted = spec(line, grace_s=0.2)
    assert node.run_to_end(wanted).exit_code == 5


def test_daemon_that_holds_the_output_is_ended(node: Node) -> None:
    wanted = spec("(setsid sleep 1000 &) ; echo out", grace_s=0.2)
    assert node.run_to_end(wanted).exit_code == 0
    assert node.log(wanted.key) == b"out\n"


def test_stop_sends_sigterm_first(node: Node) -> None:
    wanted = spec("trap 'echo bye; exit 4' TERM; echo ready; while :; do sleep 0.05; done 2>/dev/null")
    node.start(wanted)
    eventually(lambda: node.log(wanted.key) == b"ready\n")
    node.ask("stop", key=wanted.key, grace_s=10)
    report = node.ended(wanted.key)
    assert (report.reason, report.exit_code) == (ExitReason.STOPPED, 4)
    assert node.log(wanted.key) == b"ready\nbye\n"


@pytest.mark.parametrize("stdio", [PIPES, TTY])
def test_stop_kills_program_that_ignores_sigterm(node: Node, stdio: object) -> None:
    wanted = spec(TERM_DEAF.replace("TERM;", "TERM HUP;"), stdio=stdio)
    node.start(wanted)
    eventually(lambda: b"ready" in node.log(wanted.key))
    node.ask("stop", key=wanted.key, grace_s=60)
    node.ask("stop", key=wanted.key, grace_s=0.1)  # a second, shorter one counts
    report = node.ended(wanted.key)
    assert (report.reason, report.signal) == (ExitReason.STOPPED, signal.SIGKILL)


def test_stop_wakes_a_stopped_program(node: Node) -> None:
    wanted = spec("echo ready; kill -STOP $$; echo never")
    node.start(wanted)
    eventually(lambda: node.log(wanted.key))
    node.ask("stop", key=wanted.key, grace_s=30)
    assert node.ended(wanted.key).signal == signal.SIGTERM


def test_stop_works_before_the_client_connects(node: Node) -> None:
    wanted = spec("echo never", stdio=PIPES, client_bound=True)
    node.start(wanted)
    node.ask("stop", key=wanted.key, grace_s=5)
    report = node.ended(wanted.key)
    assert (report.reason, report.exit_code, report.signal) == (ExitReason.STOPPED, None, None)
    assert node.log(wanted.key) == b""


def test_time_limit_ends_the_program(node: Node) -> None:
    report = node.run_to_end(spec(TERM_DEAF, max_time_s=0.3, grace_s=0.1))
    assert (report.reason, report.signal) == (ExitReason.TIME_LIMIT, signal.SIGKILL)


def test_stop_of_unknown_or_ended_program_is_ignored(node: Node) -> None:
    node.ask("stop", key=new_key(), grace_s=1)
    wanted = spec("true")
    node.run_to_end(wanted)
    node.ask("stop", key=wanted.key, grace_s=1)
    status = node.status(wanted.key)
    assert status is not None
    assert status.phase is ProcessPhase.EXITED
    with pytest.raises(RefusedError, match="not on this node"):
        node.ask("signal", key=new_key(), signum=15)


def test_early_signal_is_delivered_after_the_start(node: Node) -> None:
    for _ in range(5):
        client = node.start_attached(spec("exec sleep 60", stdio=PIPES, client_bound=True))
        client.send(frames.SIGNAL, bytes([signal.SIGUSR1]))
        assert client.finish()["signal"] == signal.SIGUSR1
        client.close()
