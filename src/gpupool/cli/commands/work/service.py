"""``serve`` and ``service``: create, list, scale, update and stop services."""

from __future__ import annotations

import time
from typing import Annotated, Any

from gpupool.cli import completion
from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_group, command, with_options
from gpupool.cli.output import confirm, notify, out_style, show, show_json
from gpupool.cli.render.services import service_details, service_lines
from gpupool.cli.request.service_options import SERVE, read_service, service_request
from gpupool.cli.transport.pool import PoolClient, open_pool, quote_segment
from gpupool.domain.errors import EXIT_POOL_ERROR, ErrorCode, GpupoolError
from gpupool.specs.fields.service import parse_replicas

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The service, by name, PROJECT/NAME or id.", autocompletion=completion.services
    ),
]
Words = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME] [-- COMMAND ARGS...]", help="A name, and the command after --.")
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool serve chat -p 0.5 --model qwen -- vllm serve Qwen/Qwen3-8B --port {port}",
        "gpupool serve digits -p 0.1 --replicas 0..4 --ready /health -- python3 server.py --port {port}",
        "gpupool serve -f service.yml",
    )(serve)
    group = add_group(
        app,
        "service",
        "List, scale, update and stop services: servers with replicas and a stable address.",
        "gpupool service list",
        "gpupool service scale chat 0..4",
        "gpupool service update chat -- vllm serve Qwen/Qwen3-14B --port {port}",
        "gpupool service undo chat",
    )
    command(group, "gpupool service list", name="list")(list_services)
    command(group, "gpupool service describe chat")(describe)
    command(group, "gpupool service scale chat 2", "gpupool service scale chat 0..4")(scale)
    command(group, "gpupool service update chat -e MODE=fast", "gpupool service update chat -p 0.5")(update)
    command(group, "gpupool service undo chat", "gpupool service undo chat --to 3")(undo)
    command(group, "gpupool service url chat")(url)
    command(group, "gpupool service logs chat")(logs)
    command(group, "gpupool service token chat")(token)
    command(group, "gpupool service stop chat")(stop)
    command(group, "gpupool service delete chat")(delete)


@with_options(SERVE)
def serve(context: typer.CommandContext, words: Words = None, **values: Any) -> int:
    """Start a server as a service, which has a stable address, replicas on GPUs, and updates without interruption.

    {port} in the command is replaced by the port on which the server must listen, {host} by the address of its node.
    """
    return serve_with(values, list(words or []), list((context.obj or {}).get("program", [])))


def serve_with(values: dict[str, Any], words: list[str], program: list[str]) -> int:
    """Start a service with these values of ``serve``'s options."""
    before = read_service(values["file"]) if values.get("file") else {}
    body = service_request(words[0] if words else "", values, [*words[1:], *program], before)
    pool = open_pool(start=True)
    return _done(_send(pool, "services", body, values), values, "is created")


@with_options(SERVE)
def update(context: typer.CommandContext, words: Words = None, **values: Any) -> int:
    """Change a service. Another program is a new revision: replicas change one by one, without interruption.

    Options that are not given keep their values.
    """
    words, program = list(words or []), list((context.obj or {}).get("program", []))
    if not words:
        raise GpupoolError(ErrorCode.INVALID_NAME, "The name of the service is missing.", "See --help.")
    pool = open_pool()
    found = pool.get(service_path(words[0]))
    before = read_service(values["file"]) if values.get("file") else found["definition"] or {}
    body = service_request(found["name"], values, [*words[1:], *program], before)
    return _done(_send(pool, f"{service_path(found['id'])}/update", body, values), values, "is updated")


def _send(pool: PoolClient, path: str, body: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    from gpupool.cli.fast.commands import add_folder

    made: dict[str, Any] = pool.post(path, add_folder(pool.transport, body, values))
    return made


def _done(made: dict[str, Any], values: dict[str, Any], what: str) -> int:
    if values.get("json"):
        show_json(made)
    else:
        name = made["name"]
        notify(f"service {name} {what}; 'gpupool service describe {name}' shows its replicas")
        token = "" if made["access"] == "public" else f"; 'gpupool service token {name}' creates a token"
        notify(f"'gpupool service url {name}' prints its address{token}")
    return 0


def list_services(json: AsJson = False) -> None:
    """List the services of your projects."""
    found = open_pool().get("services")
    if json:
        show_json(found)
    else:
        show(service_lines(found["services"], out_style()))


def describe(name: Name, json: AsJson = False) -> None:
    """Show a service with its replicas and revisions."""
    found = open_pool().get(service_path(name))
    if json:
        show_json(found)
    else:
        show(service_details(found, time.time(), out_style()))


def scale(
    name: Name,
    replicas: Annotated[str, typer.Argument(metavar="N", help="A number of replicas, or a range such as 0..4.")],
    json: AsJson = False,
) -> None:
    """Set the number of replicas; a stopped service starts again."""
    least, most = parse_replicas(replicas)
    found = open_pool().post(f"{service_path(name)}/scale", {"min": least, "max": most})
    if json:
        show_json(found)
    else:
        notify(f"service {found['name']} has {replicas} replica{'' if replicas == '1' else 's'}")


def undo(
    name: Name,
    to: Annotated[int | None, typer.Option("--to", metavar="REVISION", min=1, help="Change to this revision.")] = None,
) -> None:
    """Change back to the revision before the present one; an update in progress ends."""
    found = open_pool().post(f"{service_path(name)}/undo", {} if to is None else {"revision": to})
    notify(f"service {found['name']} changes to revision {found['target']}")


def url(name: Name) -> None:
    """Print the address of a service."""
    found = open_pool().get(service_path(name))
    show([found["url"] or found["path"]])


def logs(
    name: Name,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for more output.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", metavar="N", min=0, help="Print the last N lines.")] = None,
) -> None:
    """Print the output of the newest replica; `gpupool logs REPLICA` prints that of another one."""
    from gpupool.cli.commands.work import logs as workload_logs

    found = open_pool().get(service_path(name))
    if not found["replicas"]:
        raise GpupoolError(
            ErrorCode.NOT_FOUND, f"The service {found['name']} has no replica now.", "See `gpupool ps --all`."
        )
    workload_logs.logs(found["replicas"][-1]["workload"], follow=follow, tail=tail)


def token(
    name: Name,
    delete_all: Annotated[bool, typer.Option("--delete-all", help="Delete all tokens of the service.")] = False,
) -> None:
    """Create a token with which requests may use a service. It is shown once."""
    pool = open_pool()
    if delete_all:
        pool.delete(f"{service_path(name)}/tokens")
        notify(f"service {name} has no tokens any more")
    else:
        show([pool.post(f"{service_path(name)}/tokens", {})["secret"]])


def stop(name: Name) -> None:
    """Stop all replicas of a service; its definition stays, and `service scale` starts it again."""
    found = open_pool().post(f"{service_path(name)}/stop", {})
    notify(f"service {found['name']} is stopped")


def delete(name: Name, yes: Yes = False) -> int:
    """Delete a stopped service with its revisions."""
    if not yes and not confirm(f"Delete the service {name}?"):
        notify("nothing was changed; confirm with --yes")
        return EXIT_POOL_ERROR
    open_pool().delete(service_path(name))
    notify(f"service {name} is deleted")
    return 0


def service_path(name: str) -> str:
    """Return the path of a service."""
    return f"services/{quote_segment(name.replace('/', ':'))}"
