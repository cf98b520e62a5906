"""The first page: the pool at a glance."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from gpupool.services.pool import PoolServices
from gpupool.web import poolmap
from gpupool.web.deps import Services, Visitor
from gpupool.web.kept import kept
from gpupool.web.listing import Column, Kind, listing
from gpupool.web.pages import is_live, page
from gpupool.web.views.overview import MOST_IN_LEGEND, ColourBy, GpuRow, NodeCard, Overview, overview

router = APIRouter()

FIRST_PARTS = 2  # of the map come with the page, as much as a screen shows; the rest with its first live look


@dataclass(frozen=True, slots=True)
class _Picture:
    """The page's values and the map, the same for everybody: names of work and of people are no secret of a pool."""

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
    Column("gpu", "GPU", lambda row: row.gpu.index, Kind.NUMBER, link=lambda row: row.gpu.href),
    Column("state", "Node is", lambda row: row.node.state, Kind.STATE),
    Column("model", "Model", lambda row: row.gpu.model, note=lambda row: row.gpu.trouble),
    Column("allocated", "Allocated", lambda row: row.gpu.allocated, Kind.GPUS),
    Column("used", "Used", lambda row: row.gpu.utilisation, Kind.PERCENT),
    Column("slices", "Slices", lambda row: len(row.gpu.slices), Kind.NUMBER),
    Column("holders", "Held by", lambda row: ", ".join(dict.fromkeys(s.owner for s in row.gpu.slices))),
)


@router.get("/")
async def first_page(
    request: Request,
    services: Services,
    visitor: Visitor,
    by: Annotated[ColourBy, Query(description="What the colours stand for.")] = ColourBy.PROJECT,
    only: Annotated[str, Query(max_length=128, description="Whose slices stand out.")] = "",
    view: Annotated[str, Query(pattern="^(map|table)?$")] = "",
) -> Response:
    """Nodes, GPUs and who holds which part of them, as a map or a table."""
    picture: _Picture = await kept(request).get(("overview", by, only), lambda: _picture(services, by, only))
    table = None
    if view == "table":
        rows = [_OneGpu(node, gpu) for node in picture.view.nodes for gpu in node.gpus]
        table = listing(request, _COLUMNS, rows, name="gpus", default_sort="node")
    return page(
        request,
        visitor,
        "overview.html",
        title="Overview",
        view=picture.view,
        picture=picture,
        table=table,
        rest=0 if _wants_all(request) else max(0, len(picture.view.nodes) - FIRST_PARTS * poolmap.AT_ONCE),
        only=only,
        swatch=poolmap.swatch,
        most_in_legend=MOST_IN_LEGEND,
    )


def _wants_all(request: Request) -> bool:
    """All nodes at once: open pages ask like that, and ``?all=true`` is for browsers without scripts."""
    return is_live(request) or request.query_params.get("all") == "true"


async def _picture(services: PoolServices, by: ColourBy, only: str) -> _Picture:
    snapshot = await services.metrics.snapshot()
    people = services.access.projects() if by is ColourBy.PROJECT else services.access.users()
    names = [one.name for one in await people]
    await asyncio.sleep(0)
    made = await overview(snapshot, by, names)
    drawn: list[str] = []
    for part in poolmap.drawn(made, only):
        drawn.append(part)
        await asyncio.sleep(0)  # the scheduler may have its turn
    first = [*drawn[: 1 + FIRST_PARTS], drawn[-1]] if len(drawn) > 2 + FIRST_PARTS else drawn
    return _Picture(made, poolmap.patterns(made), Markup("".join(first)), Markup("".join(drawn)))  # noqa: S704 - poolmap escapes
