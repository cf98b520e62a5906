"""``backup`` and ``restore``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, command, with_options
from gpupool.cli.commands.pool.pool import StateDir
from gpupool.cli.output import notify, show_json
from gpupool.domain.decode import decode
from gpupool.specs.job_options import Option, OptionKind

NEVER = "never"
_SCHEDULE = "Schedule"
OPTIONS = (
    Option("every_s", "--every", OptionKind.TEXT, "Make a copy at this interval; never.", _SCHEDULE, "TIME"),
    Option("keep", "--keep", OptionKind.COUNT, "Keep this many scheduled copies; 14.", _SCHEDULE, "N"),
    Option(
        "folder", "--to", OptionKind.TEXT, "Folder of scheduled copies; backups in the state folder.", _SCHEDULE, "DIR"
    ),
    Option("list", "--list", OptionKind.FLAG, "List the scheduled copies.", _SCHEDULE),
)
File = Annotated[str, typer.Argument(metavar="FILE", help="The copy: one SQLite file for every kind of database.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool backup /srv/backup/pool-$(date +%F).db",
        "gpupool backup --every 6h --keep 14 --to /srv/backup/gpupool",
        "gpupool backup --list",
        "gpupool backup --every never",
    )(backup)
    command(
        app,
        "gpupool restore /srv/backup/pool-2026-11-21.db",
        "gpupool restore pool.db --database postgresql://gpupool@db.example.org/gpupool",
    )(restore)


@with_options(OPTIONS)
def backup(
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Write one copy now to this SQLite file.")] = None,
    state_dir: StateDir = None,
    json: AsJson = False,
    **values: Any,
) -> int:
    """Copy the pool's database to a file, consistently and while the pool runs; or schedule copies.

    With FILE: only the pool's owner can do this. The file has mode 0600. An existing file is replaced only if it is
    such a copy.

    With --every, --keep, --to or --list: for administrators of a running pool. The leading head makes the copies,
    verifies each one, and then deletes the oldest.
    """
    if file is not None and values:
        raise typer.BadParameter("give FILE for one copy now, or the options of the schedule")
    if file is not None:
        return _back_up_now(file, state_dir, json=json)
    if not values:
        raise typer.BadParameter("give FILE, or --every TIME, or --list")
    if state_dir is not None:
        raise typer.BadParameter("--state-dir goes with FILE only; the schedule is a setting of a running pool")
    return _schedule(values, json=json)


def _schedule(values: dict[str, Any], *, json: bool) -> int:
    from gpupool.cli.transport.pool import open_pool
    from gpupool.domain.units import parse_duration_s

    values.pop("list", None)
    body = dict(values)
    if "every_s" in values:
        body["every_s"] = None if values["every_s"] == NEVER else parse_duration_s(values["every_s"])
    pool = open_pool()
    found = pool.patch("backups", body) if body else pool.get("backups")
    if json:
        show_json(found)
    else:
        _show(found)
    return 0


def _show(found: dict[str, Any]) -> None:
    from gpupool.cli.output import out_style, show
    from gpupool.cli.render.text import clock, pairs, table
    from gpupool.domain.units import format_duration

    every = NEVER if found["every_s"] is None else f"{format_duration(found['every_s'])}, keep {found['keep']}"
    last = "failed" if found["last_error"] else clock(found["last_success_at"])
    rows = [("Every", every), ("Folder", found["folder"]), ("Last", last), ("Error", found["last_error"])]
    show(pairs(rows, out_style()))
    if found["files"]:
        copies = [
            (clock(copy["made_at"]), f"{copy['size_bytes'] / (1 << 20):.1f} MiB", copy["state"], copy["name"])
            for copy in found["files"]
        ]
        show(["", *table(("MADE", "SIZE", "STATE", "FILE"), copies, out_style())])


def _back_up_now(file: str, state_dir: str | None, *, json: bool) -> int:
    from gpupool.daemon.config import PoolConfig
    from gpupool.daemon.database_copy import back_up
    from gpupool.daemon.machine import full_path

    target = Path(str(full_path(file)))
    copy = back_up(PoolConfig.for_location(_local(state_dir)), target)
    if json:
        show_json({"file": str(target), **asdict(copy)})
    else:
        notify(f"{target}: {copy.workloads} workloads, {copy.events} events of pool {copy.pool_id[:8]}")
    return 0


def restore(
    file: File,
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="URL", help="Restore to this database and use it from now on."),
    ] = None,
    database_password_file: Annotated[
        str | None,
        typer.Option("--database-password-file", metavar="FILE", help="Read its password from this file, mode 0600."),
    ] = None,
    state_dir: StateDir = None,
    json: AsJson = False,
) -> int:
    """Replace the pool's database by a copy, while the pool is stopped.

    The previous database is kept in a file next to it. Running programs that the copy does not know are stopped when
    the pool starts. With --database this moves a pool from SQLite to PostgreSQL, or (off) back.
    """
    from gpupool.daemon.config import PoolConfig
    from gpupool.daemon.database_copy import restore as restore_copy
    from gpupool.daemon.machine import database_option, full_path

    options: dict[str, Any] = {} if database is None else {"database": database_option(database)}
    if database_password_file is not None:
        options["database_password_file"] = full_path(database_password_file)
    config = decode(PoolConfig, {**PoolConfig.for_location(_local(state_dir)).to_dict(), **options})
    kept = restore_copy(config, Path(str(full_path(file))))
    if json:
        show_json({"database": str(config.database_address() or config.state_dir), "kept": kept and str(kept)})
        return 0
    notify("the database is replaced; 'gpupool up' starts the pool with it")
    if kept:
        notify(f"the previous database is in {kept}")
    return 0


def _local(state_dir: str | None) -> Any:
    from gpupool.client.discovery import Location, find_pool, place_for_new_pool
    from gpupool.domain.errors import ErrorCode, GpupoolError

    found = None if state_dir else find_pool()
    if found is not None and not isinstance(found, Location):
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            "A pool's database can be copied only on the pool's machine.",
            "Log in to that machine, or give the pool's folder with --state-dir.",
        )
    return found or place_for_new_pool(state_dir)
