"""GPUs of lazy replicas: when their program first used CUDA, and the lease of their GPUs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Add the columns; no earlier replica is lazy."""
    op.add_column("replicas", sa.Column("gpu_wanted_at", sa.Double(), nullable=True))
    op.add_column("replicas", sa.Column("gpu_lease", sa.BigInteger(), nullable=True))
