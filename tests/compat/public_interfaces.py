"""The public interfaces of the gpupool that Python imports, as JSON: commands, HTTP API, client.

``PYTHONPATH=OLD/src python tests/compat/public_interfaces.py FILE`` records an earlier version. This file imports only
modules that all versions have.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import typer

import gpupool
import gpupool.client
from gpupool.api.app import create_app
from gpupool.cli import app, index
from gpupool.client.options import ApplyOptions, SubmitOptions

METHODS = ("get", "put", "post", "patch", "delete")
SUCCESS = ("200", "201", "202", "204")


def interfaces() -> dict[str, Any]:
    """Return everything that users' scripts and programs may depend on."""
    return {"commands": commands(), "api": api(), "client": client(), "names": sorted(gpupool.__all__)}


def commands() -> dict[str, list[str]]:
    """Return the options of each command by its words."""

    def walk(command: Any, path: str) -> Iterator[tuple[str, list[str]]]:
        options = (p for p in command.params if p.param_type_name == "option")
        yield path, sorted(flag for option in options for flag in (*option.opts, *option.secondary_opts))
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, f"{path} {name}")

    found: dict[str, list[str]] = {}
    for name in index.MODULES:
        root: Any = typer.main.get_command(app.build([name]))
        found.update(walk(root.commands[name], name))
    return found


def api() -> dict[str, Any]:
    """Return operations with parameters and schemas of bodies and answers, and the properties of each schema."""
    return described(operation_of, properties_of)


def described(operation: Callable[[dict[str, Any]], Any], schema: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Return what these functions find in each operation and each schema of the present OpenAPI document."""
    document = create_app(cast("Any", None)).openapi()
    operations = {
        f"{method.upper()} {path}": operation(item[method])
        for path, item in document["paths"].items()
        for method in METHODS
        if method in item
    }
    schemas = {name: schema(one) for name, one in document["components"]["schemas"].items()}
    return {"operations": operations, "schemas": schemas}


def operation_of(operation: dict[str, Any]) -> dict[str, list[str]]:
    answers = [operation["responses"][status] for status in SUCCESS if status in operation["responses"]]
    return {
        "parameters": sorted(f"{p['in']} {p['name']}" for p in operation.get("parameters", ())),
        "body": types_of_content(operation.get("requestBody", {})),
        "answer": sorted({one for answer in answers for one in types_of_content(answer)}),
    }


def types_of_content(message: dict[str, Any]) -> list[str]:
    return sorted(
        {one for content in message.get("content", {}).values() for one in types_of(content.get("schema", {}))}
    )


def properties_of(schema: dict[str, Any]) -> dict[str, list[str]]:
    """Return the types of each property; an enumeration has one property without a name."""
    if "properties" not in schema:
        return {"": types_of(schema)}
    return {name: types_of(value) for name, value in schema["properties"].items()}


def types_of(schema: dict[str, Any]) -> list[str]:
    """Return the types that a value may have: ``string``, ``=queued`` (a constant), ``#Name``, ``[]#Name``, ..."""
    if "$ref" in schema:
        return ["#" + schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return sorted({one for part in schema["anyOf"] for one in types_of(part)})
    if "enum" in schema or "const" in schema:
        return sorted(f"={value}" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array" and "items" in schema:
        return [f"[]{one}" for one in types_of(schema["items"])]
    if isinstance(schema.get("additionalProperties"), dict):
        return [f"{{}}{one}" for one in types_of(schema["additionalProperties"])]
    return [schema.get("type", "any")]


def client() -> dict[str, dict[str, list[str] | None]]:
    """Return the parameters of each method of each class of the client; None for attributes."""
    found: dict[str, dict[str, list[str] | None]] = {}
    for name in gpupool.client.__all__:
        kind = getattr(gpupool.client, name)
        members = {member: getattr(kind, member) for member in dir(kind) if not member.startswith("_")}
        own = {member: value for member, value in members.items() if not hasattr(Exception, member)}
        found[name] = {m: parameters(value) if callable(value) else None for m, value in own.items()}
        found[name]["__init__"] = parameters(kind.__init__)
    for options in (ApplyOptions, SubmitOptions):  # keywords of Client.apply and Client.submit
        found[options.__name__] = dict.fromkeys(options.__annotations__)
    return found


def parameters(function: Callable[..., Any]) -> list[str]:
    """Return parameters without types: ``name``, ``name=`` (optional), ``**name``; ``*`` before keywords."""
    texts: list[str] = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        before = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        texts.append(before + p.name + ("" if p.default is p.empty else "="))
    return [text for text in texts if text not in {"self", "cls"}]


def as_text(value: Any, depth: int = 3) -> str:
    """Format JSON with a line for each command, operation, schema and member, so that a difference is readable."""
    if depth == 0 or not isinstance(value, dict):
        return json.dumps(value)
    lines = (f"{json.dumps(key)}: {as_text(value[key], depth - 1)}" for key in sorted(value))
    return "{\n" + ",\n".join(lines) + "\n}"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(as_text(interfaces()) + "\n", encoding="utf-8")
