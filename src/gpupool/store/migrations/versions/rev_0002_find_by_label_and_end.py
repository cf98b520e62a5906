"""Indexes for listings by label and for history by end time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ROWS_PER_READ = 1_000


def upgrade() -> None:
    """Create the tables and indexes, and insert the labels of existing workloads."""
    op.create_table(
        "workload_labels",
        sa.Column("workload", sa.String(16), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workload"], ["workloads.id"], name=op.f("fk_workload_labels_workload"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("workload", "label", name=op.f("pk_workload_labels")),
    )
    op.create_index("ix_workload_labels_value", "workload_labels", ["label", "value", "workload"])
    op.create_index("ix_workloads_history", "workloads", ["project", "user_name", "finished_at"])
    op.create_index("ix_workloads_finished_at", "workloads", ["finished_at"])
    op.create_index("ix_leases_released_at", "leases", ["released_at"])
    _enter_labels()


def _enter_labels() -> None:
    labels = sa.table("workload_labels", sa.column("workload"), sa.column("label"), sa.column("value"))
    workloads = sa.table("workloads", sa.column("id"), sa.column("spec", sa.JSON()))
    conn = op.get_bind()
    specs = conn.execute(sa.select(workloads.c.id, workloads.c.spec))
    for chunk in specs.partitions(ROWS_PER_READ):
        rows = [
            {"workload": workload, "label": label, "value": value}
            for workload, spec in chunk
            for label, value in spec.get("labels", {}).items()
        ]
        if rows:
            conn.execute(labels.insert(), rows)
