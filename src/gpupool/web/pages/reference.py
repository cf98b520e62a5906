"""The reference of the HTTP API, from its own descriptions: operations, WebSockets, schemas and error codes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.app import sockets
from gpupool.domain.errors import HTTP_STATUS, ErrorCode
from gpupool.web.page_context import Context

router = APIRouter()
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TypedName:
    """A parameter or property: its name, its type in words, and whether it must be given."""

    name: str
    where: str
    type: str
    schemas: tuple[str, ...]
    required: bool
    description: str


@dataclass(frozen=True, slots=True)
class OperationText:
    """An operation of the API."""

    id: str
    method: str
    path: str
    summary: str
    parameters: tuple[TypedName, ...]
    body: tuple[str, ...]
    answers: tuple[tuple[str, tuple[str, ...]], ...]


@router.get("/reference")
async def reference(context: Context) -> Response:
    """Show all operations by subject, WebSockets, schemas and error codes."""
    document = await asyncio.to_thread(context.request.app.openapi)  # the first time takes half a second
    found = list(operations_of(document))
    groups = [
        (tag["name"], tag["description"], [one for name, one in found if name == tag["name"]])
        for tag in document["tags"]
    ]
    return context.show(
        "reference.html",
        "API reference",
        groups=[group for group in groups if group[2]],
        channels=sockets()["channels"],
        messages=sockets()["components"]["messages"],
        schemas=list(schemas_of(document)),
        codes=[(code, HTTP_STATUS.get(code, 400), HTTPStatus(HTTP_STATUS.get(code, 400)).phrase) for code in ErrorCode],
    )


def operations_of(document: Json) -> Iterator[tuple[str, OperationText]]:
    """Yield each operation with its subject."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield (
                operation["tags"][0],
                OperationText(
                    operation["operationId"],
                    method.upper(),
                    path,
                    operation["description"].partition("\n\n")[0].replace("``", ""),
                    tuple(
                        typed_name(p["name"], p["schema"], required=p.get("required", False), where=p["in"], text=p)
                        for p in operation.get("parameters", ())
                    ),
                    _content(operation.get("requestBody", {})),
                    tuple((s, _content(a)) for s, a in sorted(operation["responses"].items()) if s < "300"),
                ),
            )


def schemas_of(document: Json) -> Iterator[tuple[str, str, list[TypedName]]]:
    """Yield each schema: name, description, properties."""
    for name, schema in sorted(document["components"]["schemas"].items()):
        required = schema.get("required", ())
        rows = [
            typed_name(key, value, required=key in required, where="", text=value)
            for key, value in schema.get("properties", {}).items()
        ]
        yield name, schema.get("description", "").replace("``", ""), rows or [typed_name("", schema)]


def typed_name(
    name: str, schema: Json, *, required: bool = False, where: str = "", text: Json | None = None
) -> TypedName:
    """Return a name with its type in words and the schemas that the type mentions."""
    description = str((text or {}).get("description", schema.get("description", ""))).replace("``", "")
    return TypedName(name, where, _words(schema), _mentioned(schema), required, description)


def _content(message: Json) -> tuple[str, ...]:
    return tuple(
        one for content in message.get("content", {}).values() for one in _mentioned(content.get("schema", {}))
    )


def _words(schema: Json) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if parts := [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        return " or ".join(map(_words, parts))
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        return f"list of {_words(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_words(schema['additionalProperties'])}"
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if key in schema]
    return " ".join([str(schema.get("type", "any")), *bounds])


_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "maxLength": "≤ characters:"}


def _mentioned(schema: Json) -> tuple[str, ...]:
    if "$ref" in schema:
        return (schema["$ref"].rpartition("/")[2],)
    parts: list[Any] = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    parts += [schema.get("items"), schema.get("additionalProperties")]
    return tuple(one for part in parts if isinstance(part, dict) for one in _mentioned(part))
