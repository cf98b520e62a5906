"""The output of one member of a workload, or of several side by side."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps
from typing import Any

from gpupool.cli.following import LogPrinter, persistent, whole_log
from gpupool.cli.output import show, show_json
from gpupool.cli.pool import Pool
from gpupool.domain.errors import ErrorCode, GpupoolError

PAGE = 1000
MOST_FOLLOWED = 64  # members at a time, each on a connection of its own
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Style:
    """How output is printed; ``begin``: nothing older, in seconds since the epoch."""

    follow: bool
    timestamps: bool
    begin: float | None
    as_json: bool


def chosen(workload: Json, rank: int | None, role: str | None) -> list[Json]:
    """The replicas with a rank or role, of what the API says of a workload. Raises ``GpupoolError(NOT_FOUND)``.

    Before the first round ranks are those of a whole gang: the numbers of its members.
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


def print_members(pool: Pool, path: str, query: Json, members: Sequence[Json], style: Style) -> None:
    """The output of several members, each line with the member's name before it."""
    if style.follow and len(members) > MOST_FOLLOWED:
        raise GpupoolError(
            ErrorCode.TOO_LARGE, f"At most {MOST_FOLLOWED} members can be followed at once.", "Name a role or a rank."
        )
    names = {row["index"]: row["member"] or str(row["index"]) for row in members}
    width = max(map(len, names.values()))
    if style.follow:
        _follow_all(pool, path, query, names, style, width)
        return
    kept: list[Json] = []
    for index, name in names.items():
        member = {**query, "index": index}
        if style.as_json:
            kept += [chunk | {"member": name} for chunk in all_chunks(pool, path, member)]
        else:
            print_whole(pool, path, member, _printer(name, width, style))
    if style.as_json:
        show_json({"chunks": kept})


def _printer(name: str, width: int, style: Style) -> LogPrinter:
    return LogPrinter(timestamps=style.timestamps, since=style.begin, prefix=f"{name:<{width}} | ")


def _follow_all(pool: Pool, path: str, query: Json, names: dict[int, str], style: Style, width: int) -> None:
    failures: list[BaseException] = []

    def follow(index: int, name: str) -> None:
        try:
            follow_log(pool, path, {**query, "index": index}, _printer(name, width, style), as_json=style.as_json)
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits for this one
            failures.append(error)

    threads = [threading.Thread(target=follow, args=pair, daemon=True) for pair in names.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def print_whole(pool: Pool, path: str, query: Json, printer: LogPrinter) -> None:
    """All there is now."""
    for stretch in whole_log(pool, path, query):
        printer.stretch(stretch)


def all_chunks(pool: Pool, path: str, query: Json) -> list[Json]:
    """The same as the API has it, page by page."""
    kept: list[Json] = []
    while True:
        page = pool.get(path, {**query, "limit": PAGE})
        kept += page["chunks"]
        if page["end"] or not page["chunks"] or page["cursor"] == query.get("cursor"):
            return kept
        query = {**query, "cursor": page["cursor"], "tail": None}


def follow_log(pool: Pool, path: str, query: dict[str, Any], printer: LogPrinter, *, as_json: bool) -> None:
    """What comes, until the attempt ends."""
    for message in persistent(pool, path, {**query, "follow": True}, said=True):
        if message.event == "end":
            return
        if as_json:
            show([dumps(message.data)])
        else:
            printer.chunk(message.data)
