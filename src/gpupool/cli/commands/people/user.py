"""``user`` and ``token``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from gpupool.cli import completion
from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_group, command
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.people import token_lines, user_lines
from gpupool.cli.request.project_options import gpu_permille
from gpupool.cli.transport.pool import PoolClient, open_pool, quote_segment
from gpupool.domain.people.access import Role, Scope
from gpupool.domain.units import parse_duration_s

if TYPE_CHECKING:
    from gpupool.cli.request.user_table import ImportPlan

User = Annotated[str, typer.Argument(metavar="USER", help="The user's name.", autocompletion=completion.users)]
RoleOption = Annotated[Role | None, typer.Option("--role", help="Set the role.")]
NONE = "none"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    user = add_group(app, "user", "List and change users.", "gpupool user list")
    command(user, "gpupool user list", name="list")(list_users)
    command(
        user,
        "gpupool user set ann --role manager --gpu-limit 2",
        "gpupool user set ann --email ann@example.org",
        name="set",
    )(set_user)
    command(user, "gpupool user import users.csv --dry-run", "gpupool user import users.csv", name="import")(
        import_users
    )
    token = add_group(
        app, "token", "Create, list and revoke tokens for use over a network.", "gpupool token create --expires 7d"
    )
    command(
        token, "gpupool token create --expires 7d --note laptop", "gpupool token create --scope submit --expires 7d"
    )(create)
    command(token, "gpupool token list", name="list")(list_tokens)
    command(token, "gpupool token revoke ab12cd")(revoke)


def list_users(json: AsJson = False) -> None:
    """List the users of the pool."""
    found = open_pool().get("users")
    if json:
        show_json(found)
    else:
        show(user_lines(found["users"], out_style()))


def set_user(
    name: User,
    role: RoleOption = None,
    uid: Annotated[int | None, typer.Option("--uid", min=0, help="Set the account of the user's programs.")] = None,
    gpu_limit: Annotated[
        str | None, typer.Option("--gpu-limit", metavar="GPUS", help="Limit the user's GPUs; none: no limit.")
    ] = None,
    disabled: Annotated[bool | None, typer.Option("--disable/--enable", help="Disable or enable the user.")] = None,
    email: Annotated[
        str | None, typer.Option("--email", metavar="ADDRESS", help="Set the address for warnings; none.")
    ] = None,
) -> None:
    """Add or change a user; other settings stay. Users may change their own e-mail address."""
    changes: dict[str, Any] = {"role": role and str(role), "uid": uid, "disabled": disabled}
    changes = {key: value for key, value in changes.items() if value is not None}
    if gpu_limit is not None:
        changes["gpu_limit_permille"] = gpu_permille(gpu_limit)
    if email is not None:
        changes["email"] = "" if email == NONE else email
    if not changes:
        raise typer.BadParameter("give a setting, for example --role member")
    saved = open_pool().put(f"users/{quote_segment(name)}", changes)
    notify(f"{saved['name']} is {saved['role']}{', disabled' if saved['disabled'] else ''}")


def import_users(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A CSV file; -: standard input.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
) -> None:
    """Add and change users from a CSV file, before they use the pool for the first time. For administrators.

    The first line names the columns: user, and any of role (default for new users: member), uid, gpu_limit, email and
    projects (separated by semicolons). An empty value changes nothing. All lines are checked before anything is
    changed; users that the file does not name stay as they are.
    """
    from gpupool.cli.request.user_table import plan_import, read_file, read_users

    table = read_users(read_file(file))
    pool = open_pool()
    plan = plan_import(table, pool.get("users")["users"], pool.get("projects")["projects"])
    apply_plan(pool, plan, dry_run=dry_run)


def apply_plan(pool: PoolClient, plan: ImportPlan, *, dry_run: bool) -> None:
    """Print the changes of an import, and make them unless it is a dry run."""
    show(plan.lines())
    if dry_run:
        notify("nothing was changed: this is a dry run")
        return
    for name, settings in plan.users.items():
        pool.put(f"users/{quote_segment(name)}", settings)
    for name, members in plan.members.items():
        pool.patch(f"projects/{quote_segment(name)}", {"members": members})
    notify(f"users changed: {len(plan.users)}; projects with changed members: {len(plan.members)}")


def create(
    user: Annotated[str | None, typer.Option("--user", help="Create it for this user; default: you.")] = None,
    role: RoleOption = None,
    scope: Annotated[
        Scope | None,
        typer.Option(
            "--scope", help="Set the scope: metrics, read, submit (read and run workloads), or full (default)."
        ),
    ] = None,
    expires: Annotated[str, typer.Option("--expires", metavar="TIME", help="Set its lifetime (at most 366d).")] = "30d",
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Add a note.")] = "",
    json: AsJson = False,
) -> None:
    """Create a token and print its secret once. Set it as GPUPOOL_TOKEN on the other machine."""
    body: dict[str, Any] = {"user": user, "role": role and str(role), "scope": scope and str(scope), "note": note}
    body = {key: value for key, value in body.items() if value} | {"expires_in_s": parse_duration_s(expires)}
    made = open_pool().post("tokens", body)
    if json:
        show_json(made)
        return
    scope = made.get("scope", Scope.FULL)  # older servers do not return it
    scope_text = "" if scope == Scope.FULL else f", {scope} only"
    notify(f"token {made['id']} for {made['user']} ({made['role']}{scope_text}); its secret is shown only once")
    show([made["secret"]])


def list_tokens(json: AsJson = False) -> None:
    """List your tokens, or as an administrator all tokens."""
    found = open_pool().get("tokens")
    if json:
        show_json(found)
    else:
        show(token_lines(found["tokens"], time.time(), out_style()))


def revoke(token: Annotated[str, typer.Argument(metavar="TOKEN", help="The token's id.")]) -> None:
    """Revoke a token."""
    open_pool().delete(f"tokens/{quote_segment(token)}")
    notify(f"token {token} is revoked")
