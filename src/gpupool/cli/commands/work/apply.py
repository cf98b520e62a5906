"""``apply`` and ``get``: Kubernetes manifests and objects."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

from gpupool.cli import completion
from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import show, show_json
from gpupool.cli.request import request_body
from gpupool.cli.transport.pool import PoolClient, open_pool

Files = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", metavar="FILE", help="Read manifests from this file or folder; - is stdin."),
]
Recursive = Annotated[bool, typer.Option("-R", "--recursive", help="Read folders recursively.")]
Namespace = Annotated[
    str | None,
    typer.Option("-n", "--namespace", metavar="PROJECT", help="Use this project.", autocompletion=completion.projects),
]
Output = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="FORMAT", help="Print as json, yaml, name, wide or jsonpath=TEMPLATE."),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool apply -f job.yaml",
        "gpupool apply -f job.yaml --dry-run",
        "gpupool apply -f pytorchjob.yaml --no-container",
        "gpupool apply -f deployment.yaml",
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the changes without applying them.")] = False,
    no_container: Annotated[
        bool, typer.Option("--no-container", help="Ignore images: run commands as processes of the node.")
    ] = False,
    container: Annotated[
        str, typer.Option("-c", "--container", metavar="NAME", help="Run this container of pods with several.")
    ] = "",
    claim: Annotated[
        list[str] | None,
        typer.Option("--claim", metavar="NAME=FOLDER", help="Use this node folder for a persistent volume claim."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Stop, delete and recreate objects that differ.")] = False,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Create workloads from manifests of Pods, Jobs, TFJobs, PyTorchJobs, MPIJobs, TrainJobs and Deployments.

    An object that exists already and is equal stays unchanged. If it differs, the command fails, or recreates it with
    --force; a Deployment is a service, which is updated. Job files of the kind service are applied in the same way.
    Unsupported fields are errors, or warnings with line and column. After an error nothing of the file is created.
    """
    from gpupool.cli.request.manifest_files import read_manifests
    from gpupool.cli.request.service_files import apply_services, service_requests

    if not filename:
        raise typer.BadParameter("give a file: -f job.yaml")
    files = list(read_manifests(filename, recursive=recursive))
    own = {name: service_requests(name, text) for name, text in files}
    files = [(name, text) for name, text in files if not own[name]]
    pool = open_pool(start=True)
    how: dict[str, Any] = {"project": namespace, "no_container": no_container, "container": container}
    how |= {"claims": request_body.parse_pairs(claim or [], "--claim"), "force": force, "dry_run": dry_run} | _here(
        no_container
    )
    found = [pool.post("apply", {"text": text, "name": name, **how}) for name, text in files]
    for (name, _), answer in zip(files, found, strict=True):
        for warning in answer["warnings"]:
            place = f"{name}:{warning['line']}:{warning['column']}"
            print(f"Warning: {place}: {warning['message']} [{warning['code']}]", file=sys.stderr)
    objects = [one for answer in found for one in answer["objects"]]
    objects += apply_services(pool, [each for rows in own.values() for each in rows], namespace, dry_run=dry_run)
    if json:
        show_json({"objects": objects, "warnings": [w for answer in found for w in answer["warnings"]]})
    elif output in {"json", "yaml"}:
        _show_objects(pool, objects, output)
    else:
        show(_done(one, dry_run=dry_run, name_only=output == "name") for one in objects)


def _done(one: dict[str, Any], *, dry_run: bool, name_only: bool) -> str:
    if name_only:
        return f"{one['resource']}/{one['name']}"
    ended = " (it has ended; to run it again, delete it or use --force)" if one["ended"] else ""
    return f"{one['resource']}/{one['name']} {one['action']}{ended}{' (dry run)' if dry_run else ''}"


def _here(no_container: bool) -> dict[str, Any]:
    """Return this shell's folder and, for processes, its environment, as ``submit`` sends them."""
    here = request_body.program_fields({}, ["-"])
    found: dict[str, Any] = {"workdir": here["workdir"], "umask": int(here["umask"], 8)}
    return found | ({"env": here["env"]} if no_container else {"env": _plain_environment(here["env"])})


def _plain_environment(env: dict[str, str]) -> dict[str, str]:
    """Return the variables that pods need if an annotation runs them as processes."""
    return {name: env[name] for name in ("PATH", "HOME", "USER", "LANG", "VIRTUAL_ENV") if name in env}


def get(  # noqa: PLR0913, PLR0917 - one parameter per option
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="KIND [NAME...]",
            help="pods, jobs, tfjobs, pytorchjobs, mpijobs, trainjobs, deployments, nodes, all; KIND/NAME.",
        ),
    ],
    namespace: Namespace = None,
    everybody: Annotated[
        bool, typer.Option("-A", "--all-namespaces", help="List objects of all users and projects.")
    ] = False,
    selector: Annotated[
        str | None,
        typer.Option("-l", "--selector", metavar="KEY=VALUE,...", help="List only objects with these labels."),
    ] = None,
    output: Output = None,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Continue with changed objects.")] = False,
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Print no header.")] = False,
    json: AsJson = False,
) -> None:
    """List applied objects: your own, those of a project (-n), or of all users (-A); and nodes.

    NAMESPACE is the project. Pods are the replicas of all kinds.
    """
    from gpupool.cli.kubernetes.listing import ObjectListing
    from gpupool.cli.kubernetes.names import ObjectScope, parse_targets

    if json:
        output = "json"
    labels = tuple(part for part in (selector or "").split(",") if part)
    for part in labels:
        request_body.parse_pairs([part], "-l")
    scope = ObjectScope(namespace, everybody, labels)
    listing = ObjectListing(open_pool(), scope, output or "", header=not no_headers)
    targets = parse_targets(words)
    if not watch:
        listing.show(targets)
        return
    if output not in {None, "", "wide"}:
        raise typer.BadParameter("-w shows tables only")
    listing.watch(targets)


def _show_objects(pool: PoolClient, applied: list[dict[str, Any]], output: str) -> None:
    from gpupool.cli.kubernetes.names import detail
    from gpupool.specs.kubernetes.objects import deployment_object, list_object, object_of

    found = [object_of(detail(pool, one["workload"]), time.time()) for one in applied if one["workload"]]
    found += [deployment_object(one["service"]) for one in applied if one["service"]]
    from gpupool.cli.kubernetes.listing import write

    write(found[0] if len(found) == 1 else list_object(found), output)
