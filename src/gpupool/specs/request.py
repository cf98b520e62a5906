"""The entry point: parses a request from outside, and converts it to domain values."""

from __future__ import annotations

from pydantic import ValidationError

from gpupool.specs.build import Submitter, digest_of, expand, program_for, references, to_workload
from gpupool.specs.fields.parts import (
    AfterSpec,
    Condition,
    GangSpec,
    GpuSpec,
    RandomRange,
    RandomSweep,
    SweepSpec,
)
from gpupool.specs.fields.request import RoleSpec, WorkloadRequest
from gpupool.specs.text.error_messages import RequestError, translate
from gpupool.specs.text.json_input import check_plain, read_json

__all__ = [
    "AfterSpec",
    "Condition",
    "GangSpec",
    "GpuSpec",
    "RandomRange",
    "RandomSweep",
    "RequestError",
    "RoleSpec",
    "Submitter",
    "SweepSpec",
    "WorkloadRequest",
    "digest_of",
    "expand",
    "parse_request",
    "parse_request_json",
    "program_for",
    "references",
    "to_workload",
]


def parse_request(data: object) -> WorkloadRequest:
    """Parse a request in plain values (mappings, lists, text, numbers, true, false, None).

    Raises ``RequestError`` (a ``GpupoolError``) with the most specific code, a sentence that names the field, and the
    field's path: INVALID_FRACTION, INVALID_COUNT, INVALID_DURATION, INVALID_SIZE, INVALID_NAME, UNSUPPORTED,
    TOO_LARGE, else INVALID_REQUEST.
    """
    check_plain(data)
    try:
        return WorkloadRequest.model_validate(data)
    except ValidationError as error:
        raise translate(error, WorkloadRequest) from error


def parse_request_json(body: bytes) -> WorkloadRequest:
    """Parse the request in the body of an HTTP call; raise like ``parse_request`` and ``json_input.read_json``."""
    return parse_request(read_json(body))
