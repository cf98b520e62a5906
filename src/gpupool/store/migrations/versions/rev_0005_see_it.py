"""Usage and dashboard: rollups of measurements and leases, browser sessions, addresses for warnings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the tables; the pool itself computes earlier hours from the leases."""
    op.add_column("users", sa.Column("email", sa.Text(), nullable=False, server_default=""))
    op.add_column("workloads", sa.Column("asked_permille", sa.BigInteger(), nullable=True))
    _index_requests()
    _index_events()
    _make_sessions()
    _make_gpu_use()
    _make_replica_use()
    _make_node_use()
    _make_gpu_hours()
    _make_gpu_models()
    _index_leases()


def _index_requests() -> None:
    not_ended = sa.text("state NOT IN ('succeeded', 'failed', 'stopped')")
    columns = ["created_at", "asked_permille", "project", "user_name", "kind", "finished_at", "state", "id"]
    op.create_index("ix_workloads_asked", "workloads", columns, sqlite_where=not_ended, postgresql_where=not_ended)


def _index_events() -> None:
    routine = "'SUBMITTED', 'GRANTED', 'STARTED', 'EXITED', 'RELEASED'"
    partial = {"actor": "actor <> 'pool'", "reason": f"reason NOT IN ({routine})", "target": "target <> ''"}
    op.create_index("ix_events_at", "events", ["at"])
    for column, condition in partial.items():
        where = sa.text(condition)
        op.create_index(f"ix_events_{column}", "events", [column, "at"], sqlite_where=where, postgresql_where=where)


def _make_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        sa.Column("user_name", sa.String(63), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("origin", sa.String(16), nullable=False),
        sa.Column("token_id", sa.String(63), nullable=False, server_default=""),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False, server_default=""),
        sa.Column("peer_uid", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("secret_sha256", name="pk_sessions"),
    )
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
    op.create_index("ix_sessions_user_name", "sessions", ["user_name"])


def _make_gpu_use() -> None:
    op.create_table(
        "gpu_use",
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("step_s", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("busy_s", sa.Double(), nullable=False),
        sa.Column("utilisation_max", sa.Double(), nullable=False),
        sa.Column("memory_mean_mib", sa.Double(), nullable=False),
        sa.Column("memory_max_mib", sa.BigInteger(), nullable=False),
        sa.Column("energy_j", sa.Double(), nullable=True),
        sa.Column("temperature_max_c", sa.Double(), nullable=True),
        sa.Column("sm_clock_mean_mhz", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("gpu_uuid", "step_s", "at", name="pk_gpu_use"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_gpu_use_at", "gpu_use", ["step_s", "at"])


def _make_replica_use() -> None:
    op.create_table(
        "replica_use",
        sa.Column("workload", sa.String(16), nullable=False),
        sa.Column("replica_index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step_s", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("busy_s", sa.Double(), nullable=False),
        sa.Column("idle_s", sa.Double(), nullable=False),
        sa.Column("gpu_memory_mean_mib", sa.Double(), nullable=False),
        sa.Column("gpu_memory_max_mib", sa.BigInteger(), nullable=False),
        sa.Column("cpu_s", sa.Double(), nullable=False),
        sa.Column("memory_max_mib", sa.BigInteger(), nullable=False),
        sa.Column("read_bytes", sa.BigInteger(), nullable=False),
        sa.Column("written_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("workload", "replica_index", "attempt", "step_s", "at", name="pk_replica_use"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_replica_use_at", "replica_use", ["step_s", "at"])


def _make_node_use() -> None:
    op.create_table(
        "node_use",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("step_s", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("cpu_s", sa.Double(), nullable=False),
        sa.Column("memory_mean_mib", sa.Double(), nullable=False),
        sa.Column("memory_max_mib", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("node", "step_s", "at", name="pk_node_use"),
        sqlite_with_rowid=False,
    )


def _make_gpu_hours() -> None:
    op.create_table(
        "gpu_hours",
        sa.Column("family", sa.String(8), nullable=False),
        sa.Column("step_s", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("project", sa.String(63), nullable=False),
        sa.Column("user_name", sa.String(63), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("allocated_s", sa.Double(), nullable=False),
        sa.Column("used_s", sa.Double(), nullable=False),
        sa.Column("idle_s", sa.Double(), nullable=False),
        sa.Column("measured_s", sa.Double(), nullable=False),
        sa.Column("requested_s", sa.Double(), nullable=False),
        sa.Column("leases", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("family", "step_s", "at", "project", "user_name", "node", "model", name="pk_gpu_hours"),
        sqlite_with_rowid=False,
    )


def _make_gpu_models() -> None:
    op.create_table(
        "gpu_models",
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("gpu_uuid", name="pk_gpu_models"),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name == "sqlite":  # SQLite was the only database then
        op.execute(
            "INSERT INTO gpu_models SELECT json_extract(gpu.value, '$.uuid'), max(json_extract(gpu.value, '$.model')),"
            " max(json_extract(gpu.value, '$.memory_mib'))"
            " FROM nodes, json_each(nodes.report, '$.gpus') AS gpu GROUP BY 1"
        )


def _index_leases() -> None:
    held, wanted = "released_at - granted_at", "finished_at - created_at"
    long = {
        "ix_leases_long_held": ("leases", "granted_at", f"{held} > 86400 AND {held} <= 1209600"),
        "ix_leases_longer_held": ("leases", "released_at", f"{held} > 1209600"),
        "ix_workloads_long_wanted": ("workloads", "created_at", f"{wanted} > 86400 AND {wanted} <= 1209600"),
        "ix_workloads_longer_wanted": ("workloads", "finished_at", f"{wanted} > 1209600"),
    }
    for name, (table, column, condition) in long.items():
        where = sa.text(condition)
        op.create_index(name, table, [column], sqlite_where=where, postgresql_where=where)
