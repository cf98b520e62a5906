"""Warnings to users: settings, and what is sent when."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from gpupool.domain.access import Actor, Role
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.warning import SECRETS, HolderWarning, WarningKind, WarningSettings
from gpupool.domain.windows import read_zone
from gpupool.domain.workload import Replica, ReplicaState, Workload, WorkloadKind
from gpupool.services.engine import Engine
from gpupool.services.loops import IDLE_WARNING_AT
from gpupool.services.permissions import Permissions
from gpupool.services.ports import ChangeSet
from gpupool.services.register import Register
from gpupool.services.warnings.courier import Courier, UndeliveredError
from gpupool.services.warnings.outbox import Outbox
from gpupool.services.warnings.watch import DeadlineWatch, limit_of
from gpupool.services.warnings.words import letter, posted

LOOK_EVERY_S = 1.0
MAIL, WEBHOOK = "mail", "webhook"

log = structlog.get_logger("gpupool.warnings")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of sending one message: the way, whether it was taken, and a sentence."""

    way: str
    ok: bool
    message: str


class WarningService:
    """Settings are for administrators. Without a ``courier`` nothing is sent; events are written all the same."""

    def __init__(
        self,
        engine: Engine,
        register: Register,
        permissions: Permissions,
        pool: tuple[str, str],
        results: Counter[tuple[str, str]],
    ) -> None:
        self._engine = engine
        self._register = register
        self._permissions = permissions
        self._pool_id, zone = pool
        self._zone = read_zone(zone)
        self._settings = WarningSettings()
        self._watch = DeadlineWatch(engine, lambda: self._settings)
        sleep = engine.ports.sleep
        self._mail = Outbox(MAIL, self._send_mail, sleep, results)
        self._webhook = Outbox(WEBHOOK, self._send_post, sleep, results)
        engine.committing(self._committed)

    # Settings

    def settings(self, actor: Actor) -> WarningSettings:
        """The settings in force, secrets included: show ``.shown()`` of them. For administrators."""
        self._permissions.need_role(actor, Role.ADMIN)
        return self._settings

    async def change(self, actor: Actor, changes: dict[str, Any]) -> WarningSettings:
        """Change some of them, in force at once. For administrators. Raises FORBIDDEN, INVALID_REQUEST."""
        self._permissions.need_role(actor, Role.ADMIN)
        settings = WarningSettings.from_dict(self._settings.to_dict() | changes)
        said = (name if name in SECRETS else f"{name} {changes[name]}" for name in sorted(changes))
        event = Event(self._engine.ports.clock.now(), actor.user, Reason.CHANGED, ", ".join(said), target="warnings")

        async def write() -> None:
            await self._engine.ports.store.save_warnings(json.dumps(settings.to_dict()), event)
            self._settings = settings

        await self._engine.alone(write)
        return settings

    async def test(self, actor: Actor, to: str = "") -> Sequence[Attempt]:
        """Send one message each way now, the mail to the caller's address or to ``to``. For administrators."""
        self._permissions.need_role(actor, Role.ADMIN)
        now = self._engine.ports.clock.now()
        said = "this is a test of warnings; nothing happens"
        warning = HolderWarning(WarningKind.TIME, now, actor.user, "none", "none", "test", 0, said, now)
        attempts = []
        if self._settings.mails:
            address = to or self._address(actor.user)
            attempts.append(await self._attempt(MAIL, address, warning) if address else _no_address(actor.user))
        if self._settings.posts:
            attempts.append(await self._attempt(WEBHOOK, "", warning))
        if not attempts:
            raise GpupoolError(
                ErrorCode.WRONG_STATE,
                "Warnings go nowhere yet.",
                "Say where: 'gpupool warnings set --webhook URL' or '--smtp-host HOST --sender ADDRESS'.",
            )
        return attempts

    async def _attempt(self, way: str, place: str, warning: HolderWarning) -> Attempt:
        send = self._send_mail if way == MAIL else self._send_post
        try:
            await send(place, (warning,))
        except UndeliveredError as error:
            return Attempt(way, ok=False, message=error.message)
        return Attempt(way, ok=True, message=f"sent to {place or 'the webhook'}")

    # What goes on

    async def load(self) -> None:
        """Take over what the store holds; settings that cannot be read are said in the log, and nothing is sent."""
        text = await self._engine.ports.store.load_warnings()
        try:
            if text is not None:
                self._settings = WarningSettings.from_dict(json.loads(text))
        except (ValueError, TypeError, AttributeError, GpupoolError):
            log.exception("the settings of warnings cannot be read")
        await self._watch.load()

    async def run(self) -> None:
        """Look for deadlines once a second, for ever."""
        try:
            while True:
                await self._engine.ports.sleep(LOOK_EVERY_S)
                try:
                    await self._watch.look()
                except GpupoolError as error:
                    log.warning("could not write that a deadline comes near", code=error.code)
                except Exception:  # a warning is no reason to stop a pool
                    log.exception("could not look for deadlines")
        finally:
            await self._mail.close()
            await self._webhook.close()

    def _committed(self, changes: ChangeSet) -> None:
        for event in changes.events:
            warning = self._warning_of(event)
            if warning is not None and warning.kind in self._settings.kinds:
                self._put(warning)

    def _put(self, warning: HolderWarning) -> None:
        address = self._address(warning.user)
        if self._settings.mails and address:
            self._mail.put(address, warning)
        if self._settings.posts:
            self._webhook.put("", warning)

    def _address(self, user: str) -> str:
        found = self._register.users.get(user)
        return found.email if found is not None else ""

    def _warning_of(self, event: Event) -> HolderWarning | None:
        if event.reason not in _KINDS or event.workload is None or event.index is None:
            return None
        workload = self._engine.mirror.workloads.get(event.workload)
        replica = self._engine.mirror.replica(event.workload, event.index)
        if workload is None or replica is None:
            return None
        if event.reason is Reason.PREEMPTED and replica.state is not ReplicaState.STOPPING:
            return None  # it has gone already: the event of its return to the queue
        kind = WarningKind.LEASE if _ends_lease(event, workload) else _KINDS[event.reason]
        return HolderWarning(
            kind,
            event.at,
            workload.user,
            workload.project,
            workload.id,
            workload.name,
            event.index,
            event.message,
            _deadline(event, workload, replica),
        )

    # Sending

    @property
    def _courier(self) -> Courier:
        courier = self._engine.ports.courier
        if courier is None:
            raise UndeliveredError("this control plane has nothing to send with", again=False)
        return courier

    async def _send_mail(self, place: str, warnings: Sequence[HolderWarning]) -> None:
        await self._courier.mail(self._settings, letter(place, warnings, self._zone))

    async def _send_post(self, _place: str, warnings: Sequence[HolderWarning]) -> None:
        body, headers = posted(self._settings, self._pool_id, warnings, self._zone)
        await self._courier.post(self._settings.webhook_url, body, headers)


_KINDS = {
    Reason.IDLE_WARNING: WarningKind.IDLE,
    Reason.TIME_WARNING: WarningKind.TIME,
    Reason.PREEMPTED: WarningKind.PREEMPTED,
}


def _ends_lease(event: Event, workload: Workload) -> bool:
    return event.reason is Reason.TIME_WARNING and workload.kind is WorkloadKind.LEASE


def _deadline(event: Event, workload: Workload, replica: Replica) -> float | None:
    match event.reason:
        case Reason.TIME_WARNING:
            return limit_of(workload, replica)[1]
        case Reason.IDLE_WARNING if workload.limits.idle_timeout_s is not None:
            return event.at + workload.limits.idle_timeout_s * (1 - IDLE_WARNING_AT)
        case Reason.PREEMPTED:
            return event.at + workload.limits.grace_s
        case _:
            return None


def _no_address(user: str) -> Attempt:
    return Attempt(MAIL, ok=False, message=f"{user} has no address: gpupool user set {user} --email ADDRESS")
