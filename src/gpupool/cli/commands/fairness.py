"""``fairshare`` and ``department``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpupool.cli import completing
from gpupool.cli.commands.common import AsJson, command, help_text
from gpupool.cli.commands.projects import gpu_permille
from gpupool.cli.output import out_style, show, show_json, tell
from gpupool.cli.pool import open_pool, segment
from gpupool.cli.project_shares import weight as read_weight
from gpupool.cli.render.fairness import department_lines, fair_share_lines, user_lines

Name = Annotated[str, typer.Argument(metavar="NAME", help="The department.", autocompletion=completing.departments)]
Quota = Annotated[
    str | None, typer.Option("--quota", metavar="GPUS", help="GPUs its projects can count on together; none: theirs.")
]
WeightOf = Annotated[
    str | None, typer.Option("--weight", metavar="NUMBER", help="Its part of what is left when quotas are served.")
]
LimitOf = Annotated[str | None, typer.Option("--limit", metavar="GPUS", help="Never more than this together; none.")]
NoteText = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="A remark.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        no_args_is_help=True,
        help=help_text("List, make and change departments: projects that share a quota.", ["gpupool department list"]),
    )
    command(group, "gpupool department list", name="list")(list_departments)
    command(group, "gpupool department create research --quota 6 --weight 2 --limit 8")(create)
    command(group, "gpupool department set research --quota 4 --limit none", name="set")(change)
    command(group, "gpupool department delete research")(delete)
    app.add_typer(group, name="department")
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
    """Make a department; projects join it with 'gpupool project set NAME --department DEPARTMENT'."""
    made = open_pool().post("departments", {"name": name} | _changes(quota, weight, limit, note))
    tell(f"department {made['name']} is made")


def change(
    name: Name, quota: Quota = None, weight: WeightOf = None, limit: LimitOf = None, note: NoteText = None
) -> None:
    """Change a department; what is not named stays."""
    body = _changes(quota, weight, limit, note)
    if not body:
        raise typer.BadParameter("name what to change, for example --quota 2")
    open_pool().patch(f"departments/{segment(name)}", body)
    tell(f"department {name} is changed")


def delete(name: Name) -> None:
    """Remove a department that has no projects."""
    open_pool().delete(f"departments/{segment(name)}")
    tell(f"department {name} is deleted")


def fairshare(
    user: Annotated[bool, typer.Option("--user", help="Users in their projects as well.")] = False,
    json: AsJson = False,
) -> None:
    """Show what each department and project is due, holds, waits for and used lately, and why in this order."""
    found = open_pool().get("fairshare")
    if json:
        show_json(found)
        return
    show(fair_share_lines(found, out_style()))
    if user:
        show(["", *user_lines(found, out_style())])


def _changes(quota: str | None, weight: str | None, limit: str | None, note: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if quota is not None:
        body["quota_permille"] = gpu_permille(quota)
    if limit is not None:
        body["limit_permille"] = gpu_permille(limit)
    if weight is not None:
        body["weight"] = read_weight(weight)
    return body if note is None else body | {"note": note}
