"""Warnings to people whose GPUs are about to be released or whose workspaces are unused, and their settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from gpupool.domain.errors import ErrorCode, GpupoolError

MAX_TEXT_LENGTH = 1_000  # characters of each setting
MAX_BEFORE_S = 7 * 86400.0


class WarningKind(StrEnum):
    """The event that a warning announces."""

    IDLE = "idle"  # its GPUs are idle and will be released soon
    TIME = "time"  # its time limit will end it soon
    LEASE = "lease"  # the lease ends soon
    PREEMPTED = "preempted"  # it was preempted
    ENDED = "ended"  # it has failed, or the pool or another user has stopped it
    STARTED = "started"  # it has started, and its user has asked for this mail
    HEAD = "head"  # a standby head could not take over: for administrators
    BACKUP = "backup"  # a scheduled backup failed: for administrators
    SERVICE = "service"  # it is not ready, refuses requests, stays at its maximum, or an update was given up
    WORKSPACE = "workspace"  # it has not been used for a long time and keeps disk or GPUs


FOR_ADMINISTRATORS = frozenset({WarningKind.HEAD, WarningKind.BACKUP})


class MailSecurity(StrEnum):
    """The protection of the connection to the mail server."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


class WebhookKind(StrEnum):
    """The format of webhook requests."""

    GENERIC = "generic"  # every field, as JSON
    SLACK = "slack"  # {"text": ...}: Slack, Mattermost, Rocket.Chat


@dataclass(frozen=True, slots=True)
class HolderWarning:
    """One warning to the user of a replica; ``deadline`` is when the event happens. Times are seconds since the epoch.

    Warnings about heads and backups go to administrators and have no project or workload; ``name`` is the head's name,
    or empty. Those about workspaces and services have the ID of the workspace or service in ``workload``. ``code`` and
    ``remedy`` are those of an ending. ``requested``: only mail is sent, because the user has asked for it
    (``--mail-type``).
    """

    kind: WarningKind
    at: float
    user: str
    project: str
    workload: str
    name: str
    index: int
    message: str
    deadline: float | None = None
    code: str = ""
    remedy: str = ""
    requested: bool = False


_KNOWN = "known_kinds"
_FIRST_KINDS = ("idle", "time", "lease", "preempted")  # of releases that did not store which kinds existed
SECRETS = ("smtp_password", "webhook_url", "webhook_secret")  # the address of a webhook is usually its secret


@dataclass(frozen=True, slots=True)
class WarningSettings:
    """The destinations of warnings; an empty ``smtp_host`` or ``webhook_url`` disables that destination.

    Mail goes to each user's own address, the webhook receives all warnings. ``webhook_secret`` signs the requests. A
    warning is sent ``before_s`` before a time limit or the end of a lease, but not before its last fifth.
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
            if isinstance(text, str) and (len(text) > MAX_TEXT_LENGTH or not text.isprintable()):
                raise _wrong(f"{name} is too long, or is not one line of text.")
        if not 1 <= self.smtp_port <= 65535:
            raise _wrong(f"{self.smtp_port} is not a port.")
        if not 0 <= self.before_s <= MAX_BEFORE_S:
            raise _wrong("before_s is longer than seven days.")
        if self.smtp_host and "@" not in self.sender:
            raise _wrong("A mail server needs a sender address (sender).")
        _check_url(self.webhook_url)

    @property
    def mails(self) -> bool:
        """Return whether mail is sent."""
        return bool(self.smtp_host)

    @property
    def posts(self) -> bool:
        """Return whether the webhook is called."""
        return bool(self.webhook_url)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values including secrets, for the store only."""
        return asdict(self) | {_KNOWN: list(WarningKind)}

    def shown(self) -> dict[str, Any]:
        """Return plain JSON values for people: of a secret only whether it is set, of a webhook its host."""
        hidden = {name: "set" if getattr(self, name) else "" for name in SECRETS}
        if self.webhook_url:
            hidden["webhook_url"] = f"{urlsplit(self.webhook_url).scheme}://{urlsplit(self.webhook_url).hostname}/..."
        return asdict(self) | hidden

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WarningSettings:
        """Rebuild from ``to_dict``; unknown keys of a newer version are dropped. Raises ``GpupoolError``.

        Kinds that did not exist when the settings were stored are enabled.
        """
        known: dict[str, Any] = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        try:
            known["smtp_security"] = MailSecurity(known.get("smtp_security", MailSecurity.STARTTLS))
            known["webhook_kind"] = WebhookKind(known.get("webhook_kind", WebhookKind.GENERIC))
            chosen = [WarningKind(kind) for kind in known.get("kinds", WarningKind)]
            new = [kind for kind in WarningKind if kind not in data.get(_KNOWN, _FIRST_KINDS) and kind not in chosen]
            known["kinds"] = (*chosen, *new)
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
        raise _wrong("The webhook address does not begin with https:// or http://.")


def _wrong(sentence: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, "See docs/warnings.md.")
