"""`gpupool run` on a terminal: raw mode and back, window size, Ctrl-C as a byte, detaching."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cli_fake_pool import COMMAND, FakePool

from gpupool.cli.terminal import DetachKeyFilter

SECONDS = 20.0


class Terminal:
    """A pseudo-terminal with the program in its foreground, as a terminal window has it."""

    def __init__(self, pool: FakePool, *args: str) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(30, 100)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.process = subprocess.Popen(
            [*COMMAND, *args],
            env=pool.env | {"TERM": "xterm"},
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            preexec_fn=self._take_terminal,  # noqa: PLW1509 - two system calls, no locks
        )

    def _take_terminal(self) -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def expect(self, text: bytes) -> None:
        """Read until the text has been seen."""
        deadline = time.monotonic() + SECONDS
        while text not in self.seen:
            ready = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"{text!r} did not come; seen: {self.seen!r}"
            self.seen += os.read(self.master, 65536)
        self.seen = self.seen.partition(text)[2]

    @property
    def raw(self) -> bool:
        return not termios.tcgetattr(self.slave)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def wait(self) -> int:
        return self.process.wait(SECONDS)

    def restored(self) -> bool:
        return termios.tcgetattr(self.slave) == self.before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def open_terminal(pool: FakePool) -> Iterator[Any]:
    opened: list[Terminal] = []

    def start(*args: str) -> Terminal:
        opened.append(Terminal(pool, *args))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


def only_shepherd(pool: FakePool) -> Any:
    return next(iter(pool.shepherds.values()))


def test_program_gets_terminal_with_size_of_client(pool: FakePool, open_terminal: Any) -> None:
    script = "import os,sys; print(sys.stdin.isatty(), os.get_terminal_size()); input('? ')"
    terminal = open_terminal("run", "--", sys.executable, "-c", script)
    terminal.expect(b"True os.terminal_size(columns=100, lines=30)")
    terminal.expect(b"? ")
    assert terminal.raw
    terminal.type(b"yes\r")
    assert terminal.wait() == 0
    assert terminal.restored()
    assert pool.submitted()["tty"] is True


def test_ctrl_c_is_sent_as_byte_and_interrupts_the_program(pool: FakePool, open_terminal: Any) -> None:
    terminal = open_terminal("run", "--", "sh", "-c", "trap 'echo interrupted; exit 9' INT; echo ready; read x")
    terminal.expect(b"ready")
    terminal.type(b"\x03")
    terminal.expect(b"interrupted")
    assert terminal.wait() == 9
    assert only_shepherd(pool).signals == []  # no SIGNAL frame: the program's own terminal makes the signal
    assert terminal.restored()


def test_changed_window_size_is_sent(pool: FakePool, open_terminal: Any) -> None:
    script = (
        "import os,signal,time\n"
        "signal.signal(signal.SIGWINCH, lambda *a: os.write(1, str(os.get_terminal_size()).encode()))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.05)"
    )
    terminal = open_terminal("run", "--", sys.executable, "-c", script)
    terminal.expect(b"ready")
    terminal.resize(50, 132)
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.expect(b"columns=132, lines=50")
    assert only_shepherd(pool).sizes[-1] == (50, 132)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminal_is_restored_when_client_is_terminated(open_terminal: Any, number: signal.Signals) -> None:
    terminal = open_terminal("run", "--", "sh", "-c", "echo ready; exec sleep 60")
    terminal.expect(b"ready")
    terminal.process.send_signal(number)
    assert terminal.wait() == 128 + number
    assert terminal.restored()


def test_terminal_is_restored_when_shepherd_is_lost(pool: FakePool, open_terminal: Any) -> None:
    terminal = open_terminal("run", "--", "sh", "-c", "echo ready; exec sleep 60")
    terminal.expect(b"ready")
    pool.finish("w0000000000", 137, "SHEPHERD_LOST", "Its supervisor was killed.")
    only_shepherd(pool).vanish.set()
    assert terminal.wait() == 137
    assert terminal.restored()


def test_no_tty_does_not_change_the_terminal(pool: FakePool, open_terminal: Any) -> None:
    terminal = open_terminal("run", "--no-tty", "--", "sh", "-c", "echo ready; exec sleep 60")
    terminal.expect(b"ready")
    assert not terminal.raw
    assert pool.submitted()["tty"] is False
    terminal.type(b"\x03")  # the terminal itself makes SIGINT of it; the client passes that on
    assert terminal.wait() == 130


def test_wait_shows_one_line_and_clears_it(pool: FakePool, open_terminal: Any) -> None:
    pool.queue_all = True
    terminal = open_terminal("run", "--", "echo", "hello")
    terminal.expect(b"position 3")
    pool.start("w0000000000")
    terminal.expect(b"\r\x1b[K")
    terminal.expect(b"hello")
    assert terminal.wait() == 0


def test_detach_keys_go_to_program_bound_to_the_client(open_terminal: Any) -> None:
    terminal = open_terminal("run", "--", "sh", "-c", "stty raw -echo; echo ready; head -c 2 | od -An -tx1")
    terminal.expect(b"ready")
    terminal.type(b"\x10\x11")
    terminal.expect(b"10 11")
    assert terminal.wait() == 0


def test_detach_sequence_is_recognised_across_reads() -> None:
    keys = DetachKeyFilter(detachable=True)
    assert keys.feed(b"ab\x10") == (b"ab", False)
    assert keys.feed(b"\x11rest") == (b"", True)


def test_other_keys_are_passed_unchanged() -> None:
    keys = DetachKeyFilter(detachable=True)
    assert keys.feed(b"\x10") == (b"", False)
    assert keys.feed(b"\x10x\x11") == (b"\x10\x10x\x11", False)
    assert DetachKeyFilter(detachable=False).feed(b"\x10\x11") == (b"\x10\x11", False)
