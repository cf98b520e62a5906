"""``join``, ``leave`` and ``join-token``: machines of a cluster."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_group, command
from gpupool.cli.output import notify, out_style, print_command, show, show_json
from gpupool.cli.transport.pool import open_pool, quote_segment
from gpupool.domain.units import format_duration, parse_duration_s

StateDir = Annotated[
    str | None, typer.Option("--state-dir", metavar="DIR", help="Set the state folder of this machine.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool join gpu1 --token gpj_...",
        "gpupool join 10.0.0.1:8443 --token-file token --name gpu2 --address 10.0.0.2",
        "gpupool join gpu1 --token gpj_... --as-head --database-password-file /etc/gpupool/database-password",
    )(join)
    command(app, "gpupool leave", "gpupool leave --force")(leave)
    tokens = add_group(
        app, "join-token", "Create, list and revoke tokens with which machines join.", "gpupool join-token create"
    )
    command(
        tokens,
        "gpupool join-token create",
        "gpupool join-token create --uses 8 --expires 1d",
        "gpupool join-token create --head",
    )(create)
    command(tokens, "gpupool join-token list", name="list")(list_tokens)
    command(tokens, "gpupool join-token revoke ab12cd34")(revoke)


def join(  # noqa: PLR0913, PLR0917 - one parameter per option
    head: Annotated[str, typer.Argument(metavar="HEAD[:PORT]", help="The address of the head; default port: 8443.")],
    token: Annotated[str | None, typer.Option("--token", metavar="TOKEN", help="Use this join token.")] = None,
    token_file: Annotated[
        str | None,
        typer.Option("--token-file", metavar="FILE", help="Read the join token from this file; -: standard input."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Set the node's name; default: the host name.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="IP", help="Set its address for other machines.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--cluster-port", metavar="PORT", help="Set the first of 30 ports for Ray.")
    ] = None,
    emulate: Annotated[str | None, typer.Option("--emulate", metavar="GPUS", help="Emulate GPUs: 4xT4,2xV100.")] = None,
    as_head: Annotated[bool, typer.Option("--as-head", help="Make it a standby head too; needs PostgreSQL.")] = False,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Head: listen here for users; default: 0.0.0.0:8443."),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option("--tls-cert", metavar="FILE", help="Head: use this certificate (PEM).")
    ] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Head: use this key (PEM).")] = None,
    database_password_file: Annotated[
        str | None,
        typer.Option("--database-password-file", metavar="FILE", help="Head: read it from this file, mode 0600."),
    ] = None,
    state_dir: StateDir = None,
    json: AsJson = False,
) -> int:
    """Make this machine a node of a cluster, or another head, and start it in the background.

    After a restart of the machine 'gpupool up' starts it again. Jobs continue when the pool's processes restart.
    """
    from gpupool.client.discovery import place_for_new_pool
    from gpupool.daemon.cluster.joining import Membership, wait_until_seen
    from gpupool.daemon.cluster.joining import join as join_cluster
    from gpupool.daemon.config import PoolConfig
    from gpupool.daemon.machine import full_path
    from gpupool.daemon.process.launch import start

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
    config = join_cluster(config, head, _token(token, token_file), as_head=as_head)
    for text in start(config, notify).warnings:
        notify(text)
    notify(f"joined as {config.node_name}; waiting for its first heartbeat")
    seen = wait_until_seen(config)
    if json:
        where = Membership.of(config).url
        show_json({"node": config.node_name, "address": config.cluster_address, "head": where} | seen)
    elif seen["state"] is not None:
        gpus = ", ".join(f"{count} x {model}" for model, count in Counter(seen["gpus"]).items()) or "no GPUs"
        show([f"{config.node_name} is {seen['state']}: {gpus}"])
    else:
        notify("no heartbeat yet: see 'gpupool status' on this machine and the log of ray")
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
    force: Annotated[
        bool, typer.Option("--force", help="Leave even if workloads run here or the head is away.")
    ] = False,
    state_dir: StateDir = None,
) -> int:
    """Remove this machine from its cluster. Fails while workloads run here, but cordons the node."""
    from gpupool.client.discovery import place_for_new_pool
    from gpupool.daemon.cluster.joining import leave as leave_cluster

    removed = leave_cluster(place_for_new_pool(state_dir), force=force)
    notify("this machine has left the pool")
    if not removed:
        notify("the head still lists it: run 'gpupool node remove' there")
    return 0


def create(
    expires: Annotated[str, typer.Option("--expires", metavar="TIME", help="Set its lifetime (at most 30d).")] = "1h",
    uses: Annotated[
        int, typer.Option("--uses", min=1, metavar="N", help="Set how many machines may join with it.")
    ] = 1,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Add a note.")] = "",
    head: Annotated[
        bool, typer.Option("--head", help="Create it for another head, which gets the pool's keys.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Create a join token and print it once. Anyone with the token can add a machine to the pool."""
    body = {"expires_in_s": parse_duration_s(expires), "uses": uses, "note": note, "for_head": head}
    made = open_pool().post("join-tokens", body)
    if json:
        show_json(made)
        return
    notify(f"join token {made['id']} created; it is shown only once. Run on the new machine:")
    words = ["gpupool", "join", made["head"], "--token", made["secret"]]
    password_file, passfile = made.get("database_password_file"), made.get("database_passfile")
    if head:
        words.append("--as-head")
        words += ["--database-password-file", password_file] if password_file else []
    variable = f"PGPASSFILE={shlex.quote(passfile)} " if head and passfile and not password_file else ""
    print_command(f"{variable}{shlex.join(words)}")
    if head and (needed := password_file or passfile):
        notify(f"First copy {needed} from the head to the new machine (mode 0600): it contains the database password.")
    elif head:
        notify("If the database needs a password, add --database-password-file FILE on the new machine.")
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
    show(table(("ID", "BY", "FOR", "STATE", "USES LEFT", "NOTE"), rows, out_style()))


def _state(token: dict[str, Any], now: float) -> str:
    if token["revoked_at"] is not None:
        return "revoked"
    if token["expires_at"] <= now:
        return "expired"
    if not token["uses_left"]:
        return "used up"
    return f"valid for {format_duration(token['expires_at'] - now)}"


def revoke(token: Annotated[str, typer.Argument(metavar="ID", help="The join token's id.")]) -> None:
    """Revoke a join token; machines that joined with it stay."""
    open_pool().delete(f"join-tokens/{quote_segment(token)}")
    notify(f"join token {token} is revoked")
