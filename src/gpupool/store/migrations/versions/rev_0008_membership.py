"""Machines that were removed from a cluster, and reports of standby heads on whether they could take over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add both tables, empty: earlier removals were not recorded."""
    op.create_table(
        "removed_members",
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        sa.Column("node", sa.String(253), nullable=False),
        sa.Column("removed_at", sa.Double(), nullable=False),
        sa.Column("removed_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("secret_sha256", name="pk_removed_members"),
    )
    op.create_table(
        "head_reports",
        sa.Column("name", sa.String(253), nullable=False),
        sa.Column("reported_at", sa.Double(), nullable=False),
        sa.Column("faults", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_head_reports"),
    )
