"""Any input is a request or a clear refusal, and the schema agrees with the model."""

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.specs.jobfile import load_job_file
from gpupool.specs.request import (
    Submitter,
    WorkloadRequest,
    parse_request,
    parse_request_json,
    program_for,
    references,
    to_workload,
)
from gpupool.specs.schema import job_schema, schema_text

ROOT = Path(__file__).parents[2]
VALIDATOR = jsonschema.Draft202012Validator(job_schema())
FIELDS = list(job_schema()["properties"])
SUBMITTER = Submitter("alice", 1000, "default", 1.0)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
half_known = st.dictionaries(st.sampled_from(FIELDS), anything, max_size=6)

names = st.text(string.ascii_letters, min_size=1, max_size=8)
values = st.one_of(st.booleans(), st.integers(-99, 99), st.floats(-9, 9), st.text(string.printable, max_size=5))
durations = st.one_of(st.none(), st.integers(1, 9999), st.floats(0.5, 99), st.sampled_from(["30s", "1h30m", "2d"]))
sizes = st.one_of(st.none(), st.integers(1, 9999), st.sampled_from(["4G", "512", "1.5GiB"]))
labels = st.dictionaries(
    names, values.filter(lambda value: isinstance(value, bool | int | float) or value.isprintable())
)
parts = st.one_of(
    st.just({}),
    st.builds(lambda n: {"fraction": n / 1000}, st.integers(1, 1000)),
    st.builds(lambda size: {"memory_mib": size}, sizes),
    st.just({"fraction": "25%"}),
)
gpus = st.builds(
    lambda part, rest: {**part, **rest},
    parts,
    st.fixed_dictionaries(
        {}, optional={"count": st.integers(1, 1024), "models": st.lists(names, max_size=3), "labels": labels}
    ),
)
ranges = st.one_of(
    st.builds(
        lambda low, width, log: {"min": low, "max": low + width, "log": log},
        st.integers(1, 9), st.floats(0, 9), st.booleans(),
    ),
    st.fixed_dictionaries({"choices": st.lists(values, min_size=1, max_size=3)}),
)  # fmt: skip
unique = st.sampled_from(["lr", "momentum", "layers"])
sweeps = st.one_of(
    st.fixed_dictionaries({"grid": st.dictionaries(unique, st.lists(values, min_size=1, max_size=3), min_size=1)}),
    st.fixed_dictionaries(
        {"list": st.lists(st.dictionaries(unique, values, min_size=1), min_size=1, max_size=4)}
    ),
    st.builds(
        lambda samples, parameters: {"random": {"samples": samples, "parameters": parameters}},
        st.integers(1, 9),
        st.dictionaries(unique, ranges, min_size=1),
    ),
)  # fmt: skip
requests = st.fixed_dictionaries(
    {"command": st.lists(st.text(string.ascii_letters + "-= é", min_size=1, max_size=6), min_size=1, max_size=4)},
    optional={
        "name": names,
        "kind": st.sampled_from(["run", "training"]),
        "env": st.dictionaries(names, values, max_size=3),
        "workdir": st.just("/tmp"),
        "priority": st.one_of(st.integers(-1000, 1000), st.sampled_from(["low", "normal", "high"])),
        "gpus": gpus,
        "cpus": st.floats(0.1, 64) | st.integers(1, 64) | st.none(),
        "memory": sizes,
        "wait": durations | st.sampled_from([0, "none", "0"]),
        "max_time": durations,
        "grace": durations,
        "tty": st.booleans(),
        "umask": st.sampled_from([None, 0, 18, "022", "77"]),
        "restart": st.sampled_from([None, "never", "on-failure", "always"]),
        "backoff_limit": st.none() | st.integers(0, 10),
        "preemptible": st.none() | st.booleans(),
        "parallelism": st.none() | st.integers(1, 5),
        "sweep": st.none() | sweeps,
        "after": st.lists(
            names | st.fixed_dictionaries({"workload": names, "condition": st.sampled_from(["success", "any"])}),
            max_size=3,
        ),
        "labels": labels,
        "log_limit": sizes,
        "request_id": names,
        "image": st.sampled_from([None, "busybox", "nvcr.io/nvidia/tensorflow:24.05-tf2-py3"]),
        "volumes": st.just([]),
    },
)


def accepted(read: Callable[[Any], Any], data: Any) -> list[WorkloadRequest]:
    """Return the parsed value; a refusal must be a GpupoolError with a sentence that can be sent to clients."""
    try:
        read_data = read(data)
    except GpupoolError as error:
        refused = error
    else:
        return read_data if isinstance(read_data, list) else [read_data]
    assert refused.message
    assert str(refused).encode()
    return []


@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode(errors="surrogatepass")))
@settings(max_examples=150)
def test_any_bytes_as_a_job_file(data: Any) -> None:
    for request in accepted(load_job_file, data):
        assert parse_request(request.to_body()) == request


yaml_pieces = st.sampled_from(
    ["command", "env", "gpus", "on", ": ", "- ", "\n", "  ", "[", "]", "{", "}", ", ", "&a ", "*a", "'", '"', "|", ">",
     "---\n", "!!str ", "!x ", "? ", "<<", "~", ".inf", "1e5", "0x1f", "#", "%", "\t", "é", "\\", "\ud800", "\0", "<"]
)  # fmt: skip


@given(st.lists(yaml_pieces, max_size=25).map("".join))
@settings(max_examples=250)
def test_text_that_looks_like_yaml_as_a_job_file(text: str) -> None:
    accepted(load_job_file, text.encode(errors="surrogatepass"))


@given(anything | half_known | st.builds(lambda more: {"command": ["a"], **more}, half_known))
@settings(max_examples=250)
def test_any_json_as_a_request(data: Any) -> None:
    for request in accepted(parse_request, data):
        assert parse_request(request.to_body()) == request


@given(st.binary(max_size=100))
def test_any_bytes_as_a_body(data: Any) -> None:
    accepted(parse_request_json, data)


@given(requests)
@settings(max_examples=150)
def test_accepted_request_passes_schema_and_becomes_workload(data: Any) -> None:
    request = parse_request(data)
    VALIDATOR.validate(data)
    VALIDATOR.validate(request.to_body())
    assert parse_request(json.loads(json.dumps(request.to_body()))) == request
    assert parse_request(request.model_dump(mode="json", by_alias=True)) == request
    resolve = dict.fromkeys(references(request), WorkloadId("waaaaaaaaaa"))
    workload, replicas = to_workload(request, id=WorkloadId("w0123456789"), submitter=SUBMITTER, resolve=resolve)
    assert len(replicas) == workload.completions >= workload.parallelism >= 1
    assert program_for(workload, workload.completions - 1)[0] == tuple(request.command)


@given(st.builds(lambda more: {"command": ["a"], **more}, half_known))
@settings(max_examples=150)
def test_model_accepts_nothing_that_schema_refuses(data: Any) -> None:
    if accepted(parse_request, data):
        VALIDATOR.validate(data)


@given(requests)
def test_request_as_json_file_is_equal(data: Any) -> None:
    request = parse_request(data)
    assert load_job_file(json.dumps(request.to_body()).encode()) == [request]


def test_schema_is_valid_and_published() -> None:
    jsonschema.Draft202012Validator.check_schema(job_schema())
    assert (ROOT / "docs" / "job.schema.json").read_text() == schema_text()


@pytest.mark.parametrize(
    "data",
    [{"comand": []}, {"gpus": {"count": -1}}, {"gpus": {"fraction": 2}}, {"command": "ls"}, {"priority": "urgent"},
     {"image": ""}, {"completions": 10_001}, {"sweep": {"grid": {}}}],
)  # fmt: skip
def test_schema_refuses_errors_visible_to_editors(data: Any) -> None:
    assert not VALIDATOR.is_valid(data)
