"""Projects, users, tokens and usage as people see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpupool.cli.render.text import Style, clean, clock, pairs, since, table
from gpupool.domain.units import format_duration, format_permille

Json = dict[str, Any]


def project_lines(projects: Sequence[Json], chosen: str | None, style: Style) -> list[str]:
    """The table of projects; the caller's default has a star."""
    headers = ("PROJECT", "QUOTA", "ALLOCATED", "QUEUED", "OVER QUOTA", "LIMIT", "PER USER", "MEMBERS", "NOTE")
    return table(headers, [_project_row(p, chosen) for p in projects], style)


def _project_row(p: Json, chosen: str | None) -> tuple[object, ...]:
    return (
        p["name"] + (" *" if p["name"] == chosen else ""),
        amount(p["quota_permille"]),
        format_permille(p["allocated_permille"]),
        p["queued"],
        "yes" if p["over_quota"] else "no",
        amount(p["limit_permille"]),
        amount(p["user_limit_permille"]),
        ", ".join(p["members"]) or "everybody",
        p["note"] or "-",
    )


def project_detail_lines(p: Json, style: Style) -> list[str]:
    """All of ``describe project``."""
    return pairs(
        [
            ("Name", p["name"]),
            ("Note", p["note"]),
            (
                "Quota",
                f"{amount(p['quota_permille'])} GPUs" if p["quota_permille"] is not None else "none: all of the pool",
            ),
            ("Over quota", "training may use idle GPUs beyond it" if p["over_quota"] else "no"),
            ("Of models", ", ".join(f"{model}: {amount(n)}" for model, n in p["model_quotas"].items())),
            ("Department", p["department"]),
            ("Weight", f"{p['weight']:g}"),
            ("Limit", amount(p["limit_permille"])),
            ("Per user", amount(p["user_limit_permille"])),
            ("Allocated", format_permille(p["allocated_permille"])),
            ("Queued", p["queued"]),
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
        ("One replica", f"{amount(rules['max_gpus_permille'])} GPUs at most" if rules["max_gpus_permille"] else ""),
        ("Not evicted", f"in its first {format_duration(rules['min_runtime_s'])}" if rules["min_runtime_s"] else ""),
        ("Training starts", "; ".join(rules["windows"])),
        ("Node pools", ", ".join(rules["node_pools"])),
        ("Images", ", ".join(rules.get("images", []))),
        ("Volumes in", ", ".join(rules.get("volumes", []))),
    ]


def _choice(default: str | None, allowed: Sequence[str]) -> str:
    """``cap; guarantee and cap are allowed``, or nothing where all is left to the pool."""
    bounds = [f"{' and '.join(allowed)} allowed"] if allowed else []
    return "; ".join([*([default] if default else []), *bounds])


def amount(permille: int | None) -> str:
    """GPUs in thousandths for people; ``-`` for no bound."""
    return "-" if permille is None else format_permille(permille)


def user_lines(users: Sequence[Json], style: Style) -> list[str]:
    """The table of users."""
    headers = ("USER", "ROLE", "UID", "GPU LIMIT", "STATE", "E-MAIL")
    rows = [
        (
            u["name"],
            u["role"],
            "-" if u["uid"] is None else u["uid"],
            amount(u["gpu_limit_permille"]),
            _user_state(u),
            u.get("email") or "-",
        )
        for u in users
    ]
    return table(headers, rows, style)


def _user_state(user: Json) -> str:
    return "disabled" if user["disabled"] else "enabled"


def token_lines(tokens: Sequence[Json], now: float, style: Style) -> list[str]:
    """The table of tokens; their secrets are never known again."""
    headers = ("TOKEN", "USER", "ROLE", "STATE", "EXPIRES", "LAST USED", "NOTE")
    rows = [
        (
            t["id"],
            t["user"],
            t["role"],
            _token_state(t, now),
            clock(t["expires_at"]),
            clock(t["last_used_at"]),
            t["note"] or "-",
        )
        for t in tokens
    ]
    return table(headers, rows, style)


def session_lines(sessions: Sequence[Json], now: float, style: Style) -> list[str]:
    """The table of browsers that are signed in."""
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
    """The table of GPU hours, most first, with a sum."""
    rows = sorted(usage["rows"], key=lambda row: -row["gpu_seconds"])
    cells: list[tuple[object, ...]] = [
        (r["project"], r["user"], f"{r['gpu_seconds'] / 3600:.2f}", r["leases"]) for r in rows
    ]
    total = sum(row["gpu_seconds"] for row in rows) / 3600
    cells.append(("total", "", f"{total:.2f}", sum(row["leases"] for row in rows)))
    span = f"{clock(usage['since'])} to {clock(usage['until'])}"
    return [style.dim(span), *table(("PROJECT", "USER", "GPU HOURS", "LEASES"), cells, style)]
