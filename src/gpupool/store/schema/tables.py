"""The present schema; the migrations lead to exactly this (a test compares them).

Values that a listing filters or sorts by are columns; all others are in one JSON document. Times are seconds since the
epoch. Portable SQL only: SQLite and PostgreSQL have the same tables.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    false,
    text,
)

from gpupool.domain.work.workload import WorkloadState

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=NAMING)

BigKey = BigInteger().with_variant(Integer(), "sqlite")  # only INTEGER is SQLite's 64-bit row key

# Used in partial indexes and repeated literally in queries, so that the planner recognises them.
FINAL_STATES = ", ".join(f"'{state.value}'" for state in WorkloadState if state.final)
NOT_ENDED = text(f"state NOT IN ({FINAL_STATES})")
HOLDS_NAME = text(f"state NOT IN ({FINAL_STATES}) AND deleted_at IS NULL")
NOT_RELEASED = text("released_at IS NULL")
LOST_WORK = text("lost_s > 0")
BY_SOMEBODY = text("actor <> 'pool'")  # most events have the pool as actor: those need no index
NOT_ROUTINE = text("reason NOT IN ('SUBMITTED', 'GRANTED', 'STARTED', 'EXITED', 'RELEASED')")
HAS_TARGET = text("target <> ''")

workloads = Table(
    "workloads",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("project", String(63), nullable=False),
    Column("user_name", String(63), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("suspended", Boolean, nullable=False),
    Column("stop_reason", String(32)),
    Column("request_id", Text),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("deleted_at", Double),
    Column("version", Integer, nullable=False),
    Column("dependencies", JSON(none_as_null=True)),
    Column("spec", JSON, nullable=False),
    Column("asked_permille", BigInteger),  # of all replicas that may run together; null: see the spec
    Index("uq_workloads_request_id", "request_id", unique=True),
    Index(
        "uq_workloads_live_name", "project", "name", unique=True, sqlite_where=HOLDS_NAME, postgresql_where=HOLDS_NAME
    ),
    Index("ix_workloads_not_ended", "created_at", "id", sqlite_where=NOT_ENDED, postgresql_where=NOT_ENDED),
    Index(  # the requests of live workloads, readable from the index alone
        "ix_workloads_asked",
        *("created_at", "asked_permille", "project", "user_name", "kind", "finished_at", "state", "id"),
        sqlite_where=NOT_ENDED,
        postgresql_where=NOT_ENDED,
    ),
    Index("ix_workloads_created_at", "created_at", "id"),
    Index("ix_workloads_state", "state", "created_at", "id"),
    Index("ix_workloads_project", "project", "created_at", "id"),
    Index("ix_workloads_user", "user_name", "created_at", "id"),
    Index("ix_workloads_name", "name", "created_at", "id"),
    Index("ix_workloads_history", "project", "user_name", "finished_at"),
    Index("ix_workloads_waited", "created_at", "kind", "started_at", "finished_at", "project", "user_name"),
    Index("ix_workloads_finished_at", "finished_at"),
)

workload_labels = Table(  # an index of spec["labels"], for listings by label
    "workload_labels",
    metadata,
    Column("workload", String(16), nullable=False, primary_key=True),
    Column("label", Text, nullable=False, primary_key=True),
    Column("value", Text, nullable=False),
    ForeignKeyConstraint(["workload"], ["workloads.id"], ondelete="CASCADE"),
    Index("ix_workload_labels_value", "label", "value", "workload"),
)

replicas = Table(
    "replicas",
    metadata,
    Column("workload", String(16), ForeignKey("workloads.id", ondelete="CASCADE"), primary_key=True),
    Column("replica_index", Integer, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("node", Text),
    Column("lease", BigInteger),
    Column("pid", Integer),
    Column("exit_status", Integer),
    Column("reason", String(32), nullable=False),
    Column("message", Text, nullable=False),
    Column("next_reason", String(32)),
    Column("failures", Integer, nullable=False),
    Column("interruptions", Integer, nullable=False),
    Column("queued_at", Double, nullable=False),
    Column("not_before", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("last_active_at", Double),
    Column("idle_warned", Boolean, nullable=False),
    Column("notes", JSON(none_as_null=True)),
    Column("version", Integer, nullable=False),
    Column("sharing", Text, nullable=False, server_default=""),
    Column("guarantee", Text, nullable=False, server_default=""),
    Column("saved_at", Double),
    Column("step", BigInteger),
    Column("lost_gpu_s", Double, nullable=False, server_default="0"),
    Column("ended_by", Text, nullable=False, server_default=""),
    Column("same_failures", Integer, nullable=False, server_default="0"),
    Column("failed_status", Integer),
    Column("metrics", JSON(none_as_null=True)),
    Column("gpu_wanted_at", Double),
    Column("gpu_lease", BigInteger),
    Column("suspend_asked_at", Double),
    Column("suspended_gpu", Text, nullable=False, server_default=""),
)

leases = Table(
    "leases",
    metadata,
    Column("epoch", BigKey, primary_key=True, autoincrement=False),
    Column("workload", String(16), nullable=False),  # no foreign key: leases outlive their workload's history
    Column("replica_index", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("project", String(63), nullable=False),
    Column("user_name", String(63), nullable=False),
    Column("node", Text, nullable=False),
    Column("cpus", Double, nullable=False),
    Column("memory_mib", BigInteger, nullable=False),
    Column("permille", Integer, nullable=False),  # the sum over its shares
    Column("granted_at", Double, nullable=False),
    Column("released_at", Double),
    Column("sharing", String(32), nullable=False, server_default=""),
    Column("compute", String(16), nullable=False, server_default="guarantee"),
    Column("fence_after_s", Double),
    Column("lost_s", Double, nullable=False, server_default="0"),
    Index("ix_leases_workload", "workload"),
    Index("ix_leases_released_at", "released_at"),
    Index("ix_leases_lost", "released_at", sqlite_where=LOST_WORK, postgresql_where=LOST_WORK),
    Index(
        "uq_leases_unreleased",
        "workload",
        "replica_index",
        unique=True,
        sqlite_where=NOT_RELEASED,
        postgresql_where=NOT_RELEASED,
    ),
)

lease_shares = Table(
    "lease_shares",
    metadata,
    Column("epoch", BigKey, ForeignKey("leases.epoch", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("gpu_uuid", Text, nullable=False),
    Column("gpu_index", Integer, nullable=False),
    Column("permille", Integer, nullable=False),
    Column("memory_mib", BigInteger, nullable=False),
    Column("released_at", Double),  # as on the lease, to find the leases of a GPU
    CheckConstraint("permille BETWEEN 1 AND 1000", name="permille"),
    Index("ix_lease_shares_taken", "gpu_uuid", sqlite_where=NOT_RELEASED, postgresql_where=NOT_RELEASED),
)

events = Table(
    "events",
    metadata,
    Column("id", BigKey, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", String(32), nullable=False),
    Column("message", Text, nullable=False),
    Column("workload", String(16)),
    Column("replica_index", Integer),
    Column("target", Text, nullable=False),
    Index("ix_events_workload", "workload", "id"),
    Index("ix_events_at", "at"),
    Index("ix_events_actor", "actor", "at", sqlite_where=BY_SOMEBODY, postgresql_where=BY_SOMEBODY),
    Index("ix_events_reason", "reason", "at", sqlite_where=NOT_ROUTINE, postgresql_where=NOT_ROUTINE),
    Index("ix_events_target", "target", "at", sqlite_where=HAS_TARGET, postgresql_where=HAS_TARGET),
    sqlite_autoincrement=True,  # an id is never used twice, even after deletions
)

projects = Table(
    "projects",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("quota_permille", Integer),
    Column("over_quota", Boolean, nullable=False),
    Column("limit_permille", Integer),
    Column("user_limit_permille", Integer),
    Column("members", JSON, nullable=False),
    Column("max_time_s", Double),
    Column("idle_timeout_s", Double),
    Column("note", Text, nullable=False),
    Column("compute_default", String(16)),
    Column("compute_allowed", JSON, nullable=False, server_default="[]"),
    Column("sharing_default", String(32)),
    Column("sharing_allowed", JSON, nullable=False, server_default="[]"),
    Column("department", String(63), nullable=False, server_default=""),
    Column("weight", Double, nullable=False, server_default="1"),
    Column("model_quotas", JSON, nullable=False, server_default="[]"),
    Column("rules", JSON, nullable=False, server_default="{}"),
)

departments = Table(
    "departments",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("quota_permille", Integer),
    Column("weight", Double, nullable=False),
    Column("limit_permille", Integer),
    Column("note", Text, nullable=False),
)

bookings = Table(
    "bookings",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("nodes", JSON, nullable=False),
    Column("starts_at", Double, nullable=False),
    Column("ends_at", Double, nullable=False),
    Column("projects", JSON, nullable=False),
    Column("users", JSON, nullable=False),
    Column("lead_s", Double, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("note", Text, nullable=False),
    Index("ix_bookings_ends_at", "ends_at"),
)

workspaces = Table(
    "workspaces",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("user_name", String(63), nullable=False),
    Column("project", String(63), nullable=False),
    Column("node", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("document", JSON, nullable=False),
    Index("uq_workspaces_name", "user_name", "name", unique=True),
)

services = Table(
    "services",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("user_name", String(63), nullable=False),
    Column("project", String(63), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("document", JSON, nullable=False),
    Index("uq_services_name", "project", "name", unique=True),
)

start_estimates = Table(  # estimated starts, and the actual ones
    "start_estimates",
    metadata,
    Column("workload", String(16), primary_key=True),
    Column("project", String(63), nullable=False),
    Column("made_at", Double, nullable=False),
    Column("predicted_s", Double, nullable=False),
    Column("actual_s", Double),
    Index("ix_start_estimates_made_at", "made_at"),
)

users = Table(
    "users",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("uid", BigInteger),
    Column("gpu_limit_permille", Integer),
    Column("disabled", Boolean, nullable=False),
    Column("email", Text, nullable=False, server_default=""),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(63), primary_key=True),
    Column("user_name", String(63), nullable=False),
    Column("secret_sha256", String(64), nullable=False),
    Column("role", String(16), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("revoked_at", Double),
    Column("last_used_at", Double),
    Column("note", Text, nullable=False),
    Column("scope", String(16), nullable=False, server_default="full"),
    Column("parent", String(63), nullable=False, server_default=""),  # a revoked token ends those it created
    Index("uq_tokens_secret_sha256", "secret_sha256", unique=True),
    Index("ix_tokens_user_name", "user_name"),
)

sessions = Table(  # of browsers; only a hash of the cookie is stored
    "sessions",
    metadata,
    Column("secret_sha256", String(64), primary_key=True),
    Column("user_name", String(63), nullable=False),
    Column("role", String(16), nullable=False),  # the upper limit: that of its token or link
    Column("origin", String(16), nullable=False),  # link, token or oidc
    Column("token_id", String(63), nullable=False, server_default=""),  # a revoked token ends its sessions
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("last_used_at", Double, nullable=False),
    Column("agent", Text, nullable=False, server_default=""),
    Column("peer_uid", BigInteger),  # over loopback: the account of the browser; NULL: over TLS
    Column("scope", String(16), nullable=False, server_default="full"),
    Index("ix_sessions_expires_at", "expires_at"),
    Index("ix_sessions_user_name", "user_name"),
)

join_tokens = Table(  # admit machines; only a hash is stored
    "join_tokens",
    metadata,
    Column("id", String(63), primary_key=True),
    Column("secret_sha256", String(64), nullable=False),
    Column("created_by", String(63), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("uses_left", Integer, nullable=False),
    Column("revoked_at", Double),
    Column("note", Text, nullable=False),
    Column("for_head", Boolean, nullable=False, server_default=false()),
    Column("parent", String(63), nullable=False, server_default=""),  # the network token that created it
    Index("uq_join_tokens_secret_sha256", "secret_sha256", unique=True),
)

members = Table(  # machines that joined; only a hash of their secret is stored
    "members",
    metadata,
    Column("node", String(253), primary_key=True),
    Column("secret_sha256", String(64), nullable=False),
    Column("key_sha256", String(64), nullable=False),
    Column("address", Text, nullable=False),
    Column("joined_at", Double, nullable=False),
    Column("token_id", String(63), nullable=False),
)

heads = Table(  # machines that may lead, so that the others find the leader
    "heads",
    metadata,
    Column("name", String(253), primary_key=True),
    Column("url", Text, nullable=False),
    Column("certificate", Text, nullable=False),
    Column("gcs_host", Text, nullable=False),
    Column("gcs_port", Integer, nullable=False),
    Column("added_at", Double, nullable=False),
)

removed_members = Table(  # machines that were removed: their secrets are refused for ever
    "removed_members",
    metadata,
    Column("secret_sha256", String(64), primary_key=True),
    Column("node", String(253), nullable=False),
    Column("removed_at", Double, nullable=False),
    Column("removed_by", Text, nullable=False),
)

head_reports = Table(  # written by standby heads, outside of any term: why each could not take over
    "head_reports",
    metadata,
    Column("name", String(253), primary_key=True),
    Column("reported_at", Double, nullable=False),  # by the clock of the database
    Column("faults", JSON, nullable=False),  # a list of sentences; empty: it could take over
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("cordon_reason", Text, nullable=False),
    Column("report", JSON, nullable=False),
    Column("sharing", JSON, nullable=False, server_default="{}"),
    Column("labels", JSON, nullable=False, server_default="{}"),
    Column("cordoned_gpus", JSON, nullable=False, server_default="{}"),
)

EPOCH_FLOOR = "epoch_floor"  # in ``meta``: the next epoch is above it
RESTORED = "restored_copy"  # in ``meta``: a head that is missing in the copy may lead
meta = Table(  # single values by name
    "meta",
    metadata,
    Column("name", Text().with_variant(String(63), "sqlite"), primary_key=True),
    Column("value", Text, nullable=False),
)

leadership = Table(  # one row: the control plane that may write; writes of an earlier term are refused
    "leadership",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
    Column("leader", Text, nullable=False),  # host and process, for people
    Column("address", Text, nullable=False),  # for clients; empty: reachable on its own machine only
    Column("since", Double, nullable=False),
)
