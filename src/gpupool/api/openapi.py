"""The description of the API at ``/v1/openapi.json``."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gpupool import __version__
from gpupool.api.schemas import ErrorBody
from gpupool.specs.request import WorkloadRequest

TITLE = "gpupool"
_REF = "#/components/schemas/{model}"

_TAGS = [
    {"name": "pool", "description": "The pool as a whole, and who the caller is."},
    {"name": "nodes", "description": "Machines and their GPUs."},
    {"name": "joining", "description": "Machines that join a cluster and leave it."},
    {"name": "bookings", "description": "Reservations of nodes, for a class or for maintenance."},
    {"name": "workloads", "description": "Submit, list, wait, ask why, and change the course of workloads."},
    {"name": "logs", "description": "Output of replicas."},
    {"name": "attach", "description": "Terminals and pipes of running programs, over WebSocket."},
    {"name": "events", "description": "What has happened."},
    {"name": "files", "description": "Files that come with work, and files that it made."},
    {"name": "images", "description": "Images of containers that nodes have."},
    {"name": "access", "description": "Projects, users and tokens."},
    {"name": "telemetry", "description": "What machines, GPUs and programs were measured to use."},
    {"name": "usage", "description": "GPU time held."},
    {"name": "dashboard", "description": "Links into the dashboard, and the browsers that are signed in."},
]

_ERRORS = {
    400: "The request cannot be taken: the message names the field.",
    401: "No valid credentials.",
    403: "The caller may not do this.",
    404: "No such thing.",
    405: "The address does not answer to this method.",
    409: "The present state does not allow it.",
    413: "The request is larger than 8 MiB.",
    422: "No machine of the pool could ever do this, or a limit is passed.",
    429: "Too many wrong tokens from this address.",
    500: "The pool made a mistake; the log says more under the incident's number.",
    503: "A machine does not answer, or the pool is about to stop.",
}

# What any route may answer instead of a success. It is added to the description alone: given to FastAPI, which makes a
# validator of each for each route, it took half a second of the first request.
_ERROR_ANSWERS = {
    str(status): {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": _REF.format(model=ErrorBody.__name__)}}},
    }
    for status, description in _ERRORS.items()
}
_OF_FASTAPI = ("HTTPValidationError", "ValidationError")  # what its own errors look like, which are none of ours


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document: FastAPI's, with the submission's body and the two ways to say who one is."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=TITLE,
            version=__version__,
            summary="Share the GPUs a team owns.",
            description="On the machine itself: the unix socket, where the pool knows the caller's account. "
            "Over the network: TLS and a bearer token.",
            routes=app.routes,
            tags=_TAGS,
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
    document["security"] = [{"token": []}, {}]  # {}: the unix socket, which asks for nothing
    document["paths"]["/v1/health"]["get"]["security"] = []


def _add_request(document: dict[str, Any]) -> None:
    schema = WorkloadRequest.model_json_schema(ref_template=_REF)
    parts = schema.pop("$defs", {})
    document["components"]["schemas"].update(parts, WorkloadRequest=schema)
