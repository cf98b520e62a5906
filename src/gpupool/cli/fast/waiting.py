"""Asking the pool for something that may take long: through restarts of its control plane, and open to signals."""

from __future__ import annotations

import select
from time import monotonic

from gpupool.cli.fast.signals import ENDING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpupool.cli.fast.gate import Gate, Pending
    from gpupool.cli.fast.http import Answer
    from gpupool.cli.fast.signals import Inbox

RECONNECT_S = 30.0  # how long a control plane, or its database, may be away
TURN_S = 5.0  # how long one that has answered nothing yet may wait to lead: it is another that does
AWAY = frozenset({"POOL_UNREACHABLE", "DATABASE_UNREACHABLE"})
RETRY_S = 0.2
TICK_S = 0.5
ANSWER_S = 60.0  # longer than any wait we ask for
LAST_ANSWER_S = 2.0  # how long a submission may still be answered after Ctrl-C


class Interrupted(Exception):  # noqa: N818 - a wish of the user, not an error
    """The user wants to stop waiting; ``signum`` says how it was said."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Line:
    """A patient line to the pool. ``on_tick`` is called about twice a second while an answer is awaited."""

    def __init__(self, gate: Gate, inbox: Inbox, on_tick: Callable[[], None] | None = None) -> None:
        self._gate = gate
        self._inbox = inbox
        self.on_tick = on_tick
        self.interrupted = 0
        self._served = False  # whether the pool has done anything it was asked

    def ask(self, method: str, target: str, body: object = None, *, finish: bool = False) -> Answer:
        """The pool's answer. Only for requests that may be repeated: they are, when the control plane restarts.

        And when its database is away, or it is not its turn to lead: what was begun goes on when that is over.
        ``finish``: a signal does not abandon the request but is noted in ``interrupted``: the answer says what to undo.
        Raises ``Interrupted``, ``GpupoolError(POOL_UNREACHABLE)``.
        """
        failing_since = None
        while True:
            answer, broken = None, None
            try:
                answer = self._exchange(self._gate.open(method, target, body), finish=finish)
            except OSError as error:
                broken = error
            patience_s = self._patience_s(answer)
            failing_since = failing_since or monotonic()
            if monotonic() - failing_since < patience_s and not self.interrupted:
                self.pause(RETRY_S)
                continue
            if answer is None:
                raise _unreachable() from broken
            self._served = self._served or not patience_s
            return answer

    def _patience_s(self, answer: Answer | None) -> float:
        """How long to ask again instead of taking an answer, or none, for one."""
        code = refused_with(answer) if answer is not None else "POOL_UNREACHABLE"
        if code == "NOT_LEADING":
            return RECONNECT_S if self._served else TURN_S
        return RECONNECT_S if code in AWAY else 0.0

    def pause(self, seconds: float) -> None:
        """Wait a little; raises ``Interrupted``."""
        poller = select.poll()
        poller.register(self._inbox.fd, select.POLLIN)
        if poller.poll(seconds * 1000):
            self._note_signals(finish=False)

    def _exchange(self, exchange: Pending, *, finish: bool) -> Answer:
        poller = select.poll()
        poller.register(self._inbox.fd, select.POLLIN)
        poller.register(exchange.fileno(), select.POLLIN)
        deadline = monotonic() + ANSWER_S
        try:
            while monotonic() < deadline:
                ready = {fd for fd, _ in poller.poll(TICK_S * 1000)}
                if exchange.fileno() in ready and (answer := exchange.receive()) is not None:
                    return answer
                if self._inbox.fd in ready:
                    self._note_signals(finish=finish)
                    deadline = min(deadline, monotonic() + LAST_ANSWER_S) if self.interrupted else deadline
                if not ready and self.on_tick:
                    self.on_tick()
            raise TimeoutError("the pool did not answer in time")
        finally:
            exchange.close()

    def _note_signals(self, *, finish: bool) -> None:
        for number in self._inbox.take():
            if number in ENDING:
                self.interrupted = number
        if self.interrupted and not finish:
            raise Interrupted(self.interrupted)


def refused_with(answer: Answer) -> str:
    """The code of the error in an answer; empty when it has none."""
    error = answer.body.get("error") if not answer.ok and isinstance(answer.body, dict) else None
    return str(error.get("code")) if isinstance(error, dict) else ""


def _unreachable() -> Exception:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    return GpupoolError(
        ErrorCode.POOL_UNREACHABLE,
        f"The pool has not answered for {RECONNECT_S:.0f} seconds.",
        "See 'gpupool status' and 'gpupool doctor'.",
    )
