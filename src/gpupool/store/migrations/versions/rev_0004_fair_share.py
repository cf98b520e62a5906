"""Fair share and rules: departments, weights and rules of projects, reservations, labels of nodes, past estimates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the tables and columns; existing projects keep their behaviour: no department, equal weights, no rules."""
    _add("projects", sa.Column("department", sa.String(63), nullable=False, server_default=""))
    _add("projects", sa.Column("weight", sa.Double(), nullable=False, server_default="1"))
    _add("projects", sa.Column("model_quotas", sa.JSON(), nullable=False, server_default="[]"))
    _add("projects", sa.Column("rules", sa.JSON(), nullable=False, server_default="{}"))
    _add("nodes", sa.Column("labels", sa.JSON(), nullable=False, server_default="{}"))
    _make_departments()
    _make_bookings()
    _make_estimates()


def _make_departments() -> None:
    op.create_table(
        "departments",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("quota_permille", sa.Integer(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("limit_permille", sa.Integer(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_departments"),
    )


def _make_bookings() -> None:
    op.create_table(
        "bookings",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("starts_at", sa.Double(), nullable=False),
        sa.Column("ends_at", sa.Double(), nullable=False),
        sa.Column("projects", sa.JSON(), nullable=False),
        sa.Column("users", sa.JSON(), nullable=False),
        sa.Column("lead_s", sa.Double(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_bookings"),
    )
    op.create_index("ix_bookings_ends_at", "bookings", ["ends_at"])


def _make_estimates() -> None:
    op.create_table(
        "start_estimates",
        sa.Column("workload", sa.String(16), nullable=False),
        sa.Column("project", sa.String(63), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("predicted_s", sa.Double(), nullable=False),
        sa.Column("actual_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("workload", name="pk_start_estimates"),
    )
    op.create_index("ix_start_estimates_made_at", "start_estimates", ["made_at"])


def _add(table: str, column: sa.Column[object]) -> None:
    op.add_column(table, column)
