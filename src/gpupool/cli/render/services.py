"""Tables and details of services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpupool.cli.render.text import Style, pairs, since, table
from gpupool.domain.units import format_duration
from gpupool.domain.work.workspace import format_bytes

Json = dict[str, Any]

HEADERS = ("SERVICE", "PROJECT", "STATE", "READY", "REPLICAS", "REVISION", "IN FLIGHT", "HELD", "MODELS", "NOTE")
_REPLICAS = ("REPLICA", "REVISION", "STATE", "READY", "NODE", "ADDRESS", "AGE", "RESTARTS", "NOTE")
_TOKENS = ("TOKEN", "USER", "REQUESTS", "ERRORS", "RECEIVED", "SENT", "REQUEST TIME", "GPU HOURS")
_REVISIONS = ("REVISION", "MADE", "BY", "COMMAND")


def service_lines(rows: Sequence[Json], style: Style) -> list[str]:
    """Return the table of services."""
    return table(HEADERS, [_row(row) for row in rows], style, state=2)


def _row(row: Json) -> tuple[object, ...]:
    return (
        row["name"],
        row["project"],
        row["state"],
        f"{row['ready']}/{row['desired']}",
        limits_text(row),
        revision_text(row),
        row["in_flight"],
        row["held"],
        ", ".join(row["models"]) or "-",
        row["problem"] or "; ".join(row["warnings"]) or row["failure"] or "-",
    )


def limits_text(row: Json) -> str:
    """Return the number of replicas: ``2`` or ``0..4``."""
    return str(row["min"]) if row["min"] == row["max"] else f"{row['min']}..{row['max']}"


def revision_text(row: Json) -> str:
    """Return the revision, with the one that an update changes to."""
    return str(row["revision"]) if row["revision"] == row["target"] else f"{row['revision']} -> {row['target']}"


def service_details(row: Json, now: float, style: Style) -> list[str]:
    """Return the details of one service."""
    times = row["first_byte_ms"]
    rows = [
        ("Service", f"{row['name']} ({row['id']})"),
        ("Owner", f"{row['user']}, project {row['project']}"),
        ("State", row["state"]),
        ("Replicas", f"{row['ready']} of {row['desired']} ready; limits {limits_text(row)}"),
        ("Revision", revision_text(row)),
        ("Path", row["path"]),
        ("Models", ", ".join(row["models"])),
        ("Hosts", ", ".join(row["hosts"])),
        ("Access", f"{row['access']}, {row['tokens']} tokens" if row["access"] == "token" else row["access"]),
        ("Requests", f"{row['in_flight']} in flight, {row['held']} held"),
        ("First byte", f"{times[0]:.0f} ms (median), {times[1]:.0f} ms (99th percentile)" if times else ""),
        ("Created", f"{since(row['created_at'], now)} ago"),
        ("Problem", row["problem"]),
        ("Last update", row["failure"]),
        *(("Warning", each) for each in row["warnings"]),
    ]
    lines = pairs([(label, value) for label, value in rows if value], style)
    if row["replicas"]:
        lines += ["", *table(_REPLICAS, [_replica(each, now) for each in row["replicas"]], style, state=2)]
    if usage := row["usage"]["tokens"]:
        lines += ["", *table(_TOKENS, [_token(each) for each in usage], style)]
    made = [
        (each["number"], f"{since(each['created_at'], now)} ago", each["created_by"], _command(each))
        for each in row["revisions"]
    ]
    return [*lines, "", *table(_REVISIONS, made, style)]


def _replica(each: Json, now: float) -> tuple[object, ...]:
    return (
        each["name"],
        each["revision"],
        each["state"],
        "draining" if each["draining"] else "yes" if each["ready"] else "no",
        each["node"] or "-",
        each["address"] or "-",
        since(each["started_at"], now) if each["started_at"] else "-",
        each["restarts"],
        each["message"] or "-",
    )


def _token(each: Json) -> tuple[object, ...]:
    return (
        each["token"],
        each["user"] or "-",
        each["requests"],
        each["errors"],
        format_bytes(each["received_bytes"]),
        format_bytes(each["sent_bytes"]),
        format_duration(each["request_s"]),
        f"{each['gpu_hours']:.2f}",
    )


def _command(revision: Json) -> str:
    return " ".join(revision["command"] or ()) or revision["image"] or "-"
