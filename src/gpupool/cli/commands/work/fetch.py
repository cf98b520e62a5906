"""``fetch`` and ``forward``: files and ports of workloads."""

from __future__ import annotations

import os
from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, Replica, command
from gpupool.cli.output import notify, show, show_json
from gpupool.cli.transport.pool import open_pool, split_reference
from gpupool.domain.errors import EXIT_POOL_ERROR, ErrorCode, GpupoolError

MAX_PORTS = 32


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool fetch train-1 out/model.pt",
        "gpupool fetch train-1 -o results",
        "gpupool fetch sweep/3 --list",
    )(fetch)
    command(
        app,
        "gpupool forward notebook 8888",
        "gpupool forward board 8080:6006",
        "gpupool forward sweep/3 0:6006",
    )(forward)


def fetch(
    name: Replica,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH...", help="Files and folders in its folder; default: all.")
    ] = None,
    *,
    into: Annotated[
        str | None,
        typer.Option("-o", "--into", metavar="DIR", help="Write to this folder; default: here with PATH, else NAME."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace local files that differ.")] = False,
    only_list: Annotated[bool, typer.Option("--list", help="List the files without downloading.")] = False,
    as_json: AsJson = False,
) -> int:
    """Download files that a workload wrote to its uploaded folder.

    Run it again to resume an interrupted download: files that are already here are not sent again. Links out of the
    folder, and local files that differ, are skipped and listed; the exit status is then 125.
    """
    from gpupool.client.files.download import WorkFolder
    from gpupool.client.files.download import fetch as download

    workload, index = split_reference(name)
    work = WorkFolder(open_pool().transport, workload, index or 0)
    wanted = [os.path.normpath(path) for path in paths or []]
    wanted = ["" if path == "." else path for path in wanted]
    if only_list:
        return _listing([row for path in wanted or [""] for row in work.listing(path)], as_json=as_json)
    found = download(work, wanted, into or ("." if wanted else workload), force=force)
    if as_json:
        show_json({"files": found.files, "bytes": found.bytes, "same": found.same, "left": found.left})
    else:
        for path, why in found.left.items():
            notify(f"{path} was skipped: {why}")
        notify(
            f"{len(found.files)} files downloaded ({found.bytes / (1 << 20):.1f} MiB), {len(found.same)} already here"
        )
    return EXIT_POOL_ERROR if found.left else 0


def _listing(rows: list[dict[str, Any]], *, as_json: bool) -> int:
    if as_json:
        show_json({"files": rows})
    else:
        show(f"{row['size']:>12} {row['path']}{_mark(row)}" for row in rows)
    return 0


def _mark(row: dict[str, Any]) -> str:
    return {"folder": "/", "link": f" -> {row['target']}"}.get(row["kind"], "")


def forward(
    name: Replica,
    ports: Annotated[
        list[str], typer.Argument(metavar="[LOCAL:]PORT...", help="A port of the program; LOCAL is the port here.")
    ],
    *,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print no messages.")] = False,
) -> int:
    """Forward ports of this machine to ports of a program, until Ctrl-C.

    The ports listen on 127.0.0.1, for all users of this machine. Only ports on which the workload itself listens can be
    reached. With port 0 a free port is chosen.
    """
    import asyncio

    from gpupool.client.files.port_forward import Forwarder
    from gpupool.client.transport.endpoint import resolve_endpoint

    workload, index = split_reference(name)
    pairs = [_pair(text) for text in ports]
    if len(pairs) > MAX_PORTS:
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"At most {MAX_PORTS} ports at once.", "Give fewer.")
    _require_reachable(workload)

    async def serve() -> None:
        forwarder = Forwarder(resolve_endpoint(), workload, index or 0, notify)
        try:
            for (local, _server), (_, remote) in zip(await forwarder.listen(pairs), pairs, strict=True):
                if not quiet:
                    notify(f"127.0.0.1:{local} forwards to port {remote} of {name}")
            await asyncio.Event().wait()
        finally:
            await forwarder.close()

    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        return 0
    return 0


def _require_reachable(workload: str) -> None:
    """Report now, not at the first connection, that the workload cannot be reached."""
    from gpupool.cli.commands.work.attach import require_program

    found = require_program(open_pool(), workload)
    if found.get("command") is None:
        raise GpupoolError(
            ErrorCode.FORBIDDEN, f"{found['name']} belongs to {found['user']}.", "Ask an administrator of the pool."
        )


def _pair(text: str) -> tuple[int, int]:
    local, colon, remote = text.rpartition(":")
    if not colon:
        local = remote
    if not local.isdecimal() or not remote.isdecimal() or int(local) > 65535 or not 0 < int(remote) < 65536:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not PORT or LOCAL:PORT.", "Write 8888:80.")
    return int(local), int(remote)
