"""The options of ``project create`` and ``project set`` for a project's rules and share, and GPU numbers in text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import parse_duration_s, parse_gpus, parse_memory_mib
from gpupool.specs.job_options import Option, OptionKind

NONE = "none"
RULES_PANEL = "Rules for workloads"
SHARE_PANEL = "Share of the pool"
SHARES = (
    Option(
        "department", "--department", OptionKind.TEXT, "Set its department; none: no department.", SHARE_PANEL, "NAME"
    ),
    Option(
        "weight",
        "--weight",
        OptionKind.TEXT,
        "Set its weight for over-quota GPUs: 2.",
        SHARE_PANEL,
        "NUMBER",
    ),
    Option(
        "quota_model",
        "--quota-model",
        OptionKind.TEXT,
        "Set model quotas within its quota: a100=2,t4=1.5; none.",
        SHARE_PANEL,
        "LIST",
    ),
)
RULES = (
    Option(
        "max_time_limit",
        "--max-time-limit",
        OptionKind.TEXT,
        "Limit the time limits of workloads; none: no limit.",
        RULES_PANEL,
        "TIME",
    ),
    Option(
        "max_gpus",
        "--max-gpus",
        OptionKind.TEXT,
        "Limit the GPUs of one replica: 2, 0.5; none: no limit.",
        RULES_PANEL,
        "GPUS",
    ),
    Option(
        "max_queued",
        "--max-queued",
        OptionKind.TEXT,
        "Limit the replicas in the queue; none: no limit.",
        RULES_PANEL,
        "N",
    ),
    Option(
        "max_priority",
        "--max-priority",
        OptionKind.TEXT,
        "Limit the priority that members choose: high, -1000 to 1000; none: normal.",
        RULES_PANEL,
        "PRIORITY",
    ),
    Option(
        "gpu_hours",
        "--gpu-hours",
        OptionKind.TEXT,
        "Limit the GPU hours of a calendar month: 500; none: no limit.",
        RULES_PANEL,
        "HOURS",
    ),
    Option(
        "user_gpu_hours",
        "--user-gpu-hours",
        OptionKind.TEXT,
        "Limit the GPU hours of each user in a calendar month; none.",
        RULES_PANEL,
        "HOURS",
    ),
    Option(
        "user_weights",
        "--user-weights",
        OptionKind.TEXT,
        "Set the weights of users in its share: ann=2,bob=0.5; none: equal.",
        RULES_PANEL,
        "LIST",
    ),
    Option(
        "user_quotas",
        "--user-quotas",
        OptionKind.TEXT,
        "Guarantee users GPUs of the project: ann=2,bob=0.5; none.",
        RULES_PANEL,
        "LIST",
    ),
    Option(
        "spread",
        "--spread",
        OptionKind.TEXT,
        "Allow or refuse the placement spread; none: as the pool.",
        RULES_PANEL,
        "RULE",
    ),
    Option(
        "workspace_disk",
        "--workspace-disk",
        OptionKind.TEXT,
        "Limit the disk of all its workspaces: 500G; none: no limit.",
        RULES_PANEL,
        "SIZE",
    ),
    Option(
        "user_workspace_disk",
        "--user-workspace-disk",
        OptionKind.TEXT,
        "Limit the disk of each user's workspaces: 50G; none.",
        RULES_PANEL,
        "SIZE",
    ),
    Option(
        "min_runtime",
        "--min-runtime",
        OptionKind.TEXT,
        "Protect training from eviction for this time; none.",
        RULES_PANEL,
        "TIME",
    ),
    Option(
        "windows",
        "--windows",
        OptionKind.TEXT,
        "Start training only in: 'nights; weekends'; none.",
        RULES_PANEL,
        "TIMES",
    ),
    Option(
        "images",
        "--images",
        OptionKind.TEXT,
        "Allow images: 'nvcr.io/nvidia/*,localhost/*'; none: all.",
        RULES_PANEL,
        "LIST",
    ),
    Option(
        "volumes",
        "--volumes",
        OptionKind.TEXT,
        "Allow volumes only below: /data,/home; none: all.",
        RULES_PANEL,
        "LIST",
    ),
    Option(
        "pools",
        "--pools",
        OptionKind.TEXT,
        "Use only nodes with the label pool: a100,t4; none: all.",
        RULES_PANEL,
        "LIST",
    ),
)


def rules_body(values: dict[str, Any]) -> dict[str, Any]:
    """Return the field ``rules`` from the given options, if there are any. Raises ``GpupoolError``."""
    rules: dict[str, Any] = {}
    for option, field, parse in _NUMBERS:
        if option in values:
            rules[field] = None if values[option] == NONE else parse(values[option])
    for option, field, separator in _LISTS:
        if option in values:
            parts = [part.strip() for part in values[option].split(separator)]
            rules[field] = [] if values[option] == NONE else [part for part in parts if part]
    if "user_weights" in values:
        pairs = [] if values["user_weights"] == NONE else values["user_weights"].split(",")
        rules["user_weights"] = dict(map(_user_weight, pairs))
    if "user_quotas" in values:
        pairs = [] if values["user_quotas"] == NONE else values["user_quotas"].split(",")
        rules["user_quotas"] = dict(map(_user_quota, pairs))
    return {"rules": rules} if rules else {}


def _user_weight(text: str) -> tuple[str, float]:
    user, _, number = text.partition("=")
    return user.strip(), weight(number)


def _user_quota(text: str) -> tuple[str, int]:
    user, _, gpus = text.partition("=")
    return user.strip(), _permille(gpus)


def _least_s(text: str) -> float:
    """Parse a duration that may be 0, which differs from ``none`` (no rule)."""
    return 0.0 if text in {"0", "0s"} else parse_duration_s(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"'{text[:40]}' is not a number.", "Write 10000, or none.")
    return int(text)


def _priority(text: str) -> int | str:
    """Return a number, or a name that the pool knows."""
    return int(text) if text.removeprefix("-").isdecimal() else text


def _hours(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        sentence = f"'{text[:40]}' is not a number of GPU hours."
        raise GpupoolError(ErrorCode.INVALID_COUNT, sentence, "Write 500, 0.5, or none.") from error


def _permille(text: str) -> int:
    permille = gpu_permille(text)
    if not permille:
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"'{text[:40]}' is not a number of GPUs.", "Write 2, 0.5, or none.")
    return permille


# option, field of the rules, parser of a text other than ``none``
_NUMBERS: tuple[tuple[str, str, Callable[[str], float | str]], ...] = (
    ("max_time_limit", "max_time_limit_s", parse_duration_s),
    ("min_runtime", "min_runtime_s", _least_s),
    ("max_gpus", "max_gpus_permille", _permille),
    ("max_queued", "max_queued", _count),
    ("max_priority", "max_priority", _priority),
    ("gpu_hours", "gpu_hours", _hours),
    ("user_gpu_hours", "user_gpu_hours", _hours),
    ("spread", "spread", str),
    ("workspace_disk", "workspace_mib", parse_memory_mib),
    ("user_workspace_disk", "user_workspace_mib", parse_memory_mib),
)
# option, field of the rules, separator
_LISTS = (
    ("windows", "windows", ";"),
    ("pools", "node_pools", ","),
    ("images", "images", ","),
    ("volumes", "volumes", ","),
)


def shares_body(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields from the given options. Raises ``GpupoolError``."""
    body: dict[str, Any] = {}
    if "department" in values:
        body["department"] = "" if values["department"] == NONE else values["department"]
    if "weight" in values:
        body["weight"] = weight(values["weight"])
    if "quota_model" in values:
        pairs = [] if values["quota_model"] == NONE else values["quota_model"].split(",")
        body["model_quotas"] = dict(map(_model_quota, pairs))
    return body


def weight(text: str) -> float:
    """Return a weight. Raises ``GpupoolError(INVALID_COUNT)``."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1_000_000:
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"'{text[:40]}' is not a weight.", "Write 2, 0.5, or 0.")
    return value


def _model_quota(text: str) -> tuple[str, int]:
    model, _, gpus = text.partition("=")
    permille = gpu_permille(gpus) if gpus else None
    if not model.strip() or permille is None:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is not a model quota.", "Write a100=2.")
    return model.strip(), permille


def gpu_permille(text: str) -> int | None:
    """Return the thousandths in a number of GPUs (``2.5``), None for ``none``.

    Raises ``GpupoolError(INVALID_COUNT)``.
    """
    return None if text == NONE else parse_gpus(text)
