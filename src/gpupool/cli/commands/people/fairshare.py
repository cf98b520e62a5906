"""``fairshare`` and ``department``."""

from __future__ import annotations

from typing import Annotated, Any

from gpupool.cli import completion
from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_group, command
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.people import department_lines, fair_share_lines, user_share_lines
from gpupool.cli.request.project_options import gpu_permille
from gpupool.cli.request.project_options import weight as read_weight
from gpupool.cli.transport.pool import open_pool, quote_segment

Name = Annotated[str, typer.Argument(metavar="NAME", help="The department.", autocompletion=completion.departments)]
Quota = Annotated[
    str | None,
    typer.Option("--quota", metavar="GPUS", help="Set the guaranteed GPUs of its projects; none: their sum."),
]
WeightOf = Annotated[str | None, typer.Option("--weight", metavar="NUMBER", help="Set its weight for over-quota GPUs.")]
LimitOf = Annotated[
    str | None, typer.Option("--limit", metavar="GPUS", help="Limit the GPUs of its projects; none: no limit.")
]
NoteText = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Add a note.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = add_group(
        app,
        "department",
        "List, create and change departments: projects that share a quota.",
        "gpupool department list",
    )
    command(group, "gpupool department list", name="list")(list_departments)
    command(group, "gpupool department create research --quota 6 --weight 2 --limit 8")(create)
    command(group, "gpupool department set research --quota 4 --limit none", name="set")(change)
    command(group, "gpupool department delete research")(delete)
    command(app, "gpupool fairshare", "gpupool fairshare --user", "gpupool fairshare --json")(fairshare)


def list_departments(json: AsJson = False) -> None:
    """List the departments with their projects."""
    found = open_pool().get("departments")
    if json:
        show_json(found)
    else:
        show(department_lines(found["departments"], out_style()))


def create(
    name: Name, quota: Quota = None, weight: WeightOf = None, limit: LimitOf = None, note: NoteText = None
) -> None:
    """Create a department. Projects join it with 'gpupool project set NAME --department DEPARTMENT'."""
    made = open_pool().post("departments", {"name": name} | _changes(quota, weight, limit, note))
    notify(f"department {made['name']} is created")


def change(
    name: Name, quota: Quota = None, weight: WeightOf = None, limit: LimitOf = None, note: NoteText = None
) -> None:
    """Change a department; other settings stay."""
    body = _changes(quota, weight, limit, note)
    if not body:
        raise typer.BadParameter("give a setting, for example --quota 2")
    open_pool().patch(f"departments/{quote_segment(name)}", body)
    notify(f"department {name} is changed")


def delete(name: Name) -> None:
    """Delete a department that has no projects."""
    open_pool().delete(f"departments/{quote_segment(name)}")
    notify(f"department {name} is deleted")


def fairshare(
    user: Annotated[bool, typer.Option("--user", help="Also show users in their projects.")] = False,
    json: AsJson = False,
) -> None:
    """Show fair share, allocation, demand and past use of departments and projects, in scheduling order."""
    found = open_pool().get("fairshare")
    if json:
        show_json(found)
        return
    show(fair_share_lines(found, out_style()))
    if user:
        show(["", *user_share_lines(found, out_style())])


def _changes(quota: str | None, weight: str | None, limit: str | None, note: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if quota is not None:
        body["quota_permille"] = gpu_permille(quota)
    if limit is not None:
        body["limit_permille"] = gpu_permille(limit)
    if weight is not None:
        body["weight"] = read_weight(weight)
    return body if note is None else body | {"note": note}
