"""When no pool answers: start one, wait for one that is being restarted, or say so."""

from __future__ import annotations

from gpupool.client.locate import Location

RESTART_S = 30.0


def start_for_user() -> Location:
    """A pool that answers, started now if need be, with one line about it on stderr.

    Raises ``GpupoolError`` (POOL_UNREACHABLE, POOL_START_FAILED).
    """
    from gpupool.cli.fast.notice import say
    from gpupool.daemon.launch import ensure_pool

    return ensure_pool(lambda text: say(text[:1].lower() + text[1:].rstrip(".")))


def await_answer(place: Location | None) -> Location:
    """The pool at a place once its control plane is back; raises ``GpupoolError(POOL_UNREACHABLE)`` when none runs."""
    from gpupool.cli.errors import no_pool, unreachable

    if place is None:
        raise no_pool()
    from time import monotonic, sleep

    from gpupool.daemon.ask import healthy
    from gpupool.daemon.launch import pool_status

    deadline = monotonic() + RESTART_S
    while not healthy(place):
        if monotonic() > deadline:
            raise unreachable(f"not for {RESTART_S:.0f} s; it is being restarted again and again")
        if not pool_status(place)["running"]:
            raise no_pool()
        sleep(0.1)
    return place
