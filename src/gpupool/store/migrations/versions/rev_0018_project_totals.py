"""Sums of GPU time by project over all models: a fifth of the rows of the sums by model."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

AMOUNTS = "allocated_s", "used_s", "idle_s", "measured_s", "requested_s", "leases"


def upgrade() -> None:
    """Add up the stored sums by model."""
    names, sums = ", ".join(AMOUNTS), ", ".join(f"sum({name})" for name in AMOUNTS)
    op.execute(
        sa.text(
            f"INSERT INTO gpu_hours (family, step_s, at, project, user_name, node, model, {names})"  # noqa: S608 - constants
            f" SELECT 'total', step_s, at, project, '', '', '', {sums} FROM gpu_hours WHERE family = 'project'"
            " GROUP BY step_s, at, project"
        )
    )
