"""``workspace``: create, start, stop, copy and delete workspaces."""

from __future__ import annotations

import base64
import time
from typing import Annotated, Any

from gpupool.cli import completion
from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_aliases, add_group, command, with_options
from gpupool.cli.commands.workspaces.runai import submit_workspace
from gpupool.cli.commands.workspaces.workspace_archive import export, import_
from gpupool.cli.output import confirm, notify, out_style, show, show_json
from gpupool.cli.render.workspaces import (
    disk_text,
    gpus_text,
    reserved_text,
    shared_lines,
    workspace_details,
    workspace_lines,
)
from gpupool.cli.request.request_body import gpu_request
from gpupool.cli.terminal import write_stderr
from gpupool.cli.transport.pool import PoolClient, open_pool, quote_segment, workload_path
from gpupool.cli.transport.workspaces import WAIT_S, change, known_workspace, stop_session, workspace_path
from gpupool.cli.transport.workspaces import delete as delete_workspace
from gpupool.client.workspaces import environment_fields
from gpupool.domain.errors import EXIT_POOL_ERROR
from gpupool.domain.work.workspace import READY
from gpupool.specs.job_options import GPU_OPTIONS, GPUS, Option, OptionKind

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The workspace, by name or id.", autocompletion=completion.workspaces),
]
NewName = Annotated[str, typer.Argument(metavar="NEW", help="The name of the new workspace.")]
SnapshotName = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="The name of the snapshot.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]
_SIZES = tuple(option for option in GPU_OPTIONS if option.name not in {"compute", "pool", "filter", "server_list"})
_RESERVED = Option("reserved", "--reserved", OptionKind.FLAG, "Keep the whole GPUs for it while it is stopped.", GPUS)
_CREATE = (
    *_SIZES,
    _RESERVED,
    Option("project", "--project", OptionKind.TEXT, "Use the quota of this project; default: yours.", GPUS, "NAME"),
    Option("image", "-i --image", OptionKind.TEXT, "Run its session in this container image.", GPUS, "IMAGE"),
    Option(
        "env",
        "--env",
        OptionKind.TEXT,
        "Make an environment in it: python, python:3.11, or a uv.lock, requirements.txt or conda.yml.",
        GPUS,
        "PYTHON|FILE",
    ),
    Option("node", "--node", OptionKind.TEXT, "Store it on this node; default: one with free GPUs.", GPUS, "NODE"),
)
_LIMITS = (
    Option("wait", "--wait", OptionKind.TEXT, "Limit the time in the queue: 30m; 0: start now or fail.", GPUS, "TIME"),
    Option("max_time", "--max-time", OptionKind.TEXT, "Stop it after this time: 8h.", GPUS, "TIME"),
    Option("idle_timeout", "--idle-timeout", OptionKind.TEXT, "Stop it after this time without GPU use.", GPUS, "TIME"),
    Option("cpus", "--cpus", OptionKind.NUMBER, "Limit the CPUs of the node.", GPUS, "N"),
    Option("memory", "--memory", OptionKind.TEXT, "Limit the memory of the node: 4G.", GPUS, "MIB"),
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = add_group(
        app,
        "workspace",
        "Create, start, stop, copy and delete workspaces: homes that keep your files while you hold no GPU.",
        "gpupool workspace create bob -p 0.25 --env python",
        "gpupool workspace start bob",
        "gpupool shell bob",
        "gpupool workspace stop bob",
    )
    command(
        group,
        "gpupool workspace create bob",
        "gpupool workspace create bob -n 0 --env python:3.11",
        "gpupool workspace create bob -g 1 --env project/uv.lock",
    )(create)
    command(group, "gpupool workspace start bob", "gpupool workspace start bob -g 1 --max-time 8h")(start)
    command(group, "gpupool workspace stop bob")(stop)
    command(group, "gpupool workspace list", name="list")(list_workspaces)
    command(group, "gpupool workspace show bob", name="show")(show_workspace)
    command(group, "gpupool workspace assign bob -g 2", "gpupool workspace assign bob -g 1 --reserved")(assign)
    command(group, "gpupool workspace unassign bob")(unassign)
    command(group, "gpupool workspace clone bob bob2", "gpupool workspace clone bob bob2 --snapshot clean")(clone)
    command(group, "gpupool workspace snapshot bob clean")(snapshot)
    command(group, "gpupool workspace restore bob clean")(restore)
    command(group, "gpupool workspace drop-snapshot bob clean", name="drop-snapshot")(drop_snapshot)
    command(group, "gpupool workspace share course start", "gpupool workspace clone teacher/course mine")(share)
    command(group, "gpupool workspace unshare course start")(unshare)
    command(group, "gpupool workspace export bob bob.tar.gz")(export)
    command(group, "gpupool workspace import bob bob.tar.gz", name="import")(import_)
    command(group, "gpupool workspace delete bob")(delete)
    command(group, "gpupool workspace submit dev -g 0.5 --jupyter", name="submit")(submit_workspace)
    add_aliases(group, "workspace")


@with_options(_CREATE)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name, unique among your workspaces.")],
    json: AsJson = False,
    **values: Any,
) -> None:
    """Create a stopped workspace on a node; it keeps its home there until it is deleted."""
    body: dict[str, Any] = {
        field: values[field] for field in ("project", "image", "node", "reserved") if field in values
    }
    body |= {"name": name} | environment_fields(values.get("env", "")) | _size(values)
    made = change(open_pool(), "workspaces", body)
    if json:
        show_json(made)
    else:
        notify(f"workspace {name} is created on {made['node']}; start it: 'gpupool workspace start {name}'")


@with_options((*_SIZES, *_LIMITS, Option("detach", "-d --detach", OptionKind.FLAG, "Do not wait.", GPUS)))
def start(name: Name, json: AsJson = False, **values: Any) -> int:
    """Start the session of a workspace, with another size than before if one is given. Ctrl-C only ends the waiting."""
    pool, limits = open_pool(), {option.name: values[option.name] for option in _LIMITS if option.name in values}
    made = pool.post(workspace_path(name, "start"), limits | _size(values))
    if not values.get("detach"):
        try:
            ended = _await_start(pool, made) or _await_ready(pool, made)
        except KeyboardInterrupt:
            state = pool.get(workload_path(made["session"]))["state"]
            notify(f"workspace {name} stays {state}; stop it: 'gpupool workspace stop {name}'")
            raise
        if ended is not None:
            reason = ended["reason"] or {"message": ended["state"]}
            code = f" [{reason['code']}]" if reason.get("code") else ""
            notify(f"workspace {name} did not start: {reason['message']}{code}")
            return EXIT_POOL_ERROR
        made = pool.get(workspace_path(made["id"]))
    if json:
        show_json(made)
    else:
        notify(f"workspace {name} is {made['state']}; open a shell: 'gpupool shell {made['name']}'")
    return 0


def _await_start(pool: PoolClient, made: dict[str, Any]) -> dict[str, Any] | None:
    """Wait until the session runs, or return it once it has ended; say why it waits."""
    shown = ""
    while True:
        query = {"for": "started", "timeout_s": 2.0 if not shown else WAIT_S}
        found: dict[str, Any] = pool.get(workload_path(made["session"], "wait"), query, timeout_s=WAIT_S + 10)
        if found["finished_at"] is not None:
            return found
        if found["counts"]["running"]:
            return None
        if found["counts"]["pending"]:
            why = pool.get(workload_path(made["session"], "why"))["sentence"]
            if why != shown:
                notify(f"workspace {made['name']} waits: {why}")
            shown = why


def _await_ready(pool: PoolClient, made: dict[str, Any]) -> dict[str, Any] | None:
    """Print the output of a session until its environment or container is ready, or return the session if it ends."""
    if not made["environment"] and not made["image"]:
        return None
    printed, cursor = "", ""
    while True:
        found: dict[str, Any] = pool.get(workload_path(made["session"], "wait"), {"for": "finished", "timeout_s": 0.2})
        page = pool.get(workload_path(made["session"], "logs"), {"cursor": cursor} if cursor else {})
        text = b"".join(base64.b64decode(chunk["data"]) for chunk in page["chunks"]).decode(errors="replace")
        printed, cursor = printed + text, page["cursor"]
        write_stderr(text.partition(READY)[0])
        if READY in printed:
            return None
        if found["finished_at"] is not None and not text:
            return found


def stop(
    name: Name, force: Annotated[bool, typer.Option("--force", help="Stop it at once.")] = False, json: AsJson = False
) -> None:
    """Stop the session of a workspace and release its GPUs; its files stay."""
    found = stop_session(open_pool(), name, force=force)
    if json:
        show_json(found)
    else:
        notify(f"workspace {name} is {found['state']}; its files stay on {found['node']}")


def list_workspaces(json: AsJson = False) -> None:
    """List your workspaces, and those that you manage, with their disk and last use, and what others share."""
    found = open_pool().get("workspaces")
    if json:
        show_json(found)
    else:
        show(workspace_lines(found["workspaces"], time.time(), out_style()))
        if found["shared"]:
            show(["", *shared_lines(found["shared"], out_style())])


def show_workspace(name: Name, json: AsJson = False) -> None:
    """Show the details of a workspace, with its snapshots."""
    pool = open_pool()
    with known_workspace(pool, name):
        found = pool.get(workspace_path(name))
    if json:
        show_json(found)
    else:
        show(workspace_details(found, time.time(), out_style()))


@with_options((*_SIZES, _RESERVED))
def assign(name: Name, **values: Any) -> None:
    """Set the GPUs of the next start; the workspace must be stopped.

    GPUs that were reserved for it before are released.
    """
    size = _size(values)
    if not size:
        raise typer.BadParameter("give the GPUs, for example -g 1")
    _assign(name, size["gpus"], reserved=values.get("reserved", False))


def unassign(name: Name) -> None:
    """Let a stopped workspace start without GPUs; programs run on the CPU."""
    _assign(name, {"count": 0})


def _assign(name: str, gpus: dict[str, Any], *, reserved: bool = False) -> None:
    found = open_pool().post(workspace_path(name, "gpus"), {"gpus": gpus} | ({"reserved": True} if reserved else {}))
    notify(f"GPUs of the next start of workspace {name}: {gpus_text(found['gpus'])}{reserved_text(found)}")


def clone(
    name: Name,
    new: NewName,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", metavar="NAME", help="Copy this snapshot; default: the present files.")
    ] = None,
) -> None:
    """Create a workspace with a copy of the files of a stopped one, or of a snapshot, on the same node.

    You can also clone a shared snapshot of another user (USER/NAME).
    """
    owner, _, own_name = name.rpartition("/")
    body = {"name": new} | ({} if snapshot is None else {"snapshot": snapshot}) | ({"user": owner} if owner else {})
    made = change(open_pool(), workspace_path(own_name, "clone"), body)
    notify(f"workspace {new} is created from {name}, with {disk_text(made)}")


def snapshot(name: Name, snapshot: SnapshotName) -> None:
    """Save a copy of the files of a stopped workspace under a name."""
    change(open_pool(), workspace_path(name, "snapshots"), {"name": snapshot})
    notify(f"workspace {name} is saved as {snapshot}")


def restore(name: Name, snapshot: SnapshotName, yes: Yes = False) -> int:
    """Replace the files of a stopped workspace by those of a snapshot. Its present files are lost."""
    if not yes and not confirm(f"Replace the present files of {name} by the snapshot {snapshot}?"):
        return _unchanged()
    change(open_pool(), workspace_path(name, "restore"), {"name": snapshot})
    notify(f"workspace {name} is restored from {snapshot}")
    return 0


def drop_snapshot(name: Name, snapshot: SnapshotName, yes: Yes = False) -> int:
    """Delete a snapshot of a stopped workspace."""
    if not yes and not confirm(f"Delete the snapshot {snapshot} of {name}?"):
        return _unchanged()
    open_pool().delete(f"{workspace_path(name)}/snapshots/{quote_segment(snapshot)}")
    notify(f"the snapshot {snapshot} of {name} is deleted")
    return 0


def share(name: Name, snapshot: SnapshotName, yes: Yes = False) -> int:
    """Let all members of the project clone a snapshot. They can read all its files, also keys and passwords."""
    pool = open_pool()
    found = pool.get(workspace_path(name))
    if not yes and not confirm(
        f"Let all members of {found['project']} copy the snapshot {snapshot} of {found['name']}, with all files in it?"
    ):
        return _unchanged()
    pool.post(_share_path(found["id"], snapshot), {"shared": True})
    notify(
        f"the snapshot {snapshot} of {found['name']} is shared with {found['project']}; members clone it: "
        f"'gpupool workspace clone {found['user']}/{found['name']} NEW --snapshot {snapshot}'"
    )
    return 0


def unshare(name: Name, snapshot: SnapshotName) -> None:
    """Let no other user clone a snapshot any more. Clones that exist stay."""
    open_pool().post(_share_path(name, snapshot), {"shared": False})
    notify(f"the snapshot {snapshot} of {name} is not shared any more")


def _share_path(name: str, snapshot: str) -> str:
    return f"{workspace_path(name)}/snapshots/{quote_segment(snapshot)}/share"


def delete(
    name: Name,
    yes: Yes = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete it although its node is down; its files stay there.")
    ] = False,
) -> int:
    """Delete a stopped workspace with its home and all its snapshots."""
    pool = open_pool()
    with known_workspace(pool, name):
        found = pool.get(workspace_path(name))
    many = f" and {len(found['snapshots'])} snapshots" if found["snapshots"] else ""
    if not yes and not confirm(f"Delete {found['name']} with its home{many} ({disk_text(found)} on {found['node']})?"):
        return _unchanged()
    delete_workspace(pool, found["id"], forget=forget)
    notify(f"workspace {found['name']} is deleted")
    return 0


def _unchanged() -> int:
    notify("nothing was changed; confirm with --yes")
    return EXIT_POOL_ERROR


def _size(values: dict[str, Any]) -> dict[str, Any]:
    gpus = gpu_request(values)
    return {"gpus": gpus} if gpus else {}
