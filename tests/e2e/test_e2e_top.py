"""``gpupool top`` on a terminal of its own, over a real pool."""

from __future__ import annotations

import termios

from e2e_pool import RealPool, Terminal


def test_top_updates_handles_keys_and_restores_terminal(pool: RealPool) -> None:
    pool("submit", "first", "-p", "0.5", "--", "sleep", "1000")
    assert pool.becomes("first", "running")
    terminal = Terminal(pool, "top", "--interval", "0.3", rows=30, columns=120)
    try:
        terminal.expect(b"0.50 of 2 GPUs allocated")
        terminal.expect("▒▒▒▒▒▒▒▒▒".encode())
        terminal.expect(b"/first 0.50")
        assert not termios.tcgetattr(terminal.master)[3] & termios.ECHO

        pool("submit", "second", "-p", "0.25", "--", "sleep", "1000")
        terminal.expect(b"0.75 of 2 GPUs allocated")
        terminal.send(b"3i")
        terminal.expect(b"view: job  jobs by idle")
        terminal.send(b"h")
        terminal.expect(b"a line for each node")
        terminal.send(b"hq")
        assert terminal.wait() == 0
        assert terminal.seen.endswith(b"\x1b[?1049l")
        assert termios.tcgetattr(terminal.master)[3] & termios.ECHO
    finally:
        terminal.close()


def test_top_equals_the_api(pool: RealPool) -> None:
    pool("submit", "pair", "-n", "2", "--", "sleep", "1000")
    assert pool.becomes("pair", "running")
    seen = pool.json("top")
    held = [part["permille"] for node in seen["nodes"] for gpu in node["gpus"] for part in gpu["slices"]]
    assert held == [1000, 1000]
    assert [(w["name"], w["permille"], w["running"]) for w in seen["workloads"]] == [("pair", 2000, 1)]
    once = pool.text("top", "--once")
    assert "2.00 of 2 GPUs allocated" in once
    assert pool.text("top", "user").count("2.00") == 2
