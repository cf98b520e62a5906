"""Warnings to people whose GPUs are about to be taken, and how the pool sends them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from gpupool.domain.errors import ErrorCode, GpupoolError

MOST_TEXT = 1_000  # characters of any setting
LONGEST_BEFORE_S = 7 * 86400.0


class WarningKind(StrEnum):
    """What is about to happen."""

    IDLE = "idle"  # its GPUs lie idle and are taken back soon
    TIME = "time"  # its time limit ends it soon
    LEASE = "lease"  # the lease ends soon
    PREEMPTED = "preempted"  # it has been told to make way


class MailSecurity(StrEnum):
    """How the way to the mail server is protected."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


class WebhookKind(StrEnum):
    """What is posted."""

    GENERIC = "generic"  # every field, as JSON
    SLACK = "slack"  # {"text": ...}: Slack, Mattermost, Rocket.Chat


@dataclass(frozen=True, slots=True)
class HolderWarning:
    """One warning to the user of a replica; ``deadline`` is when it strikes, times are seconds since the epoch."""

    kind: WarningKind
    at: float
    user: str
    project: str
    workload: str
    name: str
    index: int
    message: str
    deadline: float | None = None


SECRETS = ("smtp_password", "webhook_url", "webhook_secret")  # the address of a webhook is its secret, mostly


@dataclass(frozen=True, slots=True)
class WarningSettings:
    """Where warnings go; an empty ``smtp_host`` or ``webhook_url`` turns that way off.

    Mail goes to each user's own address, the webhook gets all warnings. ``webhook_secret`` signs what is posted.
    ``before_s``: so long before a time limit or the end of a lease, but no earlier than in its last fifth.
    """

    smtp_host: str = ""
    smtp_port: int = 587
    smtp_security: MailSecurity = MailSecurity.STARTTLS
    smtp_user: str = ""
    smtp_password: str = ""
    sender: str = ""
    webhook_url: str = ""
    webhook_kind: WebhookKind = WebhookKind.GENERIC
    webhook_secret: str = ""
    before_s: float = 600.0
    kinds: tuple[WarningKind, ...] = tuple(WarningKind)

    def __post_init__(self) -> None:
        texts = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, text in texts.items():
            if isinstance(text, str) and (len(text) > MOST_TEXT or not text.isprintable()):
                raise _wrong(f"{name} is too long or not one line of text.")
        if not 1 <= self.smtp_port <= 65535:
            raise _wrong(f"{self.smtp_port} is not a port.")
        if not 0 <= self.before_s <= LONGEST_BEFORE_S:
            raise _wrong("before_s is at most seven days.")
        if self.smtp_host and "@" not in self.sender:
            raise _wrong("A mail server needs the address that mail comes from (sender).")
        _check_url(self.webhook_url)

    @property
    def mails(self) -> bool:
        """Whether mail is sent."""
        return bool(self.smtp_host)

    @property
    def posts(self) -> bool:
        """Whether the webhook is called."""
        return bool(self.webhook_url)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, secrets included: for the store alone."""
        return asdict(self)

    def shown(self) -> dict[str, Any]:
        """Plain JSON values for people: of a secret, only that there is one (of a webhook, its host)."""
        hidden = {name: "set" if getattr(self, name) else "" for name in SECRETS}
        if self.webhook_url:
            hidden["webhook_url"] = f"{urlsplit(self.webhook_url).scheme}://{urlsplit(self.webhook_url).hostname}/..."
        return asdict(self) | hidden

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WarningSettings:
        """The inverse of ``to_dict``; unknown keys (of a newer version) are dropped. Raises ``GpupoolError``."""
        known: dict[str, Any] = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        try:
            known["smtp_security"] = MailSecurity(known.get("smtp_security", MailSecurity.STARTTLS))
            known["webhook_kind"] = WebhookKind(known.get("webhook_kind", WebhookKind.GENERIC))
            known["kinds"] = tuple(WarningKind(kind) for kind in known.get("kinds", tuple(WarningKind)))
        except ValueError as error:
            raise _wrong(f"{error}.") from error
        return cls(**known)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = not url or (parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        good = False
    if not good:
        raise _wrong("The webhook is not an address that begins with https:// or http://.")


def _wrong(sentence: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, "See docs/warnings.md.")
