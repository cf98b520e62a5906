"""``join``, ``leave`` and ``join_token``: machines of a cluster."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import AsJson, command, help_text
from gpupool.cli.output import out_style, show, show_json, tell
from gpupool.cli.pool import open_pool, segment
from gpupool.domain.units import format_duration, parse_duration_s

StateDir = Annotated[str | None, typer.Option("--state-dir", metavar="DIR", help="Where this machine keeps its state.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool join gpu1 --token gpj_...",
        "gpupool join 10.0.0.1:8443 --token-file token --name gpu2 --address 10.0.0.2",
        "gpupool join gpu1 --token gpj_... --as-head --database-password-file /etc/gpupool/database-password",
    )(join)
    command(app, "gpupool leave", "gpupool leave --force")(leave)
    tokens = typer.Typer(
        no_args_is_help=True, help=help_text("Let machines join a cluster.", ["gpupool join-token create"])
    )
    command(
        tokens,
        "gpupool join-token create",
        "gpupool join-token create --uses 8 --expires 1d",
        "gpupool join-token create --head",
    )(create)
    command(tokens, "gpupool join-token list", name="list")(list_tokens)
    command(tokens, "gpupool join-token revoke ab12cd34")(revoke)
    app.add_typer(tokens, name="join_token")


def join(  # noqa: PLR0913, PLR0917 - one parameter per option
    head: Annotated[str, typer.Argument(metavar="HEAD[:PORT]", help="Where the head listens; port 8443 otherwise.")],
    token: Annotated[str | None, typer.Option("--token", metavar="TOKEN", help="The join token.")] = None,
    token_file: Annotated[
        str | None,
        typer.Option("--token-file", metavar="FILE", help="A file with the join token; - for standard input."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Its name in the pool; the host name otherwise.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="IP", help="Its address for the other machines.")
    ] = None,
    port: Annotated[int | None, typer.Option("--cluster-port", metavar="PORT", help="The first of 30 for Ray.")] = None,
    emulate: Annotated[
        str | None, typer.Option("--emulate", metavar="GPUS", help="Emulated GPUs: 4xT4,2xV100.")
    ] = None,
    as_head: Annotated[
        bool, typer.Option("--as-head", help="Also let it lead when the head is away; needs PostgreSQL.")
    ] = False,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="As a head: for users; 0.0.0.0:8443 otherwise.")
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option("--tls-cert", metavar="FILE", help="As a head: a certificate.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its key (PEM).")] = None,
    database_password_file: Annotated[
        str | None, typer.Option("--database-password-file", metavar="FILE", help="As a head: mode 0600.")
    ] = None,
    state_dir: StateDir = None,
    json: AsJson = False,
) -> int:
    """Make this machine a node of a cluster, or one more head, and start it in the background.

    After a restart of the machine 'gpupool up' starts it again. Jobs run on whatever becomes of the pool's processes.
    """
    from gpupool.cli.commands.pools import database_option, full_path
    from gpupool.client.locate import place_for_new_pool
    from gpupool.daemon.config import PoolConfig
    from gpupool.daemon.joining import Membership, wait_until_seen
    from gpupool.daemon.joining import join as let_in
    from gpupool.daemon.launch import start

    chosen: dict[str, Any] = {"node_name": name, "cluster_address": address, "cluster_port": port, "emulate": emulate}
    of_head = {"listen": listen, "tls_cert": full_path(tls_cert), "tls_key": full_path(tls_key)}
    of_head["database_password_file"] = full_path(database_password_file)
    if not as_head and any(of_head.values()):
        raise typer.BadParameter("--listen, --tls-cert, --tls-key and --database-password-file need --as-head")
    chosen |= of_head
    config = PoolConfig.for_location(place_for_new_pool(state_dir))
    given = {key: value for key, value in chosen.items() if value is not None}
    if as_head and tls_cert is None and config.tls_cert is None:
        given["tls_self_signed"] = True
    config = replace(config, **given)
    config = let_in(config, head, _token(token, token_file), as_head=as_head)
    if as_head and config.database is not None:
        config = replace(config, database=database_option(config.database))
    for text in start(config, background=True).warnings:
        tell(text)
    tell(f"joined as {config.node_name}; waiting until the pool sees this machine")
    seen = wait_until_seen(config)
    if json:
        where = Membership.of(config).url
        show_json({"node": config.node_name, "address": config.cluster_address, "head": where} | seen)
    elif seen["state"] is not None:
        gpus = ", ".join(f"{count} x {model}" for model, count in Counter(seen["gpus"]).items()) or "no GPUs"
        show([f"{config.node_name} is {seen['state']}: {gpus}"])
    else:
        tell("the pool does not see it yet: 'gpupool status' here, and the log of ray, say why")
    return 0 if seen["state"] not in {None, "down"} else 1


def _token(text: str | None, file: str | None) -> str:
    if (text is None) == (file is None):
        raise typer.BadParameter("give --token or --token-file")
    if text is not None:
        return text
    if file == "-":
        return sys.stdin.read(1024).strip()
    try:
        return Path(file or "").read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from error


def leave(
    force: Annotated[bool, typer.Option("--force", help="Even while work runs here, or the head is away.")] = False,
    state_dir: StateDir = None,
) -> int:
    """Take this machine out of its cluster: refused while work runs here, but nothing new is placed from then on."""
    from gpupool.client.locate import place_for_new_pool
    from gpupool.daemon.joining import leave as go

    forgotten = go(place_for_new_pool(state_dir), force=force)
    tell("this machine has left the pool")
    if not forgotten:
        tell("the head still lists it: 'gpupool node remove' there forgets it")
    return 0


def create(
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="How long it is good (at most 30d).")
    ] = "1h",
    uses: Annotated[int, typer.Option("--uses", min=1, metavar="N", help="How many machines may join with it.")] = 1,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="What it is for.")] = "",
    head: Annotated[bool, typer.Option("--head", help="For one more head: it gets the pool's own keys.")] = False,
    json: AsJson = False,
) -> None:
    """Make a join token and print it, once. Whoever has it can make a machine a part of the pool."""
    body = {"expires_in_s": parse_duration_s(expires), "uses": uses, "note": note, "for_head": head}
    made = open_pool().post("join-tokens", body)
    if json:
        show_json(made)
        return
    tell(f"join token {made['id']}; it is shown this once. On the new machine:")
    tell(f"  gpupool join {made['head']} --token {made['secret']}{' --as-head' if head else ''}")
    show([made["secret"]])


def list_tokens(json: AsJson = False) -> None:
    """List join tokens, newest first."""
    found = open_pool().get("join-tokens")
    if json:
        show_json(found)
        return
    from gpupool.cli.render.text import table

    now = time.time()
    rows = [
        (
            t["id"],
            t["created_by"],
            "heads" if t.get("for_head") else "nodes",
            _state(t, now),
            str(t["uses_left"]),
            t["note"] or "-",
        )
        for t in found["join_tokens"]
    ]
    show(table(("ID", "BY", "MAKES", "STATE", "USES LEFT", "NOTE"), rows, out_style()))


def _state(token: dict[str, Any], now: float) -> str:
    if token["revoked_at"] is not None:
        return "revoked"
    if token["expires_at"] <= now:
        return "expired"
    if not token["uses_left"]:
        return "used up"
    return f"good for {format_duration(token['expires_at'] - now)}"


def revoke(token: Annotated[str, typer.Argument(metavar="ID", help="The join token's id.")]) -> None:
    """Make a join token useless; machines that joined with it stay."""
    open_pool().delete(f"join-tokens/{segment(token)}")
    tell(f"join token {token} is revoked")
