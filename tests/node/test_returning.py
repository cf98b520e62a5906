"""Reconnection of clients: the program has waited, and no data is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_harness import Node, eventually, spec

from gpupool.domain.protocol import frames
from gpupool.domain.protocol.log_records import ERR, OUT
from gpupool.domain.work.program.supervision import ExitReason, ProcessSpec, Stdio
from gpupool.node.shepherd import attach_resume, output_log
from gpupool.node.shepherd.attach_resume import missed_output

LINE = """
echo one
while [ ! -e {go} ]; do sleep 0.02; done
echo two; echo oops >&2; echo three
read line; echo got $line
exit 3
"""


def waits(go: Path, stdio: Stdio = Stdio.PIPES) -> ProcessSpec:
    return spec("sh", "-c", LINE.format(go=go), stdio=stdio, client_bound=True)


def test_missed_output_is_sent_and_program_continues(node: Node, tmp_path: Path) -> None:
    wanted = waits(tmp_path / "go")
    first = node.start_attached(wanted, returns_s=60)
    first.until(lambda: first.out)
    first.close()
    (tmp_path / "go").touch()
    eventually(lambda: node.log(wanted.key, "out").endswith(b"three\n") and node.log(wanted.key, "err"))
    second = node.attach(wanted.key, returns_s=60, seen=[len(b"one\n"), 0])
    second.until(lambda: second.out.endswith(b"three\n") and second.err)
    assert (bytes(second.out), bytes(second.err), second.input_heard) == (b"two\nthree\n", b"oops\n", 0)
    second.send(frames.STDIN, b"this\n")
    assert second.finish()["status"] == 3
    assert second.out.endswith(b"three\ngot this\n")


def test_terminal_continues_after_reconnection(node: Node, tmp_path: Path) -> None:
    wanted = waits(tmp_path / "go", Stdio.TTY)
    first = node.start_attached(wanted, returns_s=60)
    first.until(lambda: first.out.endswith(b"one\r\n"))
    first.close()
    (tmp_path / "go").touch()
    second = node.attach(wanted.key, returns_s=60, seen=[len(first.out), 0])
    second.until(lambda: second.out.endswith(b"three\r\n"))
    assert bytes(second.out) == b"two\r\noops\r\nthree\r\n"
    second.send(frames.STDIN, b"that\n")
    assert second.finish()["status"] == 3


def test_reconnection_replaces_a_stale_connection(node: Node, tmp_path: Path) -> None:
    wanted = waits(tmp_path / "go")
    first = node.start_attached(wanted, returns_s=60)
    first.until(lambda: first.out)
    first.send(frames.STDIN, b"half a ")
    second = node.attach(wanted.key, returns_s=60, seen=[0, 0])
    second.until(lambda: second.out)
    while first.pump():
        pass
    assert first.exit is None
    assert (bytes(second.out), second.input_heard) == (b"one\n", len(b"half a "))
    (tmp_path / "go").touch()
    second.send(frames.STDIN, b"line\n")
    assert second.finish()["status"] == 3
    assert second.out.endswith(b"got half a line\n")


@pytest.mark.parametrize(
    ("returns_s", "said"),
    [(0.3, None), (600, frames.gone_frame()), (600, frames.gone_frame(0.3)), (0.3, frames.gone_frame(600))],
    ids=["in time", "ever", "in the time said for it", "in its own time, which nobody makes longer"],
)
def test_program_ends_if_its_client_does_not_return(
    node: Node, tmp_path: Path, returns_s: float, said: bytes | None
) -> None:
    wanted = waits(tmp_path / "go")
    client = node.start_attached(wanted, returns_s=returns_s)
    client.until(lambda: client.out)
    if said is not None:
        client.sock.sendall(said)
    client.close()
    assert node.ended(wanted.key).reason is ExitReason.CLIENT_GONE


def test_announced_reconnection_is_awaited(node: Node, tmp_path: Path) -> None:
    wanted = waits(tmp_path / "go")
    first = node.start_attached(wanted, returns_s=600)
    first.until(lambda: first.out)
    first.sock.sendall(frames.gone_frame(60))
    first.close()
    second = node.attach(wanted.key, returns_s=600, seen=[0, 0])
    second.until(lambda: second.out)
    (tmp_path / "go").touch()
    second.send(frames.STDIN, b"x\n")
    assert second.finish()["status"] == 3


@pytest.mark.parametrize(
    "words",
    [
        b'"rows": [1]',
        b'"rows": Infinity, "columns": NaN',
        b'"seen": [{}, null]',
        b'"seen": [-1, 1e999]',
        b'"returns_s": {"a": 1}',
        b'"returns_s": NaN',
        b'"rows": ' + b"9" * 4000,
        b'"rows": ' + b"[" * 200_000,
    ],
    ids=range(8),
)
def test_invalid_client_state_is_harmless(node: Node, tmp_path: Path, words: bytes) -> None:
    wanted = waits(tmp_path / "go")
    client = node.start_attached(wanted)
    client.until(lambda: client.out)
    other = node.attach(wanted.key, say_hello=False)
    other.send(frames.HELLO, b'{"version": 1, ' + words + b"}")
    other.send(frames.GONE, b"{" + words + b"}")
    (tmp_path / "go").touch()
    client.send(frames.STDIN, b"x\n")
    assert client.finish()["status"] == 3


def test_reconnected_viewer_does_not_bind_the_program(node: Node, tmp_path: Path) -> None:
    wanted = waits(tmp_path / "go")
    client = node.start_attached(wanted)
    client.until(lambda: client.out)
    viewer = node.attach(wanted.key, seen=[2, 0])
    viewer.until(lambda: viewer.out)
    assert bytes(viewer.out) == b"e\n"
    viewer.close()
    (tmp_path / "go").touch()
    client.send(frames.STDIN, b"x\n")
    assert client.finish()["status"] == 3


def test_last_bytes_of_each_stream_are_ordered_across_segments(tmp_path: Path) -> None:
    writer = output_log.LogWriter(tmp_path / "log", 1)
    lines = [(OUT if n % 3 else ERR, f"{n:06}".encode() * 200) for n in range(600)]  # more than one segment
    for stream, data in lines:
        writer.write(stream, data)
    writer.close()
    assert len(output_log.segments(tmp_path / "log")) > 1
    for left in ({OUT: 300_000, ERR: 5}, {OUT: 0, ERR: 1300}, {OUT: 7, ERR: 0}, {OUT: 0, ERR: 0}):
        found = missed_output(tmp_path / "log", left)
        for stream in (OUT, ERR):
            whole = b"".join(data for at, data in lines if at == stream)
            assert b"".join(data for at, data in found if at == stream) == whole[len(whole) - left[stream] :]
    order = [data[-6:] for _, data in missed_output(tmp_path / "log", {OUT: 10_000, ERR: 10_000})]
    assert order == sorted(order)


def test_only_the_end_of_long_output_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    writer = output_log.LogWriter(tmp_path / "log", 1)
    writer.write(OUT, b"x" * 5000 + b"end")
    writer.close()
    monkeypatch.setattr(attach_resume, "MAX_REPLAY_BYTES", 1000)
    assert missed_output(tmp_path / "log", {OUT: 5003, ERR: 0}) == [(OUT, b"x" * 997 + b"end")]
    wanted = spec("head -c 20000000 /dev/zero; sleep 60", stdio=Stdio.PIPES, client_bound=True)
    first = node.start_attached(wanted, returns_s=60)
    first.until(lambda: len(first.out) == 20_000_000)
    first.close()
    second = node.attach(wanted.key, returns_s=60, seen=[0, 0])
    second.until(lambda: len(second.out) == 8 << 20)
    assert second.notes == [f"{20_000_000 - (8 << 20)} bytes of output are omitted here; see the log"]
