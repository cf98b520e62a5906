"""Commands that control workloads, from ``stop`` to ``wait``, ``checkpointed``, and the aliases ``workload ...``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, Refs, add_aliases, add_group, command
from gpupool.cli.endings import ended_text
from gpupool.cli.output import confirm, notify, show_json
from gpupool.cli.transport.pool import PoolClient, open_pool, split_reference, workload_path
from gpupool.client.progress import checkpointed as report_checkpoint
from gpupool.domain.errors import EXIT_POOL_ERROR, GpupoolError
from gpupool.domain.units import parse_duration_s
from gpupool.domain.work.states import WorkloadState

WAIT_TIMEOUT_S = 25.0
RELEASED = "RELEASED"  # as Reason.RELEASED; domain.events takes milliseconds to import
EXIT_TIMEOUT = 124  # as `timeout`

All = Annotated[bool, typer.Option("-a", "--all", "-A", help="Select all your workloads; asks first.")]
Grace = Annotated[str | None, typer.Option("--grace", metavar="TIME", help="Set the time between TERM and KILL.")]
Force = Annotated[bool, typer.Option("-f", "--force", help="Send KILL immediately.")]
Step = Annotated[int | None, typer.Option("--step", min=0, metavar="N", help="Report the step as well.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "gpupool stop train-1", "gpupool stop sweep/3 --grace 1m", "gpupool stop --force train-1")(stop)
    command(app, "gpupool suspend train-1", "gpupool suspend --all")(suspend)
    command(app, "gpupool restart train-1", "gpupool restart sweep/3", "gpupool restart --force dev")(restart)
    command(app, "gpupool resume train-1")(resume)
    command(app, "gpupool priority high train-1", "gpupool priority -- -50 sweep-1 sweep-2")(priority)
    command(app, "gpupool delete train-1", "gpupool delete --all --yes", "gpupool delete -f job.yaml")(delete)
    command(app, "gpupool wait train-1", "gpupool wait train-1 train-2 --timeout 2h")(wait)
    command(app, "gpupool checkpointed", "gpupool checkpointed --step 1200")(checkpointed)
    examples = ["gpupool workload list", "gpupool workload describe train-1"]
    add_aliases(add_group(app, "workload", "List, inspect and control workloads.", *examples), "workload")


def stop(
    names: Refs = None,
    every: All = False,
    yes: Yes = False,
    grace: Grace = None,
    force: Force = False,
) -> int:
    """Stop workloads: TERM, then KILL after the grace period.

    Queued workloads leave the queue. NAME/3 stops one replica.
    """

    def end(pool: PoolClient, name: str) -> str:
        workload, index = split_reference(name)
        found = pool.post(workload_path(workload, "stop"), _stop_body(grace, index, force=force))
        return _stop_result(found, index)

    return _apply_to_each(names, end, "Stop", every=every, yes=yes)


def restart(
    names: Refs = None,
    every: All = False,
    yes: Yes = False,
    grace: Grace = None,
    force: Force = False,
) -> int:
    """Stop programs and start them again on the same GPUs, without a new wait in the queue.

    Other programs on these GPUs (exec, shell) end. NAME/3 restarts one replica. Gangs cannot be restarted in place.
    """

    def start_again(pool: PoolClient, name: str) -> str:
        workload, index = split_reference(name)
        found = pool.post(workload_path(workload, "restart"), _stop_body(grace, index, force=force))
        which = found["name"] if index is None else f"{found['name']}/{index}"
        return f"{which} restarts on the same GPUs"

    return _apply_to_each(names, start_again, "Restart", every=every, yes=yes)


def suspend(names: Refs = None, every: All = False, yes: Yes = False) -> int:
    """Stop workloads but keep them: they release their GPUs and can be resumed."""

    def act(pool: PoolClient, name: str) -> str:
        return _suspend_result(pool.post(workload_path(name, "suspend")))

    return _apply_to_each(names, act, "Suspend", every=every, yes=yes)


def resume(names: Refs = None, every: All = False, yes: Yes = False) -> int:
    """Queue suspended workloads again; their programs start from the beginning."""

    def act(pool: PoolClient, name: str) -> str:
        found = pool.post(workload_path(name, "resume"))
        return f"{found['name']} is {found['state']}"

    return _apply_to_each(names, act, "Resume", every=every, yes=yes)


def priority(
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="low, normal, high, or -1000 to 1000.")],
    names: Refs = None,
) -> int:
    """Change the priority of queued workloads in their projects; they keep their queue time."""
    wanted = int(level) if level.removeprefix("-").isdecimal() else level

    def change(pool: PoolClient, name: str) -> str:
        found = pool.post(workload_path(name, "priority"), {"priority": wanted})
        return f"{found['name']} has priority {found['priority']}"

    return _apply_to_each(names, change, "Change", every=False, yes=True)


def delete(  # noqa: PLR0913, PLR0917 - one parameter per option
    names: Refs = None,
    every: All = False,
    yes: Yes = False,
    filename: Annotated[
        list[str] | None,
        typer.Option("-f", "--filename", metavar="FILE", help="Delete the objects in this file of manifests."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", metavar="PROJECT", help="Use this project.")
    ] = None,
    selector: Annotated[
        str | None,
        typer.Option("-l", "--selector", metavar="KEY=VALUE,...", help="Select objects of a kind with these labels."),
    ] = None,
    ignore: Annotated[bool, typer.Option("--ignore-not-found", help="Ignore objects that do not exist.")] = False,
    wait_for_it: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is deleted (default).")] = True,
    force: Annotated[bool, typer.Option("--force", "--now", help="Send KILL immediately.")] = False,
    grace: Annotated[
        str | None, typer.Option("--grace-period", metavar="SECONDS", help="Set the time between TERM and KILL.")
    ] = None,
) -> int:
    """Stop and delete workloads with their logs: by name, KIND NAME, KIND/NAME, or a file of manifests."""
    from gpupool.cli.kubernetes.listing import Removal, find_targets

    removal = Removal(ignore=ignore, wait=wait_for_it, grace_s=0 if force else None if grace is None else float(grace))
    objects = find_targets(names or [], filename or [], every=every, labelled=selector is not None)
    if objects is not None:
        return removal.objects(open_pool(), objects, namespace, selector or "")
    if filename or namespace or selector:
        raise typer.BadParameter("-n and -l need a kind: gpupool delete pods -l app=train")

    def remove(pool: PoolClient, name: str) -> str:
        return removal.one(pool, name)

    return _apply_to_each(names, remove, "Delete", every=every, yes=yes)


def _stop_body(grace: str | None, index: int | None, *, force: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"force": force} | ({} if index is None else {"index": index})
    if grace is not None:
        body["grace_s"] = 0 if grace == "0" else parse_duration_s(grace)
    return body


def _stop_result(found: dict[str, Any], index: int | None) -> str:
    """Describe what a stop of a workload, or of its replica ``index``, did. ``found`` is the workload after it."""
    name, state = found["name"], WorkloadState(found["state"])
    if found["stop_reason"] is None and state.final:
        return f"{name} had already ended: {state}"
    if index is not None:
        return f"{name}/{index} is asked to stop"
    return f"{name} is {'released' if found['stop_reason'] == RELEASED else state}"


def _suspend_result(found: dict[str, Any]) -> str:
    if found["state"] == WorkloadState.STOPPING:
        return f"{found['name']} is stopping; it is suspended once its programs have ended"
    return f"{found['name']} is {found['state']}"


def _apply_to_each(
    names: list[str] | None, act: Callable[[PoolClient, str], str], word: str, *, every: bool, yes: bool
) -> int:
    """Run an action on each workload. An error is printed, and the others continue."""
    if bool(names) == every:
        raise typer.BadParameter("give names of workloads, or --all")
    pool = open_pool()
    wanted = names or [w["id"] for w in pool.workloads({"mine": True, "all": word == "Delete"})]
    if every and wanted and not yes and not confirm(f"{word} all {len(wanted)} of your workloads?"):
        notify("nothing was changed; confirm with --yes")
        return EXIT_POOL_ERROR
    status = 0
    for name in wanted:
        try:
            notify(act(pool, _resolve(pool, name)))
        except GpupoolError as error:
            from gpupool.cli.errors import report

            status = report(error)
    return status


def _resolve(pool: PoolClient, name: str) -> str:
    """Return the workload of ``job/pi``; other names unchanged."""
    if "/" not in name:
        return name
    from gpupool.cli.kubernetes.names import resolve_object

    return resolve_object(pool, name)


def await_end(pool: PoolClient, workload: str, seconds: float) -> Any:
    """Wait until a workload has ended, at most this long, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        left = max(0.1, min(WAIT_TIMEOUT_S, deadline - time.monotonic()))
        found = pool.get(workload_path(workload, "wait"), {"for": "finished", "timeout_s": left}, timeout_s=left + 10)
        if WorkloadState(found["state"]).final or time.monotonic() >= deadline:
            return found


def wait(
    names: Refs = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Stop waiting after this time.")
    ] = None,
    json: AsJson = False,
) -> int:
    """Wait until workloads have ended.

    The exit status is that of the first workload that did not succeed: its program's, or 1 if it has none; 124 after
    the timeout.
    """
    if not names:
        raise typer.BadParameter("give the names of the workloads to wait for")
    pool = open_pool()
    deadline = time.monotonic() + (parse_duration_s(timeout) if timeout else 10 * 366 * 86400)
    found = [await_end(pool, _resolve(pool, name), deadline - time.monotonic()) for name in names]
    if json:
        show_json({"workloads": found})
    for ended in found:
        if ended["state"] in {WorkloadState.FAILED, WorkloadState.STOPPED} and ended.get("ending"):
            notify(ended_text(ended))
    unfinished = next((w for w in found if not WorkloadState(w["state"]).final), None)
    if unfinished is not None:
        notify(f"{unfinished['name']} is still {unfinished['state']}")
        return EXIT_TIMEOUT
    return next((status for status in map(status_of, found) if status), 0)


def status_of(workload: dict[str, Any]) -> int:
    """Return the exit status for how a workload ended."""
    if workload["state"] == WorkloadState.SUCCEEDED:
        return 0
    return int(workload["exit_status"] or 1)


def checkpointed(step: Step = None) -> None:
    """Report, from a program in the pool, that it has just saved a checkpoint.

    An eviction then loses only the work since this moment. Outside of the pool the command does nothing.
    """
    if not report_checkpoint(step):
        notify("not called by a program of a pool: nothing to report")
