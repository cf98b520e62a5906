"""The scope that each API address needs: the only table of token permissions.

An address that is not listed needs ``full``; a test compares the table with the routes.
"""

from __future__ import annotations

from starlette.requests import HTTPConnection

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Actor, Scope

_METRICS = ("GET /metrics",)

_READ = (
    "GET /v1/pool",
    "GET /v1/heads",
    "GET /v1/whoami",
    "GET /v1/nodes",
    "GET /v1/nodes/{name}",
    "GET /v1/gpus",
    "GET /v1/bookings",
    "GET /v1/bookings/{booking_id}",
    "GET /v1/bookings.ics",
    "GET /v1/workspaces",
    "GET /v1/workspaces/{workspace}",
    "GET /v1/services",
    "GET /v1/services/{service}",
    "GET /v1/workloads",
    "GET /v1/workloads/{ref}",
    "GET /v1/workloads/{ref}/wait",
    "GET /v1/workloads/{ref}/why",
    "GET /v1/workloads/{ref}/logs",
    "GET /v1/workloads/{ref}/efficiency",
    "GET /v1/workloads/{ref}/results",
    "GET /v1/workloads/{ref}/ports",
    "GET /v1/workloads/{ref}/files",
    "GET /v1/workloads/{ref}/files/content",
    "GET /v1/events",
    "GET /v1/events/stream",
    "GET /v1/audit",
    "GET /v1/projects",
    "GET /v1/projects/{name}",
    "GET /v1/users",
    "GET /v1/users/{name}",
    "GET /v1/departments",
    "GET /v1/departments/{name}",
    "GET /v1/fairshare",
    "GET /v1/telemetry",
    "GET /v1/nodes/{name}/telemetry",
    "GET /v1/gpus/{uuid}/telemetry",
    "GET /v1/workloads/{ref}/telemetry",
    "GET /v1/usage",
    "GET /v1/usage/capacity",
    "GET /v1/usage/waits",
    "GET /v1/usage/report",
    "GET /v1/usage/rates",
    "GET /v1/policy",
    "GET /v1/warnings",
    "GET /v1/top",
    "GET /v1/images",
    "GET /v1/nodes/{name}/images/jobs/{job}",
)

_SUBMIT = (
    "POST /v1/workloads",
    "POST /v1/workloads/{ref}/stop",
    "POST /v1/workloads/{ref}/suspend",
    "POST /v1/workloads/{ref}/restart",
    "POST /v1/workloads/{ref}/resume",
    "POST /v1/workloads/{ref}/signal",
    "POST /v1/workloads/{ref}/extend",
    "POST /v1/workloads/{ref}/priority",
    "DELETE /v1/workloads/{ref}",
    "WEBSOCKET /v1/workloads/{ref}/attach",
    "POST /v1/workspaces",
    "POST /v1/workspaces/{workspace}/start",
    "POST /v1/workspaces/{workspace}/stop",
    "POST /v1/workspaces/{workspace}/gpus",
    "POST /v1/workspaces/{workspace}/clone",
    "POST /v1/workspaces/{workspace}/snapshots",
    "DELETE /v1/workspaces/{workspace}/snapshots/{snapshot}",
    "POST /v1/workspaces/{workspace}/snapshots/{snapshot}/share",
    "POST /v1/workspaces/{workspace}/restore",
    "POST /v1/workspaces/{workspace}/imported",
    "DELETE /v1/workspaces/{workspace}",
    "POST /v1/services",
    "POST /v1/services/{service}/scale",
    "POST /v1/services/{service}/update",
    "POST /v1/services/{service}/undo",
    "POST /v1/services/{service}/stop",
    "DELETE /v1/services/{service}",
    "POST /v1/plan",
    "POST /v1/apply",
    "POST /v1/files/held",
    "PUT /v1/files/blobs/{sha256}",
    "POST /v1/files/pack",
    "POST /v1/files/trees",
)

_FULL = (
    "POST /v1/pool/stop-jobs",
    "POST /v1/projects",
    "PATCH /v1/projects/{name}",
    "DELETE /v1/projects/{name}",
    "PUT /v1/users/{name}",
    "GET /v1/tokens",
    "GET /v1/tokens/{token_id}",
    "POST /v1/tokens",
    "DELETE /v1/tokens/{token_id}",
    "POST /v1/services/{service}/tokens",
    "DELETE /v1/services/{service}/tokens",
    "POST /v1/workloads/{ref}/ports/{port}/open",
    "POST /v1/login-codes",
    "POST /v1/dashboard/links",
    "GET /v1/sessions",
    "DELETE /v1/sessions/{session_id}",
    "GET /v1/join-tokens",
    "POST /v1/join-tokens",
    "DELETE /v1/join-tokens/{token_id}",
    "POST /v1/bookings",
    "DELETE /v1/bookings/{booking_id}",
    "POST /v1/departments",
    "PATCH /v1/departments/{name}",
    "DELETE /v1/departments/{name}",
    "POST /v1/nodes/{name}/cordon",
    "POST /v1/nodes/{name}/uncordon",
    "POST /v1/nodes/{name}/lost",
    "DELETE /v1/nodes/{name}",
    "POST /v1/nodes/{name}/sharing",
    "POST /v1/nodes/{name}/labels",
    "POST /v1/nodes/{name}/images/pieces",
    "POST /v1/nodes/{name}/images",
    "DELETE /v1/nodes/{name}/images",
    "PATCH /v1/policy",
    "GET /v1/backups",
    "PATCH /v1/backups",
    "GET /v1/storage",
    "PATCH /v1/usage/rates",
    "PATCH /v1/warnings",
    "POST /v1/warnings/test",
)

SCOPES: dict[str, Scope] = {
    address: scope
    for scope, addresses in (
        (Scope.METRICS, _METRICS),
        (Scope.READ, _READ),
        (Scope.SUBMIT, _SUBMIT),
        (Scope.FULL, _FULL),
    )
    for address in addresses
}

# Pages of the dashboard on which work is controlled; other forms need ``full``, and looking needs ``read``.
_WORK_PAGES = ("/workloads", "/workspaces", "/services", "/submit", "/leases")


def need_scope(connection: HTTPConnection, actor: Actor) -> None:
    """Raise ``GpupoolError(FORBIDDEN)`` unless the caller's token may be used for this address."""
    if actor.scope is Scope.FULL:
        return
    needed = _needed(connection)
    if not actor.scope.includes(needed):
        raise GpupoolError(
            ErrorCode.FORBIDDEN,
            f"This request needs a token with the scope {needed}; the token has {actor.scope}.",
            f"Create one where you are authorized: `gpupool token create --scope {needed}`.",
        )


def _needed(connection: HTTPConnection) -> Scope:
    path = str(getattr(connection.scope.get("route"), "path", ""))
    websocket = connection.scope["type"] == "websocket"
    method = "WEBSOCKET" if websocket else str(connection.scope["method"]).replace("HEAD", "GET")
    if path.startswith("/v1/") or path == "/metrics":
        return SCOPES.get(f"{method} {path}", Scope.FULL)
    if method == "GET":
        return Scope.READ
    if path == "/logout":
        return Scope.METRICS
    return Scope.SUBMIT if websocket or path.startswith(_WORK_PAGES) else Scope.FULL
