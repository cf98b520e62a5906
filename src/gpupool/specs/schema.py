"""The JSON Schema of a job file; ``python -m gpupool.specs.schema`` prints it.

Editors can check what the schema describes. Only the program checks conflicts between fields.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gpupool.specs.fields.request import WorkloadRequest

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def job_schema() -> dict[str, Any]:
    """Return the schema in the dialect of 2020-12."""
    schema = WorkloadRequest.model_json_schema(by_alias=True)
    return {"$schema": DIALECT, **schema, "title": "gpupool job file"}


def schema_text() -> str:
    """Return the schema as it is published."""
    return json.dumps(job_schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
