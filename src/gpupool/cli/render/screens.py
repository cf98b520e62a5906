"""The screen of ``status``."""

from __future__ import annotations

from typing import Any

from gpupool.cli.render.text import Style, clean, clock, pairs, since
from gpupool.domain.units import format_duration, format_permille

Json = dict[str, Any]


def status_lines(pool: Json | None, processes: Json, now: float, style: Style) -> list[str]:
    """Return the screen of ``status``: the pool and its processes."""
    state = (
        "running" if processes.get("answering") else "starting or broken" if processes.get("running") else "not running"
    )
    lines = pairs(
        [
            ("Pool", state),
            ("Kind", processes.get("kind")),
            ("State in", processes.get("state_dir")),
            ("Supervisor", f"pid {processes['pid']}" if processes.get("pid") else ""),
            ("Up for", format_duration(processes["uptime_s"]) if processes.get("uptime_s") is not None else ""),
            *(_pool_facts(pool) if pool else []),
        ],
        style,
    )
    for child in processes.get("children", []):
        lines.append(_child_line(child, now, style, starting=not processes.get("answering")))
    for warning in (pool or {}).get("warnings", []):
        lines.append(f"warning: {clean(warning)}")
    return lines


def _pool_facts(pool: Json) -> list[tuple[str, object]]:
    held = format_permille(pool["gpu_permille_allocated"])
    return [
        ("Version", pool["version"]),
        ("Started", clock(pool["started_at"])),
        ("Listens on", pool["listen"]),
        ("Dashboard", _dashboard(pool)),
        ("Heads", ", ".join(_head(head) for head in pool.get("heads", ()))),
        ("Nodes", f"{pool['nodes_up']} of {pool['nodes']} up"),
        ("GPUs", f"{pool['gpus']}{', emulated' if pool['emulated'] else ''}; {held} allocated"),
        ("Workloads", f"{pool['running']} running, {pool['queued']} queued"),
    ]


def _head(head: Json) -> str:
    if head.get("ready", True):
        return f"{head['name']} {head['standing']}"
    return f"{head['name']} cannot take over: {clean(' '.join(head['faults']))}"


def _dashboard(pool: Json) -> str:
    """Return the dashboard's address and how to open it."""
    places = [pool.get("dashboard"), f"https://{pool['listen']}" if pool["listen"] else None]
    found = " and ".join(place for place in places if place)
    return f"{found} ('gpupool dashboard' opens it)" if found else "not served"


def _child_line(child: Json, now: float, style: Style, *, starting: bool) -> str:
    about = [
        child.get("phase", "") if starting else "",
        f"pid {child['pid']}" if child.get("pid") else "",
        f"{child['restarts']} restarts" if child.get("restarts") else "",
        f"last exit {child['last_exit']}" if child.get("last_exit") else "",
        f"see {child['log']}" if child.get("log") and not child.get("pid") else "",
    ]
    age = f" for {since(child.get('started_at'), now)}" if child.get("started_at") else ""
    return f"  {child['name']}: {style.state(str(child['state']))}{age} ({', '.join(filter(None, about))})"
