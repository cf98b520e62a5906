"""A command that is executed where a program runs, with a limit of time and output: the check of a service's replica.

The fork server forks a process for each check. That process executes the command with the environment, user, folder,
control groups and container of the program, and sends one packet: the problem as text, empty if the command succeeded.
It kills what the command leaves behind, and everything when the agent closes the connection.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpupool.domain.work.program.supervision import Stdio
from gpupool.node.host import cgroups, process_tree
from gpupool.node.host.child import ProgramChild
from gpupool.node.host.paths import ReplicaFolder
from gpupool.node.host.records import MAX_CHECK_BYTES, CheckRequest, ShepherdRecord, StartRequest
from gpupool.node.shepherd.shepherd import environment_of, open_execution

MAX_OUTPUT_BYTES = 1 << 20  # a command that writes more is killed
MAX_KEPT_BYTES = 4096  # of its last output, for the message
MAX_MESSAGE_CHARS = 300
CHECK_VARIABLE = "GPUPOOL_CHECK"  # marks the processes of a check
_END_TIMEOUT_S = 5.0
_PAUSE_S = 0.01


def run_check(folder: ReplicaFolder, connection: socket.socket) -> None:
    """Receive a request, execute its command, and send the result."""
    data = connection.recv(MAX_CHECK_BYTES)
    if not data:
        return  # the agent is gone
    try:
        problem = CommandCheck(folder, CheckRequest.decode(data), connection).run()
    except Exception as error:  # noqa: BLE001 - every request gets an answer
        problem = f"the check failed: {error}"
    with suppress(OSError):
        connection.send(f"{problem[:MAX_MESSAGE_CHARS]}\n".encode("utf-8", "replace"))


class CommandCheck:
    """The execution of one command. The calling process is a subreaper, so that no process can detach itself."""

    def __init__(self, folder: ReplicaFolder, check: CheckRequest, connection: socket.socket) -> None:
        self._folder = folder
        self._check = check
        self._connection = connection
        self._output = b""
        self._written = 0

    def run(self) -> str:
        """Return the problem of the command; empty if it ended with status 0 in time."""
        request = StartRequest.read(self._folder)
        record = ShepherdRecord.read(self._folder)
        if request is None or record is None:
            return "the program has not started"
        read, write = os.pipe()
        failure_read, failure_write = os.pipe()
        child = self._child(request, record, write)
        pid = os.fork()
        if pid == 0:
            _enter_groups(record)
            child.become(failure_write)
        for fd in (write, failure_write):
            os.close(fd)
        try:
            problem = self._watch(pid, read)
        finally:
            self._end_all()
        failure = os.read(failure_read, MAX_KEPT_BYTES).decode("utf-8", "replace")
        return failure.partition(" ")[2] if failure else problem

    def _child(self, request: StartRequest, record: ShepherdRecord, output: int) -> ProgramChild:
        execution = open_execution(self._folder, request)
        execution.check()
        spec = replace(request.spec, argv=self._check.argv, stdio=Stdio.BATCH)
        environment = {**environment_of(self._folder.key, request), CHECK_VARIABLE: str(os.getpid())}
        limit = None if record.cgroups else cgroups.process_limit()
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        streams = (null, output, output)
        plain = ProgramChild(
            spec, environment, streams, tty=False, shepherd=os.getpid(), process_limit=limit, binds=request.binds
        )
        return execution.command_child(plain)

    def _watch(self, pid: int, output: int) -> str:
        """Wait for the end of the command, its limits, or the end of the agent."""
        ended = os.pidfd_open(pid)
        poll = select.poll()
        for fd in (output, ended, self._connection.fileno()):
            poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + self._check.timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            ready = {fd for fd, _ in poll.poll(left_s * 1000)}
            if output in ready and not self._read(output):
                poll.unregister(output)
            if self._written > MAX_OUTPUT_BYTES:
                return f"the command wrote more than {MAX_OUTPUT_BYTES >> 10} KiB"
            if self._connection.fileno() in ready:
                return "the agent has ended"
            if ended in ready:
                return self._result(pid, output)
        return f"the command did not end within {self._check.timeout_s:g} s{self._said()}"

    def _read(self, output: int) -> bool:
        data = os.read(output, MAX_CHECK_BYTES)
        self._written += len(data)
        self._output = (self._output + data)[-MAX_KEPT_BYTES:]
        return bool(data)

    def _result(self, pid: int, output: int) -> str:
        os.set_blocking(output, False)
        with suppress(BlockingIOError):
            while self._written <= MAX_OUTPUT_BYTES and self._read(output):
                pass
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 0:
            return ""
        how = f"signal {-code}" if code < 0 else f"status {code}"
        return f"the command ended with {how}{self._said()}"

    def _said(self) -> str:
        """Return the last line of the output."""
        lines = [line.strip() for line in self._output.decode("utf-8", "replace").splitlines() if line.strip()]
        return f": {''.join(c if c.isprintable() else ' ' for c in lines[-1])}" if lines else ""

    def _end_all(self) -> None:
        """Kill all processes of the check, also those in a container that is no descendant of this process."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        while time.monotonic() < deadline:
            process_tree.send_below(os.getpid(), (signal.SIGKILL,), catching=False)
            table = process_tree.scan()
            others = process_tree.with_variable(CHECK_VARIABLE, str(os.getpid()), table) - {os.getpid()}
            for pid in others:
                process_tree.send(table[pid], signal.SIGKILL)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not others and not process_tree.have_children():
                return
            time.sleep(_PAUSE_S)


def _enter_groups(record: ShepherdRecord) -> None:
    """Enter the control groups of the program, as far as that is possible."""
    for group in record.cgroups:
        with suppress(OSError):
            Path(group, "cgroup.procs").write_text("0", encoding="ascii")
