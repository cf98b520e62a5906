"""Whether a request could ever be served by the nodes of the pool, said before it is queued."""

from __future__ import annotations

import numpy as np

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import GpuRequest, Sharing, is_mig
from gpupool.domain.units import format_mib
from gpupool.scheduling.placement import EMPTY, Placer, Relax, fitting_rows
from gpupool.scheduling.shape import Shape, Shapes
from gpupool.scheduling.words import pools_text, what


def check_possible(
    placer: Placer, request: GpuRequest, cpus: float = 0.0, memory_mib: int = 0, pools: tuple[str, ...] = ()
) -> None:
    """Return if some node, empty and well, could serve the request (cordoned nodes and nodes that are down count).

    ``pools``: on nodes of these pools only, if any are named. Raises ``GpupoolError``: ``UNKNOWN_MODEL`` when no node
    has such a GPU, ``IMPOSSIBLE_REQUEST`` when none has enough, naming what the largest has.
    """
    shape = Shapes().get(request, cpus, memory_mib, "", pools)
    if len(fitting_rows(placer.cluster, shape, EMPTY)):
        return
    if no_such_model(placer, shape):
        models = sorted(present_models(placer))
        raise GpupoolError(
            ErrorCode.UNKNOWN_MODEL,
            f"No node has a GPU of model {' or '.join(request.models)}.",
            f"The pool has: {', '.join(models)}." if models else "The pool has no GPUs.",
        )
    raise GpupoolError(ErrorCode.IMPOSSIBLE_REQUEST, f"No node can ever give {what(shape)}.", lacking(placer, shape))


def present_models(placer: Placer) -> set[str]:
    """The GPU models that the nodes have now."""
    cluster = placer.cluster
    return {cluster.models[number] for number in np.unique(cluster.model).tolist() if number}


def no_such_model(placer: Placer, shape: Shape) -> bool:
    """Whether a model was asked for that no node has."""
    return bool(shape.request.models) and not any(map(shape.request.accepts_model, present_models(placer)))


def lacking(placer: Placer, shape: Shape) -> str:
    """What the nodes lack for a request that does not even fit when they are empty, as a sentence."""
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
        return f"The pool's cards are cut into MIG instances, to be asked for by model: {', '.join(sorted(models))}."
    accept = placer.accepted(shape)[cluster.model]
    most, largest = int(accept.sum(axis=1).max(initial=0)), int((cluster.gmem_total * accept).max(initial=0))
    kind = f" of model {' or '.join(shape.request.models)}" if shape.request.models else ""
    return f"The largest node has {most} GPUs{kind}, the largest such GPU {format_mib(largest)}."


def _label_in_the_way(placer: Placer, shape: Shape) -> str:
    if shape.request.labels and len(fitting_rows(placer.cluster, shape, _but(labels=True))):
        return "has the labels " + ", ".join(f"{name}={value}" for name, value in shape.request.labels)
    if shape.pools and len(fitting_rows(placer.cluster, shape, _but(pools=True))):
        return f"is in {pools_text(shape.pools)}, where this project's work may run"
    return ""


def _no_such_mode(placer: Placer, shape: Shape) -> str:
    if shape.request.sharing is Sharing.MPS and shape.request.count > 1:
        return "By MPS a program can have one GPU only, or a part of one."
    nodes = [node for node in placer.cluster.nodes if node is not None]
    chosen = sorted({mode.value for node in nodes for mode in node.sharing.values()})
    offered = sorted({mode for node in nodes for mode in node.report.sharing})
    can = f" The nodes can share by {', '.join(offered)}." if offered else ""
    policy = f" The administrator has chosen {', '.join(chosen)} for parts of GPUs." if chosen else ""
    wanted = f"shares GPUs in the mode {shape.request.sharing}" if shape.request.sharing else "gives away parts of GPUs"
    return f"No node that is large enough {wanted}.{can}{policy}"


def _but(*, labels: bool = False, pools: bool = False, host: bool = False, mode: bool = False) -> Relax:
    return Relax(use=True, state=True, health=True, foreign=True, labels=labels, pools=pools, host=host, mode=mode)
