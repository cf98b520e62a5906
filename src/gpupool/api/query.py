"""Check of query parameters: an unknown one is an error, because most are misspelt."""

from __future__ import annotations

from difflib import get_close_matches

from fastapi.dependencies.models import Dependant
from starlette.requests import HTTPConnection

from gpupool.api.deps import check_caller
from gpupool.domain.errors import ErrorCode, GpupoolError

MAX_SHOWN = 40
METRICS_PATH = "/metrics"


async def check_query(connection: HTTPConnection) -> None:
    """Raise ``GpupoolError(INVALID_REQUEST)`` for a query parameter that the route does not have.

    The caller is checked first, as for other invalid requests. WebSockets of newer clients may have more parameters.
    ``/metrics`` accepts all, because Prometheus can be configured to send some to all its targets.
    """
    scope = connection.scope
    if scope["type"] != "http" or not scope.get("query_string") or scope["path"] == METRICS_PATH:
        return
    known = parameters_of(connection.scope["route"].dependant)
    unknown = next((name for name in connection.query_params if name not in known), None)
    if unknown is None:
        return
    await check_caller(connection)
    similar = get_close_matches(unknown, known, 1)
    meant = f" Did you mean '{similar[0]}'?" if similar else ""
    hint = f"It has {', '.join(sorted(known))}." if known else "It has none."
    shown = unknown[:MAX_SHOWN]
    raise GpupoolError(ErrorCode.INVALID_REQUEST, f"This path has no query parameter '{shown}'.{meant}", hint)


def parameters_of(dependant: Dependant) -> frozenset[str]:
    """Return the names of all query parameters of a route."""
    waiting, found = [dependant], set[str]()
    while waiting:
        one = waiting.pop()
        found.update(field.alias for field in one.query_params)
        waiting.extend(one.dependencies)
    return frozenset(found)
