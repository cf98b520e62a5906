"""The description of the API at ``/v1/openapi.json``."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gpupool import __version__
from gpupool.api.problems import PROBLEM_JSON
from gpupool.api.schemas.base import ErrorBody
from gpupool.specs.request import WorkloadRequest

TITLE = "gpupool"
_REF = "#/components/schemas/{model}"

_TAGS = [
    {"name": "pool", "description": "The pool and the authenticated user."},
    {"name": "nodes", "description": "Nodes and their GPUs."},
    {"name": "joining", "description": "Nodes that join or leave a cluster."},
    {"name": "bookings", "description": "Reservations of nodes for users, projects or maintenance."},
    {"name": "workloads", "description": "Submit, list, explain, wait for, stop and change workloads."},
    {"name": "logs", "description": "Output of replicas."},
    {"name": "attach", "description": "Terminals and pipes of running programs, over WebSocket."},
    {"name": "events", "description": "Events of workloads, nodes and users."},
    {"name": "files", "description": "Upload and download files of workloads."},
    {"name": "workspaces", "description": "Named homes that are interactive sessions while started."},
    {"name": "services", "description": "Servers with replicas and a stable address."},
    {"name": "images", "description": "Container images of nodes."},
    {"name": "access", "description": "Projects, users and tokens."},
    {"name": "telemetry", "description": "Measured use of nodes, GPUs and programs."},
    {"name": "usage", "description": "Allocated and used GPU time."},
    {"name": "dashboard", "description": "One-time links to the dashboard, and its sessions."},
]

_SERVERS: list[dict[str, Any]] = [
    {"url": "/", "description": "The pool that returned this document."},
    {
        "url": "https://{head}:{port}",
        "description": "A pool that listens on the network.",
        "variables": {
            "head": {"default": "localhost", "description": "Name or address of the head."},
            "port": {"default": "8443"},
        },
    },
]

_ERRORS = {
    400: "The request is not valid; the message names the field.",
    401: "No valid credentials.",
    403: "The user has no permission.",
    404: "The object does not exist.",
    405: "The path does not support this method.",
    409: "The current state does not allow the operation.",
    412: "The object has not the ETag of If-Match: it was changed since.",
    413: "The request is larger than 8 MiB.",
    422: "No node can satisfy the request, or it exceeds a limit.",
    429: "Too many requests, or too many wrong tokens from this address.",
    500: "Internal error; the log has details under the incident number.",
    503: "A node or the database does not respond, or the pool is stopping.",
}

# Errors that any route may return. They are added only to the description: FastAPI would create a validator of each
# error for each route, which delays the first request by half a second.
_ERROR_ANSWERS = {
    str(status): {
        "description": description,
        "content": {PROBLEM_JSON: {"schema": {"$ref": _REF.format(model=ErrorBody.__name__)}}},
    }
    for status, description in _ERRORS.items()
}
_OF_FASTAPI = ("HTTPValidationError", "ValidationError")  # FastAPI's own error models; our errors have another form


def describe(app: FastAPI) -> dict[str, Any]:
    """Return FastAPI's OpenAPI document with the body of submissions and both ways to authenticate."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=TITLE,
            version=__version__,
            summary="Share the GPUs of a team.",
            description="On the pool's machine: a unix socket; the kernel identifies the user. "
            "Over the network: TLS and a bearer token.",
            routes=app.routes,
            tags=_TAGS,
            servers=_SERVERS,
        )
        _add_errors(document)
        _add_security(document)
        _add_request(document)
        app.openapi_schema = document
    return app.openapi_schema


def _add_errors(document: dict[str, Any]) -> None:
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"] |= _ERROR_ANSWERS | {
                status: _ERROR_ANSWERS.get(status, {}) | own
                for status, own in operation["responses"].items()
                if status != "422"
            }
    schemas = document["components"]["schemas"]
    for name in _OF_FASTAPI:
        schemas.pop(name, None)
    schema = ErrorBody.model_json_schema(ref_template=_REF)
    schemas.update(schema.pop("$defs", {}), ErrorBody=schema)


def _add_security(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "A token of the form gpt_ID_SECRET."}
    }
    document["security"] = [{"token": []}, {}]  # {}: the unix socket, which needs no credentials
    document["paths"]["/v1/health"]["get"]["security"] = []


def _add_request(document: dict[str, Any]) -> None:
    schema = WorkloadRequest.model_json_schema(ref_template=_REF)
    parts = schema.pop("$defs", {})
    document["components"]["schemas"].update(parts, WorkloadRequest=schema)
