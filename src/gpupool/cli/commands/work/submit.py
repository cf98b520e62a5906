"""``submit``: queue work that runs without a terminal."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import command, with_options
from gpupool.cli.fast.commands import add_folder, attach_to_workload
from gpupool.cli.output import notify, show, show_json
from gpupool.cli.request.submit import build_requests
from gpupool.cli.request.submit_options import SUBMIT
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


@with_options(SUBMIT)
def submit(context: typer.Context, words: Words = None, **values: Any) -> int:
    """Queue work that runs without your terminal: training, sessions, sweeps, job files.

    Training may use idle GPUs above the quota and is queued again after preemption; an interactive session is protected
    within the quota. Each replica of a sweep gets its parameters as {name} in its command and in its environment. The
    workers of a gang start together or not at all.
    """
    requests = build_requests(values, words or [], (context.obj or {}).get("program", []))
    if values.get("dry_run"):
        return _dry_run(requests, as_json=bool(values.get("json")))
    from gpupool.cli.transport.pool import open_pool

    pool = open_pool(start=True)
    found = [pool.post("workloads", add_folder(pool.transport, request.to_body(), values)) for request in requests]
    if values.get("json"):
        show_json(found[0] if len(found) == 1 else {"workloads": found})
    else:
        show(workload["name"] for workload in found)
    if values.get("attach"):
        return attach_to_workload(found[0]["id"], 0, tty=values.get("tty"))
    if values.get("wait_finished"):
        from gpupool.cli.commands.work.control import wait

        return wait([workload["id"] for workload in found])
    if not values.get("quiet"):
        for workload in found:
            notify(f"{workload['name']} is {workload['state']}; 'gpupool logs -f {workload['name']}' shows its output")
    return 0


def _dry_run(requests: list[WorkloadRequest], *, as_json: bool) -> int:
    """Print the requests and their plans."""
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
    """Return the pool's plan for a request, or the error."""
    from gpupool.cli.transport.pool import open_pool

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
        return ["No pool answers, so its start cannot be estimated."]
    return [f"It would be rejected: {error['message']} [{error['code']}]", error["hint"]]
