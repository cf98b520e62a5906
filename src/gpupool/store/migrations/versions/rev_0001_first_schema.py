"""First schema: workloads, leases, events, users and permissions, nodes, and the pool itself."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

FINAL = "'succeeded', 'failed', 'stopped'"
NOT_ENDED = sa.text(f"state NOT IN ({FINAL})")
HOLDS_NAME = sa.text(f"state NOT IN ({FINAL}) AND deleted_at IS NULL")
NOT_RELEASED = sa.text("released_at IS NULL")
BigKey = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables; referenced tables first."""
    _workloads()
    _replicas()
    _leases()
    _lease_shares()
    _events()
    _projects()
    _users()
    _tokens()
    _nodes()
    _meta()


def _workloads() -> None:
    op.create_table(
        "workloads",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("user_name", sa.String(length=63), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("suspended", sa.Boolean(), nullable=False),
        sa.Column("stop_reason", sa.String(length=32), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("dependencies", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workloads")),
    )
    op.create_index("ix_workloads_created_at", "workloads", ["created_at", "id"], unique=False)
    op.create_index("ix_workloads_name", "workloads", ["name", "created_at", "id"], unique=False)
    op.create_index(
        "ix_workloads_not_ended",
        "workloads",
        ["created_at", "id"],
        unique=False,
        sqlite_where=NOT_ENDED,
        postgresql_where=NOT_ENDED,
    )
    op.create_index("ix_workloads_project", "workloads", ["project", "created_at", "id"], unique=False)
    op.create_index("ix_workloads_state", "workloads", ["state", "created_at", "id"], unique=False)
    op.create_index("ix_workloads_user", "workloads", ["user_name", "created_at", "id"], unique=False)
    op.create_index(
        "uq_workloads_live_name",
        "workloads",
        ["project", "name"],
        unique=True,
        sqlite_where=HOLDS_NAME,
        postgresql_where=HOLDS_NAME,
    )
    op.create_index("uq_workloads_request_id", "workloads", ["request_id"], unique=True)


def _replicas() -> None:
    op.create_table(
        "replicas",
        sa.Column("workload", sa.String(length=16), nullable=False),
        sa.Column("replica_index", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("lease", sa.BigInteger(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("exit_status", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("next_reason", sa.String(length=32), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("interruptions", sa.Integer(), nullable=False),
        sa.Column("queued_at", sa.Double(), nullable=False),
        sa.Column("not_before", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("last_active_at", sa.Double(), nullable=True),
        sa.Column("idle_warned", sa.Boolean(), nullable=False),
        sa.Column("notes", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["workload"], ["workloads.id"], name=op.f("fk_replicas_workload"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("workload", "replica_index", name=op.f("pk_replicas")),
    )


def _leases() -> None:
    op.create_table(
        "leases",
        sa.Column("epoch", BigKey, autoincrement=False, nullable=False),
        sa.Column("workload", sa.String(length=16), nullable=False),
        sa.Column("replica_index", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("user_name", sa.String(length=63), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), nullable=False),
        sa.Column("permille", sa.Integer(), nullable=False),
        sa.Column("granted_at", sa.Double(), nullable=False),
        sa.Column("released_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("epoch", name=op.f("pk_leases")),
    )
    op.create_index("ix_leases_workload", "leases", ["workload"], unique=False)
    op.create_index(
        "uq_leases_unreleased",
        "leases",
        ["workload", "replica_index"],
        unique=True,
        sqlite_where=NOT_RELEASED,
        postgresql_where=NOT_RELEASED,
    )


def _lease_shares() -> None:
    op.create_table(
        "lease_shares",
        sa.Column("epoch", BigKey, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("gpu_index", sa.Integer(), nullable=False),
        sa.Column("permille", sa.Integer(), nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), nullable=False),
        sa.Column("released_at", sa.Double(), nullable=True),
        sa.CheckConstraint("permille BETWEEN 1 AND 1000", name=op.f("ck_lease_shares_permille")),
        sa.ForeignKeyConstraint(["epoch"], ["leases.epoch"], name=op.f("fk_lease_shares_epoch"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("epoch", "position", name=op.f("pk_lease_shares")),
    )
    op.create_index(
        "ix_lease_shares_taken",
        "lease_shares",
        ["gpu_uuid"],
        unique=False,
        sqlite_where=NOT_RELEASED,
        postgresql_where=NOT_RELEASED,
    )


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("id", BigKey, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("workload", sa.String(length=16), nullable=True),
        sa.Column("replica_index", sa.Integer(), nullable=True),
        sa.Column("target", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_workload", "events", ["workload", "id"], unique=False)


def _projects() -> None:
    op.create_table(
        "projects",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("quota_permille", sa.Integer(), nullable=True),
        sa.Column("over_quota", sa.Boolean(), nullable=False),
        sa.Column("limit_permille", sa.Integer(), nullable=True),
        sa.Column("user_limit_permille", sa.Integer(), nullable=True),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("max_time_s", sa.Double(), nullable=True),
        sa.Column("idle_timeout_s", sa.Double(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projects")),
    )


def _users() -> None:
    op.create_table(
        "users",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=True),
        sa.Column("gpu_limit_permille", sa.Integer(), nullable=True),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
    )


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("user_name", sa.String(length=63), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_index("ix_tokens_user_name", "tokens", ["user_name"], unique=False)
    op.create_index("uq_tokens_secret_sha256", "tokens", ["secret_sha256"], unique=True)


def _nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("cordon_reason", sa.Text(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_nodes")),
    )


def _meta() -> None:
    op.create_table(
        "meta",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_meta")),
    )
