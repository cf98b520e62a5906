"""Tables of projects, users, tokens, usage, fair shares and reports."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

from gpupool.cli.render.text import Style, clean, clock, pairs, since, table
from gpupool.domain.units import format_duration, format_mib, format_permille

Json = dict[str, Any]
NOT_MEASURED = "not measured"
_UNKNOWN = {"model": "(unknown)", "pool": "pool"}


def report_lines(report: Json, style: Style) -> list[str]:
    """Return the table of a report, most GPU hours first, with a total."""
    waits = {line["key"]: line for line in report["waits"]}
    lost = {line["key"]: line["lost_gpu_s"] for line in report.get("losses", ())}
    priced = any(line["cost"] is not None for line in report["lines"])
    headers = [report["by"].upper(), "GPU HOURS", "REQUESTED", "USED", "USED %", "IDLE", "LEASES"]
    shown = [*(True for _ in headers), priced, bool(lost), bool(waits), bool(waits)]
    headers += ["COST", "LOST", "MEDIAN WAIT", "P90 WAIT"]
    lines = [(line, waits.get(line["key"]), lost.get(line["key"], 0.0)) for line in report["lines"]]
    rows = [_row(report, *line) for line in lines]
    total = _row(report, report["total"], report["waits_total"], report.get("lost_gpu_s", 0.0))
    cells = [tuple(compress(row, shown)) for row in [*rows, ("total", *total[1:])]]
    span = f"{clock(report['since'])} to {clock(report['until'])}"
    advice = [f"{each['name'] or each['workload']}: {each['sentence']}" for each in report.get("suggestions", ())]
    more = ["", style.bold("Smaller requests"), *map(clean, advice)] if advice else []
    return [style.dim(span), *table(tuple(compress(headers, shown)), cells, style), *more]


def _row(report: Json, line: Json, wait: Json | None, lost_s: float) -> tuple[object, ...]:
    used, measured = line["used_s"], line["measured_s"]
    cost = "-" if line["cost"] is None else f"{line['cost']:,.2f} {report['currency']}".rstrip()
    return (
        _name(report, line),
        _hours(line["allocated_s"]),
        _hours(line["requested_s"], "-"),
        _hours(used),
        "-" if used is None or not measured else f"{100 * used / measured:.0f} %",
        _hours(line["idle_s"], "-"),
        line["leases"],
        cost,
        _hours(lost_s),
        _wait(wait, "p50_s"),
        _wait(wait, "p90_s"),
    )


def _name(report: Json, line: Json) -> str:
    return str(line["name"] or line["key"] or _UNKNOWN.get(report["by"], "(none)"))


def _hours(seconds: float | None, unknown: str = NOT_MEASURED) -> str:
    return unknown if seconds is None else f"{seconds / 3600:,.2f}"


def _wait(wait: Json | None, name: str) -> str:
    return "-" if wait is None or wait[name] is None else format_duration(wait[name], tenths=True)


def rates_lines(rates: Json, style: Style) -> list[str]:
    """Return the rates of a GPU hour."""
    if rates["default"] is None and not rates["models"]:
        return ["no rates: GPU hours cost nothing"]
    named = [(model, f"{rate:g} {rates['currency']}".rstrip()) for model, rate in rates["models"].items()]
    rest = "no rate" if rates["default"] is None else f"{rates['default']:g} {rates['currency']}".rstrip()
    return [style.dim("per GPU hour"), *pairs([*named, ("other models", rest)], style)]


def department_lines(departments: Sequence[Json], style: Style) -> list[str]:
    """Return the table of departments."""
    headers = ("DEPARTMENT", "QUOTA", "WEIGHT", "LIMIT", "PROJECTS", "NOTE")
    rows = [
        (
            d["name"],
            format_amount(d["quota_permille"]),
            f"{d['weight']:g}",
            format_amount(d["limit_permille"]),
            ", ".join(d["projects"]) or "-",
            d["note"] or "-",
        )
        for d in departments
    ]
    return table(headers, rows, style)


def fair_share_lines(found: Json, style: Style) -> list[str]:
    """Return departments (if any), projects in scheduling order, and their model quotas."""
    decay = f"half-life of past use: {format_duration(found['half_life_s'])}"
    lines = [style.dim(f"{format_permille(found['capacity_permille'])} GPUs; {decay}")]
    if found["departments"]:
        titles = ("DEPARTMENT", "QUOTA", "WEIGHT", "HELD", "WAITING", "FAIR SHARE", "RECENT USE")
        lines += [*table(titles, [(d["department"], *_numbers(d)) for d in found["departments"]], style), ""]
    headers = ("TURN", "PROJECT", "QUOTA", "WEIGHT", "HELD", "WAITING", "FAIR SHARE", "RECENT USE", "WHY")
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
        format_amount(row["quota_permille"]),
        f"{row['weight']:g}",
        format_permille(row["held_permille"]),
        format_permille(row["waiting_permille"]),
        format_permille(round(row["fair_permille"])),
        f"{row['used_gpu_hours']:.2f}",
    )


def user_share_lines(found: Json, style: Style) -> list[str]:
    """Return the present and past use of users, in scheduling order within each project."""
    rows = [
        (u["project"], u["user"], format_permille(u["held_permille"]), f"{u['used_gpu_hours']:.2f}")
        for u in found["users"]
    ]
    return table(("PROJECT", "USER", "HELD", "RECENT USE"), rows, style)


def project_lines(projects: Sequence[Json], chosen: str | None, style: Style) -> list[str]:
    """Return the table of projects; the caller's default project has a star."""
    headers = ("PROJECT", "QUOTA", "ALLOCATED", "QUEUED", "OVER QUOTA", "LIMIT", "PER USER", "MEMBERS", "NOTE")
    return table(headers, [_project_row(p, chosen) for p in projects], style)


def _project_row(p: Json, chosen: str | None) -> tuple[object, ...]:
    return (
        p["name"] + (" *" if p["name"] == chosen else ""),
        format_amount(p["quota_permille"]),
        format_permille(p["allocated_permille"]),
        p["queued"],
        "yes" if p["over_quota"] else "no",
        format_amount(p["limit_permille"]),
        format_amount(p["user_limit_permille"]),
        ", ".join(p["members"]) or "everybody",
        p["note"] or "-",
    )


def project_detail_lines(p: Json, style: Style) -> list[str]:
    """Return the lines of ``describe project``."""
    return pairs(
        [
            ("Name", p["name"]),
            ("Note", p["note"]),
            (
                "Quota",
                f"{format_amount(p['quota_permille'])} GPUs"
                if p["quota_permille"] is not None
                else "none: the whole pool",
            ),
            ("Over quota", "training may use idle GPUs above the quota" if p["over_quota"] else "no"),
            ("Model quotas", ", ".join(f"{model}: {format_amount(n)}" for model, n in p["model_quotas"].items())),
            ("Department", p["department"]),
            ("Weight", f"{p['weight']:g}"),
            ("Limit", format_amount(p["limit_permille"])),
            ("Per user", format_amount(p["user_limit_permille"])),
            ("Allocated", format_permille(p["allocated_permille"])),
            ("Queued", p["queued"]),
            ("This month", f"{p['gpu_hours_used']:.4g} GPU hours" if p.get("gpu_hours_used") is not None else ""),
            ("Longest time", format_duration(p["max_time_s"])),
            ("Idle timeout", format_duration(p["idle_timeout_s"])),
            ("Members", ", ".join(p["members"]) or "everybody"),
            ("Compute", _choice(p["compute_default"], p["compute_allowed"])),
            ("Sharing", _choice(p["sharing_default"], p["sharing_allowed"])),
            *_rules(p["rules"]),
        ],
        style,
    )


def _rules(rules: Json) -> list[tuple[str, object]]:
    return [
        ("Time limits", f"{format_duration(rules['max_time_limit_s'])} at most" if rules["max_time_limit_s"] else ""),
        (
            "One replica",
            f"{format_amount(rules['max_gpus_permille'])} GPUs at most" if rules["max_gpus_permille"] else "",
        ),
        ("Priority", f"{rules['max_priority']} at most" if rules.get("max_priority") is not None else ""),
        ("GPU hours", f"{rules['gpu_hours']:g} a month at most" if rules.get("gpu_hours") is not None else ""),
        (
            "User's GPU hours",
            f"{rules['user_gpu_hours']:g} a month at most" if rules.get("user_gpu_hours") is not None else "",
        ),
        ("User weights", ", ".join(f"{user}: {n:g}" for user, n in rules.get("user_weights", {}).items())),
        ("User quotas", ", ".join(f"{u}: {format_amount(n)} GPUs" for u, n in rules.get("user_quotas", {}).items())),
        ("Placement", f"{rules['spread']} spread" if rules.get("spread") else ""),
        ("Queue", f"{rules['max_queued']} replicas at most" if rules.get("max_queued") else ""),
        ("Workspaces", f"{format_mib(rules['workspace_mib'])} of disk at most" if rules.get("workspace_mib") else ""),
        (
            "User's workspaces",
            f"{format_mib(rules['user_workspace_mib'])} of disk at most" if rules.get("user_workspace_mib") else "",
        ),
        ("Min-runtime", f"{format_duration(rules['min_runtime_s'])}" if rules["min_runtime_s"] else ""),
        ("Training starts", "; ".join(rules["windows"])),
        ("Node pools", ", ".join(rules["node_pools"])),
        ("Images", ", ".join(rules.get("images", []))),
        ("Volumes in", ", ".join(rules.get("volumes", []))),
    ]


def _choice(default: str | None, allowed: Sequence[str]) -> str:
    """Return ``cap; guarantee and cap allowed``, or nothing if the pool's default applies."""
    bounds = [f"{' and '.join(allowed)} allowed"] if allowed else []
    return "; ".join([*([default] if default else []), *bounds])


def format_amount(permille: int | None) -> str:
    """Format thousandths of GPUs; ``-`` for no bound."""
    return "-" if permille is None else format_permille(permille)


def user_lines(users: Sequence[Json], style: Style) -> list[str]:
    """Return the table of users."""
    headers = ("USER", "ROLE", "UID", "GPU LIMIT", "STATE", "E-MAIL")
    rows = [
        (
            u["name"],
            u["role"],
            "-" if u["uid"] is None else u["uid"],
            format_amount(u["gpu_limit_permille"]),
            _user_state(u),
            u.get("email") or "-",
        )
        for u in users
    ]
    return table(headers, rows, style)


def _user_state(user: Json) -> str:
    return "disabled" if user["disabled"] else "enabled"


def token_lines(tokens: Sequence[Json], now: float, style: Style) -> list[str]:
    """Return the table of tokens, without their secrets."""
    headers = ("TOKEN", "USER", "ROLE", "SCOPE", "STATE", "EXPIRES", "LAST USED", "NOTE")
    rows = [
        (
            t["id"],
            t["user"],
            t["role"],
            t.get("scope", "full"),
            _token_state(t, now),
            clock(t["expires_at"]),
            clock(t["last_used_at"]),
            t["note"] or "-",
        )
        for t in tokens
    ]
    return table(headers, rows, style)


def session_lines(sessions: Sequence[Json], now: float, style: Style) -> list[str]:
    """Return the table of signed-in browsers."""
    headers = ("SESSION", "USER", "BY", "WHERE", "SIGNED IN", "LAST USED", "BROWSER")
    rows = [
        (
            s["id"],
            s["user"],
            s["origin"],
            "this machine" if s["local"] else "network",
            clock(s["created_at"]),
            f"{since(s['last_used_at'], now)} ago",
            clean(s["agent"])[:60] or "-",
        )
        for s in sessions
    ]
    return table(headers, rows, style)


def _token_state(token: Json, now: float) -> str:
    if token["revoked_at"] is not None:
        return "revoked"
    return "expired" if token["expires_at"] <= now else "valid"


def usage_lines(usage: Json, style: Style) -> list[str]:
    """Return the table of GPU hours, largest first, with a total."""
    rows = sorted(usage["rows"], key=lambda row: -row["gpu_seconds"])
    cells: list[tuple[object, ...]] = [
        (r["project"], r["user"], f"{r['gpu_seconds'] / 3600:.2f}", r["leases"]) for r in rows
    ]
    total = sum(row["gpu_seconds"] for row in rows) / 3600
    cells.append(("total", "", f"{total:.2f}", sum(row["leases"] for row in rows)))
    span = f"{clock(usage['since'])} to {clock(usage['until'])}"
    return [style.dim(span), *table(("PROJECT", "USER", "GPU HOURS", "LEASES"), cells, style)]
