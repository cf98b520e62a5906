"""Sums of GPU time by user over all projects and models, and by week (from Monday, UTC) in place of eight days."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

DAY_S, WEEK_S, MONDAY_S = 86400, 7 * 86400, 4 * 86400
HOURS_KEPT_S = 35 * DAY_S  # of members, from which the sums of users are made
AMOUNTS = "allocated_s", "used_s", "idle_s", "measured_s", "requested_s", "leases"
KEYS = "project, user_name, node, model"


def upgrade() -> None:
    """Add up the stored sums by member, and those of days."""
    conn = op.get_bind()
    text = conn.execute(sa.text("SELECT value FROM meta WHERE name = 'gpu_hours'")).scalar()
    marks = json.loads(text) if text else {"since": 0, "until": 0}
    _add("'user', step_s, at, '', user_name, '', ''", "family = 'member' AND step_s <= 86400", "step_s, at, user_name")
    week = f"at - (at - {MONDAY_S}) % {WEEK_S}"
    weeks_until = marks["until"] - (marks["until"] - MONDAY_S) % WEEK_S
    _add(f"family, {WEEK_S}, {week}, {KEYS}", f"step_s = {DAY_S} AND at < {weeks_until}", f"family, {week}, {KEYS}")
    conn.execute(sa.text(f"DELETE FROM gpu_hours WHERE step_s = {8 * DAY_S}"))  # noqa: S608 - a constant
    if text:
        marks["users_since"] = (marks["until"] - HOURS_KEPT_S) // DAY_S * DAY_S
        conn.execute(sa.text("UPDATE meta SET value = :text WHERE name = 'gpu_hours'"), {"text": json.dumps(marks)})


def _add(keys: str, of: str, by: str) -> None:
    """Insert sums of stored rows."""
    names, sums = ", ".join(AMOUNTS), ", ".join(f"sum({name})" for name in AMOUNTS)
    columns = "family, step_s, at, project, user_name, node, model"
    op.execute(
        sa.text(
            f"INSERT INTO gpu_hours ({columns}, {names})"  # noqa: S608 - constants
            f" SELECT {keys}, {sums} FROM gpu_hours WHERE {of} GROUP BY {by}"
        )
    )
