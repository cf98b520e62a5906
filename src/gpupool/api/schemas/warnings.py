"""Warnings to users: where they go, and what came of a test."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from gpupool.api.schemas.base import Body, View
from gpupool.domain.warning import LONGEST_BEFORE_S, MOST_TEXT, MailSecurity, WarningKind, WebhookKind

Line = Annotated[str, StringConstraints(max_length=MOST_TEXT, pattern=r"^[^\x00-\x1f\x7f]*$")]


class WarningSettingsView(View):
    """Where warnings go. Of the password and the webhook's secret only whether they are set, of its URL the host."""

    smtp_host: str
    smtp_port: int
    smtp_security: MailSecurity
    smtp_user: str
    smtp_password: str
    sender: str
    webhook_url: str
    webhook_kind: WebhookKind
    webhook_secret: str
    before_s: float
    kinds: list[WarningKind]


class WarningSettingsChange(Body):
    """What to change of it; what is left out stays, secrets too. An empty host or URL turns that way off."""

    smtp_host: Line = ""
    smtp_port: Annotated[int, Field(ge=1, le=65535)] = 587
    smtp_security: MailSecurity = MailSecurity.STARTTLS
    smtp_user: Line = ""
    smtp_password: Line = ""
    sender: Line = ""
    webhook_url: Line = ""
    webhook_kind: WebhookKind = WebhookKind.GENERIC
    webhook_secret: Line = ""
    before_s: Annotated[float, Field(ge=0, le=LONGEST_BEFORE_S, allow_inf_nan=False)] = 600
    kinds: Annotated[list[WarningKind], Field(max_length=len(WarningKind))] = Field(
        default_factory=lambda: list(WarningKind)
    )


class WarningTestBody(Body):
    """Whom to mail; empty: the caller's own address."""

    to: Annotated[str, StringConstraints(max_length=254, pattern=r"^[^\x00-\x20\x7f]*$")] = ""


class WarningAttemptView(View):
    """What came of one message."""

    way: str
    ok: bool
    message: str


class WarningTestView(View):
    """What came of a test, by way."""

    attempts: list[WarningAttemptView]
