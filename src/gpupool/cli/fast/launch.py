"""``run``, from the request to the exit status: submit, wait in the queue, attach, and report the end."""

from __future__ import annotations

import os
from time import monotonic, time

from gpupool.cli.endings import attempt_text, ending_lines, ending_of
from gpupool.cli.fast import progress
from gpupool.cli.fast.attach_io import AttachLoop, AttachResult
from gpupool.cli.fast.signals import SignalInbox
from gpupool.cli.fast.waiting import Interrupted, RetryingClient
from gpupool.cli.terminal import STDERR, STDOUT, say, write_stderr
from gpupool.client.transport.http import error_of_answer
from gpupool.domain.protocol import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

    from gpupool.cli.transport.local import PendingAnswer, PoolTransport

    Detail = dict[str, Any]

EXIT_POOL_ERROR = 125  # as in domain.errors, whose enums take milliseconds to import
EXIT_STOPPED = 143  # 128 + TERM
FIRST_ANSWER_TIMEOUT_S = 0.4  # after this time the wait reason is shown
WAIT_TIMEOUT_S = 25.0
MAX_ATTACH_TRIES = 50
ATTACH_RETRY_DELAY_S = 0.2
CANCEL_TIMEOUT_S = 5.0
LOST_PROGRAM_TIMEOUT_S = 30.0  # how long the pool may take to report the end of a program whose shepherd is gone
REATTACH_RETRY_DELAY_S = 0.5
RECORD_TIMEOUT_S = 3.0  # how long the pool may take to record an end that the shepherd has reported
RECORD_POLL_S = 0.3
REATTACH_POLL_S = 0.2
MAX_LOG_PAGES = 10_000
FINAL = frozenset({"succeeded", "failed", "stopped"})


class Launcher:
    """One program started from this terminal. Call ``run`` once, with the signal inbox open."""

    def __init__(self, transport: PoolTransport, inbox: SignalInbox, *, tty: bool, quiet: bool = False) -> None:
        self.transport = transport
        self._inbox = inbox
        self._tty = tty
        self._quiet = quiet
        self.client = RetryingClient(transport, inbox)

    def run(self, request: Detail, sent: PendingAnswer | None = None) -> int:
        """Submit a client-bound request, stay attached, and return the exit status for this process.

        ``sent``: the request was sent before, and the pool's answer arrives here.
        """
        try:
            detail = self.submit_and_wait(request, sent)
        except Interrupted as stop:
            return 128 + stop.signum
        return self.report_end(detail) if detail["state"] in FINAL else self.attach(detail, 0, bound=True)

    def finish(self, request: Detail, sent: PendingAnswer, report: Detail | None) -> int:
        """Report how a client-bound program ended, and return the exit status for this process.

        ``report`` is its EXIT frame, None if the connection broke.
        """
        result = AttachResult()
        result.exit = report
        return self._finish(self._submit(request, sent), 0, result, bound=True)

    def submit_and_wait(self, request: Detail, sent: PendingAnswer | None = None) -> Detail:
        """Submit and wait until the workload starts or ends. Raises ``Interrupted`` after a signal cancelled it."""
        detail = self._submit(request, sent)
        try:
            detail = self._wait_for_start(detail)
        except Interrupted:
            self._cancel(detail)
            raise
        if detail.get("sharing") == "advisory" and not self._quiet:
            progress.warn_not_enforced(self.transport, str(detail.get("node")))
        return detail

    def attach(
        self, detail: Detail, index: int, *, detachable: bool = False, stdin: bool = True, bound: bool = False
    ) -> int:
        """Attach to a started replica until it ends, and return the exit status for this process.

        ``bound``: the program ends when this client is gone. A connection through the pool is made again when it
        breaks.
        """
        sock = self.connect(detail, index)
        if sock is None:
            return self._resolve_lost(detail, index)
        relayed = bool(replica_of(detail, index).get("relayed")) or not self.transport.direct
        reattach_timeout_s = self.transport.reattach_timeout_s if bound and relayed else 0.0
        loop = AttachLoop(
            sock, self._inbox, tty=self._tty, stdin=stdin, detachable=detachable, reattach_timeout_s=reattach_timeout_s
        )
        try:
            result = loop.run()
        finally:
            sock.close()
        if relayed and result.broken:
            try:
                result = reattach(self, detail, index, loop)
            except Interrupted as stop:
                if bound:
                    self._cancel(detail, "is asked to stop")
                return 128 + stop.signum
        return self._finish(detail, index, result, bound=bound)

    def wait_for_existing(self, ref: str, index: int) -> Detail:
        """Return an existing workload once its replica has started or ended. ``Interrupted`` cancels nothing.

        Raises ``GpupoolError(FORBIDDEN)`` for another user's workload, whose socket the pool does not name.
        """
        answer = self.client.request("GET", f"/v1/workloads/{ref}")
        if not answer.ok:
            raise error_of_answer(answer)
        if answer.body.get("manages") is False:  # an older pool does not report it
            from gpupool.domain.errors import ErrorCode, GpupoolError

            name, user = answer.body["name"], answer.body["user"]
            raise GpupoolError(ErrorCode.FORBIDDEN, f"{name} belongs to {user}.", "Ask an administrator of the pool.")
        return self._wait_for_start(answer.body, index, bound=False)

    def connect(self, detail: Detail, index: int) -> socket | None:
        """Return the program's stream, or None if the program or its shepherd has ended."""
        for _ in range(MAX_ATTACH_TRIES):
            if detail["state"] in FINAL:
                return None
            replica = replica_of(detail, index)
            try:
                if replica.get("relayed"):
                    return self.transport.relay(detail["id"], index)
                return self.transport.attach(detail["id"], index, str(replica.get("attach_path") or ""))
            except OSError:
                self.client.pause(ATTACH_RETRY_DELAY_S)
            detail = self.await_condition(detail["id"], "started", ATTACH_RETRY_DELAY_S, index=index)
        return None

    def _submit(self, request: Detail, sent: PendingAnswer | None) -> Detail:
        target = f"/v1/workloads?wait=started&timeout_s={FIRST_ANSWER_TIMEOUT_S}"
        answer = self.client.request("POST", target, request, finish=True, sent=sent)
        if not answer.ok:
            raise error_of_answer(answer)
        detail: Detail = answer.body
        return detail

    def _wait_for_start(self, detail: Detail, index: int = 0, *, bound: bool = True) -> Detail:
        notice = progress.QueueNotice(self.transport, detail["id"], quiet=self._quiet)
        self.client.on_tick = notice.tick
        try:
            while not started(detail, index, direct=self.transport.direct):
                if self.client.interrupted:
                    raise Interrupted(self.client.interrupted)
                notice.tick()
                detail = self.await_condition(detail["id"], "started", WAIT_TIMEOUT_S, index=index, bound=bound)
        finally:
            self.client.on_tick = None
            notice.clear()
        if self.client.interrupted:
            raise Interrupted(self.client.interrupted)
        return detail

    def await_condition(
        self, workload: str, condition: str, seconds: float, *, index: int = 0, bound: bool = False
    ) -> Detail:
        """Return a workload once a condition holds, or after a timeout."""
        query = f"for={condition}&timeout_s={seconds}&index={index}" + ("&bound=true" if bound else "")
        answer = self.client.request("GET", f"/v1/workloads/{workload}/wait?{query}")
        if not answer.ok:
            raise error_of_answer(answer)
        detail: Detail = answer.body
        return detail

    def _cancel(self, detail: Detail, done: str = "was removed from the queue") -> None:
        try:
            self.transport.call("POST", f"/v1/workloads/{detail['id']}/stop", {}, timeout_s=CANCEL_TIMEOUT_S)
        except OSError:
            return  # the pool cancels it when the client disconnects
        say(f"{detail['name']} {done}")

    def _finish(self, detail: Detail, index: int, result: AttachResult, *, bound: bool) -> int:
        if result.detached:
            write_stderr("\n")  # the cursor is in the program's last line
            say(f"detached; {detail['name']} keeps running ('gpupool attach {detail['name']}' connects again)")
            return 0
        if result.output_closed:
            if result.output_error:
                say(f"the output cannot be written ({result.output_error}); the program gets the signal PIPE")
            return 141  # 128 + PIPE, as for a program whose reader closed the pipe
        if result.exit is not None:
            self._tell_end(detail, index, result.exit, bound=bound)
            return int(result.exit.get("status", EXIT_POOL_ERROR))
        return self._resolve_lost(detail, index)

    def _tell_end(self, detail: Detail, index: int, report: Detail, *, bound: bool) -> None:
        """Print why the program ended, unless it exited by itself; of a batch job also that it is tried again."""
        silent = report.get("signal") in SILENT_SIGNALS and not report.get("message")
        if report.get("reason") == "exited" and silent and (bound or not report.get("status")):
            return
        found = self._await_record(detail, index)
        if again := replica_of(found, index).get("retrying"):
            say(f"{replica_of(found, index)['message']}; {attempt_text(again, time())}")
        elif ended := ending_of(found, index):
            say_lines(ending_lines(ended))
        elif message := report.get("message") or EXIT_MESSAGES.get(str(report.get("reason"))):
            say(message)

    def _await_record(self, detail: Detail, index: int) -> Detail:
        """Return the workload once the pool has recorded the end of this attempt, or as it was last seen.

        A pool that does not answer is not waited for: it may be stopping.
        """
        attempt, deadline = replica_of(detail, index).get("attempt"), monotonic() + RECORD_TIMEOUT_S
        target = f"/v1/workloads/{detail['id']}/wait?for=finished&timeout_s={RECORD_POLL_S}&index={index}"
        while monotonic() < deadline:
            try:
                answer = self.transport.call("GET", target, timeout_s=RECORD_TIMEOUT_S)
            except OSError:
                break
            if not answer.ok:
                break
            detail = answer.body
            replica = replica_of(detail, index)
            if detail["state"] in FINAL or replica.get("attempt") != attempt or replica.get("state") == "pending":
                break
        return detail

    def _resolve_lost(self, detail: Detail, index: int) -> int:
        """Ask the pool how the program ended, after the connection was lost without its exit."""
        deadline = monotonic() + LOST_PROGRAM_TIMEOUT_S
        while detail["state"] not in FINAL and monotonic() < deadline:
            try:
                detail = self.await_condition(detail["id"], "finished", 2.0)
            except Interrupted as stop:
                return 128 + stop.signum
        if detail["state"] in FINAL:
            return self.report_end(detail)
        from gpupool.domain.errors import ErrorCode, GpupoolError

        name = detail["name"]
        raise GpupoolError(
            ErrorCode.NODE_UNREACHABLE,
            f"The connection to {name} was lost, and it is still {detail['state']}.",
            f"See 'gpupool describe {name}' and 'gpupool logs -f {name}/{index}'.",
        )

    def report_end(self, detail: Detail) -> int:
        """Print why a workload ended without this client attached, and return its exit status."""
        ended = detail.get("ending") or {}
        if ended.get("code") != "EXITED":
            say_lines(ending_lines(ended) if ended else [f"{detail['name']} {detail['state']}"])
        if detail.get("exit_status") is not None:
            return int(detail["exit_status"])
        return EXIT_STOPPED if ended.get("code") == "STOPPED_BY_USER" else EXIT_POOL_ERROR


SILENT_SIGNALS = frozenset({None, 1, 2, 3, 13, 15})  # HUP, INT, QUIT, PIPE and TERM, which people send
EXIT_MESSAGES = {
    "stopped": "it was stopped",
    "time_limit": "it reached its time limit",
    "client_gone": "its client disconnected",
    "shepherd_lost": "its shepherd process was killed, and the program with it",
    "node_restarted": "its node was restarted",
    "start_failed": "it could not be started",
    "fenced": "its node had no contact with the pool for too long",
}


def say_lines(lines: list[str]) -> None:
    """Print lines for the user on stderr."""
    for line in lines:
        say(line)


def replica_of(detail: Detail, index: int) -> Detail:
    """Return one replica of a workload; empty when it has none of that number."""
    return next((replica for replica in detail.get("replicas") or [] if replica["index"] == index), {})


def started(detail: Detail, index: int, *, direct: bool) -> bool:
    """Return whether there is a program to attach to (or a lease to use), or the workload has ended.

    ``direct``: the client connects to the shepherd itself and needs its path; otherwise the pool relays.
    """
    if detail["state"] in FINAL:
        return True
    replica = replica_of(detail, index)
    if detail.get("kind") == "lease":
        return bool(detail["state"] == "running")
    direct = direct and not replica.get("relayed")
    return bool(replica.get("attach_path") if direct else replica.get("attachable"))


def reattach(launcher: Launcher, detail: Detail, index: int, loop: AttachLoop) -> AttachResult:
    """Connect again until the program ends, the user leaves, or the timeout passes. Raises ``Interrupted``.

    No input or output is lost.
    """
    say(f"the connection to {detail['name']} was lost; reconnecting")
    attempt, deadline, result = (
        replica_of(detail, index).get("attempt"),
        monotonic() + launcher.transport.reattach_timeout_s,
        None,
    )
    while monotonic() < deadline:
        launcher.client.pause(REATTACH_RETRY_DELAY_S)
        detail = launcher.await_condition(detail["id"], "started", REATTACH_POLL_S, index=index)
        if detail["state"] in FINAL or replica_of(detail, index).get("attempt") != attempt:
            break
        sock = launcher.connect(detail, index)
        if sock is None:
            continue
        received = loop.frames_received
        try:
            result = loop.resume(sock)
        finally:
            sock.close()
        if not result.broken:
            return result
        if loop.frames_received > received:
            deadline = monotonic() + launcher.transport.reattach_timeout_s
    _print_missed_output(launcher, detail["id"], index, attempt, loop)
    return result or loop.result


def _print_missed_output(launcher: Launcher, workload: str, index: int, attempt: object, loop: AttachLoop) -> None:
    """Print from the log the output that a program wrote while the client was not connected."""
    import base64

    left = {"out": loop.seen[frames.STDOUT], "err": loop.seen[frames.STDERR]}
    target, cursor = f"/v1/workloads/{workload}/logs?index={index}&attempt={attempt}", ""
    for _ in range(MAX_LOG_PAGES):
        answer = launcher.client.request("GET", f"{target}&cursor={cursor}")
        if not answer.ok or not answer.body["chunks"]:
            return
        for chunk in answer.body["chunks"]:
            data, known = base64.b64decode(chunk["data"]), left[chunk["stream"]]
            left[chunk["stream"]] = max(0, known - len(data))
            _write(STDOUT if chunk["stream"] == "out" else STDERR, data[known:])
        cursor = answer.body["cursor"]


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
