"""``fetch`` and ``forward``: what work made, and what it serves."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import AsJson, Replica, command
from gpupool.cli.output import show, show_json, tell
from gpupool.cli.pool import reference
from gpupool.domain.errors import EXIT_POOL_ERROR, ErrorCode, GpupoolError

MOST_PORTS = 32


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
        list[str] | None, typer.Argument(metavar="PATH...", help="Files and folders in its folder; all otherwise.")
    ] = None,
    *,
    into: Annotated[
        str | None,
        typer.Option("-o", "--into", metavar="DIR", help="Where to; with PATH here, else a folder of its name."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are here and different.")] = False,
    only_list: Annotated[bool, typer.Option("--list", help="Show what is there; bring nothing.")] = False,
    as_json: AsJson = False,
) -> int:
    """Bring back what work made in the folder that was sent with it.

    Say it again to go on where it was cut off: what is here already does not travel. Links that lead out of the
    folder, and files that are here and different, are left and named; the exit status is 125 then.
    """
    from gpupool.cli.pool import open_pool
    from gpupool.client.fetching import Work
    from gpupool.client.fetching import fetch as bring

    workload, index = reference(name)
    work = Work(open_pool().gate, workload, index or 0)
    wanted = [os.path.normpath(path) for path in paths or []]
    wanted = ["" if path == "." else path for path in wanted]
    if only_list:
        return _listing([row for path in wanted or [""] for row in work.listing(path)], as_json=as_json)
    found = bring(work, wanted, into or ("." if wanted else workload), force=force)
    if as_json:
        show_json({"files": found.files, "bytes": found.bytes, "same": found.same, "left": found.left})
    else:
        for path, why in found.left.items():
            tell(f"{path} was left: {why}")
        tell(f"{len(found.files)} files came ({found.bytes / (1 << 20):.1f} MiB), {len(found.same)} were here")
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
        list[str], typer.Argument(metavar="[NEAR:]PORT...", help="A port of the program; NEAR is that of this machine.")
    ],
    *,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Say nothing.")] = False,
) -> int:
    """Let ports of this machine lead to ports of a program, until Ctrl-C.

    They listen on 127.0.0.1, for every user of this machine. Only ports on which the work itself listens can be
    reached. NEAR 0 takes any free port.
    """
    import asyncio

    from gpupool.client.endpoint import resolve
    from gpupool.client.forwarding import Forwarder

    workload, index = reference(name)
    pairs = [_pair(text) for text in ports]
    if len(pairs) > MOST_PORTS:
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"At most {MOST_PORTS} ports at once.", "Give fewer.")
    _must_exist(workload)

    async def serve() -> None:
        forwarder = Forwarder(resolve(), workload, index or 0, tell)
        for (near, _server), (_, far) in zip(await forwarder.listen(pairs), pairs, strict=True):
            if not quiet:
                tell(f"127.0.0.1:{near} leads to port {far} of {name}")
        await asyncio.Event().wait()

    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        return 0
    return 0


def _must_exist(workload: str) -> None:
    """Say now, not at the first connection, that nobody will answer."""
    from gpupool.cli.attaching import require_program
    from gpupool.cli.pool import open_pool

    found = require_program(open_pool(), workload)
    if found.get("command") is None:
        raise GpupoolError(
            ErrorCode.FORBIDDEN, f"{found['name']} belongs to {found['user']}.", "Ask an administrator of the pool."
        )


def _pair(text: str) -> tuple[int, int]:
    near, colon, far = text.rpartition(":")
    if not colon:
        near = far
    if not near.isdecimal() or not far.isdecimal() or int(near) > 65535 or not 0 < int(far) < 65536:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not PORT or NEAR:PORT.", "Write 8888:80.")
    return int(near), int(far)
