"""``user``, ``token`` and ``usage``."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from gpupool.cli import completing
from gpupool.cli.commands.common import AsJson, command, help_text
from gpupool.cli.commands.projects import gpu_permille
from gpupool.cli.output import out_style, show, show_json, tell
from gpupool.cli.pool import open_pool, segment
from gpupool.cli.render.people import token_lines, usage_lines, user_lines
from gpupool.domain.access import Role
from gpupool.domain.units import parse_duration_s

User = Annotated[str, typer.Argument(metavar="USER", help="The user's name.", autocompletion=completing.users)]
RoleOption = Annotated[Role | None, typer.Option("--role", help="What the holder may do.")]
DEFAULT_SPAN = "7d"
NONE = "none"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    user = typer.Typer(no_args_is_help=True, help=help_text("See and change users.", ["gpupool user list"]))
    command(user, "gpupool user list", name="list")(list_users)
    command(
        user,
        "gpupool user set ann --role manager --gpu-limit 2",
        "gpupool user set ann --email ann@example.org",
        name="set",
    )(set_user)
    app.add_typer(user, name="user")
    token = typer.Typer(
        no_args_is_help=True, help=help_text("Tokens for pools on a network.", ["gpupool token create --expires 7d"])
    )
    command(token, "gpupool token create --expires 7d --note laptop")(create)
    command(token, "gpupool token list", name="list")(list_tokens)
    command(token, "gpupool token revoke ab12cd")(revoke)
    app.add_typer(token, name="token")
    command(app, "gpupool usage", "gpupool usage --since 30d --json")(usage)


def list_users(json: AsJson = False) -> None:
    """List the users the pool has seen."""
    found = open_pool().get("users")
    if json:
        show_json(found)
    else:
        show(user_lines(found["users"], out_style()))


def set_user(
    name: User,
    role: RoleOption = None,
    uid: Annotated[int | None, typer.Option("--uid", min=0, help="The account its programs run as.")] = None,
    gpu_limit: Annotated[str | None, typer.Option("--gpu-limit", metavar="GPUS", help="Never more; none.")] = None,
    disabled: Annotated[bool | None, typer.Option("--disable/--enable", help="Keep the user out.")] = None,
    email: Annotated[str | None, typer.Option("--email", metavar="ADDRESS", help="Where warnings go; none.")] = None,
) -> None:
    """Add a user or change one; what is not named stays. Your own e-mail address you may change yourself."""
    changes: dict[str, Any] = {"role": role and str(role), "uid": uid, "disabled": disabled}
    changes = {key: value for key, value in changes.items() if value is not None}
    if gpu_limit is not None:
        changes["gpu_limit_permille"] = gpu_permille(gpu_limit)
    if email is not None:
        changes["email"] = "" if email == NONE else email
    if not changes:
        raise typer.BadParameter("name what to change, for example --role member")
    saved = open_pool().put(f"users/{segment(name)}", changes)
    tell(f"{saved['name']} is {saved['role']}{', disabled' if saved['disabled'] else ''}")


def create(
    user: Annotated[str | None, typer.Option("--user", help="For this user; yourself otherwise.")] = None,
    role: RoleOption = None,
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="How long it is good (at most 366d).")
    ] = "30d",
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="What it is for.")] = "",
    json: AsJson = False,
) -> None:
    """Make a token and print its secret, once: put it into GPUPOOL_TOKEN on the other machine."""
    body: dict[str, Any] = {"user": user, "role": role and str(role), "note": note}
    body = {key: value for key, value in body.items() if value} | {"expires_in_s": parse_duration_s(expires)}
    made = open_pool().post("tokens", body)
    if json:
        show_json(made)
        return
    tell(f"token {made['id']} for {made['user']} ({made['role']}); its secret is shown this once")
    show([made["secret"]])


def list_tokens(json: AsJson = False) -> None:
    """List tokens: your own, or as an administrator all."""
    found = open_pool().get("tokens")
    if json:
        show_json(found)
    else:
        show(token_lines(found["tokens"], time.time(), out_style()))


def revoke(token: Annotated[str, typer.Argument(metavar="TOKEN", help="The token's id.")]) -> None:
    """Make a token useless from now on."""
    open_pool().delete(f"tokens/{segment(token)}")
    tell(f"token {token} is revoked")


def usage(
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="Of the last 7d, 30d.")] = DEFAULT_SPAN,
    json: AsJson = False,
) -> None:
    """Show the GPU hours of each project and user."""
    now = time.time()
    found = open_pool().get("usage", {"since": now - parse_duration_s(since), "until": now})
    if json:
        show_json(found)
    else:
        show(usage_lines(found, out_style()))
