"""The overview page."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from gpupool.services.pool import PoolServices
from gpupool.web.deps import Services, Visitor, reads
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.kit.response_cache import cache_of
from gpupool.web.pages.overview import pool_map
from gpupool.web.pages.overview.view import MAX_LEGEND_ENTRIES, ColourBy, GpuRow, NodeCard, Overview, overview
from gpupool.web.rendering import is_live, page

router = APIRouter()

FIRST_PARTS = 2  # of the map come with the page, about one screen; the rest with the first live update


@dataclass(frozen=True, slots=True)
class _Picture:
    """Values and map of the page, the same for all visitors: names are visible to all users of a pool."""

    view: Overview
    patterns: Markup
    first: Markup
    drawn: Markup


@dataclass(frozen=True, slots=True)
class _OneGpu:
    node: NodeCard
    gpu: GpuRow


_COLUMNS: tuple[Column[_OneGpu], ...] = (
    Column("node", "Node", lambda row: row.node.name, link=lambda row: f"/nodes/{row.node.name}"),
    Column("gpu", "GPU", lambda row: row.gpu.index, ColumnKind.NUMBER, link=lambda row: row.gpu.href),
    Column("state", "Node state", lambda row: row.node.state, ColumnKind.STATE),
    Column("model", "Model", lambda row: row.gpu.model, note=lambda row: row.gpu.trouble),
    Column("allocated", "Allocated", lambda row: row.gpu.allocated, ColumnKind.GPUS),
    Column("used", "Used", lambda row: row.gpu.utilisation, ColumnKind.PERCENT),
    Column("slices", "Slices", lambda row: len(row.gpu.slices), ColumnKind.NUMBER),
    Column("holders", "Held by", lambda row: ", ".join(dict.fromkeys(s.owner for s in row.gpu.slices))),
)


@router.get("/", dependencies=[reads(*table_names(), "all")])
async def first_page(
    request: Request,
    services: Services,
    visitor: Visitor,
    by: Annotated[ColourBy, Query(description="What the colours stand for.")] = ColourBy.PROJECT,
    only: Annotated[str, Query(max_length=128, description="Whose slices stand out.")] = "",
    view: Annotated[str, Query(pattern="^(map|table)?$")] = "",
) -> Response:
    """Show nodes, GPUs and their allocation as a map or a table."""
    picture: _Picture = await cache_of(request).get(("overview", by, only), lambda: _picture(services, by, only))
    table = None
    if view == "table":
        rows = [_OneGpu(node, gpu) for node in picture.view.nodes for gpu in node.gpus]
        table = listing(request, _COLUMNS, rows, name="gpus", default_sort="node")
    return page(
        request,
        visitor,
        "overview/overview.html",
        title="Overview",
        view=picture.view,
        picture=picture,
        table=table,
        rest=0 if _wants_all(request) else max(0, len(picture.view.nodes) - FIRST_PARTS * pool_map.NODES_PER_BATCH),
        only=only,
        swatch=pool_map.swatch,
        most_in_legend=MAX_LEGEND_ENTRIES,
    )


def _wants_all(request: Request) -> bool:
    """Return True if all nodes are requested: by live updates, and by ``?all=true`` without scripts."""
    return is_live(request) or request.query_params.get("all") == "true"


async def _picture(services: PoolServices, by: ColourBy, only: str) -> _Picture:
    snapshot = await services.metrics.snapshot()
    people = services.access.projects() if by is ColourBy.PROJECT else services.access.users()
    names = [one.name for one in await people]
    await asyncio.sleep(0)
    made = await overview(snapshot, by, names, services.joining.heads.warnings())
    drawn: list[str] = []
    for part in pool_map.draw_map(made, only):
        drawn.append(part)
        await asyncio.sleep(0)  # let the scheduler run
    first = [*drawn[: 1 + FIRST_PARTS], drawn[-1]] if len(drawn) > 2 + FIRST_PARTS else drawn
    return _Picture(made, pool_map.patterns(made), Markup("".join(first)), Markup("".join(drawn)))  # noqa: S704 - poolmap escapes
