"""Stopping every job of a pool before the pool itself is stopped."""

from __future__ import annotations

import http.client
import time
from typing import Any

from gpupool.client.locate import Location
from gpupool.daemon.ask import ask
from gpupool.domain.errors import ErrorCode, GpupoolError

_POLL_S = 0.2
_SHOWN = 5


def stop_all_jobs(location: Location, timeout_s: float) -> None:
    """Ask every live workload to stop and wait until all have; needs the right to stop them.

    Raises ``GpupoolError``: POOL_UNREACHABLE, FORBIDDEN, WRONG_STATE when some still run at the end.
    """
    deadline = time.monotonic() + timeout_s
    try:
        ask(location, "POST", "/v1/pool/stop-jobs", {})
        while live := _live(location):
            if time.monotonic() >= deadline:
                raise _still_running(live, timeout_s)
            time.sleep(_POLL_S)
    except (OSError, http.client.HTTPException) as error:
        raise GpupoolError(
            ErrorCode.POOL_UNREACHABLE,
            "The pool does not answer, so its jobs cannot be stopped.",
            "Try again in a moment.",
        ) from error


def _live(location: Location) -> list[dict[str, Any]]:
    workloads: list[dict[str, Any]] = ask(location, "GET", f"/v1/workloads?limit={_SHOWN}")["workloads"]
    return workloads


def _still_running(live: list[dict[str, Any]], timeout_s: float) -> GpupoolError:
    names = ", ".join(str(workload.get("name") or workload["id"]) for workload in live)
    return GpupoolError(
        ErrorCode.WRONG_STATE,
        f"Jobs still run after {timeout_s:.0f} s: {names}" + (" and others." if len(live) == _SHOWN else "."),
        "Stop them with 'gpupool stop --force', or run 'gpupool down' again; the pool runs on.",
    )
