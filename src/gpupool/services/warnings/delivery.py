"""Delivery of warnings: the text of messages, and an outbox for each way.

An outbox runs in the background, and nothing else in the pool waits for it. It combines warnings to the same address
into one message and retries failed messages.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, tzinfo

import structlog

from gpupool.domain.people.warning import (
    FOR_ADMINISTRATORS,
    HolderWarning,
    WarningKind,
    WarningSettings,
    WebhookKind,
)
from gpupool.services.ports.courier import Letter, UndeliveredError

TOGETHER_S = 2.0  # warnings within this time after the first are sent with it
PAUSE_S = 60.0  # between two messages to the same place
PAUSES_S = (5.0, 25.0, 125.0)  # before each retry
MAX_ENTRIES = 500  # for one place; older ones are dropped
MAX_CONCURRENT = 4  # messages that are sent at the same time
MAX_LISTED = 50  # warnings in one message
SIGNATURE = "x-gpupool-signature"
_SUBJECTS = {
    WarningKind.IDLE: "{} is idle",
    WarningKind.TIME: "{} reaches its time limit",
    WarningKind.LEASE: "the lease {} ends",
    WarningKind.PREEMPTED: "{} is preempted",
    WarningKind.ENDED: "{} has ended",
    WarningKind.STARTED: "{} has started",
    WarningKind.HEAD: "the head {} cannot take over",
    WarningKind.BACKUP: "a scheduled backup failed",
    WarningKind.SERVICE: "the service {} has a problem",
    WarningKind.WORKSPACE: "the workspace {} is unused",
}
_ADVICE = {
    WarningKind.IDLE: "Use its GPUs, or release them: gpupool stop {}",
    WarningKind.TIME: "Save its state before then. Output: gpupool logs {replica}",
    WarningKind.LEASE: "Extend the lease: gpupool extend {}",
    WarningKind.PREEMPTED: "It is queued again and restarts later. Reason: gpupool describe {}",
    WarningKind.ENDED: "Details: gpupool describe {}",
    WarningKind.STARTED: "Output: gpupool logs {replica}",
    WarningKind.HEAD: "If the leader fails now, {} cannot take over. Run on that machine: gpupool doctor",
    WarningKind.BACKUP: "The pool retries. Copies and schedule: gpupool backup --list",
    WarningKind.SERVICE: "Replicas, requests and revisions: gpupool service describe {}",
    WarningKind.WORKSPACE: "Save what you need, and delete it: gpupool workspace delete {}",
}
Send = Callable[[str, Sequence[HolderWarning]], Awaitable[None]]

log = structlog.get_logger("gpupool.warnings")


def letter(to: str, warnings: Sequence[HolderWarning], zone: tzinfo) -> Letter:
    """Return an e-mail to one user about one or several warnings."""
    first = warnings[0]
    subject = f"gpupool: {_SUBJECTS[first.kind].format(called(first))}"
    if len(warnings) > 1:
        subject += f", and {len(warnings) - 1} more"
    parts = [_paragraph(warning, zone) for warning in warnings[:MAX_LISTED]]
    text = f"{first.user},\n\n" + "\n".join(parts) + _rest(warnings)
    return Letter(
        to, subject, f"{text}\nSent by gpupool. Your address is set with: gpupool user set {first.user} --email ''\n"
    )


def _paragraph(warning: HolderWarning, zone: tzinfo) -> str:
    what = f"{called(warning)} ({warning.workload}, project {warning.project}): "
    if warning.kind in FOR_ADMINISTRATORS:
        what = ""  # the message names it
    advice = warning.remedy or _ADVICE[warning.kind].format(warning.name, replica=called(warning))
    return f"{what}{warning.message}{_when(warning, zone)}.\n  {advice}\n"


def _when(warning: HolderWarning, zone: tzinfo) -> str:
    if warning.deadline is None:
        return ""
    return f" (at {datetime.fromtimestamp(warning.deadline, zone):%Y-%m-%d %H:%M:%S %Z})"


def _rest(warnings: Sequence[HolderWarning]) -> str:
    more = len(warnings) - MAX_LISTED
    return f"... and {more} more: gpupool events\n" if more > 0 else ""


def called(warning: HolderWarning) -> str:
    """Return the workload's name, with the index of the replica if that is not 0."""
    return warning.name if warning.index == 0 else f"{warning.name}/{warning.index}"


def posted(
    settings: WarningSettings, pool_id: str, warnings: Sequence[HolderWarning], zone: tzinfo
) -> tuple[bytes, Mapping[str, str]]:
    """Return the body for the webhook and its headers; with a secret, one header has the HMAC-SHA256 of the body."""
    if settings.webhook_kind is WebhookKind.SLACK:
        document: dict[str, object] = {"text": _chat(warnings, zone)}
    else:
        listed = [_document(warning) for warning in warnings]
        document = {"version": 1, "pool": pool_id, "warnings": listed}
    body = json.dumps(document).encode()
    headers = {"content-type": "application/json"}
    if settings.webhook_secret:
        digest = hmac.new(settings.webhook_secret.encode(), body, hashlib.sha256).hexdigest()
        headers[SIGNATURE] = f"sha256={digest}"
    return body, headers


def _document(warning: HolderWarning) -> dict[str, object]:
    return {name: value for name, value in asdict(warning).items() if name != "requested"}


def _chat(warnings: Sequence[HolderWarning], zone: tzinfo) -> str:
    lines = [_line(warning, zone) for warning in warnings[:MAX_LISTED]]
    text = "\n".join(lines) + ("\n" + _rest(warnings) if len(warnings) > MAX_LISTED else "")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _line(warning: HolderWarning, zone: tzinfo) -> str:
    if warning.kind in FOR_ADMINISTRATORS:
        return f"administrators: {warning.message}"
    return f"{warning.user}: {called(warning)} ({warning.project}): {warning.message}{_when(warning, zone)}"


class Outbox:
    """Messages of one way (``mail`` or ``webhook``).

    ``results`` counts messages by way and result (sent, failed), and warnings that were dropped.
    """

    def __init__(
        self, way: str, send: Send, sleep: Callable[[float], Awaitable[None]], results: Counter[tuple[str, str]]
    ) -> None:
        self._way = way
        self._send = send
        self._sleep = sleep
        self._results = results
        self._kept: dict[str, deque[HolderWarning]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(MAX_CONCURRENT)

    def put(self, place: str, warning: HolderWarning) -> None:
        """Queue a warning for an address; it is sent in the background."""
        kept = self._kept.setdefault(place, deque())
        if len(kept) == MAX_ENTRIES:
            kept.popleft()
            self._results[self._way, "dropped"] += 1
        kept.append(warning)
        if place not in self._sending:
            self._sending[place] = asyncio.create_task(self._serve(place), name=f"{self._way} {place}")

    async def _serve(self, place: str) -> None:
        pause_s = TOGETHER_S
        try:
            while self._kept.get(place):
                await self._sleep(pause_s)
                warnings = tuple(self._kept.pop(place))
                await self._deliver(place, warnings)
                pause_s = PAUSE_S
        finally:
            self._sending.pop(place, None)

    async def _deliver(self, place: str, warnings: Sequence[HolderWarning]) -> None:
        result = "failed"
        try:
            result = "sent" if await self._try(place, warnings) else "failed"
        except Exception:  # an error in one message must not prevent later ones
            log.exception("a warning could not be sent", way=self._way)
        self._results[self._way, result] += 1

    async def _try(self, place: str, warnings: Sequence[HolderWarning]) -> bool:
        for pause_s in (*PAUSES_S, None):
            try:
                async with self._room:
                    await self._send(place, warnings)
            except UndeliveredError as error:
                log.warning("a warning was not accepted", way=self._way, why=error.message, again=error.again)
                if pause_s is None or not error.again:
                    return False
                await self._sleep(pause_s)
            else:
                return True
        return False

    async def close(self) -> None:
        """Cancel all messages that are not sent yet."""
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
