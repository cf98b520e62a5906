"""Node filter: the nodes and GPUs that fit a shape, with all rules or without some, and its sharing mode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpupool.domain.nodes.gpu import POOL_LABEL, Node
from gpupool.domain.nodes.sharing import Sharing, mode_of_whole, traits_of
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.sharing_policy import slice_mode
from gpupool.scheduling.state.allocation import Bools, Ints
from gpupool.scheduling.state.cluster import ClusterState, Shape
from gpupool.scheduling.state.sharing_modes import REFUSED, hosts_only, marks_by_code


@dataclass(frozen=True, slots=True)
class Relax:
    """Rules that a search of the cluster can omit, to find the rule that prevents a placement."""

    use: bool = False  # allocations of other work
    state: bool = False  # cordoned and down nodes, cordoned GPUs
    health: bool = False
    foreign: bool = False
    host: bool = False  # CPU and memory
    model: bool = False
    labels: bool = False
    pools: bool = False  # the nodes that the project's rules name
    mode: bool = False  # the sharing modes of GPUs
    reservations: bool = False  # holds and reservations for other work


STRICT = Relax()
EMPTY = Relax(use=True, state=True, health=True, foreign=True, reservations=True)  # could it ever fit?


def mode_on(c: ClusterState, shape: Shape, row: int, gpu: Ints) -> str:
    """Return the mode that a shape gets on some GPUs of a node, ``gpu`` thousandths of each."""
    if shape.request.sharing is not None:
        return shape.request.sharing.value
    used = np.flatnonzero(gpu)
    if not len(used):
        return ""
    node, gpus = c.nodes[row], c.gpus[row]
    if node is None:
        return ""
    if shape.whole or (gpu[used] >= WHOLE_GPU).all():
        instances = all(gpus[slot].mig_profile for slot in used.tolist())
        instances = instances and _can(node, mode_of_whole(partitioned=True))
        return mode_of_whole(partitioned=instances).value
    return slice_mode("", node.policy_of(gpus[int(used[0])].uuid) or "", node.report.sharing) or ""


def mode_fits(c: ClusterState, shape: Shape, rows: Ints, guests: Ints | None) -> Bools:
    """Return which GPUs of ``rows`` a shape may share, given the marks of their guests (None: no guests); [R, G]."""
    if shape.whole and shape.mode is None:
        return np.ones((len(rows), c.slots), np.bool_)
    defaults = c.mode_default[rows]
    if shape.mode is not None:
        ok = _insists(c, shape, rows)
    elif shape.request.count > 1:
        ok = (defaults == c.mode_common[rows][:, None]) & (defaults != REFUSED)
    else:
        ok = defaults != REFUSED
    if guests is not None and not shape.whole:
        marks = marks_by_code(shape.user)
        ok = ok & hosts_only(guests, marks[defaults] if shape.mode is None else int(marks[shape.mode]))
    return np.asarray(ok)


def _insists(c: ClusterState, shape: Shape, rows: Ints) -> Bools:
    """Return where the required mode of a shape is available; policies apply to parts of GPUs, not to whole ones."""
    wanted = shape.request.sharing
    if shape.request.exceeds_mode:
        return np.zeros((len(rows), c.slots), np.bool_)
    if not shape.whole:
        return np.asarray((c.mode_open[rows] >> (shape.mode or 0)) & 1 != 0)
    if wanted is None or traits_of(wanted).on_every_node:
        return np.ones((len(rows), c.slots), np.bool_)
    nodes = [c.nodes[row] if row < len(c.nodes) else None for row in rows.tolist()]
    offers = np.array([node is not None and _can(node, wanted) for node in nodes], np.bool_)
    return np.repeat(offers[:, None], c.slots, axis=1)


def _can(node: Node, mode: Sharing) -> bool:
    """Return whether a node can use a mode; a node that reports no modes is taken to have all."""
    return not node.report.sharing or mode in node.report.sharing


def accepted_models(cluster: ClusterState, shape: Shape) -> Bools:
    """Return for each model number whether a shape accepts it."""
    accepts = shape.request.accepts_model if not shape.model else shape.model.__eq__
    return np.array([False] + [accepts(model) for model in cluster.models[1:]], dtype=np.bool_)


def accepted_gpus(c: ClusterState, shape: Shape, accept: Bools, rows: Ints) -> Bools:
    """Return which GPUs of ``rows`` are of an accepted model, and the one that a shape names if it does: [R, G]."""
    ok = np.asarray(accept[c.model[rows]])
    if shape.request.gpu_uuid:
        for at, row in enumerate(rows.tolist()):
            slot = c.slot_of(row, shape.request.gpu_uuid)
            ok[at] &= np.arange(c.slots) == (-1 if slot is None else slot)
    return ok


def usable_slots(
    c: ClusterState, shape: Shape, rows: Ints, accept: Bools, budget: int | None = None, relax: Relax = STRICT
) -> tuple[Bools, Ints]:
    """Return which GPUs of ``rows`` fit a shape, and the thousandths each would have left: [R, G] both."""
    total = c.gmem_total[rows]
    need, mem = shape.needs(total)
    free, gmem = (np.full_like(total, WHOLE_GPU), total) if relax.use else (c.gpu_free[rows], c.gmem_free[rows])
    ok = suitable_slots(c, shape, rows, accept, relax)
    ok &= free >= need
    ok &= gmem >= mem
    if budget is not None:
        ok &= need * shape.request.count <= budget
    return ok, free - need


def suitable_slots(c: ClusterState, shape: Shape, rows: Ints, accept: Bools, relax: Relax = STRICT) -> Bools:
    """Return which GPUs of ``rows`` a shape may use, however much of them is free, [R, G]."""
    ok = (c.model[rows] > 0) if relax.model else accepted_gpus(c, shape, accept, rows)
    if not relax.health and not relax.foreign and not relax.state:
        ok &= c.available[rows]
    else:
        ok &= c.healthy[rows] | relax.health
        ok &= ~c.foreign[rows] | relax.foreign
        ok &= ~c.cordoned[rows] | relax.state
    if not relax.mode and (shape.mode is not None or not shape.whole):
        ok &= mode_fits(c, shape, rows, None if relax.use else c.guests[rows])
    return ok


def usable_rows(c: ClusterState, shape: Shape, rows: Ints, ok: Bools, relax: Relax = STRICT) -> Bools:
    """Return which of ``rows`` fit a shape, given their usable slots."""
    fits = suitable_rows(c, shape, rows, relax) & (ok.sum(axis=1) >= shape.request.count)
    if not relax.host:
        cpu, mem = (c.cpu_total, c.mem_total) if relax.use else (c.cpu_free, c.mem_free)
        if shape.cpu_milli:
            fits &= cpu[rows] >= shape.cpu_milli
        if shape.mem_mib:
            fits &= mem[rows] >= shape.mem_mib
    return np.asarray(fits)


def suitable_rows(c: ClusterState, shape: Shape, rows: Ints, relax: Relax = STRICT) -> Bools:
    """Return which of ``rows`` a shape may use, however much of them is free."""
    fits = c.present[rows] if relax.state else c.present[rows] & c.up[rows]
    if shape.guest is not None and not relax.reservations:
        fits &= c.open_to(shape.guest, rows)
    if shape.picky:
        fits &= np.array([labelled(c, row, shape, relax) for row in rows.tolist()], dtype=np.bool_)
    return np.asarray(fits)


def labelled(c: ClusterState, row: int, shape: Shape, relax: Relax = STRICT) -> bool:
    """Return whether a node has the labels of a shape, and is in a pool where it may run."""
    node = c.nodes[row] if row < len(c.nodes) else None  # rows beyond are spare
    if node is None:
        return False
    wanted = () if relax.labels else shape.request.labels
    in_pool = relax.pools or not shape.pools or node.all_labels.get(POOL_LABEL) in shape.pools
    return in_pool and all(node.has_label(label, value) for label, value in wanted)


def fitting_rows(c: ClusterState, shape: Shape, relax: Relax = STRICT) -> Ints:
    """Return the rows where a shape would fit without some rules."""
    rows = np.flatnonzero(c.present)
    ok, _ = usable_slots(c, shape, rows, accepted_models(c, shape), None, relax)
    return rows[usable_rows(c, shape, rows, ok, relax)]
