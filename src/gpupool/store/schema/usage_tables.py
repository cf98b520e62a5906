"""Tables of rollups of measurements and leases; rows begin at multiples of their step since the epoch."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, LargeBinary, String, Table, Text, text

from gpupool.store.schema.tables import BigKey, leases, metadata, workloads

__all__ = [
    "DAY_S",
    "FORTNIGHT_S",
    "LONGER_HELD",
    "LONGER_REQUESTED",
    "LONG_HELD",
    "LONG_REQUESTED",
    "gpu_capacity",
    "gpu_hours",
    "gpu_models",
    "gpu_use",
    "metadata",
    "node_use",
    "replica_use",
    "wait_days",
    "wait_members",
]

gpu_use = Table(  # domain.nodes.telemetry.GpuRollup
    "gpu_use",
    metadata,
    Column("gpu_uuid", Text, primary_key=True),
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("node", Text, nullable=False),
    Column("samples", Integer, nullable=False),
    Column("busy_s", Double, nullable=False),
    Column("utilisation_max", Double, nullable=False),
    Column("memory_mean_mib", Double, nullable=False),
    Column("memory_max_mib", BigInteger, nullable=False),
    Column("energy_j", Double),
    Column("temperature_max_c", Double),
    Column("sm_clock_mean_mhz", Double),
    Index("ix_gpu_use_at", "step_s", "at"),
    sqlite_with_rowid=False,
)

replica_use = Table(  # domain.nodes.telemetry.ReplicaRollup
    "replica_use",
    metadata,
    Column("workload", String(16), primary_key=True),
    Column("replica_index", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("samples", Integer, nullable=False),
    Column("busy_s", Double, nullable=False),
    Column("idle_s", Double, nullable=False),
    Column("gpu_memory_mean_mib", Double, nullable=False),
    Column("gpu_memory_max_mib", BigInteger, nullable=False),
    Column("cpu_s", Double, nullable=False),
    Column("memory_max_mib", BigInteger, nullable=False),
    Column("read_bytes", BigInteger, nullable=False),
    Column("written_bytes", BigInteger, nullable=False),
    Index("ix_replica_use_at", "step_s", "at"),
    sqlite_with_rowid=False,
)

node_use = Table(  # domain.nodes.telemetry.NodeRollup
    "node_use",
    metadata,
    Column("node", Text, primary_key=True),
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("samples", Integer, nullable=False),
    Column("cpu_s", Double, nullable=False),
    Column("memory_mean_mib", Double, nullable=False),
    Column("memory_max_mib", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

gpu_models = Table(  # of every GPU that the pool ever had: leases outlive machines
    "gpu_models",
    metadata,
    Column("gpu_uuid", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("memory_mib", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

gpu_capacity = Table(  # domain.nodes.capacity.GpuCapacity, from ``since_at`` to ``until_at`` (null: until now)
    "gpu_capacity",
    metadata,
    Column("id", BigKey, primary_key=True, autoincrement=True),
    Column("gpu_uuid", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("since_at", Double, nullable=False),
    Column("until_at", Double),
    Index("ix_gpu_capacity_until_at", "until_at", "since_at"),
    Index(
        "uq_gpu_capacity_open",
        "gpu_uuid",
        unique=True,
        sqlite_where=text("until_at IS NULL"),
        postgresql_where=text("until_at IS NULL"),
    ),
)

# Most leases and requests that overlap a time ended within a day after it, or are in the partial indexes below.
DAY_S, FORTNIGHT_S = 86400, 14 * 86400
LONG_HELD = text(f"released_at - granted_at > {DAY_S} AND released_at - granted_at <= {FORTNIGHT_S}")
LONGER_HELD = text(f"released_at - granted_at > {FORTNIGHT_S}")
LONG_REQUESTED = text(f"finished_at - created_at > {DAY_S} AND finished_at - created_at <= {FORTNIGHT_S}")
LONGER_REQUESTED = text(f"finished_at - created_at > {FORTNIGHT_S}")
_held, _wanted = leases.c, workloads.c
Index("ix_leases_long_held", _held.granted_at, sqlite_where=LONG_HELD, postgresql_where=LONG_HELD)
Index("ix_leases_longer_held", _held.released_at, sqlite_where=LONGER_HELD, postgresql_where=LONGER_HELD)
Index("ix_workloads_long_wanted", _wanted.created_at, sqlite_where=LONG_REQUESTED, postgresql_where=LONG_REQUESTED)
Index(
    "ix_workloads_longer_wanted", _wanted.finished_at, sqlite_where=LONGER_REQUESTED, postgresql_where=LONGER_REQUESTED
)

gpu_hours = Table(  # leases summed over past hours (3600), days or weeks, so that a year is summed quickly
    "gpu_hours",
    metadata,
    Column(
        "family", String(8), primary_key=True
    ),  # store.usage.gpu_hours.SumFamily: which of the columns below are the keys
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("project", String(63), primary_key=True),
    Column("user_name", String(63), primary_key=True),
    Column("node", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("allocated_s", Double, nullable=False),  # GPU seconds held, from the leases: exact
    Column("used_s", Double, nullable=False),  # GPU seconds of computing, as measured
    Column("idle_s", Double, nullable=False),  # GPU seconds held by replicas that computed on none of their GPUs
    Column("measured_s", Double, nullable=False),  # the held time with samples
    Column("requested_s", Double, nullable=False),  # requested, from submission to end: with an empty model
    Column("leases", Integer, nullable=False),  # granted in this step
    sqlite_with_rowid=False,
)

wait_members = Table(  # project and user of stored waits
    "wait_members",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # counts from 0 without gaps
    Column("project", String(63), nullable=False),
    Column("user_name", String(63), nullable=False),
)

wait_days = Table(  # the waits of all workloads that were submitted on a past day, see store.usage.wait_days
    "wait_days",
    metadata,
    Column("at", BigInteger, primary_key=True, autoincrement=False),  # the day's begin, UTC
    Column("waits", LargeBinary, nullable=False),  # store.usage.wait_days.RECORD, by submission
    Column("open", Text, nullable=False),  # ids of workloads that waited when the day was stored
)
