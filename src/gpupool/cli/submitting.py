"""From the options of ``submit`` and job files to requests, and what a dry run tells of them."""

from __future__ import annotations

import os
import sys
from typing import Any

from gpupool.cli import asking
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import GpuRequest
from gpupool.domain.units import WHOLE_GPU, fraction_to_permille
from gpupool.specs.options import SweepOptions, parse_after
from gpupool.specs.request import WorkloadRequest, parse_request

Values = dict[str, Any]
AMOUNTS = frozenset({"count", "fraction", "memory_mib"})
PASSED_ON = ("parallelism", "completions", "restart", "backoff_limit", "log_limit", "tty", "stdin")


def requests_of(values: Values, words: list[str], program: list[str]) -> list[WorkloadRequest]:
    """What the command line asks for, checked. Raises ``GpupoolError``.

    ``words`` came before ``--`` (the first is the name), ``program`` after it.
    """
    if words and "name" not in values:
        values, words = values | {"name": words[0]}, words[1:]
    body = _body(values, [*words, *program])
    files = values.get("file") or []
    if not files:
        return [parse_request({"kind": "training"} | body)]
    found = [request for path in files for request in _read(path)]
    if len(found) > 1 and "name" in body:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "One name cannot be given to several jobs.", "Name them in the job file."
        )
    return [_merged(request.to_body(), body) for request in found]


def _body(values: Values, command: list[str]) -> Values:
    body = asking.workload(values, command)
    body |= {name: values[name] for name in PASSED_ON if values.get(name) is not None}
    if values.get("interactive"):
        body["kind"] = "interactive"
        body.setdefault("tty", True)
    if values.get("after"):
        body["after"] = parse_after(values["after"])
    sweep = SweepOptions(
        grid=tuple(values.get("sweep") or ()),
        list_file=values.get("sweep_list"),
        random=tuple(values.get("sweep_random") or ()),
        samples=values.get("samples"),
        seed=values.get("seed"),
    ).to_spec()
    return body if sweep is None else body | {"sweep": sweep}


def _read(path: str) -> list[WorkloadRequest]:
    from gpupool.specs.jobfile import load_job_file

    here = os.getcwd()  # noqa: PTH109 - text is what the reader wants
    if path == "-":
        return load_job_file(sys.stdin.buffer.read(), name="standard input", folder=here)
    return load_job_file(path, folder=here)


def _merged(from_file: Values, from_options: Values) -> WorkloadRequest:
    """Options win over the file; the environment of this shell lies under both."""
    env = asking.environment([]) | from_file.get("env", {}) | from_options.get("env", {})
    umask = asking.program({}, ["-"])["umask"]
    request_id = os.urandom(16).hex()  # one per job, also where options are shared
    merged = {"umask": umask} | from_file | from_options | {"env": env, "request_id": request_id}
    if AMOUNTS.isdisjoint(from_options.get("gpus", {})):  # the file's amount stays
        merged |= {"gpus": from_file.get("gpus", {}) | from_options.get("gpus", {})}
    return parse_request(merged)


def plan(request: WorkloadRequest, gpus: list[dict[str, Any]]) -> list[str]:
    """What a request comes to, and whether it could start on the GPUs as they are now."""
    wanted = gpu_request(request)
    replicas = request.sweep.size if request.sweep else request.completions or request.parallelism or 1
    parallel = min(request.parallelism or replicas, replicas)
    lines = [f"{replicas} to run, {parallel} at a time; GPUs for each: {wanted.count}"]
    if not gpus:
        return [*lines, "No pool answers here, so nothing can be said about when it would start."]
    room = sum(_room(wanted, gpu) for gpu in gpus if gpu["available"])
    verdict = "it could start now" if room >= wanted.count else "it would wait"
    return [*lines, f"{room} such parts of GPUs are free now: {verdict}."]


def gpu_request(request: WorkloadRequest) -> GpuRequest:
    """The GPUs that each replica would get."""
    spec = request.gpus
    permille = WHOLE_GPU if spec.fraction is None else fraction_to_permille(spec.fraction)
    return GpuRequest(spec.count, permille, spec.memory_mib, tuple(spec.models))


def _fits(wanted: GpuRequest, gpu: dict[str, Any]) -> bool:
    return wanted.accepts_model(gpu["model"]) and wanted.permille_on(gpu["memory_mib"]) <= WHOLE_GPU


def _room(wanted: GpuRequest, gpu: dict[str, Any]) -> int:
    """How many such parts a GPU has left."""
    if not _fits(wanted, gpu):
        return 0
    return int((WHOLE_GPU - gpu["allocated_permille"]) // max(wanted.permille_on(gpu["memory_mib"]), 1))
