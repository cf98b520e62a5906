"""Requests in words."""

from __future__ import annotations

from gpupool.domain.units import format_mib, format_permille
from gpupool.scheduling.state.cluster import Shape


def describe_shape(shape: Shape) -> str:
    """Return the request of a shape: ``0.50 GPU on a T4``, ``4 GPUs on one node``, ``2 x 0.50 GPU on one node``."""
    request = shape.request
    count = request.count
    if shape.gpuless:
        return "a place without a GPU" + _host(shape)
    if request.memory_mib is not None:
        gpus = (
            f"{format_mib(request.memory_mib)} of a GPU"
            if count == 1
            else f"{count} x {format_mib(request.memory_mib)}"
        )
    elif shape.whole:
        gpus = "1 GPU" if count == 1 else f"{count} GPUs"
    else:
        gpus = (
            f"{format_permille(request.permille)} GPU"
            if count == 1
            else f"{count} x {format_permille(request.permille)} GPU"
        )
    model = f" ({' or '.join(request.models)})" if request.models and count > 1 else ""
    where = f" on a {' or '.join(request.models)}" if request.models and count == 1 else ""
    mode = f" in the mode {request.sharing}" if request.sharing is not None else ""
    return gpus + model + where + (" on one node" if count > 1 else "") + mode + _host(shape)


def pools_text(pools: tuple[str, ...]) -> str:
    """Return node pools by name: ``the pool a100``, ``the pools a100 and t4``."""
    return f"the pool{'s' if len(pools) > 1 else ''} {' and '.join(pools)}"


def _host(shape: Shape) -> str:
    parts = []
    if shape.cpu_milli:
        parts.append(f"{shape.cpu_milli / 1000:g} CPU{'' if shape.cpu_milli == 1000 else 's'}")
    if shape.mem_mib:
        parts.append(f"{format_mib(shape.mem_mib)} of memory")
    return " with " + " and ".join(parts) if parts else ""
