"""The GPU capacity over time. For the time before, the present nodes count from the first lease on."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Create the table; present GPUs count as available since the pool granted its first lease."""
    table = op.create_table(
        "gpu_capacity",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("since_at", sa.Double(), nullable=False),
        sa.Column("until_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_gpu_capacity"),
    )
    op.create_index("ix_gpu_capacity_until_at", "gpu_capacity", ["until_at", "since_at"])
    still = sa.text("until_at IS NULL")
    op.create_index(
        "uq_gpu_capacity_open", "gpu_capacity", ["gpu_uuid"], unique=True, sqlite_where=still, postgresql_where=still
    )
    first = op.get_bind().execute(sa.text("SELECT min(granted_at) FROM leases")).scalar()
    if first is None:
        return
    rows = [_row(node, gpu, first) for node, report in _reports() for gpu in report.get("gpus", ())]
    if rows:
        op.bulk_insert(table, list({row["gpu_uuid"]: row for row in rows}.values()))


def _reports() -> list[tuple[str, dict[str, Any]]]:
    found = op.get_bind().execute(sa.text("SELECT name, report FROM nodes")).all()
    return [(name, json.loads(report) if isinstance(report, str) else report) for name, report in found]


def _row(node: str, gpu: dict[str, Any], first: float) -> dict[str, Any]:
    return {
        "gpu_uuid": gpu["uuid"],
        "node": node,
        "model": gpu["model"],
        "status": "available",
        "since_at": first,
        "until_at": None,
    }
