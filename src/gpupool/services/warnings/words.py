"""What warnings say: as a letter, as JSON for programs, as text for a chat."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, tzinfo

from gpupool.domain.warning import HolderWarning, WarningKind, WarningSettings, WebhookKind
from gpupool.services.warnings.courier import Letter

MOST_LISTED = 50  # of one message
SIGNATURE = "x-gpupool-signature"
_SUBJECTS = {
    WarningKind.IDLE: "{} lies idle",
    WarningKind.TIME: "{} reaches its time limit",
    WarningKind.LEASE: "the lease {} ends",
    WarningKind.PREEMPTED: "{} makes way",
}
_ADVICE = {
    WarningKind.IDLE: "Use its GPUs, or give them back: gpupool stop {}",
    WarningKind.TIME: "Have it save what it has; what it is at is in: gpupool logs {}",
    WarningKind.LEASE: "Hold them longer: gpupool extend {}",
    WarningKind.PREEMPTED: "It goes back to the queue and is run again; why: gpupool describe {}",
}


def letter(to: str, warnings: Sequence[HolderWarning], zone: tzinfo) -> Letter:
    """An e-mail about one or several warnings to one user."""
    first = warnings[0]
    subject = f"gpupool: {_SUBJECTS[first.kind].format(called(first))}"
    if len(warnings) > 1:
        subject += f", and {len(warnings) - 1} more"
    parts = [_paragraph(warning, zone) for warning in warnings[:MOST_LISTED]]
    text = f"{first.user},\n\n" + "\n".join(parts) + _rest(warnings)
    return Letter(
        to, subject, f"{text}\nSent by gpupool. Your address is set with: gpupool user set {first.user} --email ''\n"
    )


def _paragraph(warning: HolderWarning, zone: tzinfo) -> str:
    what = f"{called(warning)} ({warning.workload}, project {warning.project})"
    return f"{what}: {warning.message}{_when(warning, zone)}.\n  {_ADVICE[warning.kind].format(warning.name)}\n"


def _when(warning: HolderWarning, zone: tzinfo) -> str:
    if warning.deadline is None:
        return ""
    return f" (at {datetime.fromtimestamp(warning.deadline, zone):%Y-%m-%d %H:%M:%S %Z})"


def _rest(warnings: Sequence[HolderWarning]) -> str:
    more = len(warnings) - MOST_LISTED
    return f"... and {more} more: gpupool events\n" if more > 0 else ""


def called(warning: HolderWarning) -> str:
    """The workload's name, with the number of the replica unless it is the first."""
    return warning.name if warning.index == 0 else f"{warning.name}/{warning.index}"


def posted(
    settings: WarningSettings, pool_id: str, warnings: Sequence[HolderWarning], zone: tzinfo
) -> tuple[bytes, Mapping[str, str]]:
    """The body for the webhook and its headers."""
    if settings.webhook_kind is WebhookKind.SLACK:
        document: dict[str, object] = {"text": _chat(warnings, zone)}
    else:
        listed = [asdict(warning) for warning in warnings]
        document = {"version": 1, "pool": pool_id, "warnings": listed}
    body = json.dumps(document).encode()
    headers = {"content-type": "application/json"}
    if settings.webhook_secret:
        digest = hmac.new(settings.webhook_secret.encode(), body, hashlib.sha256).hexdigest()
        headers[SIGNATURE] = f"sha256={digest}"
    return body, headers


def _chat(warnings: Sequence[HolderWarning], zone: tzinfo) -> str:
    lines = [f"{w.user}: {called(w)} ({w.project}): {w.message}{_when(w, zone)}" for w in warnings[:MOST_LISTED]]
    text = "\n".join(lines) + ("\n" + _rest(warnings) if len(warnings) > MOST_LISTED else "")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
