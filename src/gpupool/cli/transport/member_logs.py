"""Print the output of one member of a workload, or of several members."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from json import dumps
from typing import Any, NamedTuple

from gpupool.cli.output import notify, show, show_json
from gpupool.cli.render.line_filter import LineSearch
from gpupool.cli.transport.pool import PoolClient
from gpupool.cli.transport.streaming import LogPrinter, read_log_with_retry, stream_with_retry
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.protocol.log_records import skips_segments

PAGE = 1000
DROPPED = "older output was deleted: the log reached its size limit (--log-limit of submit)"
DELETED = "the output was deleted: nodes keep the output of ended programs for some time; see 'gpupool pool describe'"
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
    dropped = False
    for index, name in names.items():
        member = {**query, "index": index}
        if style.as_json:
            found = all_chunks(pool, path, member)
            chunks += [chunk | {"member": name} for chunk in found.chunks]
            dropped |= found.dropped
        else:
            print_whole(pool, path, member, _printer(name, width, style))
    if style.as_json:
        show_json({"chunks": chunks, "dropped": dropped})


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


class DroppedNotice:
    """Reports on stderr that output at the start, or later in a fast log that is followed, was deleted."""

    def __init__(self, pool: PoolClient, path: str, query: Json) -> None:
        self._pool = pool
        self._path = path
        self._query = query
        self._cursor: str | None = None

    def before(self, cursor: str) -> None:
        """Report deleted output before the output with this cursor after it."""
        if skips_segments(self._cursor or "", cursor) and (self._cursor is not None or self._at_start()):
            notify(DROPPED)
        self._cursor = cursor

    def finish(self) -> None:
        """Report that all output was deleted."""
        if self._cursor is None and self._at_start():
            notify(DELETED)

    def _at_start(self) -> bool:
        """Ask the pool, which knows where ``since`` and ``tail`` begin."""
        with contextlib.suppress(GpupoolError):
            return bool(self._pool.get(self._path, {**self._query, "limit": 1}).get("dropped"))
        return False


def print_whole(pool: PoolClient, path: str, query: Json, printer: LogPrinter) -> None:
    """Print the output that exists now."""
    notice = DroppedNotice(pool, path, query)
    for batch in read_log_with_retry(pool, path, query):
        notice.before(batch.cursor)
        printer.batch(batch)
    printer.finish()
    notice.finish()


class AllChunks(NamedTuple):
    """A whole log as the chunks of the API; ``dropped``: older output was deleted."""

    chunks: list[Json]
    dropped: bool


def all_chunks(pool: PoolClient, path: str, query: Json) -> AllChunks:
    """Return the output page by page."""
    chunks: list[Json] = []
    dropped = False
    while True:
        page = pool.get(path, {**query, "limit": PAGE})
        chunks += page["chunks"]
        dropped |= page.get("dropped", False)
        if page["end"] or not page["chunks"] or page["cursor"] == query.get("cursor"):
            return AllChunks(chunks, dropped)
        query = {**query, "cursor": page["cursor"], "tail": None}


def follow_log(pool: PoolClient, path: str, query: dict[str, Any], printer: LogPrinter, *, as_json: bool) -> None:
    """Print new output until the attempt ends."""
    notice = DroppedNotice(pool, path, query)
    for message in stream_with_retry(pool, path, {**query, "follow": True}, explicit_end=True):
        if message.event == "end":
            notice.finish()
            break
        notice.before(message.data["cursor"])
        if as_json:
            show([dumps(message.data)])
        else:
            printer.chunk(message.data)
    printer.finish()
