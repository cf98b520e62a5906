"""The guarded transaction: all of a ``ChangeSet`` or nothing, and never a GPU given twice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from sqlalchemy import Connection, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from gpupool.domain.errors import ErrorCode
from gpupool.domain.events import Event
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.workload import Lease, Replica, Workload
from gpupool.services.ports import ChangeSet
from gpupool.store import faults, mapping
from gpupool.store import tables as t
from gpupool.store.database import count_matched, insert_all

GPUS_PER_CHECK = 1_000  # below the bound of parameters of every database


class Versioned(Protocol):
    """A value whose writes are counted."""

    @property
    def version(self) -> int:
        """How often it has been written."""


V = TypeVar("V", bound=Versioned)

_insert_workload = insert(t.workloads)
_insert_label = insert(t.workload_labels)
_insert_replica = insert(t.replicas)
_insert_lease = insert(t.leases)
_insert_share = insert(t.lease_shares)
_insert_event = insert(t.events)
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
    """Write the changes; the id of the last event, 0 when there was none.

    Raises ``GpupoolError``: STALE_WRITE when a version, an epoch or a GPU's capacity no longer fits, NAME_TAKEN.
    The caller's transaction must be rolled back then.
    """
    try:
        _write_workloads(conn, changes.workloads)
        _write_replicas(conn, changes.replicas)
        _write_leases(conn, changes.leases)
    except IntegrityError as error:
        raise _name_of(error, changes) from error
    return append_events(conn, changes.events)


def append_events(conn: Connection, events: Sequence[Event]) -> int:
    """Write events in order; the id of the last, 0 for none."""
    if len(events) == 1:
        key = conn.execute(_insert_event, mapping.event_row(events[0])).inserted_primary_key
        return int(key[0]) if key else 0
    insert_all(conn, _insert_event, [mapping.event_row(event) for event in events])
    return conn.execute(select(func.max(t.events.c.id))).scalar_one() if events else 0


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
    """What to update (with the first of its new versions) and what to insert; writes in a row become one."""
    first: dict[Hashable, int] = {}
    last: dict[Hashable, V] = {}
    for value in values:
        at = key(value)
        if at in last and value.version != last[at].version + 1:
            raise faults.stale(f"Two writes of one change contradict each other ({at}).")
        first.setdefault(at, value.version)
        last[at] = value
    old = [(first[at], value) for at, value in last.items() if first[at] > 0]
    return old, [value for at, value in last.items() if first[at] == 0]


def _expect(matched: int, rows: Sequence[object]) -> None:
    if matched != len(rows):
        raise faults.stale(f"{len(rows) - matched} of {len(rows)} rows have been written by somebody else meanwhile.")


def _write_leases(conn: Connection, leases: Sequence[Lease]) -> None:
    by_epoch = {lease.epoch: lease for lease in leases}.values()
    ended = [lease for lease in by_epoch if lease.released_at is not None]
    never_stored = _release(conn, ended)
    granted = [lease for lease in by_epoch if lease.released_at is None]
    stored = [*never_stored, *granted]
    insert_all(conn, _insert_lease, [mapping.lease_row(lease) for lease in stored])
    insert_all(conn, _insert_share, [row for lease in stored for row in mapping.share_rows(lease)])
    _check_capacity(conn, {share.gpu_uuid for lease in granted for share in lease.shares})


def _release(conn: Connection, leases: Sequence[Lease]) -> list[Lease]:
    """Note the end of leases; gives back those that were granted and released before anybody wrote them."""
    rows = [{"at_epoch": lease.epoch, "released_at": lease.released_at} for lease in leases]
    if not rows:
        return []
    missed = len(rows) - count_matched(conn, _release_lease, rows)
    conn.execute(_release_shares, rows)
    if not missed:
        return []
    return _not_stored(conn, leases, missed)


def _not_stored(conn: Connection, leases: Sequence[Lease], missed: int) -> list[Lease]:
    known: set[int] = set()
    for lease in leases:
        known.update(conn.execute(select(t.leases.c.epoch).where(t.leases.c.epoch == lease.epoch)).scalars())
    fresh = [lease for lease in leases if lease.epoch not in known]
    if len(fresh) != missed:
        raise faults.stale("A lease has been released before.")
    return fresh


def _check_capacity(conn: Connection, gpus: set[str]) -> None:
    """The last net under the scheduler: no GPU holds more than one whole."""
    wanted = sorted(gpus)
    for start in range(0, len(wanted), GPUS_PER_CHECK):
        chunk = wanted[start : start + GPUS_PER_CHECK]
        for gpu, permille in conn.execute(_overfull, {"gpus": chunk}):
            raise faults.stale(f"GPU {gpu} would be leased to {permille} of its {WHOLE_GPU} thousandths.")


def _name_of(error: IntegrityError, changes: ChangeSet) -> Exception:
    """A refused name is said with the name when only one can be meant."""
    refused = faults.refused(str(error.orig))
    named = [w for w in changes.workloads if not w.state.final and w.deleted_at is None]
    if refused.code is ErrorCode.NAME_TAKEN and len(named) == 1:
        return faults.name_taken(named[0].name, named[0].project)
    return refused
