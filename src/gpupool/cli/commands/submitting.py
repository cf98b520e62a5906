"""``submit``: work that runs without its terminal."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import command, takes
from gpupool.cli.fast.commands import with_folder
from gpupool.cli.output import show, show_json, tell
from gpupool.cli.submit_options import SUBMIT
from gpupool.cli.submitting import requests_of
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.request import WorkloadRequest

Words = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME] [-- COMMAND ARGS...]", help="A name, and the command after --.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool submit train-1 -g 1 -- python3 train.py",
        "gpupool submit dev -g 0.5 --interactive -- bash",
        "gpupool submit hpo1 -g 0.25 --sweep lr=0.1,0.01 --parallelism 2 -- python3 train.py --lr {lr}",
        "gpupool submit ddp --workers 8 --gpus-per-worker 4 --framework torch -- torchrun train.py",
        "gpupool submit hvd --workers 4 --framework mpi -- python3 train.py",
        "gpupool submit ps --framework tf --chief --ps 1 --workers 2 -- python3 train.py",
        "gpupool submit eval -g 0.1 --after train-1 -- python3 evaluate.py",
        "gpupool submit -f job.yml --dry-run",
    )(submit)


@takes(SUBMIT)
def submit(context: typer.Context, words: Words = None, **values: Any) -> int:
    """Queue work that runs without your terminal: batch training, sessions, sweeps, job files.

    Training may use idle GPUs beyond the quota and is run again when it was interrupted; an interactive session is
    protected within the quota. Each run of a sweep finds its parameters as {name} in its command, and in its
    environment. The workers of a gang start together or not at all.
    """
    requests = requests_of(values, words or [], (context.obj or {}).get("program", []))
    if values.get("dry_run"):
        return _dry_run(requests, as_json=bool(values.get("json")))
    from gpupool.cli.pool import open_pool

    pool = open_pool(start=True)
    found = [pool.post("workloads", with_folder(pool.gate, request.to_body(), values)) for request in requests]
    if values.get("json"):
        show_json(found[0] if len(found) == 1 else {"workloads": found})
    else:
        show(workload["name"] for workload in found)
    if values.get("attach"):
        from gpupool.cli.attaching import attach_to

        return attach_to(found[0]["id"], 0, tty=values.get("tty"))
    if values.get("wait_finished"):
        from gpupool.cli.commands.controlling import wait

        return wait([workload["id"] for workload in found])
    if not values.get("quiet"):
        for workload in found:
            tell(f"{workload['name']} is {workload['state']}; 'gpupool logs -f {workload['name']}' shows its output")
    return 0


def _dry_run(requests: list[WorkloadRequest], *, as_json: bool) -> int:
    """Show the requests, and what the pool would make of them."""
    plans = [_plan(request) for request in requests]
    if as_json:
        show_json({"requests": [request.to_body() for request in requests], "plans": plans})
        return 0
    import yaml

    for request, plan in zip(requests, plans, strict=True):
        shown = request.to_body() | {"env": f"({len(request.env)} variables)"}
        show([yaml.safe_dump(shown, sort_keys=False).rstrip(), *(f"# {line}" for line in _plan_lines(plan))])
    return 0


def _plan(request: WorkloadRequest) -> dict[str, Any]:
    """The pool's plan for a request, or the error in its place."""
    from gpupool.cli.pool import open_pool

    try:
        return dict(open_pool().post("plan", request.to_body()))
    except GpupoolError as error:
        return {"error": {"code": error.code.value, "message": error.message, "hint": error.hint}}


def _plan_lines(plan: dict[str, Any]) -> list[str]:
    from gpupool.cli.render.plans import plan_lines
    from gpupool.cli.render.text import Style

    if "error" not in plan:
        return plan_lines(plan, Style())
    error = plan["error"]
    if error["code"] == ErrorCode.POOL_UNREACHABLE:
        return ["No pool answers here, so nothing can be said about when it would start."]
    return [f"It would be refused: {error['message']} [{error['code']}]", error["hint"]]
