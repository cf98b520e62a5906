"""The screen of ``top``: GPUs with their slices drawn to size, users, workloads and the queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpupool.cli.render.machines import EMULATED
from gpupool.cli.render.text import Style, clean, cut, since, table, width_of
from gpupool.domain.units import format_duration, format_mib, format_permille

Json = dict[str, Any]

USED, ALLOCATED, FREE = "█", "▒", "·"
NARROW, WIDE = 10, 20  # cells of a GPU
COLOURS = (36, 33, 35, 32, 34, 31)  # cyan first: neighbours also differ for colour-blind users
MAX_USERS = 8


class TopSection(StrEnum):
    """The sections to which ``top`` can be narrowed."""

    NODE = "node"
    GPU = "gpu"
    USER = "user"
    JOB = "job"


class TopSort(StrEnum):
    """The sort keys of workloads; largest first."""

    GPUS = "gpus"
    USE = "use"
    MEMORY = "memory"
    IDLE = "idle"
    AGE = "age"
    NAME = "name"
    USER = "user"


_KEYS: dict[TopSort, Callable[[Json], tuple[Any, ...]]] = {
    TopSort.GPUS: lambda w: (-w["permille"],),
    TopSort.USE: lambda w: (-(w["busy_percent"] or 0),),
    TopSort.MEMORY: lambda w: (-(w["memory_used_mib"] or 0),),
    TopSort.IDLE: lambda w: (-(w["idle_s"] or 0),),
    TopSort.AGE: lambda w: (w["created_at"],),
    TopSort.NAME: lambda w: (w["name"],),
    TopSort.USER: lambda w: (w["user"], -w["permille"]),
}


@dataclass(frozen=True, slots=True)
class TopOptions:
    """The view: one section or all, the sort key and order, and a line for each GPU or for each node."""

    part: TopSection | None = None
    sort: TopSort = TopSort.GPUS
    reverse: bool = False
    by_node: bool = False


def screen(top: Json, view: TopOptions, style: Style) -> list[str]:
    """Return all lines; the first is the head."""
    parts = {
        TopSection.NODE: lambda: node_lines(top, style),
        TopSection.GPU: lambda: gpu_lines(top, style),
        TopSection.USER: lambda: user_lines(top, style, most=None),
        TopSection.JOB: lambda: workload_lines(top, view, style),
    }
    first = [head(top, style)]
    first += [style.dim(EMULATED)] if any(gpu["emulated"] for node in top["nodes"] for gpu in node["gpus"]) else []
    if view.part is not None:
        return [*first, "", *parts[view.part]()]
    shown = [node_lines(top, style) if view.by_node else gpu_lines(top, style)]
    shown += [user_lines(top, style, MAX_USERS), workload_lines(top, view, style)]
    return first + [line for lines in shown if lines for line in ("", *lines)]


def head(top: Json, style: Style) -> str:
    """Return the summary line of the pool."""
    gpus = [gpu for node in top["nodes"] for gpu in node["gpus"]]
    held = sum(part["permille"] for gpu in gpus for part in gpu["slices"])
    idle = sum(user["idle_permille"] for user in top["users"])
    up = sum(node["state"] != "down" for node in top["nodes"])
    known = [gpu["utilisation_percent"] for gpu in gpus if gpu["utilisation_percent"] is not None]
    words = [f"{format_permille(held)} of {len(gpus)} GPUs allocated"]
    words += [f"{format_permille(round(sum(known) * 10))} in use"] if known else []
    words += [f"{format_permille(idle)} idle"] if idle else []
    words += [f"{sum(w['running'] for w in top['workloads'])} running"]
    words += [f"{sum(w['waiting'] for w in top['workloads'])} waiting", f"{up}/{len(top['nodes'])} nodes up"]
    text = f"gpupool  {'  '.join(words)}"
    return style.bold(cut(text, style.columns) if style.columns else text)


# GPUs


LOCATION_HEADERS, ACTIVITY_HEADERS = (
    ("GPU", "MODEL"),
    ("USE", "MEMORY", "POWER", "TEMP"),
)  # left and right of the slices
UNKNOWN = "-"


def gpu_lines(top: Json, style: Style) -> list[str]:
    """Return a line for each GPU: its slices, activity and holders."""
    gpus = [(node, gpu) for node in top["nodes"] for gpu in node["gpus"]]
    cells = WIDE if style.columns is None or style.columns >= 110 else NARROW
    where = _aligned([LOCATION_HEADERS, *(_location(node, gpu) for node, gpu in gpus)], left=True)
    does = _aligned(_drop_unknown_columns([ACTIVITY_HEADERS, *(_activity(gpu) for _, gpu in gpus)]), left=False)
    title = f"{where[0]}  {'SLICES':<{cells}}  {does[0]}  HOLDERS"
    lines = [style.bold(cut(title, style.columns) if style.columns else title)]
    room = None if style.columns is None else style.columns - width_of(where[0]) - width_of(does[0]) - cells - 6
    for (_, gpu), before, after in zip(gpus, where[1:], does[1:], strict=True):
        lines.append(f"{before}  {slices(gpu, cells, style)}  {after}  {holders(gpu, room, style)}")
    return lines


def _drop_unknown_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Remove columns without any known value; the first two stay."""
    wanted = [i for i in range(len(rows[0])) if i < 2 or any(row[i] != UNKNOWN for row in rows[1:])]
    return [[row[i] for i in wanted] for row in rows]


def _aligned(rows: Sequence[Sequence[str]], *, left: bool) -> list[str]:
    widths = [max(width_of(row[i]) for row in rows) for i in range(len(rows[0]))]
    gaps = [[" " * (width - width_of(word)) for word, width in zip(row, widths, strict=True)] for row in rows]
    return [
        "  ".join(word + gap if left else gap + word for word, gap in zip(row, gap_row, strict=True))
        for row, gap_row in zip(rows, gaps, strict=True)
    ]


def _location(node: Json, gpu: Json) -> tuple[str, str]:
    return clean(f"{node['name']}:{gpu['index']}"), clean(gpu["model"].removeprefix("NVIDIA "))


def _activity(gpu: Json) -> tuple[str, ...]:
    return (
        percent(gpu["utilisation_percent"]),
        f"{format_mib(gpu['memory_used_mib'])}/{format_mib(gpu['memory_mib'])}",
        UNKNOWN if gpu["power_w"] is None else f"{gpu['power_w']:.0f} W",
        UNKNOWN if gpu["temperature_c"] is None else f"{gpu['temperature_c']:.0f} C",
    )


def percent(value: float | None) -> str:
    """Return ``37%``; ``-`` if unknown."""
    return "-" if value is None else f"{value:.0f}%"


def slices(gpu: Json, cells: int, style: Style) -> str:
    """Return a GPU as a row of cells: each slice to size, its used part full, the rest shaded.

    Without colours a slice ends with a bar, to separate it from the next one.
    """
    drawn, ends = [], 0
    for number, part in enumerate(gpu["slices"]):
        begins, ends = ends, ends + part["permille"]
        width = _cell(ends, cells) - _cell(begins, cells)
        drawn.append(_slice(part, width, number, style))
    free = cells - _cell(ends, cells)
    unusable = not gpu["available"]
    return "".join(drawn) + style.dim(("x" if unusable else FREE) * free)


def _cell(permille: int, cells: int) -> int:
    """Return the cell of a position in thousandths; any share takes at least one cell while cells are left."""
    return min(cells, -(-permille * cells // 1000))


def _slice(part: Json, width: int, number: int, style: Style) -> str:
    share = min(1.0, (part["busy_percent"] or 0) / (part["permille"] / 10))
    used = min(width, max(round(width * share), 1 if share > 0.01 else 0))
    body = USED * used + ALLOCATED * (width - used)
    if not style.colour and width > 1:
        body = body[:-1] + "|"
    return coloured(body, number, style)


def coloured(text: str, number: int, style: Style) -> str:
    """Return a text in the colour of the slice with this number on its GPU."""
    return f"\x1b[{COLOURS[number % len(COLOURS)]}m{text}\x1b[0m" if style.colour and text else text


def holders(gpu: Json, columns: int | None, style: Style) -> str:
    """Return the holders in the order and colours of the slices; or that the GPU is free, or its fault."""
    if not gpu["slices"]:
        if gpu["available"] and gpu["health"] == "ok":
            return style.dim("free")
        return clean(f"{gpu['health']} {gpu['health_note']}".strip()) if gpu["health"] != "ok" else "foreign processes"
    words, room = [], columns
    for number, part in enumerate(gpu["slices"]):
        text = holder(part)
        if room is not None:
            if room < 8:
                words.append("…")
                break
            text = cut(text, room)
            room -= width_of(text) + 2
        words.append(coloured(text, number, style))
    return ", ".join(words)


def holder(part: Json) -> str:
    """Return ``ada/train 0.50 37%``, with the idle time if it is idle."""
    index = f"/{part['index']}" if part["index"] else ""
    use = f" {percent(part['busy_percent'])}" if part["busy_percent"] is not None else ""
    idle = f" idle {format_duration(part['idle_s'])}" if (part["idle_s"] or 0) >= 300 else ""
    return clean(f"{part['user']}/{part['name']}{index} {format_permille(part['permille'])}{use}{idle}")


# Nodes, users, workloads

NODE_HEADERS = ("NODE", "STATE", "GPUS", "ALLOCATED", "USE", "CPUS", "MEMORY", "ABOUT")
USER_HEADERS = ("USER", "GPUS", "IN USE", "IDLE", "RUNNING", "WAITING")
WORKLOAD_HEADERS = (
    "NAME",
    "STATE",
    "USER",
    "PROJECT",
    "GPUS",
    "USE",
    "GPU MEMORY",
    "CPU",
    "MEMORY",
    "IDLE",
    "AGE",
    "REPLICAS",
)


def node_lines(top: Json, style: Style) -> list[str]:
    """Return the table of nodes."""
    return table(NODE_HEADERS, [_node(node) for node in top["nodes"]], style, state=1)


def _node(node: Json) -> tuple[object, ...]:
    gpus = node["gpus"]
    held = sum(part["permille"] for gpu in gpus for part in gpu["slices"])
    known = [gpu["utilisation_percent"] for gpu in gpus if gpu["utilisation_percent"] is not None]
    unwell = sum(gpu["health"] != "ok" for gpu in gpus)
    about = [node["cordon_reason"], f"{unwell} GPUs unhealthy" if unwell else ""]
    cpus = "-" if node["cpus_used"] is None else f"{node['cpus_used']:.1f}"
    memory = "-" if node["memory_used_mib"] is None else format_mib(node["memory_used_mib"])
    return (
        node["name"],
        node["state"],
        len(gpus),
        format_permille(held),
        percent(sum(known) / len(known)) if known else "-",
        f"{cpus}/{node['cpus']:g}",
        f"{memory}/{format_mib(node['memory_mib'])}",
        "; ".join(note for note in about if note) or "-",
    )


def user_lines(top: Json, style: Style, most: int | None) -> list[str]:
    """Return the table of users with running or waiting workloads."""
    users = top["users"] if most is None else top["users"][:most]
    return table(USER_HEADERS, [_user(user) for user in users], style) if users else []


def _user(user: Json) -> tuple[object, ...]:
    busy = user["busy_percent"]
    return (
        user["user"],
        format_permille(user["permille"]),
        "-" if busy is None else format_permille(round(busy * 10)),
        format_permille(user["idle_permille"]) if user["idle_permille"] else "-",
        user["running"],
        user["waiting"] or "-",
    )


def workload_lines(top: Json, view: TopOptions, style: Style) -> list[str]:
    """Return the table of workloads: those with GPUs in the chosen order, then those that wait, oldest first."""
    holding = sorted((w for w in top["workloads"] if w["permille"]), key=_KEYS[view.sort])
    waiting = sorted((w for w in top["workloads"] if not w["permille"]), key=_KEYS[TopSort.AGE])
    if view.reverse:
        holding.reverse()
    if not top["workloads"]:
        return [style.dim("no jobs; 'gpupool run' and 'gpupool submit' start some")]
    lines = table(WORKLOAD_HEADERS, [_workload(w, top["at"]) for w in [*holding, *waiting]], style, state=1)
    left_out = top["workloads_left_out"]
    return [*lines, f"… and {left_out} more workloads"] if left_out else lines


def _workload(w: Json, now: float) -> tuple[object, ...]:
    replicas = f"{w['running']} running" + (f", {w['waiting']} waiting" if w["waiting"] else "")
    held = w["permille"] > 0
    return (
        w["name"],
        w["state"],
        w["user"],
        w["project"],
        format_permille(w["permille"]) if held else "-",
        percent(w["busy_percent"]),
        "-" if w["memory_used_mib"] is None else format_mib(w["memory_used_mib"]),
        percent(w["cpu_percent"]),
        "-" if w["ram_used_mib"] is None else format_mib(w["ram_used_mib"]),
        format_duration(w["idle_s"]) if (w["idle_s"] or 0) >= 60 else "-",
        since(w["created_at"], now),
        replicas if held else f"{w['waiting']} waiting",
    )
