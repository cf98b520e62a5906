"""Suspension of replicas: since when their node is asked for it, and the GPU whose memory they have."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Add the columns; no earlier replica is suspended."""
    op.add_column("replicas", sa.Column("suspend_asked_at", sa.Double(), nullable=True))
    op.add_column("replicas", sa.Column("suspended_gpu", sa.Text(), nullable=False, server_default=""))
