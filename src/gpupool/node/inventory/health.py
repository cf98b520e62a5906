"""Whether a card may be handed out: XID events, memory errors, pages and rows waiting for a reset."""

from __future__ import annotations

from collections import deque
from typing import Any

from gpupool.domain.gpu import GpuHealth
from gpupool.node.inventory.queries import Queries, as_text

# Constants of nvml.h; they are part of its binary interface and do not change.
_EVENT_XID = 8
_UNCORRECTED = 1
_SINCE_DRIVER_LOAD = 0
_EVENTS_PER_POLL = 64
_KEPT_PER_GPU = 16

# XIDs that a faulty program causes on a sound card (the same set that NVIDIA's own Kubernetes device plugin skips).
_XID_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
# XIDs after which the card still works: a row was remapped, many corrected errors, an error contained in one program.
_XID_WORTH_A_LOOK = frozenset({63, 92, 94})

Finding = tuple[GpuHealth, str]


class XidWatch:
    """Remembers the XID errors that cards report while the agent lives; polling never blocks."""

    def __init__(self, queries: Queries) -> None:
        self._events = queries.ask(None, "nvmlEventSetCreate")
        self._watched: set[str] = set()
        self._seen: dict[str, deque[int]] = {}

    def watch(self, queries: Queries, uuid: str, handle: Any) -> None:
        """Ask for the XIDs of a card; a card that has no events is silently left out."""
        if self._events is None or uuid in self._watched:
            return
        queries.ask(None, "nvmlDeviceRegisterEvents", handle, _EVENT_XID, self._events)
        self._watched.add(uuid)

    def poll(self, queries: Queries) -> None:
        """Take what has been reported since the last time."""
        if self._events is None:
            return
        for _ in range(_EVENTS_PER_POLL):
            event: Any = queries.ask(None, "nvmlEventSetWait", self._events, 0)
            if event is None:
                return
            uuid = as_text(queries.ask("", "nvmlDeviceGetUUID", event.device))
            self._seen.setdefault(uuid, deque(maxlen=_KEPT_PER_GPU)).append(int(event.eventData))

    def seen(self, uuid: str) -> tuple[int, ...]:
        """The latest XIDs of a card, oldest first, those that only tell of a faulty program left out."""
        return tuple(x for x in self._seen.get(uuid, ()) if x not in _XID_OF_PROGRAMS)


def judge(queries: Queries, handle: Any, xids: tuple[int, ...]) -> Finding:
    """The worst of what is known of a card, and all of it in words (empty when it is sound)."""
    findings = [*_xid_findings(xids), *_ecc_findings(queries, handle), *_reset_findings(queries, handle)]
    if queries.fatal:
        findings.insert(0, (GpuHealth.FAILED, f"the card does not answer: {queries.fatal}"))
    order = list(GpuHealth)
    worst = max((health for health, _ in findings), key=order.index, default=GpuHealth.OK)
    return worst, "; ".join(note for _, note in findings)


def _xid_findings(xids: tuple[int, ...]) -> list[Finding]:
    found = []
    for xid in dict.fromkeys(xids):
        health = GpuHealth.DEGRADED if xid in _XID_WORTH_A_LOOK else GpuHealth.FAILED
        found.append((health, f"XID {xid} reported (reset the card, then restart the agent)"))
    return found


def _ecc_findings(queries: Queries, handle: Any) -> list[Finding]:
    count = queries.ask(0, "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _SINCE_DRIVER_LOAD)
    errors = f"{count} uncorrected memory error{'s' if count != 1 else ''} since the driver was loaded"
    return [(GpuHealth.FAILED, errors)] if count else []


def _reset_findings(queries: Queries, handle: Any) -> list[Finding]:
    found = []
    _, _, pending, failure = queries.ask((0, 0, 0, 0), "nvmlDeviceGetRemappedRows", handle)
    if failure:
        found.append((GpuHealth.FAILED, "a memory row could not be remapped: the card needs repair"))
    if pending:
        found.append((GpuHealth.DEGRADED, "a memory row waits to be remapped: reset the card"))
    if queries.ask(0, "nvmlDeviceGetRetiredPagesPendingStatus", handle):
        found.append((GpuHealth.DEGRADED, "memory pages wait to be retired: reset the card"))
    return found
