"""Fair shares and departments as people see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpupool.cli.render.people import amount
from gpupool.cli.render.text import Style, table
from gpupool.domain.units import format_duration, format_permille

Json = dict[str, Any]


def department_lines(departments: Sequence[Json], style: Style) -> list[str]:
    """The table of departments."""
    headers = ("DEPARTMENT", "QUOTA", "WEIGHT", "LIMIT", "PROJECTS", "NOTE")
    rows = [
        (
            d["name"],
            amount(d["quota_permille"]),
            f"{d['weight']:g}",
            amount(d["limit_permille"]),
            ", ".join(d["projects"]) or "-",
            d["note"] or "-",
        )
        for d in departments
    ]
    return table(headers, rows, style)


def fair_share_lines(found: Json, style: Style) -> list[str]:
    """Departments, if there are any, projects in order of their turns, and their quotas of models."""
    lately = f"use counts half after {format_duration(found['half_life_s'])}"
    lines = [style.dim(f"{format_permille(found['capacity_permille'])} GPUs; {lately}")]
    if found["departments"]:
        titles = ("DEPARTMENT", "QUOTA", "WEIGHT", "HELD", "WAITING", "FAIR SHARE", "GPU HOURS")
        lines += [*table(titles, [(d["department"], *_numbers(d)) for d in found["departments"]], style), ""]
    headers = ("TURN", "PROJECT", "QUOTA", "WEIGHT", "HELD", "WAITING", "FAIR SHARE", "GPU HOURS", "WHY")
    lines += table(headers, [_project(p) for p in found["projects"]], style)
    of_models = [(p["project"], *_model(of)) for p in found["projects"] for of in p.get("of_models", ())]
    return [*lines, "", *table(("PROJECT", "MODEL", "QUOTA", "HELD"), of_models, style)] if of_models else lines


def _model(of: Json) -> tuple[object, ...]:
    return of["model"], format_permille(of["quota_permille"]), format_permille(of["held_permille"])


def _project(p: Json) -> tuple[object, ...]:
    name = f"{p['department']}/{p['project']}" if p["department"] else p["project"]
    return (p["position"] or "-", name, *_numbers(p), p["reason"])


def _numbers(row: Json) -> tuple[object, ...]:
    return (
        amount(row["quota_permille"]),
        f"{row['weight']:g}",
        format_permille(row["held_permille"]),
        format_permille(row["waiting_permille"]),
        format_permille(round(row["fair_permille"])),
        f"{row['used_gpu_hours']:.2f}",
    )


def user_lines(found: Json, style: Style) -> list[str]:
    """What users hold and held lately, in order of their turns in each project."""
    rows = [
        (u["project"], u["user"], format_permille(u["held_permille"]), f"{u['used_gpu_hours']:.2f}")
        for u in found["users"]
    ]
    return table(("PROJECT", "USER", "HELD", "GPU HOURS"), rows, style)
