"""The user who stopped a replica, and immediate failures in a row."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the columns; nothing is known about earlier attempts."""
    op.add_column("replicas", sa.Column("ended_by", sa.Text(), nullable=False, server_default=""))
    op.add_column("replicas", sa.Column("same_failures", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("replicas", sa.Column("failed_status", sa.Integer(), nullable=True))
