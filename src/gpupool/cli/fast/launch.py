"""``run``, from the request to the exit status: submit, wait in the queue, attach, and tell how it ended."""

from __future__ import annotations

from gpupool.cli.fast import notice
from gpupool.cli.fast.gate import refusal
from gpupool.cli.fast.pump import Outcome, Pump
from gpupool.cli.fast.signals import Inbox
from gpupool.cli.fast.waiting import Interrupted, Line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

    from gpupool.cli.fast.gate import Gate

    Detail = dict[str, Any]

EXIT_POOL_ERROR = 125  # as domain.errors has it; enums there would cost the fast path milliseconds
EXIT_STOPPED = 143  # 128 + TERM: how a stop ends a program
FIRST_ANSWER_S = 0.4  # then the user is told why it waits
WAIT_S = 25.0
ATTACH_TRIES = 50
ATTACH_RETRY_S = 0.2
CANCEL_S = 5.0
SETTLE_S = 30.0  # how long the end of a program whose shepherd is gone may take to be known
FINAL = frozenset({"succeeded", "failed", "stopped"})


class Launch:
    """One program started from this terminal; ``run`` once, with the inbox of signals open."""

    def __init__(self, gate: Gate, inbox: Inbox, *, tty: bool, quiet: bool = False) -> None:
        self.gate = gate
        self._inbox = inbox
        self._tty = tty
        self._quiet = quiet
        self.line = Line(gate, inbox)

    def run(self, request: Detail) -> int:
        """Submit a client-bound request and stay with it; the exit status for this process."""
        try:
            detail = self.submit_and_wait(request)
        except Interrupted as stop:
            return 128 + stop.signum
        return self.ended(detail) if detail["state"] in FINAL else self.attach(detail, 0, bound=True)

    def submit_and_wait(self, request: Detail) -> Detail:
        """Submit and wait until it has started or ended; raises ``Interrupted`` once a signal has cancelled it."""
        detail = self._submit(request)
        try:
            return self._wait_for_start(detail)
        except Interrupted:
            self._cancel(detail)
            raise

    def attach(
        self, detail: Detail, index: int, *, detachable: bool = False, stdin: bool = True, bound: bool = False
    ) -> int:
        """Connect to a started replica and pump until it ends; the exit status for this process.

        ``bound``: the program ends when we are gone. A way through the pool may break, and is then taken again.
        """
        sock = self.connect(detail, index)
        if sock is None:
            return self._lost(detail, index)
        relayed = bool(replica_of(detail, index).get("relayed")) or not self.gate.direct
        returns_s = self.gate.returns_s if bound and relayed else 0.0
        pump = Pump(sock, self._inbox, tty=self._tty, stdin=stdin, detachable=detachable, returns_s=returns_s)
        try:
            outcome = pump.run()
        finally:
            sock.close()
        if relayed and outcome.broken:
            from gpupool.cli.fast.returning import come_back

            try:
                outcome = come_back(self, detail, index, pump)
            except Interrupted as stop:
                if bound:
                    self._cancel(detail, "was told to stop")
                return 128 + stop.signum
        return self._after(detail, index, outcome)

    def wait_for(self, ref: str, index: int) -> Detail:
        """A known workload once its replica has started or it has ended; raises ``Interrupted`` and cancels nothing."""
        answer = self.line.ask("GET", f"/v1/workloads/{ref}")
        if not answer.ok:
            raise refusal(answer)
        return self._wait_for_start(answer.body, index, bound=False)

    def connect(self, detail: Detail, index: int) -> socket | None:
        """The program's stream; None when it has ended meanwhile, or its shepherd has."""
        for _ in range(ATTACH_TRIES):
            if detail["state"] in FINAL:
                return None
            replica = replica_of(detail, index)
            try:
                if replica.get("relayed"):
                    return self.gate.relay(detail["id"], index)
                return self.gate.attach(detail["id"], index, str(replica.get("attach_path") or ""))
            except OSError:
                self.line.pause(ATTACH_RETRY_S)
            detail = self.look(detail["id"], "started", ATTACH_RETRY_S, index=index)
        return None

    def _submit(self, request: Detail) -> Detail:
        target = f"/v1/workloads?wait=started&timeout_s={FIRST_ANSWER_S}"
        answer = self.line.ask("POST", target, request, finish=True)
        if not answer.ok:
            raise refusal(answer)
        detail: Detail = answer.body
        return detail

    def _wait_for_start(self, detail: Detail, index: int = 0, *, bound: bool = True) -> Detail:
        shown = notice.QueueNotice(self.gate, detail["id"], quiet=self._quiet)
        self.line.on_tick = shown.tick
        try:
            while not started(detail, index, direct=self.gate.direct):
                if self.line.interrupted:
                    raise Interrupted(self.line.interrupted)
                shown.tick()
                detail = self.look(detail["id"], "started", WAIT_S, index=index, bound=bound)
        finally:
            self.line.on_tick = None
            shown.clear()
        if self.line.interrupted:
            raise Interrupted(self.line.interrupted)
        return detail

    def look(self, workload: str, condition: str, seconds: float, *, index: int = 0, bound: bool = False) -> Detail:
        """A workload once something holds of it, or after a while."""
        query = f"for={condition}&timeout_s={seconds}&index={index}" + ("&bound=true" if bound else "")
        answer = self.line.ask("GET", f"/v1/workloads/{workload}/wait?{query}")
        if not answer.ok:
            raise refusal(answer)
        detail: Detail = answer.body
        return detail

    def _cancel(self, detail: Detail, done: str = "was taken out of the queue") -> None:
        try:
            self.gate.call("POST", f"/v1/workloads/{detail['id']}/stop", {}, timeout_s=CANCEL_S)
        except OSError:
            return  # the pool cancels it by itself when nobody waits for it
        notice.say(f"{detail['name']} {done}")

    def _after(self, detail: Detail, index: int, outcome: Outcome) -> int:
        if outcome.detached:
            notice.new_line()  # the cursor is where the program left it
            notice.say(f"detached; {detail['name']} runs on ('gpupool attach {detail['name']}' returns to it)")
            return 0
        if outcome.output_closed:
            return 141  # 128 + PIPE, as if the program itself had lost its reader
        if outcome.exit is not None:
            return self._exit_status(outcome.exit)
        return self._lost(detail, index)

    def _exit_status(self, report: Detail) -> int:
        reason, message = report.get("reason"), report.get("message") or ""
        if reason in EXPLAINED or (reason == "start_failed" and not message):
            notice.say(f"{EXPLAINED.get(str(reason), 'it could not be started')}{': ' if message else ''}{message}")
        elif reason == "start_failed":
            notice.say(message)
        return int(report.get("status", EXIT_POOL_ERROR))

    def _lost(self, detail: Detail, index: int) -> int:
        """Nobody told how it ended: ask the pool."""
        from time import monotonic

        deadline = monotonic() + SETTLE_S
        while detail["state"] not in FINAL and monotonic() < deadline:
            try:
                detail = self.look(detail["id"], "finished", 2.0)
            except Interrupted as stop:
                return 128 + stop.signum
        if detail["state"] in FINAL:
            return self.ended(detail)
        from gpupool.domain.errors import ErrorCode, GpupoolError

        name = detail["name"]
        raise GpupoolError(
            ErrorCode.NODE_UNREACHABLE,
            f"The connection to {name} was lost, and it is still {detail['state']}.",
            f"See 'gpupool describe {name}' and 'gpupool logs -f {name}/{index}'.",
        )

    def ended(self, detail: Detail) -> int:
        """It ended without us (it may never have started): say why and give its status."""
        replica = replica_of(detail, 0)
        reason = detail.get("reason") or {}
        code = detail.get("stop_reason") or replica.get("reason") or reason.get("code") or ""
        message = (
            replica.get("message") or reason.get("message") or UNSAID.get(code) or f"{detail['name']} {detail['state']}"
        )
        if code != "EXITED":
            notice.say(f"{message.rstrip('.')} [{code}]")
        if detail.get("exit_status") is not None:
            return int(detail["exit_status"])
        return EXIT_STOPPED if code == "STOPPED_BY_USER" else EXIT_POOL_ERROR


UNSAID = {
    "WAIT_EXPIRED": "No GPU came free for it in the time it was to wait",
    "CLIENT_GONE": "Nobody waited for it any more",
    "DEPENDENCY_FAILED": "What it was to come after did not succeed",
    "LEASE_ENDED": "The lease it ran on has ended",
}
EXPLAINED = {
    "stopped": "it was stopped",
    "time_limit": "it reached its time limit",
    "client_gone": "its client went away",
    "shepherd_lost": "the process that supervised it was killed, and it with it",
    "node_restarted": "its machine was restarted",
    "fenced": "its machine was out of contact with the pool for too long",
}


def replica_of(detail: Detail, index: int) -> Detail:
    """One replica of a workload; empty when it has none of that number."""
    return next((replica for replica in detail.get("replicas") or [] if replica["index"] == index), {})


def started(detail: Detail, index: int, *, direct: bool) -> bool:
    """Whether there is a program to attach to (or a lease to use), or nothing to wait for any more.

    ``direct``: we connect to the shepherd ourselves and need its path; otherwise the pool relays.
    """
    if detail["state"] in FINAL:
        return True
    replica = replica_of(detail, index)
    if detail.get("kind") == "lease":
        return bool(detail["state"] == "running")
    direct = direct and not replica.get("relayed")
    return bool(replica.get("attach_path") if direct else replica.get("attachable"))
