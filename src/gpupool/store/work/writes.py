"""The guarded transaction: writes a whole ``ChangeSet`` or nothing, and never leases a GPU twice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from sqlalchemy import Connection, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from gpupool.domain.errors import ErrorCode
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.workload import GpuLease, Replica, Workload
from gpupool.services.ports.store import ChangeSet
from gpupool.store.backends import errors
from gpupool.store.backends.database import count_matched, insert_all
from gpupool.store.events import append_events
from gpupool.store.pool.rows import SERVICES, WORKSPACES
from gpupool.store.schema import tables as t
from gpupool.store.work import mapping

GPUS_PER_CHECK = 1_000  # below the parameter limit of every database


class Versioned(Protocol):
    """A value whose writes are counted."""

    @property
    def version(self) -> int:
        """Return the number of its writes."""


V = TypeVar("V", bound=Versioned)

_insert_workload = insert(t.workloads)
_insert_label = insert(t.workload_labels)
_insert_replica = insert(t.replicas)
_insert_lease = insert(t.leases)
_insert_share = insert(t.lease_shares)
_update_workload = update(t.workloads).where(
    t.workloads.c.id == bindparam("at_id"), t.workloads.c.version == bindparam("at_version")
)
_drop_labels = t.workload_labels.delete().where(t.workload_labels.c.workload == bindparam("at_id"))
_update_replica = update(t.replicas).where(
    t.replicas.c.workload == bindparam("at_id"),
    t.replicas.c.replica_index == bindparam("at_index"),
    t.replicas.c.version == bindparam("at_version"),
)
_release_lease = update(t.leases).where(t.leases.c.epoch == bindparam("at_epoch"), t.leases.c.released_at.is_(None))
_release_shares = update(t.lease_shares).where(t.lease_shares.c.epoch == bindparam("at_epoch"))
_overfull = (
    select(t.lease_shares.c.gpu_uuid, func.sum(t.lease_shares.c.permille))
    .where(t.lease_shares.c.released_at.is_(None), t.lease_shares.c.gpu_uuid.in_(bindparam("gpus", expanding=True)))
    .group_by(t.lease_shares.c.gpu_uuid)
    .having(func.sum(t.lease_shares.c.permille) > WHOLE_GPU)
)


def apply(conn: Connection, changes: ChangeSet) -> int:
    """Write the changes; return the id of the last event, 0 if there was none.

    Raises ``GpupoolError``: STALE_WRITE if a version, an epoch or a GPU's capacity conflicts, NAME_TAKEN. The caller
    must then roll the transaction back.
    """
    try:
        _write_workloads(conn, changes.workloads)
        _write_replicas(conn, changes.replicas)
        _write_leases(conn, changes.leases)
    except IntegrityError as error:
        raise _name_of(error, changes) from error
    for workspace in changes.workspaces:
        WORKSPACES.save(conn, workspace)
    for service in changes.services:
        SERVICES.save(conn, service)
    return append_events(conn, changes.events)


def _write_workloads(conn: Connection, workloads: Sequence[Workload]) -> None:
    old, new = _plan(workloads, lambda w: w.id)
    rows = [{**mapping.workload_row(w), "at_id": w.id, "at_version": base - 1} for base, w in old]
    _expect(count_matched(conn, _update_workload, rows), old)
    insert_all(conn, _insert_workload, [mapping.workload_row(w) for w in new])
    if old:
        conn.execute(_drop_labels, [{"at_id": w.id} for _, w in old])
    labelled = (*new, *(w for _, w in old))
    insert_all(conn, _insert_label, [row for w in labelled for row in mapping.label_rows(w)])


def _write_replicas(conn: Connection, replicas: Sequence[Replica]) -> None:
    old, new = _plan(replicas, lambda r: (r.workload, r.index))
    rows = [
        {**mapping.replica_row(r), "at_id": r.workload, "at_index": r.index, "at_version": base - 1} for base, r in old
    ]
    _expect(count_matched(conn, _update_replica, rows), old)
    insert_all(conn, _insert_replica, [mapping.replica_row(r) for r in new])


def _plan(values: Iterable[V], key: Callable[[V], Hashable]) -> tuple[list[tuple[int, V]], list[V]]:
    """Return the updates (each with the first of its new versions) and the inserts; consecutive writes are merged."""
    first: dict[Hashable, int] = {}
    last: dict[Hashable, V] = {}
    for value in values:
        at = key(value)
        if at in last and value.version != last[at].version + 1:
            raise errors.stale(f"Two writes of one change conflict ({at}).")
        first.setdefault(at, value.version)
        last[at] = value
    old = [(first[at], value) for at, value in last.items() if first[at] > 0]
    return old, [value for at, value in last.items() if first[at] == 0]


def _expect(matched: int, rows: Sequence[object]) -> None:
    if matched != len(rows):
        raise errors.stale(f"{len(rows) - matched} of {len(rows)} rows were changed by another writer.")


def _write_leases(conn: Connection, leases: Sequence[GpuLease]) -> None:
    by_epoch = {lease.epoch: lease for lease in leases}.values()
    ended = [lease for lease in by_epoch if lease.released_at is not None]
    never_stored = _release(conn, ended)
    granted = [lease for lease in by_epoch if lease.released_at is None]
    stored = [*never_stored, *granted]
    insert_all(conn, _insert_lease, [mapping.lease_row(lease) for lease in stored])
    insert_all(conn, _insert_share, [row for lease in stored for row in mapping.share_rows(lease)])
    _check_capacity(conn, {share.gpu_uuid for lease in granted for share in lease.shares})


def _release(conn: Connection, leases: Sequence[GpuLease]) -> list[GpuLease]:
    """Record the end of leases; return those that were granted and released before their first write."""
    rows = [{"at_epoch": lease.epoch, "released_at": lease.released_at} for lease in leases]
    if not rows:
        return []
    ends = [{**row, "lost_s": lease.lost_s} for row, lease in zip(rows, leases, strict=True)]
    missed = len(rows) - count_matched(conn, _release_lease, ends)
    conn.execute(_release_shares, rows)
    if not missed:
        return []
    return _not_stored(conn, leases, missed)


def _not_stored(conn: Connection, leases: Sequence[GpuLease], missed: int) -> list[GpuLease]:
    known: set[int] = set()
    for lease in leases:
        known.update(conn.execute(select(t.leases.c.epoch).where(t.leases.c.epoch == lease.epoch)).scalars())
    fresh = [lease for lease in leases if lease.epoch not in known]
    if len(fresh) != missed:
        raise errors.stale("A lease is already released.")
    return fresh


def _check_capacity(conn: Connection, gpus: set[str]) -> None:
    """Raise STALE_WRITE if a GPU would be leased beyond its capacity: the last check behind the scheduler."""
    wanted = sorted(gpus)
    for start in range(0, len(wanted), GPUS_PER_CHECK):
        chunk = wanted[start : start + GPUS_PER_CHECK]
        for gpu, permille in conn.execute(_overfull, {"gpus": chunk}):
            raise errors.stale(f"GPU {gpu} would be leased to {permille} of its {WHOLE_GPU} thousandths.")


def _name_of(error: IntegrityError, changes: ChangeSet) -> Exception:
    """Return the error of a taken name, with the name if only one is possible."""
    refused = errors.refused(str(error.orig))
    named = [w for w in changes.workloads if not w.state.final and w.deleted_at is None]
    if refused.code is ErrorCode.NAME_TAKEN and len(named) == 1:
        return errors.name_taken(named[0].name, named[0].project)
    return refused
