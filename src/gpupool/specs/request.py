"""The front door of the room: a request from outside in, domain values out."""

from __future__ import annotations

from pydantic import ValidationError

from gpupool.specs.build import Submitter, expand, program_for, references, to_workload
from gpupool.specs.models import RoleSpec, WorkloadRequest
from gpupool.specs.parts import AfterSpec, Condition, GangSpec, GpuSpec, RandomRange, RandomSweep, SweepSpec
from gpupool.specs.plain import check_plain, read_json
from gpupool.specs.problems import RequestError, translate

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
    "expand",
    "parse_request",
    "parse_request_json",
    "program_for",
    "references",
    "to_workload",
]


def parse_request(data: object) -> WorkloadRequest:
    """The request in plain values (mappings, lists, text, numbers, true, false, None).

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
    """The request in the body of an HTTP call; errors as ``parse_request`` and ``plain.read_json`` give them."""
    return parse_request(read_json(body))
