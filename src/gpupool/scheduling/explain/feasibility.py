"""Feasibility: whether the nodes of the pool could ever serve a request, checked before it is queued."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest, is_mig, mentions_mig
from gpupool.domain.units import WHOLE_GPU, format_mib
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.explain.formatting import describe_shape, pools_text
from gpupool.scheduling.placement.capacity import Need, capacity
from gpupool.scheduling.placement.mig_sites import may_have_site
from gpupool.scheduling.placement.node_filter import EMPTY, Relax, fitting_rows
from gpupool.scheduling.placement.replica import Placer
from gpupool.scheduling.state.allocation import Ints
from gpupool.scheduling.state.cluster import ALONE, MILLI, Shape, Shapes, domains
from gpupool.scheduling.state.ledger import UNBOUNDED

CREATE_INSTANCE = "an administrator can: nvidia-smi mig -cgi PROFILE -C"


def check_possible(
    placer: Placer, request: GpuRequest, cpus: float = 0.0, memory_mib: int = 0, pools: tuple[str, ...] = ()
) -> None:
    """Raise ``GpupoolError`` if no node, empty and healthy, could serve the request.

    Cordoned nodes and nodes that are down count. ``pools``: only nodes of these pools, if any are named. The code is
    ``UNKNOWN_MODEL`` if no node has such a GPU, and ``IMPOSSIBLE_REQUEST`` if none has enough; the error then names the
    resources of the largest. A card on which the MIG instance could be created suffices.
    """
    shape = Shapes().get(request, cpus, memory_mib, "", pools)
    if len(fitting_rows(placer.cluster, shape, EMPTY)) or may_have_site(placer.cluster, shape):
        return
    if no_such_model(placer, shape):
        models = sorted(present_models(placer))
        has = f"The pool has: {', '.join(models)}." if models else "The pool has no GPUs."
        if any(map(mentions_mig, request.models)):
            has += f" The pool creates no such MIG instance; {CREATE_INSTANCE}."
        raise GpupoolError(ErrorCode.UNKNOWN_MODEL, f"No node has a GPU of model {' or '.join(request.models)}.", has)
    raise GpupoolError(
        ErrorCode.IMPOSSIBLE_REQUEST, f"No node can provide {describe_shape(shape)}.", lacking(placer, shape)
    )


def check_gang_possible(placer: Placer, members: Mapping[Shape, int], gang: Gang) -> None:
    """Raise ``GpupoolError`` if the nodes, empty and healthy, could not hold all members that start together.

    If the gang is strict, they must be in one domain. Unless it may mix models, the GPUs must be of one model.
    ``members``: the number of members of each shape. Members of different shapes are checked one shape after another
    and by their total, not for how they would fit together. The code is ``IMPOSSIBLE_REQUEST``; the error names the
    largest possible number.
    """
    rows = np.flatnonzero(placer.cluster.present)
    domain = domains(placer.cluster, gang.within)[rows] if gang.strict else np.zeros(len(rows), np.int64)
    rows, domain = rows[domain != ALONE], domain[domain != ALONE]
    where = f"Nodes of one {gang.within} have" if gang.strict else "The pool has"
    for shape, count in members.items():
        together = gang.mixed_models or shape.gpuless
        choices = [shape] if together else list(placer.of_one_model(shape).values())
        needs = [Need(choice, placer.accepted(choice), UNBOUNDED, count) for choice in choices]
        most = max((_most_in_one(domain, capacity(placer.cluster, need, rows, EMPTY)) for need in needs), default=0)
        if most < count:
            asked = f"The gang needs {count} x {describe_shape(shape)} at once."
            room = f"{where} room for at most {most} of them when empty"
            mixing = ", on GPUs of one model. Allow several: `--mixed-models`." if len(choices) > 1 else "."
            raise GpupoolError(ErrorCode.IMPOSSIBLE_REQUEST, asked, room + mixing)
    if len(members) > 1:
        _check_together(placer, members, rows, domain, where)


def _check_together(placer: Placer, members: Mapping[Shape, int], rows: Ints, domain: Ints, where: str) -> None:
    c = placer.cluster
    gpus = (c.model[rows] > 0).sum(axis=1) * WHOLE_GPU
    wanted = [(placer.least_permille(s), s.cpu_milli, s.mem_mib) for s in members]
    for what_of, have, each, unit in (
        ("GPUs", gpus, 0, WHOLE_GPU),
        ("CPUs", c.cpu_total[rows], 1, MILLI),
        ("MiB of memory", c.mem_total[rows], 2, 1),
    ):
        need, most = sum(n * w[each] for n, w in zip(members.values(), wanted, strict=True)), _most_in_one(domain, have)
        if need > most:
            asked = f"The gang needs {need / unit:g} {what_of} at once."
            raise GpupoolError(ErrorCode.IMPOSSIBLE_REQUEST, asked, f"{where} {most / unit:g}.")


def _most_in_one(domain: Ints, amount: Ints) -> int:
    return int(np.bincount(domain, amount).max(initial=0)) if len(domain) else 0


def present_models(placer: Placer) -> set[str]:
    """Return the GPU models that the nodes have now."""
    cluster = placer.cluster
    return {cluster.models[number] for number in np.unique(cluster.model).tolist() if number}


def no_such_model(placer: Placer, shape: Shape) -> bool:
    """Return whether a request names a model that no node has."""
    return bool(shape.request.models) and not any(map(shape.request.accepts_model, present_models(placer)))


def lacking(placer: Placer, shape: Shape) -> str:
    """Return a sentence about the missing resources of a request that does not fit on empty nodes."""
    cluster = placer.cluster
    if wanted := _label_in_the_way(placer, shape):
        return f"No node that is large enough {wanted}."
    if len(fitting_rows(cluster, shape, _but(mode=True))):
        return _no_such_mode(placer, shape)
    if len(fitting_rows(cluster, shape, _but(host=True))):
        cpus = int(cluster.cpu_total.max(initial=0)) // 1000
        memory = int(cluster.mem_total.max(initial=0))
        return f"The largest node has {cpus} CPUs and {format_mib(memory)} of memory."
    if not cluster.rows:
        return "The pool has no nodes."
    models = present_models(placer)
    if models and all(map(is_mig, models)) and not any(map(shape.request.accepts_model, models)):
        return f"All GPUs of the pool are MIG instances. Request one by model: {', '.join(sorted(models))}."
    accept = placer.accepted(shape)[cluster.model]
    most, largest = int(accept.sum(axis=1).max(initial=0)), int((cluster.gmem_total * accept).max(initial=0))
    kind = f" of model {' or '.join(shape.request.models)}" if shape.request.models else ""
    return f"The largest node has {most} GPUs{kind}; the largest such GPU has {format_mib(largest)}."


def _label_in_the_way(placer: Placer, shape: Shape) -> str:
    if shape.request.labels and len(fitting_rows(placer.cluster, shape, _but(labels=True))):
        return "has the labels " + ", ".join(f"{name}={value}" for name, value in shape.request.labels)
    if shape.pools and len(fitting_rows(placer.cluster, shape, _but(pools=True))):
        return f"is in {pools_text(shape.pools)}, to which this project is limited"
    return ""


def _no_such_mode(placer: Placer, shape: Shape) -> str:
    if shape.request.exceeds_mode:
        return f"The sharing mode {shape.request.sharing} is for one GPU, or a part of one."
    nodes = [node for node in placer.cluster.nodes if node is not None]
    chosen = sorted({mode.value for node in nodes for mode in node.sharing.values()})
    offered = sorted({mode for node in nodes for mode in node.report.sharing})
    can = f" The nodes support: {', '.join(offered)}." if offered else ""
    policy = f" An administrator has set the mode {', '.join(chosen)} for slices." if chosen else ""
    wanted = f"supports the sharing mode {shape.request.sharing}" if shape.request.sharing else "offers parts of GPUs"
    return f"No node that is large enough {wanted}.{can}{policy}"


def _but(*, labels: bool = False, pools: bool = False, host: bool = False, mode: bool = False) -> Relax:
    return Relax(use=True, state=True, health=True, foreign=True, labels=labels, pools=pools, host=host, mode=mode)
