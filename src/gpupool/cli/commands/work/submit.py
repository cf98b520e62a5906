"""``submit``: queue work that runs without a terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import command, with_options
from gpupool.cli.fast.commands import add_folder, attach_to_workload
from gpupool.cli.output import notify, show, show_json
from gpupool.cli.request.submit import build_body, build_requests
from gpupool.cli.request.submit_options import SUBMIT
from gpupool.domain.errors import ErrorCode, GpupoolError

if TYPE_CHECKING:
    from gpupool.cli.transport.pool import PoolClient
    from gpupool.specs.request import WorkloadRequest

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME] [-- COMMAND ARGS...]",
        help="A name, and the command after --; or a script with #SBATCH lines, and its arguments.",
    ),
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
        "gpupool submit job.sh --epochs 3",
    )(submit)


@with_options(SUBMIT)
def submit(context: typer.CommandContext, words: Words = None, **values: Any) -> int:
    """Queue work that runs without your terminal: training, sessions, sweeps, job files.

    Training may use idle GPUs above the quota and is queued again after preemption; an interactive session is protected
    within the quota. Each replica of a sweep gets its parameters as {name} in its command and in its environment. The
    workers of a gang start together or not at all.
    """
    return submit_with(values, words or [], (context.obj or {}).get("program", []))


def submit_with(values: dict[str, Any], words: list[str], program: list[str], then: str = "") -> int:
    """Submit work with these values of ``submit``'s options. ``then`` is a hint with {name}, shown afterwards."""
    given = (values, words, program)
    if values.get("dry_run"):
        return _dry_run(build_requests(*given), as_json=bool(values.get("json")))
    bodies = (
        [request.to_body() for request in build_requests(*given)] if _checked_here(*given) else [build_body(*given)]
    )
    from gpupool.cli.transport.pool import open_pool

    pool = open_pool(start=True)
    made = [_serve(pool, body, values) for body in bodies if body.get("kind") == "service"]
    bodies = [body for body in bodies if body.get("kind") != "service"]
    found = [post_request(pool, body, values) for body in bodies]
    if made and not found:
        show_json(made[0] if len(made) == 1 else {"services": made}) if values.get("json") else None
        return 0
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
            if _asks_for_mail(bodies) and not _has_address(pool, workload["user"]):
                notify(f"you have no address for mail; set it: gpupool user set {workload['user']} --email ADDRESS")
            if then:
                notify(then.format(name=workload["name"]))
    return 0


def _serve(pool: PoolClient, body: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Create a service from a job file; return it."""
    made: dict[str, Any] = pool.post("services", add_folder(pool.transport, body, values))
    if not values.get("json"):
        show([made["name"]])
    if not values.get("quiet"):
        notify(f"service {made['name']} is created; 'gpupool service describe {made['name']}' shows its replicas")
    return made


def _asks_for_mail(bodies: list[dict[str, Any]]) -> bool:
    """Return whether one of the requests asks for mail."""
    return any(body.get("mail", "none").lower() != "none" for body in bodies)


def _has_address(pool: PoolClient, name: str) -> bool:
    return any(user["name"] == name and user["email"] for user in pool.get("users")["users"])


def _checked_here(values: dict[str, Any], words: list[str], program: list[str]) -> bool:
    """Return whether the request is checked before it is sent: job files, and requests without a command."""
    return bool(values.get("file")) or not (program or values.get("image") or len(words) > 1)


def post_request(pool: PoolClient, body: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Submit a request and return the workload."""
    try:
        made: dict[str, Any] = pool.post("workloads", add_folder(pool.transport, body, values))
    except GpupoolError as error:
        from gpupool.specs.request import parse_request
        from gpupool.specs.slurm.script import NAME_LABEL

        if error.code is ErrorCode.NAME_TAKEN and NAME_LABEL in body.get("labels", {}):
            suffix = os.urandom(3).hex()  # names of Slurm's jobs may be equal
            again = body | {"name": f"{body['name']}-{suffix}", "request_id": os.urandom(16).hex()}
            return dict(pool.post("workloads", add_folder(pool.transport, again, values)))

        parse_request(body)  # the same error as for a job file and for --dry-run, if it is one of the request
        raise
    return made


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
