"""The JSON Schemas of reports; ``python -m gpupool.verify.schema [network]`` prints one."""

from __future__ import annotations

import json
import sys
from typing import Any

from gpupool.verify.results import CheckOutcome

_OUTCOME = {"enum": [str(outcome) for outcome in CheckOutcome]}
_TEXT = {"type": "string"}
_CHECK: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "outcome", "note", "values"],
    "properties": {
        "name": _TEXT,
        "outcome": _OUTCOME,
        "note": {"type": "string", "description": "What was found, or why the check was skipped."},
        "values": {
            "type": "object",
            "additionalProperties": {"type": "number"},
            "description": "Measured values; a name ends with its unit.",
        },
    },
    "if": {"properties": {"outcome": {"not": {"const": str(CheckOutcome.OK)}}}},
    "then": {"properties": {"note": {"minLength": 1}}},
}
_GPU = {
    "type": "object",
    "additionalProperties": False,
    "required": ["index", "uuid", "model", "outcome", "checks"],
    "properties": {
        "index": {"type": "integer", "minimum": 0},
        "uuid": _TEXT,
        "model": _TEXT,
        "outcome": _OUTCOME,
        "checks": {"type": "array", "items": _CHECK},
    },
}
_REPORT = {
    "version": {"const": 1},
    "node": _TEXT,
    "level": {"enum": [1, 2, 3]},
    "emulated": {"type": "boolean", "description": "The GPUs are simulated: results come from the CPU."},
    "driver_version": _TEXT,
    "outcome": _OUTCOME,
    "checks": {"type": "array", "items": _CHECK, "description": "The checks of the node."},
    "gpus": {"type": "array", "items": _GPU},
}


_PAIR = {
    "type": "object",
    "additionalProperties": False,
    "required": ["from", "to", *_CHECK["required"]],
    "properties": {"from": _TEXT, "to": _TEXT, **_CHECK["properties"]},
}
_ALL_REDUCE = {
    "type": "object",
    "additionalProperties": False,
    "required": [*_CHECK["required"], "method"],
    "properties": {
        **_CHECK["properties"],
        "method": {"type": "string", "description": "The algorithm, and where it reduces the data."},
    },
}
_NETWORK = {
    "version": {"const": 1},
    "nodes": {"type": "array", "items": _TEXT},
    "outcome": _OUTCOME,
    "pairs": {"type": "array", "items": _PAIR, "description": "Each pair of nodes."},
    "all_reduce": _ALL_REDUCE,
}


def verify_schema() -> dict[str, Any]:
    """Return the schema of a report of GPUs in the dialect of 2020-12."""
    return _document("gpupool verify report", _REPORT)


def network_schema() -> dict[str, Any]:
    """Return the schema of a report of the network in the dialect of 2020-12."""
    return _document("gpupool verify --network report", _NETWORK)


def _document(title: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


def schema_text(schema: dict[str, Any]) -> str:
    """Return a schema as it is published."""
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text(network_schema() if sys.argv[1:] == ["network"] else verify_schema()))
