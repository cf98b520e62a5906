"""Suggestions that would let a waiting replica start: variants of its request, tried against the current cluster.

Each trial is one search for a place; there are a handful of them, however large the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

import numpy as np

from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.units import WHOLE_GPU, format_duration, format_mib, format_permille
from gpupool.scheduling.explain.wait_case import Case
from gpupool.scheduling.holds.runtime_model import Foreseen
from gpupool.scheduling.placement.node_filter import Relax, fitting_rows, usable_slots
from gpupool.scheduling.state.cluster import MILLI
from gpupool.scheduling.values import HoldKind, ReplicaKey

STEP_PERMILLE = 10  # smaller parts are offered in hundredths
STEP_MIB = 256
MAX_NAMED = 3  # replicas named in a sentence, and labels tried


def suggestions(case: Case, foreseen: Foreseen | None, name: Callable[[ReplicaKey], str]) -> tuple[str, ...]:
    """Return sentences for the user, each true at this moment; with ``foreseen``, also the ends that make room."""
    sooner = tuple(_sooner(case)) if case.size == 1 else ()
    return (*sooner, *_first_to_end(case, foreseen, name)) if foreseen is not None else sooner


def _sooner(case: Case) -> Iterator[str]:
    for try_ in (_time_limit, _preemptible, _smaller, _fewer_gpus, _other_models, _without_labels, _smaller_host):
        yield from try_(case)


def _node_for(case: Case, request: GpuRequest | None = None, host: tuple[int, int] | None = None) -> str | None:
    """Return the node on which a variant of its shape would start now, or None; ``host``: CPU and memory."""
    cpu, mem = host or (case.shape.cpu_milli, case.shape.mem_mib)
    shape = replace(case.shape, request=request or case.shape.request, cpu_milli=cpu, mem_mib=mem)
    claim = case.session.find(shape, case.account)
    return None if claim is None else case.cluster.name_of(claim.row)


def _time_limit(case: Case) -> Iterator[str]:
    """Suggest a time limit with which it could run on GPUs that are held for a later start."""
    session, now = case.session, case.session.now
    kept = [
        g for key, g in session.holds.active.items() if g.hold.kind is HoldKind.RESERVED and key != case.replica.key
    ]
    moments = sorted({g.hold.starts_at for g in kept if now < g.hold.starts_at < inf}, reverse=True)
    for starts_at in moments:
        limit = case.replica.max_time_s
        if limit is not None and limit <= starts_at - now:
            return
        mark = session.log.checkpoint()
        for active in kept:
            if active.hold.starts_at >= starts_at:
                case.cluster.discharge(active.claim)
        node = _node_for(case)
        session.log.rollback(mark)
        if node is not None:
            under = format_duration(starts_at - now)
            yield f"set a time limit under {under}: fits now on {node} as backfill"
            return


def _preemptible(case: Case) -> Iterator[str]:
    """Suggest preemptible training, which may exceed the quota."""
    replica = case.replica
    if replica.preemptible:
        return
    account = case.session.ledger.account(replica.project, replica.user, preemptible=True)
    if case.need <= case.session.ledger.room(case.account):
        return
    claim = case.session.find(case.shape, account)
    if claim is not None:
        node = case.cluster.name_of(claim.row)
        yield f"submit it as preemptible training, which may exceed the quota: fits now on {node}"


def _smaller(case: Case) -> Iterator[str]:
    """Suggest a smaller part of a GPU, if it requests parts or one GPU."""
    request = case.shape.request
    if request.count > 1 and case.shape.whole:
        return
    if request.memory_mib is not None:
        yield from _less_memory(case, request)
        return
    part = case.most_free_parts() // STEP_PERMILLE * STEP_PERMILLE
    if 0 < part < request.permille:
        node = _node_for(case, replace(request, permille=part))
        if node is not None:
            each = " each" if request.count > 1 else ""
            yield f"request {_short(part)} instead of {_short(request.permille)}{each}: fits now on {node}"


def _short(permille: int) -> str:
    """Return thousandths as GPUs: ``0.3``, ``0.25``, ``1``."""
    return f"{permille / WHOLE_GPU:g}"


def _less_memory(case: Case, request: GpuRequest) -> Iterator[str]:
    c, shape = case.cluster, case.shape
    rows = np.flatnonzero(c.present & c.up)
    ok = case.usable(rows)
    share = np.clip(c.gpu_free[rows], 0, WHOLE_GPU) * c.gmem_total[rows] // WHOLE_GPU
    room = np.where(ok, np.minimum(share, c.gmem_free[rows]), 0)
    count = min(shape.request.count, room.shape[1])
    mib = int(np.sort(room, axis=1)[:, ::-1][:, count - 1].max(initial=0)) // STEP_MIB * STEP_MIB
    if 0 < mib < (request.memory_mib or 0):
        node = _node_for(case, replace(request, memory_mib=mib))
        if node is not None:
            yield f"request {format_mib(mib)} instead of {format_mib(request.memory_mib or 0)}: fits now on {node}"


def _fewer_gpus(case: Case) -> Iterator[str]:
    request = case.shape.request
    if request.count == 1:
        return
    c = case.cluster
    rows = fitting_rows(c, replace(case.shape, request=replace(request, count=1)))
    if not len(rows):
        return
    ok, _ = usable_slots(c, case.shape, rows, case.placer.accepted(case.shape))
    count = min(int(ok.sum(axis=1).max(initial=0)), request.count - 1)
    node = _node_for(case, replace(request, count=count)) if count else None
    if node is not None:
        yield f"request {count} GPU{'s' if count > 1 else ''} instead of {request.count}: fits now on {node}"


def _other_models(case: Case) -> Iterator[str]:
    request = case.shape.request
    if not request.models:
        return
    shape = replace(case.shape, request=replace(request, models=()))
    claim = case.session.find(shape, case.account)
    if claim is not None:
        model = case.cluster.gpus[claim.row][int(np.flatnonzero(claim.gpu)[0])].model
        yield f"also accept the model {model}: fits now on {case.cluster.name_of(claim.row)}"


def _without_labels(case: Case) -> Iterator[str]:
    request = case.shape.request
    for number, (label, value) in enumerate(request.labels[:MAX_NAMED]):
        rest = request.labels[:number] + request.labels[number + 1 :]
        node = _node_for(case, replace(request, labels=rest))
        if node is not None:
            yield f"remove the label {label}={value}: fits now on {node}"


def _smaller_host(case: Case) -> Iterator[str]:
    """Suggest less CPU and memory."""
    c, shape = case.cluster, case.shape
    rows = fitting_rows(c, shape, Relax(host=True))
    if not len(rows) or len(fitting_rows(c, shape)):
        return
    parts = [c.cpu_free[rows] / max(shape.cpu_milli, 1)] if shape.cpu_milli else []
    parts += [c.mem_free[rows] / max(shape.mem_mib, 1)] if shape.mem_mib else []
    row = int(rows[np.clip(np.minimum.reduce(parts), None, 1.0).argmax()])
    cpu = min(shape.cpu_milli, max(int(c.cpu_free[row]) // MILLI * MILLI, 0))
    mem = min(shape.mem_mib, max(int(c.mem_free[row]), 0))
    if (shape.cpu_milli and not cpu) or (shape.mem_mib and not mem):
        return
    node = _node_for(case, host=(cpu, mem))
    if node is not None:
        asked = [f"{cpu // MILLI} CPUs instead of {shape.cpu_milli / MILLI:g}"] if cpu < shape.cpu_milli else []
        asked += [f"{format_mib(mem)} of memory instead of {format_mib(shape.mem_mib)}"] if mem < shape.mem_mib else []
        yield f"request {' and '.join(asked)}: fits now on {node}"


def _first_to_end(case: Case, foreseen: Foreseen, name: Callable[[ReplicaKey], str]) -> Iterator[str]:
    """Name the replicas whose end would make room first on one node, if no other work took it."""
    found = None if case.shape.gpuless else _soonest_node(case, foreseen)
    if found is None:
        return
    row, slots, until = found
    c = case.cluster
    need, _ = case.shape.needs(c.gmem_total[row])
    short = [int(need[slot] - max(c.gpu_free[row][slot], 0)) for slot in slots]
    missing = sum(part for part in short if part > 0)
    if not missing:
        return
    busy = [slot for slot, part in zip(slots, short, strict=True) if part > 0]
    node = c.name_of(row)
    on_them = [key for key in sorted(c.on_node(node)) if key in c.claims and (c.claims[key].gpu[busy] > 0).any()]
    names = [name(key) for key in on_them]
    if not names:  # held for other work
        return
    shown = " and ".join(names) if len(names) <= 2 else f"{', '.join(names[:MAX_NAMED])}"
    shown += f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    amount = f"{missing // WHOLE_GPU}" if missing % WHOLE_GPU == 0 else format_permille(missing)
    units = "GPU" if amount == "1" or missing < WHOLE_GPU else "GPUs"
    together = " on one node" if case.shape.request.count > 1 else ""
    verb = "ends" if len(names) == 1 else "end"
    when = f", in about {format_duration(until - case.session.now)}" if until > case.session.now else ""
    yield f"{amount} more {units}{together}: {shown} on node {node} {verb} first{when}"


def _soonest_node(case: Case, foreseen: Foreseen) -> tuple[int, list[int], float] | None:
    """Return the node, its GPUs and the moment at which they are likely to be free; None when unknown."""
    c, shape, now = case.cluster, case.shape, case.session.now
    rows = fitting_rows(c, shape, Relax(use=True))
    if not len(rows):
        return None
    ok, _ = usable_slots(c, shape, rows, case.placer.accepted(shape), None, Relax(use=True))
    need, _ = shape.needs(c.gmem_total[rows])
    until = foreseen.busy_until(now)[rows]
    whens = np.where(ok, np.where(c.gpu_free[rows] >= need, now, until), inf)
    order = np.argsort(whens, axis=1, kind="stable")[:, : shape.request.count]
    last = np.take_along_axis(whens, order, axis=1)[:, -1]
    busy = np.take_along_axis(c.gpu_free[rows] < need, order, axis=1).sum(axis=1)
    best = int(np.lexsort((busy, last))[0])
    return None if last[best] == inf else (int(rows[best]), order[best].tolist(), float(last[best]))
