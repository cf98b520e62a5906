"""Metrics that programs report with their progress."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the column; nothing is known about earlier reports."""
    op.add_column("replicas", sa.Column("metrics", sa.JSON(), nullable=True))
