"""``backup`` and ``restore``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.commands.pools import StateDir, database_option, full_path
from gpupool.cli.output import show_json, tell

File = Annotated[str, typer.Argument(metavar="FILE", help="The copy: one SQLite file, whatever database the pool has.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "gpupool backup /srv/backup/pool-$(date +%F).db")(backup)
    command(
        app,
        "gpupool restore /srv/backup/pool-2026-11-21.db",
        "gpupool restore pool.db --database postgresql://gpupool@db.example.org/gpupool",
    )(restore)


def backup(file: File, state_dir: StateDir = None, json: AsJson = False) -> int:
    """Copy the pool's database into a file, consistently, while the pool runs or not.

    Only the pool's owner can. The file has mode 0600; one that is there and is no such copy is not replaced.
    """
    from gpupool.daemon.config import PoolConfig
    from gpupool.daemon.copies import back_up

    target = Path(str(full_path(file)))
    copy = back_up(PoolConfig.for_location(_local(state_dir)), target)
    if json:
        show_json({"file": str(target), **asdict(copy)})
    else:
        tell(f"{target}: {copy.workloads} workloads, {copy.events} events of pool {copy.pool_id[:8]}")
    return 0


def restore(
    file: File,
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="URL", help="Put it there, and have the pool use that from now on."),
    ] = None,
    database_password_file: Annotated[
        str | None, typer.Option("--database-password-file", metavar="FILE", help="Its password; mode 0600.")
    ] = None,
    state_dir: StateDir = None,
    json: AsJson = False,
) -> int:
    """Put a copy in the place of the pool's database, while the pool is stopped.

    What was there is kept in a file beside it. Programs that run and that the copy does not know are ended when the
    pool starts. With --database this moves a pool from SQLite to PostgreSQL, or (off) back.
    """
    from gpupool.daemon.config import PoolConfig, save_config
    from gpupool.daemon.copies import restore as put_back

    options: dict[str, Any] = {} if database is None else {"database": database_option(database)}
    if database_password_file is not None:
        options["database_password_file"] = full_path(database_password_file)
    config = PoolConfig.from_dict({**PoolConfig.for_location(_local(state_dir)).to_dict(), **options})
    kept = put_back(config, Path(str(full_path(file))))
    save_config(config)
    if json:
        show_json({"database": str(config.database_address() or config.state_dir), "kept": kept and str(kept)})
        return 0
    tell("the database is replaced; 'gpupool up' starts the pool with it")
    if kept:
        tell(f"what was there before is in {kept}")
    return 0


def _local(state_dir: str | None) -> Any:
    from gpupool.client.locate import Location, find_pool, place_for_new_pool
    from gpupool.domain.errors import ErrorCode, GpupoolError

    found = None if state_dir else find_pool()
    if found is not None and not isinstance(found, Location):
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            "A pool's database is copied on the machine it is on.",
            "Log in there, or give that pool's folder with --state-dir.",
        )
    return found or place_for_new_pool(state_dir)
