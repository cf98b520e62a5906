"""Events as pages show them, with links to their targets."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from gpupool.domain.events import Event

_SETTINGS = {"policy", "cost rates", "warnings"}
_PAGES = {"node": "/nodes/{}", "project": "/projects/{}", "department": "/departments/{}", "user": "/users/{}"}


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event. ``concerns`` names its target; ``href`` is the page of the target (None: no page)."""

    id: int
    at: float
    actor: str
    reason: str
    message: str
    concerns: str
    href: str | None


def event_line(event: Event) -> EventLine:
    """Return an event with a link to its target."""
    concerns, href = event.target, target_page(event.target)
    if event.workload is not None:
        concerns = event.workload if event.index is None else f"{event.workload}/{event.index}"
        href = f"/workloads/{event.workload}"
    return EventLine(event.id, event.at, event.actor, str(event.reason), event.message, concerns, href)


def target_page(target: str) -> str | None:
    """Return the page of an event's target such as ``node gpu1``."""
    kind, _, name = target.partition(" ")
    if kind in _PAGES and name:
        return _PAGES[kind].format(quote(name, safe=""))
    return "/bookings" if kind == "reservation" else "/settings" if target in _SETTINGS else None
