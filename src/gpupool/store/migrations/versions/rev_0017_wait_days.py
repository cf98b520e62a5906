"""Waiting times of past days, which reports over a year read instead of a row for each workload."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Create the tables; the pool fills them from the stored workloads, day by day."""
    op.create_table(
        "wait_members",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("project", sa.String(63), nullable=False),
        sa.Column("user_name", sa.String(63), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_wait_members"),
    )
    op.create_table(
        "wait_days",
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("waits", sa.LargeBinary(), nullable=False),
        sa.Column("open", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("at", name="pk_wait_days"),
    )
