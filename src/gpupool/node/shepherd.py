"""The process beside every program: it starts it, owns its streams and its log, ends its whole tree, reports the end.

One thread, one poll loop, no asyncio: a shepherd is forked for every program and must cost a few milliseconds. It
outlives the agent; the files in the replica's folder are all it needs and all it leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from dataclasses import replace
from math import inf

from gpupool.domain import frames
from gpupool.domain.errors import EXIT_NOT_EXECUTABLE
from gpupool.domain.supervision import FENCE_GRACE_S, ExitReason, ExitReport, Stdio
from gpupool.node import cgroups, logs, proctree, terminal, verdict
from gpupool.node.child import Child
from gpupool.node.clients import CLIENT_WAIT_S, Clients
from gpupool.node.contact import Contact, Fence
from gpupool.node.containers import inside, leftovers
from gpupool.node.containers.box import Box
from gpupool.node.containers.child import ContainerChild
from gpupool.node.containers.probe import group_paths
from gpupool.node.ending import SWEEP_GRACE_S, Ending, ask_at, gentle_signals
from gpupool.node.forking import fork_into
from gpupool.node.notice import FILE_VARIABLE
from gpupool.node.paths import ReplicaFolder, RunFolder, socket_name
from gpupool.node.plumbing import Plumbing
from gpupool.node.record import Order, ShepherdRecord, exit_to_dict, read_noticed, read_stop, write_exit
from gpupool.node.returning import Returning
from gpupool.node.viewers import Viewer, Viewers, unlink_quietly

MOST_EARLY_SIGNALS = 32
ENGINE_GRACE_S = 15.0  # for a container engine to clean up behind its container


class Shepherd:
    """One program's supervisor; ``run`` returns when everything is over."""

    def __init__(self, folder: ReplicaFolder, order: Order, listener: socket.socket) -> None:
        self.folder = folder
        self.order = order
        self.spec = order.spec
        self.key = folder.key
        self.box = Box.read(folder)
        own = os.geteuid()
        self.viewers = Viewers(listener, frozenset({0, own, own if self.spec.uid is None else self.spec.uid}))
        self.log = logs.LogWriter(folder.log, self.spec.log_limit_mib)
        self.clients = Clients(self, self.viewers, Returning(folder.log))
        self.record = ShepherdRecord(os.getpid(), proctree.start_time(os.getpid()) or 0, order.boot_id)
        self.poll = select.poll()
        self.program: int | None = None
        self.status: int | None = None
        self.groups = cgroups.Groups()
        self.plumbing: Plumbing | None = None
        self.failure_fd: int | None = None
        self.failure: tuple[int, str] | None = None
        self.ending: Ending | None = None
        self.time_limit_at: float | None = None
        self.fence = Fence(Contact(RunFolder(order.run_folder).heard), self.spec.fence_after_s)
        self.wake_fd = -1
        self.notice_signal = int(getattr(signal, f"SIG{self.spec.notice_signal}", signal.SIGTERM))
        self.early_signals: list[int] = []  # for a program that is not there yet

    # -- the course of a program -------------------------------------------------------------------------------------

    def run(self) -> None:
        """From the record of our being to the last frame."""
        self._listen_to_signals()
        self.groups = cgroups.make(self.key, self.spec.cpus, self.spec.memory_mib)
        boxes = () if self.box is None else tuple(group_paths(self.key))
        self.record = replace(self.record, cgroups=(*self.groups.paths, *boxes))
        self.record.write(self.folder)
        if (grace_s := read_stop(self.folder)) is not None:
            self.end(ExitReason.STOPPED, grace_s)  # there is nothing yet that could be given notice
        elif self.spec.client_bound:
            self.clients.await_first()
        else:
            self.start_program(self.spec.rows, self.spec.columns)
        while not self._over():
            self._turn()
        if self.plumbing is not None:
            self.plumbing.drain()
        report = self._report()
        self._write_exit(report)
        self.viewers.farewell(json.dumps({**exit_to_dict(report), "status": report.status}).encode())

    def _over(self) -> bool:
        """Whether no process is left, or none was ever wanted."""
        if self.program is None:
            return self.ending is not None or self.failure is not None
        return self.status is not None and not proctree.have_children()

    def start_program(self, rows: int, columns: int) -> None:
        """Fork it; that it runs, or why not, is heard from ``failure_fd``."""
        if self.spec.container is not None and self.box is None:
            self.failure = (EXIT_NOT_EXECUTABLE, "Could not start: what was known of its container is gone")
            return
        try:
            streams = terminal.open_streams(self.spec.stdio, rows, columns)
            failure_read, failure_write = os.pipe()
            self.program = self._fork(streams, failure_write)
        except OSError as error:
            self.failure = (EXIT_NOT_EXECUTABLE, f"Could not start: {error.strerror}")
            return
        os.close(failure_write)
        streams.close_program_ends()
        self.plumbing = Plumbing(streams, self._deliver)
        self.failure_fd = failure_read
        self.poll.register(failure_read, select.POLLIN)
        if self.spec.max_time_s is not None:
            self.time_limit_at = time.monotonic() + self.spec.max_time_s

    def _deliver(self, stream: int, kind: int, data: bytes) -> None:
        """A piece of the program's output, to the log and to whoever is attached."""
        before = self.log.note
        self.log.write(stream, data)
        self.clients.returning.put_out(stream, len(data))
        if self.log.note and not before:
            self.record = replace(self.record, notes=(*self.record.notes, self.log.note))
            self._save_record()
        self.viewers.send(kind, data)

    def _fork(self, streams: terminal.Streams, failure_write: int) -> int:
        parts = (self.spec, self._environment(), streams.program, streams.tty, os.getpid(), self.groups.entries)
        child = Child(*parts) if self.box is None else ContainerChild(*parts, self.box, self.folder.path)
        pid = fork_into(None if self.groups.own is None else str(self.groups.own))
        if pid == 0:
            child.become(failure_write)
        return pid

    def _environment(self) -> dict[str, str]:
        workload, index, _attempt = self.key.split(".")
        marks = {"GPUPOOL_WORKLOAD_ID": workload, "GPUPOOL_REPLICA_INDEX": index, proctree.KEY_VARIABLE: self.key}
        marks[FILE_VARIABLE] = str(RunFolder(self.order.run_folder).notice(self.key))
        return {**self.spec.env, **self.order.added_env, **marks}

    def _started(self) -> None:
        """The exec has happened."""
        notes = tuple(self.groups.notes)
        program = self.program or 0
        self.record = replace(
            self.record,
            program=program,
            program_start=proctree.start_time(program),
            started_at=time.time(),
            notes=notes,
        )
        self._save_record()
        self.viewers.send(frames.STARTED, json.dumps({"pid": program}).encode())
        for note in notes:
            self.viewers.send(frames.NOTE, note.encode())
        self._signal_late()

    def _signal_late(self) -> None:
        """What came between the fork and the exec met the shepherd's own handlers, or nobody: send it again."""
        for signum in self.early_signals:
            self.signal_foreground(signum)
        self.early_signals.clear()
        if self.ending is not None and not self.ending.killing:
            self.ending.ask_at = None
            self._ask()

    def end(self, reason: ExitReason, grace_s: float, *, noticed: bool = False) -> None:
        """Ask the whole tree to end, for the first reason given; a later call can only shorten the grace.

        ``noticed``: those who handle the program's notice signal get that first, all are asked towards the end.
        """
        now, grace_s = time.monotonic(), max(0.0, grace_s)
        noticed = noticed and self.notice_signal != signal.SIGTERM
        if self.ending is not None:
            self.ending.hasten(now + grace_s)
            if not noticed and self.ending.must_ask(inf):
                self._ask()
            return
        self.ending = Ending(reason, now + grace_s, ask_at=ask_at(now, grace_s) if noticed else None)
        if noticed:
            self._signal_tree((self.notice_signal,), catching=True)
        else:
            self._ask()

    def _ask(self) -> None:
        self._signal_tree(gentle_signals(tty=self.spec.stdio is Stdio.TTY))

    def _signal_tree(self, signals: tuple[int, ...], *, catching: bool = False) -> None:
        """To every process of the program, or to those with a handler of their own for it."""
        if self.program is None:
            return
        if signal.SIGKILL in signals:
            cgroups.kill(self.record.cgroups)
        elif self.box is not None and (self._tell_container(signals, catching=catching) or self.status is not None):
            return
        proctree.send_below(os.getpid(), signals, catching=catching)

    def _tell_container(self, signals: tuple[int, ...], *, catching: bool) -> bool:
        """To the program alone: its engine would take the same for itself, and clean up. False: it is not there yet."""
        return inside.send_to_program(os.getpid(), signals, catching=catching)

    def signal_foreground(self, signum: int) -> None:
        """As a terminal would, to what runs in its foreground; kept for a program that is not there yet."""
        if self.status is not None or not 0 < signum < signal.NSIG:
            return
        if self.program is None or self.failure_fd is not None:
            if len(self.early_signals) < MOST_EARLY_SIGNALS:
                self.early_signals.append(signum)
            return
        if self.box is not None and inside.send_to_foreground(os.getpid(), signum):
            return
        group = (None if self.plumbing is None else self.plumbing.foreground_group()) or self.program
        with contextlib.suppress(OSError):
            os.killpg(group, signum)

    # -- one turn of the loop ----------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._set_interest()
        events = dict(self.poll.poll(self._timeout_ms()))
        # Newcomers last: their descriptors may have the numbers of some that this very turn closes.
        newcomers = events.pop(self.viewers.listener.fileno(), 0)
        for fd, happened in events.items():
            self._on_event(fd, happened)
        self.viewers.sweep(self._on_gone)
        if newcomers:
            self.viewers.accept()
        self._on_time(time.monotonic())

    def _timeout_ms(self) -> int | None:
        known = (self.time_limit_at, self.fence.look_at, *self.clients.deadlines())
        times = [t for t in known if t is not None]
        if self.plumbing is not None and self.plumbing.look_at is not None:
            times.append(self.plumbing.look_at)
        if self.ending is not None:
            times.append(self.ending.next_at())
        return max(0, int((min(times) - time.monotonic()) * 1000) + 1) if times else None

    def _on_time(self, now: float) -> None:
        self.clients.on_time(now)
        if self.time_limit_at is not None and now >= self.time_limit_at:
            self.time_limit_at = None
            self.end(ExitReason.TIME_LIMIT, self.spec.grace_s)
        if self.fence.passed(now):
            self.end(ExitReason.FENCED, min(self.spec.grace_s, FENCE_GRACE_S))
        if self.ending is not None and self.ending.must_ask(now):
            self._ask()
        if self.ending is not None and self.ending.due(now):
            self._signal_tree((signal.SIGKILL,))

    def _set_interest(self) -> None:
        plumbing = self.plumbing
        may_read = plumbing is None or plumbing.takes_input
        for viewer in self.viewers:
            self.poll.register(viewer.fileno(), viewer.interest(may_read=may_read))
        if plumbing is not None:
            plumbing.set_interest(self.poll, congested=self.viewers.congested)

    def _on_event(self, fd: int, events: int) -> None:
        if fd == self.wake_fd:
            self._on_signal()
        elif fd == self.failure_fd:
            self._on_exec()
        elif (viewer := self.viewers.get(fd)) is not None:
            self.clients.on_event(viewer, events)
        elif self.plumbing is not None:
            self.plumbing.on_event(self.poll, fd, events)

    def _on_gone(self, viewer: Viewer) -> None:
        with contextlib.suppress(KeyError):
            self.poll.unregister(viewer.fileno())
        self.clients.on_gone(viewer)

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
        self.poll.register(self.viewers.listener.fileno(), select.POLLIN)

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
                elif self.box is not None and self.status is None and inside.processes(os.getpid()):
                    # The container's monitor: without it the engine would never hear of the end.
                    self.end(ExitReason.EXITED, min(self.spec.grace_s, SWEEP_GRACE_S))

    def _program_ended(self, status: int) -> None:
        if self.failure_fd is not None:
            self._on_exec()
        self.status = status
        self.time_limit_at = None
        if proctree.have_children():
            self._sweep()

    def _sweep(self) -> None:
        """The program is over but left others behind: they go too."""
        grace_s = min(self.spec.grace_s, SWEEP_GRACE_S) if self.box is None else ENGINE_GRACE_S
        if self.ending is None or not self.ending.killing:
            self.end(ExitReason.EXITED, grace_s)

    def _on_exec(self) -> None:
        """The pipe that the exec closes has spoken: silence means that the program runs."""
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
            return verdict.not_started(*self.failure)
        reason = ExitReason.EXITED if self.ending is None else self.ending.reason
        if self.status is None:
            return verdict.never_began(reason, CLIENT_WAIT_S)
        groups = self.record.cgroups
        starved = cgroups.out_of_memory(groups) or (self.box is not None and cgroups.limit_reached(groups))
        return verdict.ended(reason, self.status, self.spec.memory_mib if starved else None)

    def _write_exit(self, report: ExitReport) -> None:
        """Keep trying: an end that is not written would hold the GPU for ever, and the disk may be full only now."""
        if self.box is not None:
            leftovers.end_foreign(self.box, self.key)
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
        unlink_quietly(str(RunFolder(self.order.run_folder).attach(self.key)))
        self._hint()

    # -- what the agent reads ----------------------------------------------------------------------------------------

    def _save_record(self) -> None:
        with contextlib.suppress(OSError):
            self.record.write(self.folder)
        self._hint()

    def _hint(self) -> None:
        """Tell the agent to look, if there is one; the files are the truth."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(0)
            with socket_name(RunFolder(self.order.run_folder).notify) as name:
                sock.sendto(self.key.encode(), name)
