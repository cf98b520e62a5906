"""The options of ``project create`` and ``project set`` that say what is due to a project beside others."""

from __future__ import annotations

from typing import Any

from gpupool.cli.options import Kind, Option
from gpupool.domain.errors import ErrorCode, GpupoolError

NONE = "none"
PANEL = "Its share"
SHARES = (
    Option("department", "--department", Kind.TEXT, "The department that it belongs to; none.", PANEL, "NAME"),
    Option("weight", "--weight", Kind.TEXT, "Its part of what is left when quotas are served: 2.", PANEL, "NUMBER"),
    Option(
        "quota_model",
        "--quota-model",
        Kind.TEXT,
        "GPUs of a model, within its quota: a100=2,t4=1.5; none.",
        PANEL,
        "LIST",
    ),
)


def shares_body(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of what was given. Raises ``GpupoolError``."""
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
    """A weight; raises ``GpupoolError(INVALID_COUNT)``."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1_000_000:
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"'{text[:40]}' is not a weight.", "Write 2, 0.5, or 0.")
    return value


def _model_quota(text: str) -> tuple[str, int]:
    from gpupool.cli.commands.projects import gpu_permille

    model, _, gpus = text.partition("=")
    permille = gpu_permille(gpus) if gpus else None
    if not model.strip() or permille is None:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{text[:40]}' is no quota of a model.", "Write a100=2.")
    return model.strip(), permille
