"""``apply`` and ``get``: work as Kubernetes' manifests describe it."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from gpupool.cli import asking, completing
from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import show, show_json
from gpupool.cli.pool import Pool, open_pool

Files = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", metavar="FILE", help="A file of manifests, a folder of them, or - for stdin."),
]
Recursive = Annotated[bool, typer.Option("-R", "--recursive", help="Folders with all that is in them.")]
Namespace = Annotated[
    str | None,
    typer.Option("-n", "--namespace", metavar="PROJECT", help="The project.", autocompletion=completing.projects),
]
Output = Annotated[
    str | None, typer.Option("-o", "--output", metavar="FORMAT", help="json, yaml, name, wide or jsonpath=TEMPLATE.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool apply -f job.yaml",
        "gpupool apply -f job.yaml --dry-run",
        "gpupool apply -f pytorchjob.yaml --no-container",
        "gpupool apply -f jobs/ -R -n team-a",
        "kubectl create job x --image=y --dry-run=client -o yaml | gpupool apply -f -",
    )(apply)
    command(
        app,
        "gpupool get pods",
        "gpupool get jobs,tfjobs -A -o wide",
        "gpupool get job train -o yaml",
        "gpupool get pods -l app=train -w",
        "gpupool get job train -o jsonpath='{.status.succeeded}'",
        "gpupool get nodes",
    )(get)


def apply(  # noqa: PLR0913, PLR0917 - one parameter per option
    filename: Files = None,
    recursive: Recursive = False,
    namespace: Namespace = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; do nothing.")] = False,
    no_container: Annotated[
        bool, typer.Option("--no-container", help="Leave images out: run commands as processes of the machine.")
    ] = False,
    container: Annotated[
        str, typer.Option("-c", "--container", metavar="NAME", help="The one to run of pods that have several.")
    ] = "",
    claim: Annotated[
        list[str] | None,
        typer.Option("--claim", metavar="NAME=FOLDER", help="A folder of the nodes for a persistent volume claim."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="End, delete and make again what differs.")] = False,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Run what manifests of Pods, Jobs, TFJobs, PyTorchJobs, MPIJobs and TrainJobs describe.

    Applied again, an object that is there is unchanged; what differs is refused, or made again with --force. What
    cannot be honoured is an error, or a warning with its line and column; with an error nothing of the file is done.
    """
    from gpupool.cli.manifest_files import texts

    if not filename:
        raise typer.BadParameter("name a file: -f job.yaml")
    files = list(texts(filename, recursive=recursive))
    pool = open_pool(start=True)
    how: dict[str, Any] = {"project": namespace, "no_container": no_container, "container": container}
    how |= {"claims": asking.pairs(claim or [], "--claim"), "force": force, "dry_run": dry_run} | _here(no_container)
    found = [pool.post("apply", {"text": text, "name": name, **how}) for name, text in files]
    for (name, _), answer in zip(files, found, strict=True):
        for warning in answer["warnings"]:
            place = f"{name}:{warning['line']}:{warning['column']}"
            print(f"Warning: {place}: {warning['message']} [{warning['code']}]", file=sys.stderr)
    objects = [one for answer in found for one in answer["objects"]]
    if json:
        show_json({"objects": objects, "warnings": [w for answer in found for w in answer["warnings"]]})
    elif output in {"json", "yaml"}:
        _show_objects(pool, [one["workload"] for one in objects if one["workload"]], output)
    else:
        show(_done(one, dry_run=dry_run, name_only=output == "name") for one in objects)


def _done(one: dict[str, Any], *, dry_run: bool, name_only: bool) -> str:
    if name_only:
        return f"{one['resource']}/{one['name']}"
    ended = " (it has ended; delete it, or apply --force, to run it again)" if one["ended"] else ""
    return f"{one['resource']}/{one['name']} {one['action']}{ended}{' (dry run)' if dry_run else ''}"


def _here(no_container: bool) -> dict[str, Any]:
    """This shell's folder, and, for processes, its environment, as ``submit`` takes them."""
    here = asking.program({}, ["-"])
    found: dict[str, Any] = {"workdir": here["workdir"], "umask": int(here["umask"], 8)}
    return found | ({"env": here["env"]} if no_container else {"env": _plain_environment(here["env"])})


def _plain_environment(env: dict[str, str]) -> dict[str, str]:
    """What a process needs that an annotation makes of a pod."""
    return {name: env[name] for name in ("PATH", "HOME", "USER", "LANG", "VIRTUAL_ENV") if name in env}


def get(  # noqa: PLR0913, PLR0917 - one parameter per option
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="KIND [NAME...]", help="pods, jobs, tfjobs, pytorchjobs, mpijobs, trainjobs, nodes, all; KIND/NAME."
        ),
    ],
    namespace: Namespace = None,
    everybody: Annotated[bool, typer.Option("-A", "--all-namespaces", help="Everybody's, in all projects.")] = False,
    selector: Annotated[
        str | None, typer.Option("-l", "--selector", metavar="KEY=VALUE,...", help="Only those with these labels.")
    ] = None,
    output: Output = None,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Go on with what changes.")] = False,
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Rows only.")] = False,
    json: AsJson = False,
) -> None:
    """List objects that were applied: your own, those of a project (-n), or everybody's (-A). Nodes, too.

    NAMESPACE is the project. Pods are the replicas of every kind.
    """
    from gpupool.cli.kubernetes import Scope, targets_of
    from gpupool.cli.kubernetes_listing import Listing

    if json:
        output = "json"
    labels = tuple(part for part in (selector or "").split(",") if part)
    for part in labels:
        asking.pairs([part], "-l")
    scope = Scope(namespace, everybody, labels)
    listing = Listing(open_pool(), scope, output or "", header=not no_headers)
    targets = targets_of(words)
    if not watch:
        listing.show(targets)
        return
    if output not in {None, "", "wide"}:
        raise typer.BadParameter("-w shows tables only")
    listing.watch(targets)


def _show_objects(pool: Pool, workloads: list[dict[str, Any]], output: str) -> None:
    from gpupool.cli.kubernetes import detail
    from gpupool.specs.kubernetes.objects import list_object, object_of

    found = [object_of(detail(pool, workload), time.time()) for workload in workloads]
    from gpupool.cli.kubernetes_listing import write

    write(found[0] if len(found) == 1 else list_object(found), output)
