"""``user``, ``token`` and ``usage``."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from gpupool.cli import completion
from gpupool.cli.commands.common import AsJson, add_group, command
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.people import token_lines, usage_lines, user_lines
from gpupool.cli.request.project_options import gpu_permille
from gpupool.cli.transport.pool import open_pool, quote_segment
from gpupool.domain.people.access import Role, Scope
from gpupool.domain.units import parse_duration_s

User = Annotated[str, typer.Argument(metavar="USER", help="The user's name.", autocompletion=completion.users)]
RoleOption = Annotated[Role | None, typer.Option("--role", help="Set the role.")]
DEFAULT_SPAN = "7d"
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
    token = add_group(
        app, "token", "Create, list and revoke tokens for use over a network.", "gpupool token create --expires 7d"
    )
    command(
        token, "gpupool token create --expires 7d --note laptop", "gpupool token create --scope submit --expires 7d"
    )(create)
    command(token, "gpupool token list", name="list")(list_tokens)
    command(token, "gpupool token revoke ab12cd")(revoke)
    command(app, "gpupool usage", "gpupool usage --since 30d --json")(usage)


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


def usage(
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="Show the last 7d, 30d.")] = DEFAULT_SPAN,
    json: AsJson = False,
) -> None:
    """Show the GPU hours of each project and user."""
    now = time.time()
    found = open_pool().get("usage", {"since": now - parse_duration_s(since), "until": now})
    if json:
        show_json(found)
    else:
        show(usage_lines(found, out_style()))
