"""From the options of ``submit`` and job files to requests."""

from __future__ import annotations

import os
import sys
from typing import Any

from gpupool.cli import asking
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.options import SweepOptions, parse_after
from gpupool.specs.request import WorkloadRequest, parse_request

Values = dict[str, Any]
AMOUNTS = frozenset({"count", "fraction", "memory_mib"})
PASSED_ON = (
    "parallelism",
    "completions",
    "restart",
    "backoff_limit",
    "log_limit",
    "tty",
    "stdin",
    "kind",
    "lifetime",
    "framework",
    "processes",
    "on_member_end",
)


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
    values = _with_gpus_per_worker(values)
    body = asking.workload(values, command)
    body |= {name: values[name] for name in PASSED_ON if values.get(name) is not None}
    if values.get("interactive"):
        body["kind"] = "interactive"
        body.setdefault("tty", True)
    gang = _gang(values)
    if gang:
        body["gang"] = gang
    _add_roles(values, body)
    if values.get("after"):
        body["after"] = parse_after(values["after"])
    if values.get("window"):
        body["windows"] = values["window"]
    sweep = SweepOptions(
        grid=tuple(values.get("sweep") or ()),
        list_file=values.get("sweep_list"),
        random=tuple(values.get("sweep_random") or ()),
        samples=values.get("samples"),
        seed=values.get("seed"),
    ).to_spec()
    return body if sweep is None else body | {"sweep": sweep}


def _with_gpus_per_worker(values: Values) -> Values:
    """``--gpus-per-worker`` says what ``-n`` does, in the words of those who have workers."""
    count = values.get("gpus_per_worker")
    if count is None:
        return values
    if values.get("num_gpus") is not None or values.get("gpu") is not None:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "--gpus-per-worker and -n or -g say the same.", "Give one of them."
        )
    return values | {"num_gpus": count}


def _add_roles(values: Values, body: Values) -> None:
    """The tasks beside the workers, which then are a role too."""
    beside: list[Values] = []
    if values.get("chief"):
        beside.append({"name": "chief"})
    if values.get("ps") is not None:
        beside.append({"name": "ps", "replicas": values["ps"], "gpus": {"count": 0}})
    after: list[Values] = [{"name": "evaluator"}] if values.get("evaluator") else []
    if not beside and not after:
        return
    if values.get("framework") != "tf":
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            "--ps, --chief and --evaluator are for TensorFlow.",
            "Add --framework tf; other roles are written in a job file.",
        )
    gang = body.pop("gang", {})
    workers: list[Values] = [{"name": "worker", "replicas": gang.pop("workers")}] if "workers" in gang else []
    body["roles"] = [*beside, *workers, *after]
    if gang:
        body["gang"] = {"workers": sum(role.get("replicas", 1) for role in body["roles"]), **gang}


def _gang(values: Values) -> Values:
    """The gang that the options describe; parts of it change that of a job file."""
    if values.get("within") is not None and values.get("within_strictly") is not None:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "--within and --within-strictly exclude each other.", "Give one of them."
        )
    strictly = values.get("within_strictly")
    given = {
        "workers": values.get("workers"),
        "min": values.get("min_workers"),
        "within": strictly if strictly is not None else values.get("within"),
        "strict": True if strictly is not None else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _read(path: str) -> list[WorkloadRequest]:
    from gpupool.specs.jobfile import load_job_file

    here = os.getcwd()  # noqa: PTH109 - text is what the reader wants
    if path == "-":
        return load_job_file(sys.stdin.buffer.read(), name="standard input", folder=here)
    return load_job_file(path, folder=here)


def _merged(from_file: Values, from_options: Values) -> WorkloadRequest:
    """Options win over the file; the environment of this shell lies under both."""
    env = asking.environment([]) | from_file.get("env", {}) | from_options.get("env", {})
    if "image" in from_file or "image" in from_options:  # where nothing of this shell means anything
        env = from_file.get("env", {}) | (from_options.get("env", {}) if "image" in from_options else {})
    umask = asking.program({}, ["-"])["umask"]
    request_id = os.urandom(16).hex()  # one per job, also where options are shared
    merged = {"umask": umask} | from_file | from_options | {"env": env, "request_id": request_id}
    if AMOUNTS.isdisjoint(from_options.get("gpus", {})):  # the file's amount stays
        merged |= {"gpus": from_file.get("gpus", {}) | from_options.get("gpus", {})}
    if "gang" in from_options:
        merged |= {"gang": from_file.get("gang", {}) | from_options["gang"]}
    return parse_request(merged)
