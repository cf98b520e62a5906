"""``project`` and ``config``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpupool.cli import completing, settings
from gpupool.cli.commands.common import AsJson, command, help_text, takes
from gpupool.cli.output import out_style, show, show_json, tell
from gpupool.cli.pool import open_pool, segment
from gpupool.cli.project_rules import RULES, rules_body
from gpupool.cli.project_shares import SHARES, shares_body
from gpupool.cli.render.people import project_lines
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import parse_duration_s, parse_gpus

NONE = "none"
UNSET = "unset"  # a policy may be called none
ANY = "any"
Name = Annotated[str, typer.Argument(metavar="NAME", help="The project.", autocompletion=completing.projects)]
Quota = Annotated[
    str | None, typer.Option("--quota", metavar="GPUS", help="GPUs it can count on: 2.5; none for no bound.")
]
Over = Annotated[bool | None, typer.Option("--over-quota/--no-over-quota", help="Training may use idle GPUs beyond.")]
LimitOf = Annotated[str | None, typer.Option("--limit", metavar="GPUS", help="Never more than this; none.")]
UserLimit = Annotated[str | None, typer.Option("--user-limit", metavar="GPUS", help="Never more for one user; none.")]
MaxTime = Annotated[str | None, typer.Option("--max-time", metavar="TIME", help="Longest running time; none.")]
Idle = Annotated[str | None, typer.Option("--idle-timeout", metavar="TIME", help="Longest idle time; none.")]
Members = Annotated[
    list[str] | None, typer.Option("--member", metavar="USER", help="Only these users; repeatable; everybody if none.")
]
ComputeDefault = Annotated[
    str | None, typer.Option("--compute-default", metavar="POLICY", help="Its work's: guarantee, cap, none; or unset.")
]
ComputeAllowed = Annotated[
    str | None,
    typer.Option("--compute-allowed", metavar="LIST", help="Policies it may ask for: guarantee,cap; or any."),
]
SharingDefault = Annotated[
    str | None, typer.Option("--sharing-default", metavar="MODE", help="For parts of GPUs: share, mps; or unset.")
]
SharingAllowed = Annotated[
    str | None, typer.Option("--sharing-allowed", metavar="LIST", help="Modes it may have: whole,share; or any.")
]
NoteText = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="A remark.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        no_args_is_help=True, help=help_text("List, make and change projects.", ["gpupool project list"])
    )
    command(group, "gpupool project list", name="list")(list_projects)
    command(group, "gpupool project create team-a --quota 2.5 --member ann --member ben")(create)
    command(
        group,
        "gpupool project set team-a --quota 4 --no-over-quota",
        "gpupool project set team-a --department research --weight 2 --quota-model a100=2",
        "gpupool project set team-a --compute-default cap --compute-allowed guarantee,cap",
        "gpupool project set team-a --windows 'nights; weekends' --pools a100 --max-time-limit 12h",
        name="set",
    )(change)
    command(group, "gpupool project delete team-a")(delete)
    command(group, "gpupool project members team-a --add carl --remove ben")(members)
    app.add_typer(group, name="project")
    config = typer.Typer(no_args_is_help=True, help=help_text("Your own defaults.", ["gpupool config project team-a"]))
    command(config, "gpupool config project team-a", "gpupool config project none")(project)
    command(config, "gpupool config show", name="show")(show_config)
    app.add_typer(config, name="config")


def list_projects(json: AsJson = False) -> None:
    """List the projects with their quotas and use."""
    found = open_pool().get("projects")
    if json:
        show_json(found)
    else:
        show(project_lines(found["projects"], settings.default_project(), out_style()))


@takes((*SHARES, *RULES))
def create(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: Name,
    quota: Quota = None,
    over_quota: Over = None,
    limit: LimitOf = None,
    user_limit: UserLimit = None,
    max_time: MaxTime = None,
    idle_timeout: Idle = None,
    member: Members = None,
    note: NoteText = None,
    compute_default: ComputeDefault = None,
    compute_allowed: ComputeAllowed = None,
    sharing_default: SharingDefault = None,
    sharing_allowed: SharingAllowed = None,
    **more: Any,
) -> None:
    """Make a project."""
    changes = _changes(quota, limit, user_limit, max_time, idle_timeout)
    body = changes | _plain(over_quota=over_quota, members=member, note=note) | rules_body(more) | shares_body(more)
    body |= _choices("compute", compute_default, compute_allowed) | _choices(
        "sharing", sharing_default, sharing_allowed
    )
    made = open_pool().post("projects", {"name": name} | {k: v for k, v in body.items() if v is not None})
    tell(f"project {made['name']} is made")


@takes((*SHARES, *RULES))
def change(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: Name,
    quota: Quota = None,
    over_quota: Over = None,
    limit: LimitOf = None,
    user_limit: UserLimit = None,
    max_time: MaxTime = None,
    idle_timeout: Idle = None,
    member: Members = None,
    note: NoteText = None,
    compute_default: ComputeDefault = None,
    compute_allowed: ComputeAllowed = None,
    sharing_default: SharingDefault = None,
    sharing_allowed: SharingAllowed = None,
    **more: Any,
) -> None:
    """Change a project; what is not named stays."""
    body = _changes(quota, limit, user_limit, max_time, idle_timeout)
    body |= _plain(over_quota=over_quota, members=member, note=note) | rules_body(more) | shares_body(more)
    body |= _choices("compute", compute_default, compute_allowed) | _choices(
        "sharing", sharing_default, sharing_allowed
    )
    if not body:
        raise typer.BadParameter("name what to change, for example --quota 2")
    open_pool().patch(f"projects/{segment(name)}", body)
    tell(f"project {name} is changed")


def delete(name: Name) -> None:
    """Remove a project that has no live work; its history stays."""
    open_pool().delete(f"projects/{segment(name)}")
    tell(f"project {name} is deleted")


def members(
    name: Name,
    add: Annotated[list[str] | None, typer.Option("--add", metavar="USER", help="Let this user in.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", metavar="USER", help="Take this user out.")] = None,
    everybody: Annotated[bool, typer.Option("--everybody", help="Let everybody in.")] = False,
) -> None:
    """Show or change who may use a project."""
    pool = open_pool()
    found = next((p for p in pool.get("projects")["projects"] if p["name"] == name), None)
    if found is None:
        raise GpupoolError(ErrorCode.UNKNOWN_PROJECT, f"There is no project '{name}'.", "See 'gpupool project list'.")
    wanted = (
        [] if everybody else [u for u in dict.fromkeys([*found["members"], *(add or [])]) if u not in (remove or [])]
    )
    if remove and not wanted and found["members"]:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "A project without members is open to everybody.", "Say so with --everybody."
        )
    if wanted != found["members"]:
        pool.patch(f"projects/{segment(name)}", {"members": wanted})
    show(wanted or ["everybody"])


def project(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The project.", autocompletion=completing.projects)],
) -> None:
    """Choose the project of your work from now on; 'none' goes back to the pool's default."""
    if name != NONE:
        known = [p["name"] for p in open_pool().get("projects")["projects"]]
        if name not in known:
            hint = f"There are: {', '.join(known)}."
            raise GpupoolError(ErrorCode.UNKNOWN_PROJECT, f"There is no project '{name}'.", hint)
    settings.save({"project": None if name == NONE else name})
    tell(f"your default project is {name}" if name != NONE else "you have no default project any more")


def show_config(json: AsJson = False) -> None:
    """Show your defaults and the file that keeps them."""
    found = settings.load()
    if json:
        show_json(found)
    else:
        show([f"# {settings.config_file()}", *(f"{name}: {value}" for name, value in found.items())])


def _plain(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _changes(
    quota: str | None, limit: str | None, user_limit: str | None, max_time: str | None, idle_timeout: str | None
) -> dict[str, Any]:
    amounts = {"quota_permille": quota, "limit_permille": limit, "user_limit_permille": user_limit}
    times = {"max_time_s": max_time, "idle_timeout_s": idle_timeout}
    body: dict[str, Any] = {name: gpu_permille(text) for name, text in amounts.items() if text is not None}
    return body | {name: None if t == NONE else parse_duration_s(t) for name, t in times.items() if t is not None}


def _choices(what: str, default: str | None, allowed: str | None) -> dict[str, Any]:
    """The fields of a policy or mode that were given; ``unset`` and ``any`` take a choice back."""
    body: dict[str, Any] = {} if default is None else {f"{what}_default": None if default == UNSET else default}
    if allowed is not None:
        body[f"{what}_allowed"] = [] if allowed == ANY else [word.strip() for word in allowed.split(",")]
    return body


def gpu_permille(text: str) -> int | None:
    """Thousandths in ``2.5`` GPUs, None for ``none``; raises ``GpupoolError(INVALID_COUNT)``."""
    return None if text == NONE else parse_gpus(text)
