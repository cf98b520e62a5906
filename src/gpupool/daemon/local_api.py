"""Requests to a pool's API over its unix socket, with the standard library only; stopping all jobs of a pool."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpupool.client.discovery import Location
from gpupool.client.transport.http import call, error_of_answer
from gpupool.domain.errors import ErrorCode, GpupoolError

WAITING = "waiting"
_POLL_S = 0.2
_ANSWER_S = 60.0
_SHOWN = 5
_NOTICE_EVERY_S = 2.0


def ask(
    location: Location, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = 5.0
) -> dict[str, Any]:
    """Return the JSON answer to one request.

    Raises ``OSError`` if nothing responds, ``GpupoolError`` for the API's own errors.
    """
    answer = call(location.api_socket, method, path, body, timeout_s)
    if not answer.ok:
        raise error_of_answer(answer)
    return answer.body if isinstance(answer.body, dict) else {}


def healthy(location: Location, timeout_s: float = 2.0) -> bool:
    """Return whether the pool's API responds as healthy, or as a standby."""
    return health(location, timeout_s).get("status") in {"ok", WAITING}


def health(location: Location, timeout_s: float = 2.0) -> dict[str, Any]:
    """Return the health report of the pool's API; empty if it does not respond."""
    try:
        return ask(location, "GET", "/v1/health", timeout_s=timeout_s)
    except (OSError, GpupoolError):
        return {}


def stop_all_jobs(location: Location, timeout_s: float, tell: Callable[[str], None]) -> None:
    """Ask every live workload to stop and wait until all have; the caller needs permission to stop them.

    ``tell`` gets progress lines. Raises ``GpupoolError``: POOL_UNREACHABLE, FORBIDDEN, WRONG_STATE if no remaining
    workload has ended for ``timeout_s``.
    """
    progress = _StopProgress(tell)
    try:
        while left := _ask_to_stop(location):
            if progress.stalled_for_s(left) >= timeout_s:
                raise _still_running(_live(location), timeout_s)
            time.sleep(_POLL_S)
    except OSError as error:
        raise GpupoolError(
            ErrorCode.POOL_UNREACHABLE,
            "The pool does not answer, so its jobs cannot be stopped.",
            "Try again in a moment.",
        ) from error


class _StopProgress:
    """Counts the remaining workloads, and records when the count last changed."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._least = -1
        self._changed_at = self._told_at = time.monotonic()

    def stalled_for_s(self, left: int) -> float:
        now = time.monotonic()
        if self._least < 0 or left < self._least:
            self._least, self._changed_at = left, now
        if now - self._told_at >= _NOTICE_EVERY_S:
            self._told_at = now
            self._tell(f"stopping jobs: {left} left")
        return now - self._changed_at


def _ask_to_stop(location: Location) -> int:
    """Stop all workloads that were not asked yet; return how many have not ended. One call may stop only some."""
    pool = ask(location, "POST", "/v1/pool/stop-jobs", {}, timeout_s=_ANSWER_S)
    known = int(pool["queued"]) + int(pool["running"])
    return known or len(_live(location))  # stopping ones are in neither list


def _live(location: Location) -> list[dict[str, Any]]:
    workloads: list[dict[str, Any]] = ask(location, "GET", f"/v1/workloads?limit={_SHOWN}")["workloads"]
    return workloads


def _still_running(live: list[dict[str, Any]], timeout_s: float) -> GpupoolError:
    names = ", ".join(str(workload.get("name") or workload["id"]) for workload in live)
    return GpupoolError(
        ErrorCode.WRONG_STATE,
        f"Jobs still run after {timeout_s:.0f} s: {names}" + (" and others." if len(live) == _SHOWN else "."),
        "Stop them with 'gpupool stop --force', or run 'gpupool down' again; the pool still runs.",
    )
