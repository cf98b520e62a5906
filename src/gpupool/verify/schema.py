"""The JSON Schema of a report; ``python -m gpupool.verify.schema`` prints it."""

from __future__ import annotations

import json
import sys
from typing import Any

from gpupool.verify.results import Outcome

_OUTCOME = {"enum": [str(outcome) for outcome in Outcome]}
_TEXT = {"type": "string"}
_CHECK = {
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
    "if": {"properties": {"outcome": {"not": {"const": str(Outcome.OK)}}}},
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


def verify_schema() -> dict[str, Any]:
    """Return the schema in the dialect of 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpupool verify report",
        "type": "object",
        "additionalProperties": False,
        "required": list(_REPORT),
        "properties": _REPORT,
    }


def schema_text() -> str:
    """Return the schema as it is published."""
    return json.dumps(verify_schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
