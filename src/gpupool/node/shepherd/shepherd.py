"""The process that supervises one program: it starts it, owns its streams and log, ends its tree, and reports.

It has one thread and one poll loop, without asyncio: a shepherd is forked for every program and must start within a few
milliseconds. It outlives the agent. All its input and output are files in the replica's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import select
import signal
import socket
import time
from dataclasses import asdict, replace
from math import inf

from gpupool.domain.errors import EXIT_NOT_EXECUTABLE
from gpupool.domain.protocol import frames
from gpupool.domain.work.program.supervision import FENCE_GRACE_S, ExitReason, ExitReport, Stdio
from gpupool.node.host import cgroups, process_tree
from gpupool.node.host.child import ProgramChild, StartError, fork_into
from gpupool.node.host.heartbeat import Contact, Fence
from gpupool.node.host.paths import ReplicaFolder, RunFolder
from gpupool.node.host.preemption_notice import NOTICE_FILE_VARIABLE
from gpupool.node.host.progress_file import PROGRESS_FILE_VARIABLE
from gpupool.node.host.records import ShepherdRecord, StartRequest, read_noticed, read_stop, write_exit
from gpupool.node.ports import Execution
from gpupool.node.runners.process.execution import ProcessExecution
from gpupool.node.shepherd import output_log, terminal
from gpupool.node.shepherd.attach import AttachConnection, AttachConnections, unlink_quietly
from gpupool.node.shepherd.attach_requests import CLIENT_TIMEOUT_S, AttachRequests
from gpupool.node.shepherd.attach_resume import ResumeState
from gpupool.node.shepherd.stdio import StdioRelay
from gpupool.node.shepherd.termination import (
    SWEEP_GRACE_S,
    Termination,
    ask_at,
    gentle_signals,
    report_exit,
    report_never_started,
    report_not_started,
)
from gpupool.unix_sockets import ShortPath

MAX_EARLY_SIGNALS = 32


def open_execution(folder: ReplicaFolder, request: StartRequest) -> Execution:
    """Return the execution that the runner has named; without a name, that of a process of the node."""
    make: type[Execution] = pkgutil.resolve_name(request.execution) if request.execution else ProcessExecution
    return make(folder, request.spec)


def environment_of(key: str, request: StartRequest) -> dict[str, str]:
    """Return the environment of a program, with the marks by which its processes are found."""
    workload, index, _attempt = key.split(".")
    marks = {"GPUPOOL_WORKLOAD_ID": workload, "GPUPOOL_REPLICA_INDEX": index, process_tree.KEY_VARIABLE: key}
    run = RunFolder(request.run_folder)
    marks[NOTICE_FILE_VARIABLE] = str(run.notice(key))
    marks[PROGRESS_FILE_VARIABLE] = str(run.progress(key))
    return {**request.spec.env, **request.added_env, **marks}


class Shepherd:
    """The supervisor of one program; ``run`` returns when the exit report is written and sent."""

    def __init__(self, folder: ReplicaFolder, request: StartRequest, listener: socket.socket) -> None:
        self.folder = folder
        self.request = request
        self.spec = request.spec
        self.key = folder.key
        self.execution = open_execution(folder, request)
        own = os.geteuid()
        self.connections = AttachConnections(
            listener, frozenset({0, own, own if self.spec.uid is None else self.spec.uid})
        )
        self.log = output_log.LogWriter(folder.log, self.spec.log_limit_mib)
        self.requests = AttachRequests(self, self.connections, ResumeState(folder.log))
        self.record = ShepherdRecord(os.getpid(), process_tree.start_time(os.getpid()) or 0, request.boot_id)
        self.poll = select.poll()
        self.program: int | None = None
        self.status: int | None = None
        self.groups = cgroups.Groups()
        self.relay: StdioRelay | None = None
        self.failure_fd: int | None = None
        self.failure: tuple[int, str] | None = None
        self.termination: Termination | None = None
        self.time_limit_at: float | None = None
        self.fence = Fence(Contact(RunFolder(request.run_folder).heard), self.spec.fence_after_s)
        self.wake_fd = -1
        self.notice_signal = int(getattr(signal, f"SIG{self.spec.notice_signal}", signal.SIGTERM))
        self.left = False  # the client of a program that may linger is gone
        self.farewell = b""  # the exit report of a program whose other processes linger
        self.early_signals: list[int] = []  # sent again once the program has started

    # -- start and end of the program --------------------------------------------------------------------------------

    def run(self) -> None:
        """Supervise the program from the first record to the last frame."""
        self._listen_to_signals()
        self.groups = cgroups.make(self.key, self.spec.cpus, self.spec.memory_mib)
        self.record = replace(self.record, cgroups=(*self.groups.paths, *self.execution.extra_cgroups))
        self.record.write(self.folder)
        if (grace_s := read_stop(self.folder)) is not None:
            self.end(ExitReason.STOPPED, grace_s)  # no program yet, so no notice
        elif self.spec.client_bound:
            self.requests.await_first()
        else:
            self.start_program(self.spec.rows, self.spec.columns)
        while not self._is_over():
            self._turn()
        if self.relay is not None:
            self.relay.drain()
        report = self._report()
        self._write_exit(report)
        self.connections.send_exit(_frame_of(report))

    def _is_over(self) -> bool:
        """Return True if no process is left, or none will be started."""
        if self.program is None:
            return self.termination is not None or self.failure is not None
        return self.status is not None and not process_tree.have_children()

    def start_program(self, rows: int, columns: int) -> None:
        """Fork the program; ``failure_fd`` then reports whether the exec succeeded."""
        try:
            self.execution.check()
            streams = terminal.open_streams(self.spec.stdio, rows, columns)
            failure_read, failure_write = os.pipe()
            self.program = self._fork(streams, failure_write)
        except StartError as error:
            self.failure = (error.status, str(error))
            return
        except OSError as error:
            self.failure = (EXIT_NOT_EXECUTABLE, f"Could not start: {error.strerror}")
            return
        os.close(failure_write)
        streams.close_program_ends()
        self.relay = StdioRelay(streams, self._deliver)
        self.failure_fd = failure_read
        self.poll.register(failure_read, select.POLLIN)
        if self.spec.max_time_s is not None:
            self.time_limit_at = time.monotonic() + self.spec.max_time_s

    def _deliver(self, stream: int, kind: int, data: bytes) -> None:
        """Write a piece of output to the log and send it to attached clients."""
        before = self.log.note
        self.log.write(stream, data)
        self.requests.resume.put_out(stream, len(data))
        if self.log.note and not before:
            self.record = replace(self.record, notes=(*self.record.notes, self.log.note))
            self._save_record()
        self.connections.send(kind, data)

    def _fork(self, streams: terminal.Streams, failure_write: int) -> int:
        groups = self.groups
        rest = (streams.program, streams.tty, os.getpid(), groups.entries, groups.user_processes, self.request.binds)
        child = self.execution.child(ProgramChild(self.spec, environment_of(self.key, self.request), *rest))
        pid = fork_into(None if self.groups.own is None else str(self.groups.own))
        if pid == 0:
            child.become(failure_write)
        return pid

    def _started(self) -> None:
        """Record that the exec has succeeded."""
        notes = tuple(self.groups.notes)
        program = self.program or 0
        self.record = replace(
            self.record,
            program=program,
            program_start=process_tree.start_time(program),
            started_at=time.time(),
            notes=notes,
        )
        self._save_record()
        self.connections.send(frames.STARTED, json.dumps({"pid": program}).encode())
        for note in notes:
            self.connections.send(frames.NOTE, note.encode())
        self._signal_late()

    def _signal_late(self) -> None:
        """Send again the signals that arrived between fork and exec, when the program could not handle them."""
        for signum in self.early_signals:
            self.signal_foreground(signum)
        self.early_signals.clear()
        if self.termination is not None and not self.termination.killing:
            self.termination.ask_at = None
            self._ask()

    def end(self, reason: ExitReason, grace_s: float, *, noticed: bool = False) -> None:
        """Ask the whole tree to end. The first reason is kept; a later call can only shorten the grace period.

        ``noticed``: processes that handle the program's notice signal get it first; all are asked to end shortly before
        the grace period is over.
        """
        now, grace_s = time.monotonic(), max(0.0, grace_s)
        noticed = noticed and self.notice_signal != signal.SIGTERM
        if self.termination is not None:
            self.termination.shorten_to(now + grace_s)
            if not noticed and self.termination.must_ask(inf):
                self._ask()
            return
        self.termination = Termination(reason, now + grace_s, ask_at=ask_at(now, grace_s) if noticed else None)
        if noticed:
            self._signal_tree((self.notice_signal,), catching=True)
        else:
            self._ask()

    def client_left(self) -> None:
        """End the program without its client; with a linger time, hang up only its own session."""
        if self.spec.linger_s is None or self.program is None:
            self.end(ExitReason.CLIENT_GONE, self.spec.grace_s)
        elif self.status is None and self.termination is None:
            self.left = True
            self._linger()
            signals = (signal.SIGHUP, signal.SIGCONT)
            if not self.execution.send(signals, catching=False, ended=False):
                process_tree.send_to_session(os.getpid(), self.program, signals)

    def _linger(self) -> None:
        """Record that processes may run on without a client; the agent ends them after the linger time."""
        if self.record.lingers_since is None:
            self.record = replace(self.record, lingers_since=time.time())
            self._save_record()

    def _ask(self) -> None:
        self._signal_tree(gentle_signals(tty=self.spec.stdio is Stdio.TTY))

    def _signal_tree(self, signals: tuple[int, ...], *, catching: bool = False) -> None:
        """Signal every process of the program, or only those with their own handler for the signal."""
        if self.program is None:
            return
        if signal.SIGKILL in signals:
            cgroups.kill(self.record.cgroups)
        elif self.execution.send(signals, catching=catching, ended=self.status is not None):
            return
        process_tree.send_below(os.getpid(), signals, catching=catching)

    def signal_foreground(self, signum: int) -> None:
        """Signal the foreground process group, as a terminal would; store it if the program has not started."""
        if self.status is not None or not 0 < signum < signal.NSIG:
            return
        if self.program is None or self.failure_fd is not None:
            if len(self.early_signals) < MAX_EARLY_SIGNALS:
                self.early_signals.append(signum)
            return
        if self.execution.send_to_foreground(signum):
            return
        group = (None if self.relay is None else self.relay.foreground_group()) or self.program
        with contextlib.suppress(OSError):
            os.killpg(group, signum)

    # -- one iteration of the loop -----------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._set_interest()
        events = dict(self.poll.poll(self._timeout_ms()))
        # Accept last: a new descriptor may reuse the number of one that this iteration closes.
        newcomers = events.pop(self.connections.listener.fileno(), 0)
        for fd, happened in events.items():
            self._on_event(fd, happened)
        self.connections.remove_gone(self._on_gone)
        if newcomers:
            self.connections.accept()
        self._on_time(time.monotonic())

    def _timeout_ms(self) -> int | None:
        known = (self.time_limit_at, self.fence.check_at, *self.requests.deadlines())
        times = [t for t in known if t is not None]
        if self.relay is not None and self.relay.check_at is not None:
            times.append(self.relay.check_at)
        if self.termination is not None:
            times.append(self.termination.next_at())
        return max(0, int((min(times) - time.monotonic()) * 1000) + 1) if times else None

    def _on_time(self, now: float) -> None:
        self.requests.on_time(now)
        if self.time_limit_at is not None and now >= self.time_limit_at:
            self.time_limit_at = None
            self.end(ExitReason.TIME_LIMIT, self.spec.grace_s)
        if self.fence.expired(now):
            self.end(ExitReason.FENCED, min(self.spec.grace_s, FENCE_GRACE_S))
        if self.termination is not None and self.termination.must_ask(now):
            self._ask()
        if self.termination is not None and self.termination.must_kill(now):
            self._signal_tree((signal.SIGKILL,))

    def _set_interest(self) -> None:
        relay = self.relay
        may_read = relay is None or relay.takes_input
        for connection in self.connections:
            self.poll.register(connection.fileno(), connection.interest(may_read=may_read))
        if relay is not None:
            relay.set_interest(self.poll, congested=self.connections.congested)

    def _on_event(self, fd: int, events: int) -> None:
        if fd == self.wake_fd:
            self._on_signal()
        elif fd == self.failure_fd:
            self._on_exec()
        elif (connection := self.connections.get(fd)) is not None:
            self.requests.on_event(connection, events)
        elif self.relay is not None:
            self.relay.on_event(self.poll, fd, events)

    def _on_gone(self, connection: AttachConnection) -> None:
        with contextlib.suppress(KeyError):
            self.poll.unregister(connection.fileno())
        self.requests.on_gone(connection)

    # -- signals and children ----------------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        self.wake_fd, write = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(write, False)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.poll.register(self.wake_fd, select.POLLIN)
        self.poll.register(self.connections.listener.fileno(), select.POLLIN)

    def _on_signal(self) -> None:
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self.wake_fd, 4096)
            if signal.SIGTERM in numbers:
                grace_s = read_stop(self.folder)
                noticed = read_noticed(self.folder)
                self.end(ExitReason.STOPPED, self.spec.grace_s if grace_s is None else grace_s, noticed=noticed)
            if signal.SIGCHLD in numbers:
                self._reap()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self.program:
                    self._program_ended(found[1])
                elif self.status is None and self.execution.on_helper_exit():
                    self.end(ExitReason.EXITED, min(self.spec.grace_s, SWEEP_GRACE_S))

    def _program_ended(self, status: int) -> None:
        if self.failure_fd is not None:
            self._on_exec()
        self.status = status
        self.time_limit_at = None
        if not process_tree.have_children():
            return
        if self.spec.linger_s is None or self.termination is not None:
            self._sweep()
            return
        self._linger()
        if self.relay is not None:
            self.relay.drain()
        self.farewell = _frame_of(self._report())
        self.connections.send(frames.EXIT, self.farewell)

    def _sweep(self) -> None:
        """End the processes that the program left behind."""
        helpers_s = self.execution.helper_grace_s
        grace_s = min(self.spec.grace_s, SWEEP_GRACE_S) if helpers_s is None else helpers_s
        if self.termination is None or not self.termination.killing:
            self.end(ExitReason.EXITED, grace_s)

    def _on_exec(self) -> None:
        """Read the pipe that the exec closes: it is empty if the program runs, else it has the error."""
        assert self.failure_fd is not None  # noqa: S101 - for the type checker
        message = os.read(self.failure_fd, 4096).decode("utf-8", "replace")
        self.poll.unregister(self.failure_fd)
        os.close(self.failure_fd)
        self.failure_fd = None
        if message:
            status, _, text = message.partition(" ")
            self.failure = (int(status), text)
        else:
            self._started()

    # -- the end -----------------------------------------------------------------------------------------------------

    def _report(self) -> ExitReport:
        if self.failure is not None:
            return report_not_started(*self.failure)
        reason = ExitReason.CLIENT_GONE if self.left else ExitReason.EXITED
        if self.termination is not None:
            reason = self.termination.reason
        if self.status is None:
            return report_never_started(reason, CLIENT_TIMEOUT_S)
        code = os.waitstatus_to_exitcode(self.status)
        if reason is ExitReason.EXITED and (failure := self.execution.failed_to_start(code)) is not None:
            said = output_log.last_line(self.folder.log)
            return report_not_started(code, f"Could not start: {said}" if said else "Could not start.", failure)
        groups = self.record.cgroups
        starved = self.execution.out_of_memory(groups)
        processes = cgroups.process_limit() if cgroups.process_limit_reached(groups) else None
        return report_exit(reason, self.status, self.spec.memory_mib if starved else None, processes)

    def _write_exit(self, report: ExitReport) -> None:
        """Write the exit file, retrying on a full disk: without it the GPUs would stay in use forever."""
        self.execution.close()
        cgroups.remove(self.record.cgroups)
        self.log.close()
        if self.log.note:
            self._save_record()
        pause_s = 0.05
        while self.folder.path.exists():
            try:
                write_exit(self.folder, report)
                break
            except OSError:
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, 5.0)
        unlink_quietly(str(RunFolder(self.request.run_folder).attach(self.key)))
        self._hint()

    # -- what the agent reads ----------------------------------------------------------------------------------------

    def _save_record(self) -> None:
        with contextlib.suppress(OSError):
            self.record.write(self.folder)
        self._hint()

    def _hint(self) -> None:
        """Send the agent a hint to read the files, if it is running."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(0)
            with ShortPath(RunFolder(self.request.run_folder).notify) as name:
                sock.sendto(self.key.encode(), name)


def _frame_of(report: ExitReport) -> bytes:
    """Return the payload of the EXIT frame for a report."""
    return json.dumps({**asdict(report), "status": report.status}).encode()
