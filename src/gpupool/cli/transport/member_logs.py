"""Print the output of one member of a workload, or of several members."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from json import dumps
from typing import Any, NamedTuple

from gpupool.cli.output import show, show_json
from gpupool.cli.render.line_filter import LineSearch
from gpupool.cli.transport.pool import PoolClient
from gpupool.cli.transport.streaming import LogPrinter, read_log_with_retry, stream_with_retry
from gpupool.domain.errors import ErrorCode, GpupoolError

PAGE = 1000
MAX_FOLLOWED = 64  # members at a time, each on its own connection
Json = dict[str, Any]


class LogFormat(NamedTuple):
    """The format of printed output; ``begin`` leaves out older output (seconds since the epoch).

    ``search`` selects lines.
    """

    follow: bool
    timestamps: bool
    begin: float | None
    as_json: bool
    search: LineSearch | None = None


def select_members(workload: Json, rank: int | None, role: str | None) -> list[Json]:
    """Return the replicas with a rank or role from a workload's API data. Raises ``GpupoolError(NOT_FOUND)``.

    Before the first round ranks are those of the whole gang: the numbers of its members.
    """
    found = workload["replicas"]
    if role is not None:
        found = [row for row in found if row["role"].lower() == role.lower()]
    if rank is not None:
        ranked = any(row["rank"] is not None for row in found)
        found = [row for row in found if (row["rank"] if ranked else row["index"]) == rank]
    if not found:
        roles = ", ".join(each["name"] for each in (workload["gang"] or {}).get("roles", ())) or "none"
        wanted = " and ".join(
            part for part in (f"role '{role}'" if role else "", f"rank {rank}" if rank is not None else "") if part
        )
        raise GpupoolError(
            ErrorCode.NOT_FOUND,
            f"{workload['name']} has no member with {wanted}.",
            f"Its roles: {roles}; `gpupool describe {workload['name']}` lists its members.",
        )
    return list(found)


def print_members(pool: PoolClient, path: str, query: Json, members: Sequence[Json], style: LogFormat) -> None:
    """Print the output of several members, each line after the member's name."""
    if style.follow and len(members) > MAX_FOLLOWED:
        raise GpupoolError(
            ErrorCode.TOO_LARGE, f"At most {MAX_FOLLOWED} members can be followed at once.", "Give --role or --rank."
        )
    names = {row["index"]: row["member"] or str(row["index"]) for row in members}
    width = max(map(len, names.values()))
    if style.follow:
        _follow_all(pool, path, query, names, style, width)
        return
    chunks: list[Json] = []
    for index, name in names.items():
        member = {**query, "index": index}
        if style.as_json:
            chunks += [chunk | {"member": name} for chunk in all_chunks(pool, path, member)]
        else:
            print_whole(pool, path, member, _printer(name, width, style))
    if style.as_json:
        show_json({"chunks": chunks})


def _printer(name: str, width: int, style: LogFormat) -> LogPrinter:
    only = None if style.search is None else style.search.filter()
    return LogPrinter(timestamps=style.timestamps, since=style.begin, prefix=f"{name:<{width}} | ", only=only)


def _follow_all(pool: PoolClient, path: str, query: Json, names: dict[int, str], style: LogFormat, width: int) -> None:
    failures: list[BaseException] = []

    def follow(index: int, name: str) -> None:
        try:
            follow_log(pool, path, {**query, "index": index}, _printer(name, width, style), as_json=style.as_json)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits for this one
            failures.append(error)

    threads = [threading.Thread(target=follow, args=pair, daemon=True) for pair in names.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def print_whole(pool: PoolClient, path: str, query: Json, printer: LogPrinter) -> None:
    """Print the output that exists now."""
    for stretch in read_log_with_retry(pool, path, query):
        printer.stretch(stretch)
    printer.finish()


def all_chunks(pool: PoolClient, path: str, query: Json) -> list[Json]:
    """Return the output as the chunks of the API, page by page."""
    chunks: list[Json] = []
    while True:
        page = pool.get(path, {**query, "limit": PAGE})
        chunks += page["chunks"]
        if page["end"] or not page["chunks"] or page["cursor"] == query.get("cursor"):
            return chunks
        query = {**query, "cursor": page["cursor"], "tail": None}


def follow_log(pool: PoolClient, path: str, query: dict[str, Any], printer: LogPrinter, *, as_json: bool) -> None:
    """Print new output until the attempt ends."""
    for message in stream_with_retry(pool, path, {**query, "follow": True}, explicit_end=True):
        if message.event == "end":
            break
        if as_json:
            show([dumps(message.data)])
        else:
            printer.chunk(message.data)
    printer.finish()
