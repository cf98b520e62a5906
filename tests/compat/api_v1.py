"""Version 1 of the HTTP API as JSON, and the rules that a later description of it must keep.

``python tests/compat/api_v1.py FILE`` records it. Additions are recorded then; a removal or change needs version 2.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from public_interfaces import as_text, described, types_of, types_of_content

Json = dict[str, Any]


def recorded() -> Json:
    """Return the operations and schemas of the present description."""
    return described(_operation, _schema)


def _operation(operation: Json) -> Json:
    body = operation.get("requestBody", {})
    return {
        "id": operation["operationId"],
        "parameters": {
            f"{p['in']} {p['name']}": {"required": p.get("required", False), "types": types_of(p["schema"])}
            for p in operation.get("parameters", ())
        },
        "body": types_of_content(body),
        "body_required": body.get("required", False),
        "answers": {
            status: types_of_content(answer) for status, answer in operation["responses"].items() if status < "300"
        },
    }


def _schema(schema: Json) -> Json:
    if "properties" not in schema:
        return {"required": [], "properties": {"": types_of(schema)}}
    properties = {name: types_of(value) for name, value in schema["properties"].items()}
    return {"required": sorted(schema.get("required", ())), "properties": properties}


def breaks(old: Json, new: Json) -> list[str]:
    """Return what a client of the old version could no longer rely on."""
    return sorted({*_broken_operations(old, new), *_broken_schemas(old, new)})


def _broken_operations(old: Json, new: Json) -> Iterator[str]:
    for title, before in old["operations"].items():
        after = new["operations"].get(title)
        if after is None:
            yield f"{title}: removed"
            continue
        if before["id"] != after["id"]:
            yield f"{title}: operation id {after['id']}"
        if after["body_required"] and not before["body_required"]:
            yield f"{title}: body required"
        yield from (
            f"{title}: answer {status} removed" for status in before["answers"].keys() - after["answers"].keys()
        )
        for name, parameter in before["parameters"].items():
            now = after["parameters"].get(name)
            yield from [f"{title}: {name} removed"] if now is None else _narrowed(f"{title}: {name}", parameter, now)
        for name in after["parameters"].keys() - before["parameters"].keys():
            if after["parameters"][name]["required"]:
                yield f"{title}: {name} required"
        for status, types in before["answers"].items():
            yield from (f"{title}: {one} removed" for one in set(types) - set(after["answers"].get(status, types)))
        yield from (f"{title}: body {one} removed" for one in set(before["body"]) - set(after["body"]))


def _narrowed(place: str, before: Json, after: Json) -> Iterator[str]:
    if after["required"] and not before["required"]:
        yield f"{place} required"
    yield from (f"{place}: {one} removed" for one in set(before["types"]) - set(after["types"]))


def _broken_schemas(old: Json, new: Json) -> Iterator[str]:
    sent, received = _used(new, "body"), _used(new, "answers")
    for name, before in old["schemas"].items():
        after = new["schemas"].get(name)
        if after is None:
            yield f"{name}: removed"
            continue
        for one, types in before["properties"].items():
            if one not in after["properties"]:
                yield f"{name}.{one}: removed"
                continue
            now = set(after["properties"][one])
            yield from (f"{name}.{one}: {kind} removed" for kind in set(types) - now)
            if name in received and "null" in now - set(types):
                yield f"{name}.{one}: may be null"
        if name in sent:
            yield from (f"{name}.{one}: required" for one in set(after["required"]) - set(before["required"]))


def _used(document: Json, part: str) -> set[str]:
    """Return the names of all schemas in bodies or in answers of operations."""
    lists = []
    for operation in document["operations"].values():
        lists += [operation[part]] if part == "body" else list(operation[part].values())
    waiting = [one for types in lists for one in types]
    found: set[str] = set()
    while waiting:
        name = waiting.pop().partition("#")[2]
        if name and name not in found:
            found.add(name)
            waiting += [one for types in document["schemas"][name]["properties"].values() for one in types]
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(as_text(recorded()) + "\n", encoding="utf-8")
