"""Settings of the pool: scheduling policy, backups and warnings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from gpupool.api.schemas.base import Body, View
from gpupool.domain.backup import DEFAULT_KEEP, MAX_EVERY_S, MAX_FOLDER_LENGTH, MAX_KEEP, MIN_EVERY_S, BackupState
from gpupool.domain.nodes.gpu import Placement, SpreadRule
from gpupool.domain.people.warning import MAX_BEFORE_S, MAX_TEXT_LENGTH, MailSecurity, WarningKind, WebhookKind
from gpupool.scheduling.state.user_order import Order

Seconds = Annotated[float, Field(ge=0, le=31_622_400, allow_inf_nan=False)]


class PolicyView(View):
    """The scheduling policy; times are in seconds, see ``gpupool policy --help``."""

    min_runtime_s: float
    reserve_after_s: float
    consolidate_after_s: float | None
    stale_gang_s: float
    half_life_s: float
    usage_weight: float
    order: Order
    turn_s: float | None
    placement: Placement
    node_lost_after_s: float | None
    max_queued_per_user: int = 10_000
    unsaved_after_s: float | None = 60.0
    max_requests_per_second: int = 100
    verify_idle_s: float | None = None
    verify_level: int = 1
    topology: list[str] = Field(default_factory=list)
    spread: SpreadRule = SpreadRule.ALLOW


class PolicyChange(Body):
    """The settings to change; omitted settings stay."""

    min_runtime_s: Seconds = 0
    reserve_after_s: Seconds = 0
    consolidate_after_s: Seconds | None = None
    stale_gang_s: Seconds = 0
    half_life_s: Seconds = 0
    usage_weight: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0
    order: Order = Order.FAIR
    turn_s: Seconds | None = None
    placement: Placement = Placement.PACK
    node_lost_after_s: Seconds | None = None
    max_queued_per_user: Annotated[int, Field(ge=1, le=200_000)] = 10_000
    unsaved_after_s: Seconds | None = 60.0
    max_requests_per_second: Annotated[int, Field(ge=10, le=100_000)] = 100
    verify_idle_s: Seconds | None = None
    verify_level: Annotated[int, Field(ge=1, le=3)] = 1
    topology: Annotated[tuple[Annotated[str, Field(max_length=253)], ...], Field(max_length=8)] = ()
    spread: SpreadRule = SpreadRule.ALLOW


class BackupFileView(View):
    """One scheduled copy; ``state`` says whether it can be restored into this pool."""

    name: str
    made_at: float
    size_bytes: int
    state: BackupState


class BackupsView(View):
    """The schedule (``every_s`` null: off), the result of the last backup, and the copies, newest first."""

    every_s: float | None
    keep: int
    folder: str
    last_success_at: float | None
    last_error: str
    files: list[BackupFileView]


class StoredFilesView(View):
    """Files of one kind. ``bytes`` null: not readable; ``complete`` false: there are more than were counted."""

    what: str
    path: str
    kept: str
    bytes: int | None
    complete: bool


class UserStorageView(View):
    """The files of a user, by kind; ``user`` is empty for files of deleted workloads and workspaces."""

    user: str
    bytes: int
    files: dict[str, int]


class StorageView(View):
    """Disk use on the machine of the control plane ``at`` a time, by kind of file and by user (largest first)."""

    at: float
    files: list[StoredFilesView]
    users: list[UserStorageView]
    free_bytes: int
    total_bytes: int


class BackupChange(Body):
    """Changes of the schedule; omitted fields stay. ``folder`` empty: in the state folder."""

    every_s: Annotated[float, Field(ge=MIN_EVERY_S, le=MAX_EVERY_S, allow_inf_nan=False)] | None = None
    keep: Annotated[int, Field(ge=1, le=MAX_KEEP)] = DEFAULT_KEEP
    folder: Annotated[str, Field(max_length=MAX_FOLDER_LENGTH)] = ""


Line = Annotated[str, StringConstraints(max_length=MAX_TEXT_LENGTH, pattern=r"^[^\x00-\x1f\x7f]*$")]


class WarningSettingsView(View):
    """The channels of warnings. Secrets are shown only as set or not set, the webhook's URL only as its host."""

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
    """The settings to change; omitted ones stay, secrets too. An empty host or URL disables that channel."""

    smtp_host: Line = ""
    smtp_port: Annotated[int, Field(ge=1, le=65535)] = 587
    smtp_security: MailSecurity = MailSecurity.STARTTLS
    smtp_user: Line = ""
    smtp_password: Line = ""
    sender: Line = ""
    webhook_url: Line = ""
    webhook_kind: WebhookKind = WebhookKind.GENERIC
    webhook_secret: Line = ""
    before_s: Annotated[float, Field(ge=0, le=MAX_BEFORE_S, allow_inf_nan=False)] = 600
    kinds: Annotated[list[WarningKind], Field(max_length=len(WarningKind))] = Field(
        default_factory=lambda: list(WarningKind)
    )


class WarningTestBody(Body):
    """Address for a test e-mail; empty: the caller's own address."""

    to: Annotated[str, StringConstraints(max_length=254, pattern=r"^[^\x00-\x20\x7f]*$")] = ""


class WarningAttemptView(View):
    """The result of one message."""

    way: str
    ok: bool
    message: str


class WarningTestView(View):
    """The results of a test by channel."""

    attempts: list[WarningAttemptView]
