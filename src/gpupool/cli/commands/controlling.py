"""``stop``, ``suspend``, ``resume``, ``priority``, ``delete`` and ``wait``."""

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
    command(app, "gpupool priority high train-1", "gpupool priority -- -50 sweep-1 sweep-2")(priority)
    command(app, "gpupool delete train-1", "gpupool delete --all --yes", "gpupool delete -f job.yaml")(delete)
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


def priority(
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="low, normal, high, or -1000 to 1000.")],
    names: Refs = None,
) -> int:
    """Let workloads that wait come earlier or later in their projects; they keep the time at which they queued."""
    wanted = int(level) if level.removeprefix("-").isdecimal() else level

    def change(pool: Pool, name: str) -> str:
        found = pool.post(workload_path(name, "priority"), {"priority": wanted})
        return f"{name} has priority {found['priority']}"

    return _each(names, change, "Change", every=False, yes=True)


def delete(  # noqa: PLR0913, PLR0917 - one parameter per option
    names: Refs = None,
    every: All = False,
    yes: Yes = False,
    filename: Annotated[
        list[str] | None, typer.Option("-f", "--filename", metavar="FILE", help="What is in a file of manifests.")
    ] = None,
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", metavar="PROJECT", help="The project.")] = None,
    selector: Annotated[
        str | None, typer.Option("-l", "--selector", metavar="KEY=VALUE,...", help="Those of a kind with these labels.")
    ] = None,
    ignore: Annotated[bool, typer.Option("--ignore-not-found", help="What is not there is no error.")] = False,
    wait_for_it: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it is gone.")] = True,
    force: Annotated[bool, typer.Option("--force", "--now", help="KILL at once.")] = False,
    grace: Annotated[
        str | None, typer.Option("--grace-period", metavar="SECONDS", help="Time between TERM and KILL.")
    ] = None,
) -> int:
    """Stop workloads and forget them, with their logs: by name, by KIND NAME, KIND/NAME, or by a file of manifests."""
    from gpupool.cli.kubernetes_delete import Removal, objects_named

    removal = Removal(ignore=ignore, wait=wait_for_it, grace_s=0 if force else None if grace is None else float(grace))
    objects = objects_named(names or [], filename or [], every=every, labelled=selector is not None)
    if objects is not None:
        return removal.objects(open_pool(), objects, namespace, selector or "")
    if filename or namespace or selector:
        raise typer.BadParameter("-n and -l go with a kind: gpupool delete pods -l app=train")

    def remove(pool: Pool, name: str) -> str:
        return removal.one(pool, name)

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
            tell(act(pool, _meant(pool, name)))
        except GpupoolError as error:
            from gpupool.cli.errors import report

            status = report(error)
    return status


def _meant(pool: Pool, name: str) -> str:
    """``job/pi`` as the workload that it is; anything else as it is."""
    if "/" not in name:
        return name
    from gpupool.cli.kubernetes import resolve

    return resolve(pool, name)


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
    found = [_await_end(pool, _meant(pool, name), deadline - time.monotonic()) for name in names]
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
