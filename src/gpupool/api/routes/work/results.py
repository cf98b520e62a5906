"""Results of sweeps and arrays as a table, and the efficiency of workloads."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from gpupool.api.deps import Caller, Ref, Services, Word, answer
from gpupool.api.paging import Paged
from gpupool.api.schemas.work.workloads import EfficiencyView, ResultTable
from gpupool.api.views.results_view import efficiency_view, ordered, result_table, to_csv
from gpupool.domain.work.workload import ReplicaState
from gpupool.services.usage.efficiency import efficiency

router = APIRouter(prefix="/v1/workloads", tags=["workloads"])


class ResultFormat(StrEnum):
    """Format of a table of results."""

    JSON = "json"
    CSV = "csv"


@router.get("/{ref}/efficiency", response_model=EfficiencyView)
async def get_efficiency(services: Services, caller: Caller, ref: Ref) -> Response:
    """Compare the request of a workload with its measured use, and suggest a smaller request if one would do."""
    workload = await services.workloads.get(caller, ref)
    return answer(efficiency_view(workload, await efficiency(services.workloads, services.telemetry, workload)))


@router.get(
    "/{ref}/results",
    response_model=ResultTable,
    responses={200: {"content": {"text/csv": {}}, "description": "The table in the wanted format."}},
)
async def get_results(  # noqa: PLR0913 - each is a query parameter of the route
    *,
    services: Services,
    caller: Caller,
    ref: Ref,
    page: Paged,
    state: ReplicaState | None = None,
    sort: Annotated[Word, Query(description="A column, parameter or metric; -NAME: largest first.")] = "index",
    form: Annotated[ResultFormat, Query(alias="format")] = ResultFormat.JSON,
) -> Response:
    """Return the parameters and the last reported metrics of all replicas, for those who may see its output."""
    workload = await services.workloads.get(caller, ref)
    replicas = await services.workloads.replicas_of(workload)
    private = services.workloads.can_see(caller, workload)
    table = result_table(workload, replicas, services.workloads.now(), private=private)
    rows = [row for row in ordered(table.rows, sort) if state is None or row.state is state]
    part, following = page.cut(rows)
    table = table.model_copy(update={"rows": list(part), "next_cursor": following})
    if form is ResultFormat.CSV:
        headers = {"content-disposition": f'attachment; filename="{workload.id}-results.csv"'}
        return Response(to_csv(table), media_type="text/csv; charset=utf-8", headers=headers)
    return answer(table)
