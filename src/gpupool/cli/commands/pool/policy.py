"""``policy``: the scheduling policy."""

from __future__ import annotations

from typing import Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_group, command, with_options
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.text import pairs
from gpupool.cli.transport.pool import open_pool
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import format_duration, parse_duration_s
from gpupool.specs.job_options import Option, OptionKind

NEVER, NONE = "never", "none"
_PANEL = "Policy"
_TIMES = {
    "min_runtime": "Protect training from eviction after its start; 0s.",
    "unsaved_after": "Protect training without checkpoint after this time; never.",
    "reserve_after": "Hold GPUs for whole-GPU requests after this wait.",
    "consolidate_after": "Consolidate for workloads after this wait; never.",
    "stale_gang": "Requeue gangs with too few members after this time.",
    "half_life": "Set the half-life of past use in fair shares.",
    "turn": "Let training take turns of this length; never.",
    "node_lost_after": "Retry batch workloads of nodes silent this long; never.",
    "verify_idle": "Check idle GPUs this long after their last check; never.",
}
_MAY_BE_NEVER = {"unsaved_after", "consolidate_after", "turn", "node_lost_after", "verify_idle"}
OPTIONS = (
    *(Option(n, f"--{n.replace('_', '-')}", OptionKind.TEXT, text, _PANEL, "TIME") for n, text in _TIMES.items()),
    Option(
        "usage_weight",
        "--usage-weight",
        OptionKind.TEXT,
        "Set the weight of past use; 0: ignore it.",
        _PANEL,
        "NUMBER",
    ),
    Option(
        "max_queued_per_user",
        "--max-queued-per-user",
        OptionKind.TEXT,
        "Limit the queued replicas of one user.",
        _PANEL,
        "N",
    ),
    Option(
        "max_requests_per_second",
        "--max-requests-per-second",
        OptionKind.TEXT,
        "Limit a user's requests per second; bursts: five times as many.",
        _PANEL,
        "N",
    ),
    Option(
        "verify_level",
        "--verify-level",
        OptionKind.TEXT,
        "Check idle GPUs at this level of verify: 1, 2 or 3.",
        _PANEL,
        "LEVEL",
    ),
    Option("order", "--order", OptionKind.TEXT, "Order equal claims: fair, or shortest first.", _PANEL, "ORDER"),
    Option("placement", "--placement", OptionKind.TEXT, "Set the default placement: pack or spread.", _PANEL, "HOW"),
    Option("spread", "--spread", OptionKind.TEXT, "Allow or refuse the placement spread.", _PANEL, "RULE"),
    Option(
        "topology",
        "--topology",
        OptionKind.TEXT,
        "Node labels of the topology, the largest domains first; none.",
        _PANEL,
        "LABEL,LABEL",
    ),
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = add_group(
        app,
        "policy",
        "Show and change the scheduling policy.",
        "gpupool policy show",
        "gpupool policy set --half-life 1d",
    )
    command(group, "gpupool policy show", "gpupool policy show --json", name="show")(show_policy)
    command(
        group,
        "gpupool policy set --min-runtime 10m --half-life 12h",
        "gpupool policy set --order shortest --turn 2h",
        "gpupool policy set --consolidate-after never",
        "gpupool policy set --topology block,rack",
        "gpupool policy set --verify-idle 24h",
        name="set",
    )(change)


def show_policy(json: AsJson = False) -> None:
    """Show the current policy."""
    found = open_pool().get("policy")
    if json:
        show_json(found)
    else:
        show(pairs([(_title(name), _text(name, value)) for name, value in found.items()], out_style()))


@with_options(OPTIONS)
def change(**values: Any) -> None:
    """Change the policy from the next decision on; other settings stay."""
    if not values:
        raise typer.BadParameter("give a setting, for example --min-runtime 10m")
    open_pool().patch("policy", dict(_field(name, text) for name, text in values.items()))
    notify("the policy is changed")


def _field(name: str, text: str) -> tuple[str, Any]:
    if name in _TIMES:
        if text == NEVER and name in _MAY_BE_NEVER:
            return f"{name}_s", None
        return f"{name}_s", 0.0 if text in {"0", "0s"} else parse_duration_s(text)
    if name == "usage_weight":
        try:
            return name, float(text)
        except ValueError as error:
            sentence = f"'{text[:40]}' is not a number."
            raise GpupoolError(ErrorCode.INVALID_REQUEST, sentence, "Write 0, 1 or 2.5.") from error
    if name in {"max_queued_per_user", "max_requests_per_second", "verify_level"}:
        if not text.isascii() or not text.isdecimal():
            raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not a number.", "Write 1000.")
        return name, int(text)
    if name == "topology":
        return name, [] if text == NONE else [label.strip() for label in text.split(",")]
    return name, text


def _title(name: str) -> str:
    return name.removesuffix("_s").replace("_", " ")


def _text(name: str, value: Any) -> str:
    if value is None:
        return NEVER
    if name == "topology":
        return " > ".join(value) or NONE
    return format_duration(value) if name.endswith("_s") else f"{value:g}" if isinstance(value, float) else str(value)
