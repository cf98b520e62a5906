"""Tables and details of workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpupool.cli.render.text import Style, clock, pairs, since, table
from gpupool.domain.units import WHOLE_GPU, format_mib, format_permille
from gpupool.domain.work.workspace import format_bytes, reservation_text

Json = dict[str, Any]

HEADERS = ("WORKSPACE", "OWNER", "STATE", "GPUS", "NODE", "DISK", "SNAPSHOTS", "LAST USED", "NOTE")


def workspace_lines(rows: Sequence[Json], now: float, style: Style) -> list[str]:
    """Return the table of workspaces."""
    return table(HEADERS, [_row(row, now) for row in rows], style, state=2)


def shared_lines(rows: Sequence[Json], style: Style) -> list[str]:
    """Return the table of snapshots that others share."""
    cells = [
        (f"{row['user']}/{row['workspace']}", row["snapshot"], row["project"], row["node"], row["image"] or "-")
        for row in rows
    ]
    return table(("SHARED", "SNAPSHOT", "PROJECT", "NODE", "IMAGE"), cells, style)


def _row(row: Json, now: float) -> tuple[object, ...]:
    return (
        row["name"],
        row["user"],
        row["state"],
        gpus_text(row["session_gpus"] or row["gpus"])
        + (f" ({reservation_text(row['reservation_state'])})" if row.get("reserved") else ""),
        row["node"],
        disk_text(row),
        len(row["snapshots"]) or "-",
        "now" if row["session"] else f"{since(row['used_at'], now)} ago",
        _note(row) or "-",
    )


def _note(row: Json) -> str:
    if row["task"]:
        return f"{row['task']['kind']} is in progress"
    if row["failure"]:
        return str(row["failure"]["message"])
    if row.get("reserved") and row["reservation_state"] == "queued":
        return f"no GPU is reserved yet: 'gpupool why {row['reservation']}'"
    return "unused for a long time: delete it if nobody needs it" if row["unused"] else ""


def disk_text(row: Json) -> str:
    """Return the use of disk."""
    return "-" if row["disk_bytes"] is None else format_bytes(row["disk_bytes"])


def gpus_text(gpus: Json) -> str:
    """Return a request for GPUs: ``0.25``, ``2``, ``1 x 4 GiB``, ``none``."""
    if not gpus["count"]:
        return "none"
    if gpus["memory_mib"]:
        text = f"{gpus['count']} x {format_mib(gpus['memory_mib'])}"
    elif gpus["permille"] == WHOLE_GPU:
        text = str(gpus["count"])
    else:
        share = format_permille(gpus["permille"])
        text = share if gpus["count"] == 1 else f"{gpus['count']} x {share}"
    return " ".join([text, *gpus["models"]])


def reserved_text(row: Json) -> str:
    """Return ``, reserved: ...`` with the state of a reservation; nothing without one."""
    if not row.get("reserved"):
        return ""
    words = {
        "running": "held for it",
        "suspended": "its session uses them",
        "queued": f"waiting for them, see 'gpupool why {row['reservation']}'",
        None: "released; assign them again",
    }
    return f", reserved: {words.get(row['reservation_state'], row['reservation_state'])}"


def workspace_details(row: Json, now: float, style: Style) -> list[str]:
    """Return the details of one workspace."""
    rows = [
        ("Workspace", f"{row['name']} ({row['id']})"),
        ("Owner", f"{row['user']}, project {row['project']}"),
        ("State", row["state"]),
        ("Session", f"{row['session']}, GPUs: {gpus_text(row['session_gpus'])}" if row["session"] else "none"),
        ("Next start", f"GPUs: {gpus_text(row['gpus'])}{reserved_text(row)}"),
        ("Node", f"{row['node']}, which stores its files"),
        ("Image", row["image"]),
        ("Environment", row["environment"]),
        ("Disk", f"{disk_text(row)}, with snapshots"),
        ("Created", f"{since(row['created_at'], now)} ago"),
        ("Last used", "now" if row["session"] else f"{since(row['used_at'], now)} ago"),
        ("Note", _note(row)),
    ]
    lines = pairs([(label, value) for label, value in rows if value], style)
    if row["snapshots"]:
        found = [
            (each["name"], clock(each["created_at"]), row["project"] if each.get("shared") else "-", each["id"])
            for each in row["snapshots"]
        ]
        lines += ["", *table(("SNAPSHOT", "MADE", "SHARED WITH", "ID"), found, style)]
    return lines
