"""Requests that may take long: they survive restarts of the control plane and react to signals."""

from __future__ import annotations

import select
from time import monotonic

from gpupool.cli.fast.signals import TERMINATING
from gpupool.client.transport.http import RATE_LIMIT_DELAY_S, is_untrusted, untrusted_error
from gpupool.client.transport.retries import RETRY_TIMEOUT_S, STANDBY_TIMEOUT_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpupool.cli.fast.signals import SignalInbox
    from gpupool.cli.transport.local import PendingAnswer, PoolTransport
    from gpupool.client.transport.http import Answer
    from gpupool.daemon.process.progress import StartWatch

RECONNECT_TIMEOUT_S = RETRY_TIMEOUT_S  # for a pool that cannot be watched, or its database
STARTING_CODES = frozenset({"POOL_UNREACHABLE", "POOL_STARTING"})
TEMPORARY_CODES = STARTING_CODES | {"DATABASE_UNREACHABLE", "OVERLOADED", "RATE_LIMITED"}
RETRY_DELAY_S = 0.2
TICK_INTERVAL_S = 0.5
ANSWER_TIMEOUT_S = 60.0  # longer than any requested wait
INTERRUPTED_ANSWER_TIMEOUT_S = 2.0  # for the answer to a submission after Ctrl-C


class Interrupted(Exception):  # noqa: N818 - requested by the user, not an error
    """The user wants to stop waiting; ``signum`` is the signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class RetryingClient:
    """Sends requests and retries them. ``on_tick`` is called about twice a second while an answer is awaited."""

    def __init__(self, transport: PoolTransport, inbox: SignalInbox, on_tick: Callable[[], None] | None = None) -> None:
        self._transport = transport
        self._inbox = inbox
        self.on_tick = on_tick
        self.interrupted = 0
        self._watch: StartWatch | None = None  # set while the pool does not answer
        self._has_succeeded = False  # whether a request has succeeded

    def request(
        self,
        method: str,
        target: str,
        body: object = None,
        *,
        finish: bool = False,
        sent: PendingAnswer | None = None,
    ) -> Answer:
        """Return the pool's answer. Only for requests that may be repeated.

        The request is sent again while the control plane restarts, its database is away, or it waits to lead. A pool of
        this machine that starts is waited for as long as it makes progress.
        ``finish``: a signal does not abandon the request but is stored in ``interrupted``, because the answer is needed
        to undo it.
        ``sent``: this request, sent before.
        Raises ``Interrupted``, ``GpupoolError``: POOL_UNREACHABLE, POOL_START_FAILED.
        """
        failing_since: dict[bool, float] = {}  # by whether it is a standby: it may have been starting before
        self._watch = None
        while True:
            answer, broken = None, None
            try:
                exchange, sent = sent or self._transport.open(method, target, body), None
                answer = self._exchange(exchange, finish=finish)
            except OSError as error:
                if is_untrusted(error):
                    raise untrusted_error() from error
                broken = error
            code = answer.error_code if answer is not None else "POOL_UNREACHABLE"
            retry_timeout_s, now = self._retry_timeout_s(code), monotonic()
            may_retry = now - failing_since.setdefault(code == "NOT_LEADING", now) < retry_timeout_s
            if code in STARTING_CODES and not self.interrupted:
                may_retry = self._makes_progress(may_retry=may_retry) or may_retry
            if may_retry and not self.interrupted:
                self.pause(RATE_LIMIT_DELAY_S if code == "RATE_LIMITED" else RETRY_DELAY_S)
                continue
            if answer is None:
                raise _unreachable(broken) from broken
            self._has_succeeded = self._has_succeeded or not retry_timeout_s
            return answer

    def _retry_timeout_s(self, code: str) -> float:
        """Return how long to retry after an answer with this error code; 0 to accept it."""
        if code == "NOT_LEADING":
            return RECONNECT_TIMEOUT_S if self._has_succeeded else STANDBY_TIMEOUT_S
        return RECONNECT_TIMEOUT_S if code in TEMPORARY_CODES else 0.0

    def _makes_progress(self, *, may_retry: bool) -> bool:
        """Return whether the pool's processes can be watched and make progress.

        Raises the reason why they will not answer, unless ``may_retry``.
        """
        from gpupool.domain.errors import GpupoolError

        self._watch = self._watch or self._transport.watch()
        try:
            return self._watch is not None and self._watch.look()
        except GpupoolError:
            if may_retry:
                return True
            raise

    def pause(self, seconds: float) -> None:
        """Wait for some seconds. Raises ``Interrupted``."""
        poller = select.poll()
        poller.register(self._inbox.fd, select.POLLIN)
        if poller.poll(seconds * 1000):
            self._note_signals(finish=False)

    def _exchange(self, exchange: PendingAnswer, *, finish: bool) -> Answer:
        poller = select.poll()
        poller.register(self._inbox.fd, select.POLLIN)
        poller.register(exchange.fileno(), select.POLLIN)
        deadline = monotonic() + ANSWER_TIMEOUT_S
        try:
            while monotonic() < deadline:
                ready = {fd for fd, _ in poller.poll(TICK_INTERVAL_S * 1000)}
                if exchange.fileno() in ready and (answer := exchange.receive()) is not None:
                    return answer
                if self._inbox.fd in ready:
                    self._note_signals(finish=finish)
                    deadline = (
                        min(deadline, monotonic() + INTERRUPTED_ANSWER_TIMEOUT_S) if self.interrupted else deadline
                    )
                if not ready and self.on_tick:
                    self.on_tick()
            raise TimeoutError("the pool did not answer in time")
        finally:
            exchange.close()

    def _note_signals(self, *, finish: bool) -> None:
        for number in self._inbox.take():
            if number in TERMINATING:
                self.interrupted = number
        if self.interrupted and not finish:
            raise Interrupted(self.interrupted)


def _unreachable(broken: OSError | None) -> Exception:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    reason = "" if broken is None else f" ({broken.strerror or broken})"
    return GpupoolError(
        ErrorCode.POOL_UNREACHABLE,
        f"The pool has not answered for {RECONNECT_TIMEOUT_S:.0f} seconds{reason}.",
        "See 'gpupool status' and 'gpupool doctor'.",
    )
