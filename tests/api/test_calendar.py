"""Reservations as an iCalendar file: lines, escapes, and the route."""

from __future__ import annotations

import httpx2

from gpupool.api.views.calendar import MAX_LINE_BYTES, to_calendar
from gpupool.domain.nodes.reservation import Reservation

NAME = "Übung; 3, with \\ and a very long title that needs more than one line of a calendar file"
RESERVATION = Reservation(
    id="b1",
    name=NAME,
    nodes=("gpu1", "gpu2"),
    starts_at=1_800_000_000.0,
    ends_at=1_800_007_200.0,
    projects=("cs101",),
    users=("ann",),
    lead_s=0.0,
    created_by="root",
    note="first line\nBEGIN:VALARM",
)


def unfolded(text: str) -> list[str]:
    return text.replace("\r\n ", "").split("\r\n")


def test_event_has_times_and_escaped_texts() -> None:
    text = to_calendar([RESERVATION], "pool1")
    assert all(len(line.encode()) <= MAX_LINE_BYTES for line in text.split("\r\n"))
    lines = unfolded(text)
    assert lines[:2] == ["BEGIN:VCALENDAR", "VERSION:2.0"]
    assert lines[-2:] == ["END:VCALENDAR", ""]
    assert "UID:b1@pool1" in lines
    assert "DTSTART:20270115T080000Z" in lines
    assert "DTEND:20270115T100000Z" in lines
    assert (
        "SUMMARY:Übung\\; 3\\, with \\\\ and a very long title that needs more than one line of a calendar file"
        in lines
    )
    assert "DESCRIPTION:gpu1\\, gpu2 for cs101\\, user ann\\nfirst line\\nBEGIN:VALARM" in lines
    assert "CATEGORIES:RESERVATION" in lines
    assert "BEGIN:VALARM" not in lines


def test_route_returns_the_reservations(http: httpx2.Client) -> None:
    now = http.get("/v1/pool").json()["started_at"]
    body = {"name": "Repair", "starts_at": now + 9e4, "ends_at": now + 9.3e4, "nodes": ["n1"], "maintenance": True}
    made = http.post("/v1/bookings", json=body).json()
    answer = http.get("/v1/bookings.ics")
    http.delete(f"/v1/bookings/{made['id']}")
    assert answer.headers["content-type"].startswith("text/calendar")
    lines = unfolded(answer.text)
    assert "SUMMARY:Repair" in lines
    assert "CATEGORIES:MAINTENANCE" in lines
