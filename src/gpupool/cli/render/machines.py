"""Tables and details of nodes, GPUs and reservations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpupool.cli.render.text import Style, bar, clean, pairs, since, table
from gpupool.domain.units import format_duration, format_holders, format_mib, format_permille

Json = dict[str, Any]

EMULATED = "emulated GPUs: programs run on the CPU"
NODE_HEADERS = ("NODE", "STATE", "GPUS", "ALLOCATABLE", "ALLOCATED", "CPUS", "MEMORY", "DRIVER", "LABELS", "ABOUT")
GPU_HEADERS = ("NODE", "GPU", "MODEL", "MEMORY", "FREE", "FREE MEMORY", "HEALTH", "HOLDERS")
SMI_HEADERS = ("NODE", "GPU", "MODEL", "BUS", "USED / TOTAL", "UTIL", "SHARE", "", "PROGRAMS")
HEADERS = ("ID", "FOR", "STATE", "NODES", "FROM", "TO", "WHO")
_FORMAT = "%Y-%m-%d %H:%M"


def node_lines(nodes: Sequence[Json], style: Style) -> list[str]:
    """Return the table of nodes."""
    return table(NODE_HEADERS, [_node_row(node) for node in nodes], style, state=1)


def _node_row(node: Json) -> tuple[object, ...]:
    models: dict[str, int] = {}
    for gpu in node["gpus"]:
        models[gpu["model"]] = models.get(gpu["model"], 0) + 1
    held = sum(gpu["allocated_permille"] for gpu in node["gpus"])
    silence = "" if node["silent_s"] is None else f"no answer for {format_duration(node['silent_s'])}"
    head = {"leads": "head, leader", "waits": "head, standby"}.get(node.get("head") or "", "")
    notes = [head, silence, node["cordon_reason"], *node["warnings"]]
    return (
        node["name"],
        node["state"],
        ", ".join(f"{count} x {model}" for model, count in models.items()) or "none",
        node["allocatable"]["gpus"],
        f"{format_permille(held)} of {len(node['gpus'])}",
        f"{node['cpus_allocated']:g}/{node['cpus']:g}",
        f"{format_mib(node['memory_allocated_mib'])}/{format_mib(node['memory_mib'])}",
        node["driver_version"] or "-",
        _labels_text(node) or "-",
        "; ".join(note for note in notes if note) or "-",
    )


def gpu_lines(gpus: Sequence[Json], style: Style) -> list[str]:
    """Return the table of ``list-gpus``: free capacity of each GPU."""
    return table(GPU_HEADERS, [_gpu_row(gpu) for gpu in gpus], style)


def _gpu_row(gpu: Json) -> tuple[object, ...]:
    usable = gpu["available"]
    return (
        gpu["node"],
        gpu["index"],
        gpu["model"],
        format_mib(gpu["memory_mib"]),
        format_permille(1000 - gpu["allocated_permille"]) if usable else "-",
        format_mib(gpu["memory_mib"] - gpu["allocated_memory_mib"]) if usable else "-",
        health_text(gpu),
        holders_text(gpu) or "-",
    )


def health_text(gpu: Json) -> str:
    """Return ``ok``, or the fault of the GPU, and why it is cordoned."""
    health = f"{gpu['health']} ({gpu['health_note']})" if gpu["health_note"] else str(gpu["health"])
    cordon = gpu.get("cordon_reason")
    return f"{health}, cordoned ({cordon})" if cordon else health


def holders_text(gpu: Json) -> str:
    """Return ``ann/train-1 0.50, …`` and processes that the pool did not start."""
    held = format_holders((h["user"], h["name"], h["permille"]) for h in gpu["holders"])
    foreign = [
        f"foreign: {p['user']} {p['name']} (pid {p['pid']}, {format_mib(p['memory_mib'])})" for p in gpu["foreign"]
    ]
    return ", ".join([*held, *foreign])


def smi_lines(gpus: Sequence[Json], style: Style) -> list[str]:
    """Return the table of ``smi``: the present activity of each GPU."""
    return table(SMI_HEADERS, [_smi_row(gpu) for gpu in gpus], style)


def _smi_row(gpu: Json) -> tuple[object, ...]:
    return (
        gpu["node"],
        gpu["index"],
        gpu["model"],
        gpu["pci_bus_id"] or "-",
        f"{gpu['memory_used_mib']} / {gpu['memory_mib']} MiB",
        f"{gpu['utilisation_percent']}%",
        bar(gpu["allocated_permille"]),
        format_permille(gpu["allocated_permille"]),
        holders_text(gpu) or "-",
    )


def node_detail_lines(node: Json, now: float, style: Style) -> list[str]:
    """Return the lines of ``describe node``."""
    lines = pairs(
        [
            ("Name", node["name"]),
            ("State", node["state"]),
            ("Cordoned", node["cordon_reason"]),
            ("Silent", "" if node["silent_s"] is None else f"for {format_duration(node['silent_s'])}"),
            ("Address", node["address"]),
            ("Capacity", _resources_text(node["capacity"])),
            ("Allocatable", _resources_text(node["allocatable"])),
            ("CPUs", f"{node['cpus_allocated']:g} of {node['cpus']:g} allocated"),
            ("Memory", f"{format_mib(node['memory_allocated_mib'])} of {format_mib(node['memory_mib'])} allocated"),
            ("Driver", node["driver_version"]),
            ("CUDA", node["cuda_version"]),
            ("Agent", node["agent_version"]),
            ("Sharing", _sharing_text(node)),
            ("Labels", _labels_text(node)),
        ],
        style,
    )
    lines += [f"warning: {clean(text)}" for text in node["warnings"]]
    for gpu in node["gpus"]:
        lines += ["", *gpu_detail_lines(gpu, now, style)]
    return lines


def _resources_text(resources: Json) -> str:
    return f"{resources['gpus']} GPUs, {resources['cpus']:g} CPUs, {format_mib(resources['memory_mib'])}"


def _labels_text(node: Json) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(node["labels"].items()))


def _sharing_text(node: Json) -> str:
    chosen = f"{node['sharing_policy']}, set by an administrator" if node["sharing_policy"] else ""
    return "; ".join(part for part in (chosen, f"can: {', '.join(node['sharing'])}" if node["sharing"] else "") if part)


def sharing_lines(node: Json, style: Style) -> list[str]:
    """Return the table of ``sharing``: the sharing mode of each GPU of a node."""
    rows = [
        (
            gpu["index"],
            gpu["model"],
            gpu["sharing"] or "node default",
            gpu["sharing_policy"] or "-",
            ", ".join(dict.fromkeys(h["sharing"] for h in gpu["holders"] if h["sharing"])) or "-",
        )
        for gpu in node["gpus"]
    ]
    return table(("GPU", "MODEL", "MODE", "CHOSEN", "NOW"), rows, style)


def _mig_text(gpu: Json) -> str:
    if not gpu["mig_profile"]:
        return ""
    creator = ", created by the pool" if gpu.get("on_demand") else ""
    return f"{gpu['mig_profile']} of card {gpu['parent_uuid']}{creator}"


def _check_text(check: Json | None, now: float) -> str:
    """Return the latest result of the checks of a GPU; empty if it was not checked."""
    if check is None:
        return ""
    note = f": {check['note']}" if check["note"] else ""
    return f"{check['outcome']}, level {check['level']}, {since(check['at'], now)} ago{note}"


def gpu_detail_lines(gpu: Json, now: float, style: Style) -> list[str]:
    """Return one GPU with its links, MIG instances and holders."""
    share = f"{bar(gpu['allocated_permille'], 20)} {format_permille(gpu['allocated_permille'])}"
    lines = [style.bold(clean(f"GPU {gpu['index']}  {gpu['model']}  {gpu['uuid']}"))]
    lines += pairs(
        [
            ("Health", health_text(gpu)),
            ("Verified", _check_text(gpu.get("check"), now)),
            ("Memory", f"{format_mib(gpu['memory_used_mib'])} used of {format_mib(gpu['memory_mib'])}"),
            ("Use", f"{gpu['utilisation_percent']}%"),
            ("Share", share),
            ("Sharing", gpu["sharing"]),
            ("Bus", gpu["pci_bus_id"]),
            ("Links", ", ".join(f"GPU {other}: {link}" for other, link in gpu["links"].items())),
            ("MIG", _mig_text(gpu)),
        ],
        style,
        indent="  ",
    )
    for h in gpu["holders"]:
        part = f"{format_permille(h['permille'])} ({format_mib(h['memory_mib'])})"
        lines.append(
            clean(f"  {h['name']}/{h['index']}  {part}  {h['user']}, {h['project']}  for {since(h['since'], now)}")
        )
    return lines


def reservation_lines(reservations: Sequence[Json], zone: str, style: Style) -> list[str]:
    """Return the table of reservations."""
    rows = [
        (
            b["id"],
            b["name"],
            "active" if b["holds"] else "planned",
            ", ".join(b["nodes"]),
            moment_text(b["starts_at"], zone),
            moment_text(b["ends_at"], zone),
            ", ".join([*b["projects"], *(f"user {name}" for name in b["users"])]) or "maintenance",
        )
        for b in reservations
    ]
    return table(HEADERS, rows, style, state=2)


def moment_text(moment: float, zone: str) -> str:
    """Format a time: ``Mon 2026-11-23 09:00``."""
    from datetime import datetime

    from gpupool.domain.work.time_windows import read_zone

    return datetime.fromtimestamp(moment, read_zone(zone)).strftime(f"%a {_FORMAT}")
