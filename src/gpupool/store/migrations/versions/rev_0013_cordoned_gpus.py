"""Cordons of single GPUs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the column; no GPU is cordoned."""
    op.add_column("nodes", sa.Column("cordoned_gpus", sa.JSON(), nullable=False, server_default="{}"))
