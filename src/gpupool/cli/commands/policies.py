"""``policy``."""

from __future__ import annotations

from typing import Any

import typer

from gpupool.cli.commands.common import AsJson, command, help_text, takes
from gpupool.cli.options import Kind, Option
from gpupool.cli.output import out_style, show, show_json, tell
from gpupool.cli.pool import open_pool
from gpupool.cli.render.text import pairs
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import format_duration, parse_duration_s

NEVER = "never"
_PANEL = "Policy"
_TIMES = {
    "min_runtime": "Training is not evicted sooner after its start; 0s.",
    "reserve_after": "Who needs whole GPUs and waits longer gets a reservation.",
    "consolidate_after": "For who waits longer others are moved together; never.",
    "stale_gang": "A gang with too few members for longer goes back to the queue.",
    "half_life": "After so long, use counts half in fair shares.",
    "turn": "Training that ran so long makes way for who has not; never.",
    "node_lost_after": "Batch work of a node silent for longer is run elsewhere; never.",
}
_MAY_BE_NEVER = {"consolidate_after", "turn", "node_lost_after"}
OPTIONS = (
    *(Option(n, f"--{n.replace('_', '-')}", Kind.TEXT, text, _PANEL, "TIME") for n, text in _TIMES.items()),
    Option("usage_weight", "--usage-weight", Kind.TEXT, "How much use lately weighs; 0: not at all.", _PANEL, "NUMBER"),
    Option("order", "--order", Kind.TEXT, "Among equals: fair, or shortest expected first.", _PANEL, "ORDER"),
    Option("placement", "--placement", Kind.TEXT, "Of work that does not say: pack, or spread.", _PANEL, "HOW"),
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        no_args_is_help=True,
        help=help_text(
            "How the pool is shared over time.", ["gpupool policy show", "gpupool policy set --half-life 1d"]
        ),
    )
    command(group, "gpupool policy show", "gpupool policy show --json", name="show")(show_policy)
    command(
        group,
        "gpupool policy set --min-runtime 10m --half-life 12h",
        "gpupool policy set --order shortest --turn 2h",
        "gpupool policy set --consolidate-after never",
        name="set",
    )(change)
    app.add_typer(group, name="policy")


def show_policy(json: AsJson = False) -> None:
    """Show the policy in force."""
    found = open_pool().get("policy")
    if json:
        show_json(found)
    else:
        show(pairs([(_words(name), _text(name, value)) for name, value in found.items()], out_style()))


@takes(OPTIONS)
def change(**values: Any) -> None:
    """Change the policy, in force from the next decision on; what is not named stays."""
    if not values:
        raise typer.BadParameter("name what to change, for example --min-runtime 10m")
    open_pool().patch("policy", dict(_field(name, text) for name, text in values.items()))
    tell("the policy is changed")


def _field(name: str, text: str) -> tuple[str, Any]:
    if name in _TIMES:
        if text == NEVER and name in _MAY_BE_NEVER:
            return f"{name}_s", None
        return f"{name}_s", 0.0 if text in {"0", "0s"} else parse_duration_s(text)
    if name == "usage_weight":
        try:
            return name, float(text)
        except ValueError as error:
            sentence = f"'{text[:40]}' is no number."
            raise GpupoolError(ErrorCode.INVALID_REQUEST, sentence, "Write 0, 1 or 2.5.") from error
    return name, text


def _words(name: str) -> str:
    return name.removesuffix("_s").replace("_", " ")


def _text(name: str, value: Any) -> str:
    if value is None:
        return NEVER
    return format_duration(value) if name.endswith("_s") else f"{value:g}" if isinstance(value, float) else str(value)
