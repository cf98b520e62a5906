"""Progress that programs report, and the work that evictions lose."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the columns; nothing is known about earlier attempts."""
    op.add_column("replicas", sa.Column("saved_at", sa.Double(), nullable=True))
    op.add_column("replicas", sa.Column("step", sa.BigInteger(), nullable=True))
    op.add_column("replicas", sa.Column("lost_gpu_s", sa.Double(), nullable=False, server_default="0"))
    op.add_column("leases", sa.Column("lost_s", sa.Double(), nullable=False, server_default="0"))
    lost = sa.text("lost_s > 0")
    op.create_index("ix_leases_lost", "leases", ["released_at"], sqlite_where=lost, postgresql_where=lost)
