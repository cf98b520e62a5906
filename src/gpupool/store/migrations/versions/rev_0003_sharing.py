"""Sharing of GPUs: policies of projects and nodes, and the mode and compute policy of each lease."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the columns; existing rows get the behaviour that they had: no policy, and the node's default."""
    _add("leases", sa.Column("sharing", sa.String(32), nullable=False, server_default=""))
    _add("leases", sa.Column("compute", sa.String(16), nullable=False, server_default="guarantee"))
    _add("replicas", sa.Column("sharing", sa.Text(), nullable=False, server_default=""))
    _add("replicas", sa.Column("guarantee", sa.Text(), nullable=False, server_default=""))
    for what, length in (("compute", 16), ("sharing", 32)):
        _add("projects", sa.Column(f"{what}_default", sa.String(length), nullable=True))
        _add("projects", sa.Column(f"{what}_allowed", sa.JSON(), nullable=False, server_default="[]"))
    _add("nodes", sa.Column("sharing", sa.JSON(), nullable=False, server_default="{}"))


def _add(table: str, column: sa.Column[object]) -> None:
    op.add_column(table, column)
