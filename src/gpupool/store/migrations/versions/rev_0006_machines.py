"""Several nodes: the leader of the pool, and data for work on several nodes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the tables and columns; there was no leader yet."""
    _make_leadership()
    _make_joining()
    op.add_column("leases", sa.Column("fence_after_s", sa.Double()))
    waited = ["created_at", "kind", "started_at", "finished_at", "project", "user_name"]
    op.create_index("ix_workloads_waited", "workloads", waited)  # wait times of a year are read only from this index
    if op.get_bind().dialect.name == "postgresql":  # PostgreSQL enforces the length of a text, SQLite does not
        op.alter_column("meta", "name", type_=sa.Text())


def _make_leadership() -> None:
    table = op.create_table(
        "leadership",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("leader", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_leadership"),
    )
    op.bulk_insert(table, [{"id": 1, "term": 0, "leader": "", "address": "", "since": 0.0}])


def _make_joining() -> None:
    op.create_table(
        "join_tokens",
        sa.Column("id", sa.String(63), nullable=False),
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        sa.Column("created_by", sa.String(63), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("uses_left", sa.Integer(), nullable=False),
        sa.Column("revoked_at", sa.Double()),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_join_tokens"),
    )
    op.create_index("uq_join_tokens_secret_sha256", "join_tokens", ["secret_sha256"], unique=True)
    op.create_table(
        "members",
        sa.Column("node", sa.String(253), nullable=False),
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        sa.Column("key_sha256", sa.String(64), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("joined_at", sa.Double(), nullable=False),
        sa.Column("token_id", sa.String(63), nullable=False),
        sa.PrimaryKeyConstraint("node", name="pk_members"),
    )
