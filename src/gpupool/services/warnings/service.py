"""Warnings to users: settings, the events that cause a warning, and the watch for deadlines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.people.access import Actor, Role
from gpupool.domain.people.warning import (
    FOR_ADMINISTRATORS,
    SECRETS,
    HolderWarning,
    WarningKind,
    WarningSettings,
)
from gpupool.domain.units import format_duration
from gpupool.domain.work.ending import ending_of
from gpupool.domain.work.lifecycle import POOL
from gpupool.domain.work.mail_types import MailType, parse_mail_types
from gpupool.domain.work.time_windows import read_zone
from gpupool.domain.work.workload import Replica, ReplicaState, Workload, WorkloadKind, WorkloadState
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.engine import Engine
from gpupool.services.control.scheduling_loop import IDLE_WARNING_FRACTION
from gpupool.services.lifecycle import transitions
from gpupool.services.ports.courier import Courier, UndeliveredError
from gpupool.services.ports.store import ChangeSet, EventFilter
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.state.mirror import Draft, ReplicaId
from gpupool.services.state.service_registry import ServiceRegistry
from gpupool.services.state.workspace_registry import WorkspaceRegistry
from gpupool.services.warnings.delivery import Outbox, letter, posted

CHECK_INTERVAL_S = 1.0
LAST_PART = 0.2  # of a limit; no warning is sent before this part begins
REMEMBERED = 1_000  # past warnings that are read at the start
MAIL, WEBHOOK = "mail", "webhook"
DeadlineWarning = tuple[ReplicaId, str, float]  # the replica, the sentence, the time of the end

log = structlog.get_logger("gpupool.warnings")


class DeadlineWatch:
    """Checks the deadlines of running replicas."""

    def __init__(self, engine: Engine, settings: Callable[[], WarningSettings]) -> None:
        self._engine = engine
        self._settings = settings
        self._warned_at: dict[ReplicaId, float] = {}

    async def load(self) -> None:
        """Read the warnings of earlier control planes, so that none is repeated. Raises ``GpupoolError``."""
        wanted = EventFilter(reasons=(Reason.TIME_WARNING,), newest=True, limit=REMEMBERED)
        for event in await self._engine.ports.store.list_events(wanted):
            if event.workload is not None and event.index is not None:
                self._warned_at[event.workload, event.index] = event.at

    async def look(self) -> None:
        """Write an event for each replica whose deadline is near.

        Raises ``GpupoolError`` if the events cannot be written.
        """
        due = list(self._due(self._engine.ports.clock.now()))
        if due:
            at = await self._engine.transact(partial(_note, due=due))
            self._warned_at |= {key: at for key, *_ in due}

    def _due(self, now: float) -> Iterator[DeadlineWarning]:
        mirror = self._engine.mirror
        placed = {key for keys in mirror.placed.values() for key in keys}
        self._warned_at = {key: at for key, at in self._warned_at.items() if key in placed}
        for key in placed:
            workload, replica = mirror.workloads.get(key[0]), mirror.replica(*key)
            if workload is None or replica is None or replica.state is not ReplicaState.RUNNING:
                continue
            limit_s, deadline = limit_of(workload, replica)
            begins = deadline - min(self._settings().before_s, limit_s * LAST_PART)
            if begins <= now < deadline and self._warned_at.get(key, 0.0) < begins:
                yield key, _sentence(workload, limit_s, deadline - now), deadline


def _note(draft: Draft, due: list[DeadlineWarning]) -> float:
    for key, sentence, deadline in due:
        draft.note(Event(draft.now, POOL, Reason.TIME_WARNING, sentence, *key))
        workload, replica = draft.workload(key[0]), draft.replica(*key)
        if workload is not None and replica is not None:
            notice = {"reason": Reason.TIME_WARNING.value, "message": sentence, "deadline": deadline}
            transitions.notify(draft, workload, replica, notice)
    return draft.now


def limit_of(workload: Workload, replica: Replica) -> tuple[float, float]:
    """Return how many seconds a replica may hold its GPUs, and when that time ends; infinite without a limit."""
    never = float("inf")
    if workload.kind is WorkloadKind.LEASE:
        if workload.expires_at is None:
            return never, never
        return workload.expires_at - (workload.started_at or workload.created_at), workload.expires_at
    if workload.limits.max_time_s is None or replica.started_at is None:
        return never, never
    return workload.limits.max_time_s, replica.started_at + workload.limits.max_time_s


def _sentence(workload: Workload, limit_s: float, left_s: float) -> str:
    if workload.kind is WorkloadKind.LEASE:
        return f"the lease ends in {format_duration(left_s)}"
    return f"its time limit of {format_duration(limit_s)} ends it in {format_duration(left_s)}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of sending one message; ``ok`` is True if it was accepted."""

    way: str
    ok: bool
    message: str


class WarningService:
    """Warnings and their settings, which are for administrators.

    Without a courier nothing is sent; events are written in any case.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - composed in one place
        self,
        engine: Engine,
        identities: IdentityCache,
        workspaces: WorkspaceRegistry,
        services: ServiceRegistry,
        permissions: Permissions,
        pool: tuple[str, str],
        results: Counter[tuple[str, str]],
    ) -> None:
        self._engine = engine
        self._identities = identities
        self._workspaces = workspaces
        self._services = services
        self._permissions = permissions
        self._pool_id, zone = pool
        self._zone = read_zone(zone)
        self._settings = WarningSettings()
        self._watch = DeadlineWatch(engine, lambda: self._settings)
        sleep = engine.ports.sleep
        self._mail = Outbox(MAIL, self._send_mail, sleep, results)
        self._webhook = Outbox(WEBHOOK, self._send_post, sleep, results)
        engine.on_commit(self._committed)

    # Settings

    def settings(self, actor: Actor) -> WarningSettings:
        """Return the settings in force, for administrators. They include secrets: display only ``.shown()`` of them."""
        self._permissions.need_role(actor, Role.ADMIN)
        return self._settings

    async def change(self, actor: Actor, changes: dict[str, Any]) -> WarningSettings:
        """Change some settings at once, for administrators. Raises FORBIDDEN, INVALID_REQUEST."""
        self._permissions.need_role(actor, Role.ADMIN)
        settings = WarningSettings.from_dict(self._settings.to_dict() | changes)
        said = (name if name in SECRETS else f"{name} {changes[name]}" for name in sorted(changes))
        event = self._engine.change_event(actor.user, ", ".join(said), "warnings")

        async def write() -> None:
            await self._engine.ports.store.documents.save("warnings", json.dumps(settings.to_dict()), event)
            self._settings = settings

        await self._engine.run_exclusive(write)
        return settings

    async def test(self, actor: Actor, to: str = "") -> Sequence[Attempt]:
        """Send a test message by each configured way, for administrators; mail goes to ``to`` or the caller's address.

        Raises FORBIDDEN, and WRONG_STATE if no way is configured.
        """
        self._permissions.need_role(actor, Role.ADMIN)
        now = self._engine.ports.clock.now()
        said = "this is a test warning; no action follows"
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
                "No destination for warnings is set.",
                "Set one: 'gpupool warnings set --webhook URL' or '--smtp-host HOST --sender ADDRESS'.",
            )
        return attempts

    async def _attempt(self, way: str, place: str, warning: HolderWarning) -> Attempt:
        send = self._send_mail if way == MAIL else self._send_post
        try:
            await send(place, (warning,))
        except UndeliveredError as error:
            return Attempt(way, ok=False, message=error.message)
        return Attempt(way, ok=True, message=f"sent to {place or 'the webhook'}")

    # Deadlines and events

    async def load(self) -> None:
        """Load the settings from the store; if they cannot be parsed, log that and keep the defaults."""
        text = await self._engine.ports.store.documents.load("warnings")
        try:
            if text is not None:
                self._settings = WarningSettings.from_dict(json.loads(text))
        except (ValueError, TypeError, AttributeError, GpupoolError):
            log.exception("the settings of warnings cannot be read")
        await self._watch.load()

    async def run(self) -> None:
        """Check deadlines once a second, until cancelled."""
        try:
            while True:
                await self._engine.ports.sleep(CHECK_INTERVAL_S)
                try:
                    await self._watch.look()
                except GpupoolError as error:
                    log.warning("could not write a warning about a deadline", code=error.code)
                except Exception:  # an error in warnings must not stop the pool
                    log.exception("could not check the deadlines")
        finally:
            await self._mail.close()
            await self._webhook.close()

    def _committed(self, changes: ChangeSet) -> None:
        ended = (self._ended(workload) for workload in changes.workloads if workload.state.final)
        for warning in (*map(self._warning_of, changes.events), *ended):
            if warning is not None and warning.kind in self._settings.kinds:
                self._put(warning)

    def _put(self, warning: HolderWarning) -> None:
        for user in self._recipients(warning) if self._settings.mails else ():
            if address := self._address(user):
                self._mail.put(address, replace(warning, user=user))
        if self._settings.posts and not warning.requested:
            self._webhook.put("", warning)

    def _recipients(self, warning: HolderWarning) -> list[str]:
        if warning.kind not in FOR_ADMINISTRATORS:
            return [warning.user]
        return [user.name for user in self._identities.users.values() if user.role is Role.ADMIN]

    def _address(self, user: str) -> str:
        found = self._identities.users.get(user)
        return found.email if found is not None else ""

    def _warning_of(self, event: Event) -> HolderWarning | None:
        match event.reason:
            case Reason.HEAD_NOT_READY:
                head = event.target.removeprefix("node ")
                return HolderWarning(WarningKind.HEAD, event.at, "", "", "", head, 0, event.message)
            case Reason.BACKUP_FAILED:
                return HolderWarning(WarningKind.BACKUP, event.at, "", "", "", "", 0, event.message)
            case Reason.WORKSPACE_UNUSED:
                return self._unused(event)
            case Reason.SERVICE_WARNING:
                return self._of_service(event)
            case _:
                return self._of_replica(event)

    def _of_replica(self, event: Event) -> HolderWarning | None:
        if event.workload is None or event.index is None:
            return None
        workload = self._engine.mirror.workloads.get(event.workload)
        replica = self._engine.mirror.replica(event.workload, event.index)
        if workload is None or replica is None:
            return None
        if event.reason is Reason.STARTED:
            return _started(event, workload, replica)
        if event.reason not in _KINDS:
            return None
        if event.reason is Reason.PREEMPTED and replica.state is not ReplicaState.STOPPING:
            return None  # this event is about its return to the queue; it has stopped already
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

    def _ended(self, workload: Workload) -> HolderWarning | None:
        """Return the message to an absent user: about an end that is requested, a failure, or a stop by others."""
        found = self._engine.mirror.ended.get(workload.id)
        ending = ending_of(workload, found.replicas) if found is not None and workload.deleted_at is None else None
        absent = workload.kind is not WorkloadKind.EXEC and not workload.program.client_bound
        types = parse_mail_types(workload.mail)
        expected = workload.state is WorkloadState.SUCCEEDED or (ending is not None and ending.user == workload.user)
        wanted = MailType.END in types or (MailType.FAIL in types and workload.state is WorkloadState.FAILED)
        if ending is None or MailType.NONE in types or not (wanted or (absent and not expected)):
            return None
        return HolderWarning(
            WarningKind.ENDED,
            workload.finished_at or self._engine.ports.clock.now(),
            workload.user,
            workload.project,
            workload.id,
            workload.name,
            0,
            ending.line,
            code=ending.code,
            remedy=ending.remedy,
            requested=expected or not absent,
        )

    def _unused(self, event: Event) -> HolderWarning | None:
        row = self._workspaces.rows.get(event.target.removeprefix("workspace "))
        if row is None:
            return None
        return HolderWarning(WarningKind.WORKSPACE, event.at, row.user, row.project, row.id, row.name, 0, event.message)

    def _of_service(self, event: Event) -> HolderWarning | None:
        row = self._services.rows.get(event.target.removeprefix("service "))
        if row is None:
            return None
        return HolderWarning(WarningKind.SERVICE, event.at, row.user, row.project, row.id, row.name, 0, event.message)

    # Sending

    @property
    def _courier(self) -> Courier:
        courier = self._engine.ports.courier
        if courier is None:
            raise UndeliveredError("this control plane cannot send warnings", again=False)
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


def _started(event: Event, workload: Workload, replica: Replica) -> HolderWarning | None:
    """Return the mail about the first start of a workload whose user has asked for it."""
    if MailType.BEGIN not in parse_mail_types(workload.mail) or event.index != 0 or replica.attempt != 1:
        return None
    return HolderWarning(
        WarningKind.STARTED,
        event.at,
        workload.user,
        workload.project,
        workload.id,
        workload.name,
        0,
        f"it has started on {replica.node}",
        requested=True,
    )


def _ends_lease(event: Event, workload: Workload) -> bool:
    return event.reason is Reason.TIME_WARNING and workload.kind is WorkloadKind.LEASE


def _deadline(event: Event, workload: Workload, replica: Replica) -> float | None:
    match event.reason:
        case Reason.TIME_WARNING:
            return limit_of(workload, replica)[1]
        case Reason.IDLE_WARNING if workload.limits.idle_timeout_s is not None:
            return event.at + workload.limits.idle_timeout_s * (1 - IDLE_WARNING_FRACTION)
        case Reason.PREEMPTED:
            return event.at + workload.limits.preemption_grace_s
        case _:
            return None


def _no_address(user: str) -> Attempt:
    return Attempt(MAIL, ok=False, message=f"{user} has no address: gpupool user set {user} --email ADDRESS")
