"""Commands that the agent executes where a program runs: limits, errors, and the end of the agent."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from node_harness import PATH, Node, RefusedError, eventually, spec

from gpupool.domain.work.program.supervision import MAX_CHECK_CHARS
from gpupool.node.host import process_tree
from gpupool.node.shepherd.command_check import CHECK_VARIABLE


def check(node: Node, key: str, *argv: str, timeout_s: float = 20.0) -> str:
    problem: str = node.ask("check_command", key=key, argv=argv, timeout_s=timeout_s)
    return problem


def test_command_has_the_folder_and_environment_of_the_program(node: Node, tmp_path: Path) -> None:
    program = spec("sleep", "600", cwd=str(tmp_path), env={"PATH": PATH, "MODE": "fast"})
    node.start(program)
    node.running(program.key)
    assert check(node, program.key, "sh", "-c", 'test "$MODE" = fast && test "$PWD" = "$0"', str(tmp_path)) == ""
    assert check(node, program.key, "no-such-program") == "No such program: no-such-program"
    assert check(node, program.key, "sh", "-c", "kill -9 $$") == "the command ended with signal 9"


def test_check_is_refused_without_a_program_or_with_too_much(node: Node) -> None:
    program = spec("true")
    node.start(program)
    node.ended(program.key)
    with pytest.raises(RefusedError) as refused:
        check(node, program.key, "true")
    assert refused.value.code == "WRONG_STATE"
    running = spec("sleep", "600")
    node.start(running)
    node.running(running.key)
    for argv, timeout_s in ([], 1.0), (["x" * (MAX_CHECK_CHARS + 1)], 1.0), (["a\0b"], 1.0), (["true"], 9999.0):
        with pytest.raises(RefusedError) as refused:
            check(node, running.key, *argv, timeout_s=timeout_s)
        assert refused.value.code == "INVALID_REQUEST"


def test_checks_end_with_the_agent(own_node: Node) -> None:
    """The check of a killed agent is ended before its own time limit, and the program continues."""
    program = spec("sleep", "600")
    own_node.start(program)
    own_node.running(program.key)
    caller = socket.socket(socket.AF_UNIX)
    caller.connect(str(own_node.run / "agent.sock"))
    line = '{"id": 1, "method": "check_command", "params": {"key": "%s", "argv": ["sleep", "500"], "timeout_s": 30}}\n'
    caller.sendall((line % program.key).encode())

    def checks() -> set[int]:
        table = process_tree.scan()
        of_program = process_tree.marked(program.key, table)
        return {pid for pid in of_program if any(v.startswith(CHECK_VARIABLE) for v in environ(pid))}

    found = eventually(checks)
    own_node.down(signal.SIGKILL)
    eventually(lambda: not process_tree.alive(found, process_tree.scan()))
    own_node.up()
    own_node.running(program.key)
    caller.close()


def environ(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def test_process_of_a_check_that_was_killed_is_reported(node: Node) -> None:
    """Without an answer the caller gets an error, and the next check works."""
    program = spec("sleep", "600")
    node.start(program)
    node.running(program.key)
    kill_parent = 'kill -9 "$GPUPOOL_CHECK"; sleep 600'
    with pytest.raises(RefusedError) as refused:
        check(node, program.key, "sh", "-c", kill_parent)
    assert refused.value.code == "WRONG_STATE"
    assert check(node, program.key, "true") == ""
    assert os.getpid() not in process_tree.marked(program.key, process_tree.scan())
