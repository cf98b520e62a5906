"""The JSON Schema of a job file; ``python -m gpupool.specs.schema`` prints it.

The schema says what editors can check. What fields may not say together is checked by the program alone.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gpupool.specs.models import WorkloadRequest

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def job_schema() -> dict[str, Any]:
    """The schema, in the dialect of 2020-12."""
    schema = WorkloadRequest.model_json_schema(by_alias=True)
    return {"$schema": DIALECT, **schema, "title": "gpupool job file"}


def schema_text() -> str:
    """The schema as it is published."""
    return json.dumps(job_schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
