"""Whole screens: ``top`` and ``status``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpupool.cli.render.machines import EMULATED, health_text, holders_text
from gpupool.cli.render.text import Style, bar, clean, clock, cut, pairs, since
from gpupool.cli.render.workloads import workload_lines
from gpupool.domain.units import format_duration, format_mib, format_permille

Json = dict[str, Any]
ORDER = {"running": 0, "stopping": 1, "queued": 2, "suspended": 3}


def top_lines(pool: Json, gpus: Sequence[Json], workloads: Sequence[Json], now: float, style: Style) -> list[str]:
    """The screen of ``top``: the pool in a line, every GPU with its bar, every live workload."""
    held = f"{format_permille(pool['gpu_permille_allocated'])} of {pool['gpu_permille_total'] // 1000} GPUs allocated"
    work = f"{pool['running']} running  {pool['queued']} queued"
    head = f"gpupool  {held}  {work}  {pool['nodes_up']}/{pool['nodes']} nodes up"
    lines = [style.bold(head)]
    if pool["emulated"]:
        lines.append(style.dim(EMULATED))
    lines += ["", *gpu_bars(gpus, style), ""]
    ordered = sorted(workloads, key=lambda w: (ORDER.get(w["state"], 9), w["created_at"]))
    return lines + workload_lines(ordered, now, style)


def gpu_bars(gpus: Sequence[Json], style: Style) -> list[str]:
    """A line per GPU: where, what, how much is given away, what it does, to whom."""
    places = [f"{gpu['node']}:{gpu['index']}" for gpu in gpus]
    place_width = max((len(place) for place in places), default=0)
    model_width = max((len(gpu["model"]) for gpu in gpus), default=0)
    lines = []
    for place, gpu in zip(places, gpus, strict=True):
        used = f"{format_mib(gpu['memory_used_mib'])}/{format_mib(gpu['memory_mib'])}"
        what = holders_text(gpu) or ("free" if gpu["available"] else health_text(gpu))
        share = f"{bar(gpu['allocated_permille'])} {format_permille(gpu['allocated_permille']):>5}"
        card = f"{place:<{place_width}}  {gpu['model']:<{model_width}}"
        line = f"{card}  {share}  {gpu['utilisation_percent']:>3}%  {used:>15}  {what}"
        lines.append(cut(clean(line), style.columns) if style.columns else clean(line))
    return lines


def status_lines(pool: Json | None, processes: Json, now: float, style: Style) -> list[str]:
    """The screen of ``status``: the pool and its processes."""
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
        lines.append(_child_line(child, now, style))
    for warning in (pool or {}).get("warnings", []):
        lines.append(f"warning: {clean(warning)}")
    return lines


def _pool_facts(pool: Json) -> list[tuple[str, object]]:
    held = format_permille(pool["gpu_permille_allocated"])
    return [
        ("Version", pool["version"]),
        ("Started", clock(pool["started_at"])),
        ("Listens on", pool["listen"]),
        ("Nodes", f"{pool['nodes_up']} of {pool['nodes']} up"),
        ("GPUs", f"{pool['gpus']}{', emulated' if pool['emulated'] else ''}; {held} allocated"),
        ("Workloads", f"{pool['running']} running, {pool['queued']} queued"),
    ]


def _child_line(child: Json, now: float, style: Style) -> str:
    restarts = f", {child['restarts']} restarts" if child.get("restarts") else ""
    ended = f", last exit {child['last_exit']}" if child.get("last_exit") else ""
    age = f" for {since(child.get('started_at'), now)}" if child.get("started_at") else ""
    return f"  {child['name']}: {style.state(str(child['state']))}{age} (pid {child.get('pid')}{restarts}{ended})"
