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

RECONNECT_S = 30.0  # how long a control plane may be away
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

    def ask(self, method: str, target: str, body: object = None, *, finish: bool = False) -> Answer:
        """The pool's answer. Only for requests that may be repeated: they are, when the control plane restarts.

        ``finish``: a signal does not abandon the request but is noted in ``interrupted``: the answer says what to undo.
        Raises ``Interrupted``, ``GpupoolError(POOL_UNREACHABLE)``.
        """
        failing_since = None
        while True:
            try:
                return self._exchange(self._gate.open(method, target, body), finish=finish)
            except OSError as error:
                failing_since = failing_since or monotonic()
                if monotonic() - failing_since > RECONNECT_S or self.interrupted:
                    raise _unreachable() from error
                self.pause(RETRY_S)

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


def _unreachable() -> Exception:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    return GpupoolError(
        ErrorCode.POOL_UNREACHABLE,
        f"The pool has not answered for {RECONNECT_S:.0f} seconds.",
        "See 'gpupool status' and 'gpupool doctor'.",
    )
