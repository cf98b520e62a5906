"""The heads of a cluster, and join tokens for heads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the tables and columns; existing tokens are for nodes, and the next leader stores itself as a head."""
    op.create_table(
        "heads",
        sa.Column("name", sa.String(253), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("certificate", sa.Text(), nullable=False),
        sa.Column("gcs_host", sa.Text(), nullable=False),
        sa.Column("gcs_port", sa.Integer(), nullable=False),
        sa.Column("added_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_heads"),
    )
    op.add_column("join_tokens", sa.Column("for_head", sa.Boolean(), nullable=False, server_default=sa.false()))
