"""``project`` and ``config``: projects, and user defaults."""

from __future__ import annotations

from typing import Annotated, Any

from gpupool.cli import completion, settings
from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_group, command, with_options
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.people import project_lines
from gpupool.cli.request.project_options import RULES, SHARES, gpu_permille, rules_body, shares_body
from gpupool.cli.transport.pool import PoolClient, open_pool, quote_segment
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import missing_pools_text, model_matches
from gpupool.domain.units import parse_duration_s
from gpupool.specs.job_options import Option, OptionKind

NONE = "none"
UNSET = "unset"  # not "none", which is a policy
ANY = "any"
Name = Annotated[str, typer.Argument(metavar="NAME", help="The project.", autocompletion=completion.projects)]
_PANEL = "Options"
SETTINGS = (
    Option("quota", "--quota", OptionKind.TEXT, "Set the guaranteed GPUs: 2.5; none: no bound.", _PANEL, "GPUS"),
    Option(
        "over_quota",
        "--over-quota / --no-over-quota",
        OptionKind.FLAG,
        "Let training use idle GPUs above the quota.",
        _PANEL,
    ),
    Option("limit", "--limit", OptionKind.TEXT, "Limit its GPUs; none: no limit.", _PANEL, "GPUS"),
    Option(
        "user_limit", "--user-limit", OptionKind.TEXT, "Limit the GPUs of each user; none: no limit.", _PANEL, "GPUS"
    ),
    Option("max_time", "--max-time", OptionKind.TEXT, "Set the default time limit; none: no limit.", _PANEL, "TIME"),
    Option("idle_timeout", "--idle-timeout", OptionKind.TEXT, "Set the idle limit; none: no limit.", _PANEL, "TIME"),
    Option(
        "member",
        "--member",
        OptionKind.REPEATED,
        "Allow only these users; repeatable; default: everybody.",
        _PANEL,
        "USER",
    ),
    Option("note", "--note", OptionKind.TEXT, "Add a note.", _PANEL, "TEXT"),
    Option(
        "compute_default",
        "--compute-default",
        OptionKind.TEXT,
        "Set the default policy: guarantee, cap, none; or unset.",
        _PANEL,
        "POLICY",
    ),
    Option(
        "compute_allowed",
        "--compute-allowed",
        OptionKind.TEXT,
        "Allow these compute policies: guarantee,cap; or any.",
        _PANEL,
        "LIST",
    ),
    Option(
        "sharing_default",
        "--sharing-default",
        OptionKind.TEXT,
        "Set the default sharing mode: share, mps; or unset.",
        _PANEL,
        "MODE",
    ),
    Option(
        "sharing_allowed",
        "--sharing-allowed",
        OptionKind.TEXT,
        "Allow these sharing modes: whole,share; or any.",
        _PANEL,
        "LIST",
    ),
    *SHARES,
    *RULES,
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = add_group(app, "project", "List, create and change projects.", "gpupool project list")
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
    command(group, "gpupool project add-group cs101 students --dry-run", name="add-group")(add_os_group)
    config = add_group(app, "config", "Show and change your defaults.", "gpupool config project team-a")
    command(config, "gpupool config project team-a", "gpupool config project none")(project)
    command(config, "gpupool config show", name="show")(show_config)


def list_projects(json: AsJson = False) -> None:
    """List the projects with their quotas and use."""
    found = open_pool().get("projects")
    if json:
        show_json(found)
    else:
        show(project_lines(found["projects"], settings.default_project(), out_style()))


@with_options(SETTINGS)
def create(name: Name, **values: Any) -> None:
    """Create a project."""
    body = {field: value for field, value in _changes(values).items() if value is not None}
    pool = open_pool()
    notes = _unknown_names(pool, body)
    made = pool.post("projects", {"name": name} | body)
    notify(f"project {made['name']} is created")
    for note in notes:
        notify(note)


@with_options(SETTINGS)
def change(name: Name, **values: Any) -> None:
    """Change a project; other settings stay."""
    body = _changes(values)
    if not body:
        raise typer.BadParameter(f"give a setting, for example --quota 2; your default: gpupool config project {name}")
    pool = open_pool()
    notes = _unknown_names(pool, body)
    pool.patch(f"projects/{quote_segment(name)}", body)
    notify(f"project {name} is changed")
    for note in notes:
        notify(note)


def delete(name: Name) -> None:
    """Delete a project without live workloads; its history stays."""
    open_pool().delete(f"projects/{quote_segment(name)}")
    notify(f"project {name} is deleted")


def members(
    name: Name,
    add: Annotated[list[str] | None, typer.Option("--add", metavar="USER", help="Add this user.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", metavar="USER", help="Remove this user.")] = None,
    everybody: Annotated[bool, typer.Option("--everybody", help="Open the project to all users.")] = False,
) -> None:
    """Show or change the members of a project."""
    pool = open_pool()
    found = next((p for p in pool.get("projects")["projects"] if p["name"] == name), None)
    if found is None:
        raise GpupoolError(ErrorCode.UNKNOWN_PROJECT, f"There is no project '{name}'.", "See 'gpupool project list'.")
    wanted = (
        [] if everybody else [u for u in dict.fromkeys([*found["members"], *(add or [])]) if u not in (remove or [])]
    )
    if remove and not wanted and found["members"]:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "A project without members is open to everybody.", "Confirm it with --everybody."
        )
    if wanted != found["members"]:
        pool.patch(f"projects/{quote_segment(name)}", {"members": wanted})
    show(wanted or ["everybody"])


def add_os_group(
    name: Name,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="A group of accounts of this machine.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
) -> None:
    """Make the accounts of a group of this machine users and members of a project, before their first use."""
    from gpupool.cli.commands.people.user import apply_plan
    from gpupool.cli.request.user_table import plan_import, users_of_group

    table = users_of_group(group, name)
    pool = open_pool()
    apply_plan(pool, plan_import(table, pool.get("users")["users"], pool.get("projects")["projects"]), dry_run=dry_run)


def project(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The project.", autocompletion=completion.projects)],
) -> None:
    """Set your default project; 'none' returns to the pool's default."""
    if name != NONE:
        known = [p["name"] for p in open_pool().get("projects")["projects"]]
        if name not in known:
            hint = f"Projects: {', '.join(known)}."
            raise GpupoolError(ErrorCode.UNKNOWN_PROJECT, f"There is no project '{name}'.", hint)
    settings.save({"project": None if name == NONE else name})
    notify(f"your default project is {name}" if name != NONE else "your default project is removed")


def show_config(json: AsJson = False) -> None:
    """Show your defaults and their file."""
    found = settings.load()
    if json:
        show_json(found)
    else:
        show([f"# {settings.config_file()}", *(f"{name}: {value}" for name, value in found.items())])


_AMOUNTS = ("quota", "limit", "user_limit")
_TIMES = ("max_time", "idle_timeout")
_PLAIN = {"over_quota": "over_quota", "member": "members", "note": "note"}


def _changes(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a project from the given options. Raises ``GpupoolError``."""
    body: dict[str, Any] = {f"{name}_permille": gpu_permille(values[name]) for name in _AMOUNTS if name in values}
    for name in _TIMES:
        if name in values:
            body[f"{name}_s"] = None if values[name] == NONE else parse_duration_s(values[name])
    body |= {field: values[name] for name, field in _PLAIN.items() if name in values}
    body |= rules_body(values) | shares_body(values)
    for what in ("compute", "sharing"):
        body |= _choices(what, values.get(f"{what}_default"), values.get(f"{what}_allowed"))
    return body


def _unknown_names(pool: PoolClient, body: dict[str, Any]) -> list[str]:
    """Return a sentence about node pools, and one for each GPU model, that no node has; nodes may join later."""
    pools, models = body.get("rules", {}).get("node_pools"), body.get("model_quotas")
    if not pools and not models:
        return []
    nodes = pool.get("nodes")["nodes"]
    known = sorted({gpu["model"] for node in nodes for gpu in node["gpus"]})
    found = [missing_pools_text(pools or (), [node["labels"] for node in nodes])]
    found += [
        f"No GPU is of the model '{name}' (models: {', '.join(known) or 'none'})."
        for name in models or ()
        if not any(model_matches(name, model) for model in known)
    ]
    return [sentence for sentence in found if sentence]


def _choices(what: str, default: str | None, allowed: str | None) -> dict[str, Any]:
    """Return the given fields of a policy or mode; ``unset`` and ``any`` remove a choice."""
    body: dict[str, Any] = {} if default is None else {f"{what}_default": None if default == UNSET else default}
    if allowed is not None:
        body[f"{what}_allowed"] = [] if allowed == ANY else [word.strip() for word in allowed.split(",")]
    return body
