"""``stop``, ``suspend``, ``resume``, ``delete`` and ``wait``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import AsJson, Refs, command
from gpupool.cli.output import ask_yes, show_json, tell
from gpupool.cli.pool import Pool, open_pool, reference, workload_path
from gpupool.domain.errors import EXIT_POOL_ERROR, GpupoolError
from gpupool.domain.units import parse_duration_s
from gpupool.domain.workload import WorkloadState

WAIT_S = 25.0
EXIT_TIMEOUT = 124  # as `timeout` does

All = Annotated[bool, typer.Option("-a", "--all", "-A", help="All of yours, after a question.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "gpupool stop train-1", "gpupool stop sweep/3 --grace 1m", "gpupool stop --force train-1")(stop)
    command(app, "gpupool suspend train-1", "gpupool suspend --all")(suspend)
    command(app, "gpupool resume train-1")(resume)
    command(app, "gpupool delete train-1", "gpupool delete --all --yes")(delete)
    command(app, "gpupool wait train-1", "gpupool wait train-1 train-2 --timeout 2h")(wait)


def stop(
    names: Refs = None,
    every: All = False,
    yes: Yes = False,
    grace: Annotated[str | None, typer.Option("--grace", metavar="TIME", help="Time between TERM and KILL.")] = None,
    force: Annotated[bool, typer.Option("-f", "--force", help="KILL at once.")] = False,
) -> int:
    """End workloads: TERM, then KILL after the grace; in the queue they are taken out. NAME/3 ends one replica."""
    body: dict[str, Any] = {"force": force}
    if grace is not None:
        body["grace_s"] = 0 if grace == "0" else parse_duration_s(grace)

    def end(pool: Pool, name: str) -> str:
        workload, index = reference(name)
        more = {} if index is None else {"index": index}
        found = pool.post(workload_path(workload, "stop"), body | more)
        return f"{name} is {found['state']}"

    return _each(names, end, "Stop", every=every, yes=yes)


def suspend(names: Refs = None, every: All = False, yes: Yes = False) -> int:
    """Stop workloads but keep them: they give their GPUs back and can be resumed."""
    return _each(names, _verb("suspend"), "Suspend", every=every, yes=yes)


def resume(names: Refs = None, every: All = False, yes: Yes = False) -> int:
    """Put suspended workloads back into the queue; their programs begin anew."""
    return _each(names, _verb("resume"), "Resume", every=every, yes=yes)


def delete(names: Refs = None, every: All = False, yes: Yes = False) -> int:
    """Stop workloads and forget them, with their logs."""

    def remove(pool: Pool, name: str) -> str:
        found = pool.get(workload_path(name))
        if not WorkloadState(found["state"]).final:
            pool.post(workload_path(found["id"], "stop"), {})
            _await_end(pool, found["id"], found["limits"]["grace_s"] + WAIT_S)
        pool.delete(workload_path(found["id"]))
        return f"{name} is deleted"

    return _each(names, remove, "Delete", every=every, yes=yes)


def _verb(verb: str) -> Callable[[Pool, str], str]:
    def act(pool: Pool, name: str) -> str:
        return f"{name} is {pool.post(workload_path(name, verb))['state']}"

    return act


def _each(names: list[str] | None, act: Callable[[Pool, str], str], word: str, *, every: bool, yes: bool) -> int:
    """Do it to each; what fails is said and the others go on."""
    if bool(names) == every:
        raise typer.BadParameter("name the workloads, or give --all")
    pool = open_pool()
    wanted = names or [w["id"] for w in pool.workloads({"user": pool.get("whoami")["user"], "all": word == "Delete"})]
    if every and wanted and not yes and not ask_yes(f"{word} all {len(wanted)} of your workloads?"):
        tell("nothing was done; --yes answers the question beforehand")
        return EXIT_POOL_ERROR
    status = 0
    for name in wanted:
        try:
            tell(act(pool, name))
        except GpupoolError as error:
            from gpupool.cli.errors import report

            status = report(error)
    return status


def _await_end(pool: Pool, workload: str, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        left = max(0.1, min(WAIT_S, deadline - time.monotonic()))
        found = pool.get(workload_path(workload, "wait"), {"for": "finished", "timeout_s": left}, timeout_s=left + 10)
        if WorkloadState(found["state"]).final or time.monotonic() >= deadline:
            return found


def wait(
    names: Refs = None,
    timeout: Annotated[str | None, typer.Option("--timeout", metavar="TIME", help="Wait no longer.")] = None,
    json: AsJson = False,
) -> int:
    """Wait until workloads have ended.

    The exit status is that of the first that did not succeed: its program's, 1 when it has none; 124 after the timeout.
    """
    if not names:
        raise typer.BadParameter("name the workloads to wait for")
    pool = open_pool()
    deadline = time.monotonic() + (parse_duration_s(timeout) if timeout else 10 * 366 * 86400)
    found = [_await_end(pool, name, deadline - time.monotonic()) for name in names]
    if json:
        show_json({"workloads": found})
    unfinished = next((w for w in found if not WorkloadState(w["state"]).final), None)
    if unfinished is not None:
        tell(f"{unfinished['name']} is still {unfinished['state']}")
        return EXIT_TIMEOUT
    return next((status for status in map(status_of, found) if status), 0)


def status_of(workload: dict[str, Any]) -> int:
    """The exit status that stands for how a workload ended."""
    if workload["state"] == WorkloadState.SUCCEEDED:
        return 0
    return int(workload["exit_status"] or 1)
