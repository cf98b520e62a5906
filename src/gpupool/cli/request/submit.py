"""Convert the options of ``submit`` and job files to requests."""

from __future__ import annotations

import os
import sys

from gpupool.cli.request import request_body
from gpupool.cli.request.submit_options import PLAN_OPTIONS
from gpupool.cli.terminal import say
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.job_options import SUBMIT_OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpupool.specs.request import WorkloadRequest
    from gpupool.specs.slurm.script import JobScript

    Values = dict[str, Any]

AMOUNT_FIELDS = frozenset({"count", "fraction", "memory_mib"})


def build_requests(values: Values, words: list[str], program: list[str]) -> list[WorkloadRequest]:
    """Return the validated requests of a command line. Raises ``GpupoolError``.

    ``words`` came before ``--`` (the first is the name), ``program`` after it.
    """
    from gpupool.specs.request import parse_request

    values = _with_template(values)
    files = values.get("file") or []
    if not files:
        return [parse_request(build_body(values, words, program))]
    body = build_body(values, words, program)
    found = [request for path in files for request in _read(path)]
    if len(found) > 1 and "name" in body:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "--name cannot be used with several jobs.", "Set the names in the job file."
        )
    return [_merged(request.to_body(), body) for request in found]


def build_body(values: Values, words: list[str], program: list[str]) -> Values:
    """Return the body of a request without a job file. The pool checks it; ``build_requests`` also checks it here."""
    values = _with_template(values)
    if words and not program and os.path.isfile(words[0]):  # noqa: PTH113 - pathlib takes milliseconds to import
        from gpupool.specs.slurm.script import is_script, read_script

        if is_script(words[0]):
            return build_script_body(read_script(words[0], words[1:]), values)
        if len(words) == 1 or "/" in words[0]:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"The file {words[0]} does not begin with #!.",
                "Begin the script with #!/bin/bash, or give a name and a command: gpupool submit NAME -- COMMAND.",
            )
    if words and "name" not in values:
        values, words = values | {"name": words[0]}, words[1:]
    if words and program:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            f"'{words[0][:40]}' before -- is neither the name nor an option.",
            "Write the whole command after --.",
        )
    return _body(values, [*words, *program])


def _with_template(values: Values) -> Values:
    if "template" not in values:
        return values
    from gpupool.cli.request.templates import with_template

    return with_template(values)


def build_script_body(script: JobScript, values: Values) -> Values:
    """Return the body of a job script; ``values`` are the options of the command line, which win over its lines."""
    from gpupool.cli.request.templates import merge_values, read_options

    own = read_options(script.own, "after #GPUPOOL")
    for note in () if values.get("quiet") else script.notes:
        say(note)
    found = merge_values(merge_values(script.options, own), values)
    if script.singleton:
        found = found | {"after": [*found.get("after", []), *_earlier_jobs(script.singleton)]}
    body = _body(found, script.command)
    return body | script.fields | {"env": body["env"] | script.fields.get("env", {})}


def _earlier_jobs(name: str) -> list[str]:
    """Return the values of ``--after`` for the user's live jobs with a name of Slurm; none without a pool."""
    from gpupool.cli.transport.pool import open_pool
    from gpupool.specs.slurm.script import NAME_LABEL

    try:
        found = open_pool().workloads({"mine": True, "label": [f"{NAME_LABEL}={name}"]})
    except GpupoolError as error:
        if error.code is not ErrorCode.POOL_UNREACHABLE:
            raise
        return []
    return [f"{workload['id']}:any" for workload in found]


def _body(values: Values, command: list[str]) -> Values:
    values = _with_gpus_per_worker(values)
    body = request_body.workload_body(values, command)
    body |= request_body.copy_fields(values, (*SUBMIT_OPTIONS, *PLAN_OPTIONS))
    if values.get("interactive"):
        body["kind"] = "interactive"
        body.setdefault("tty", True)
    gang = _gang(values)
    if gang:
        body["gang"] = gang
    _add_roles(values, body)
    if values.get("after"):
        from gpupool.specs.options import parse_after

        body["after"] = parse_after(values["after"])
    if values.get("window"):
        body["windows"] = values["window"]
    return body | _sweep(values)


def _sweep(values: Values) -> Values:
    """Return the field ``sweep``; empty without the options of a sweep."""
    if all(values.get(name) is None for name in ("sweep", "sweep_list", "sweep_random", "samples", "seed")):
        return {}
    from gpupool.specs.options import SweepOptions

    sweep = SweepOptions(
        grid=tuple(values.get("sweep") or ()),
        list_file=values.get("sweep_list"),
        random=tuple(values.get("sweep_random") or ()),
        samples=values.get("samples"),
        seed=values.get("seed"),
    ).to_spec()
    return {} if sweep is None else {"sweep": sweep}


def _with_gpus_per_worker(values: Values) -> Values:
    """Treat ``--gpus-per-worker`` as ``-n``."""
    count = values.get("gpus_per_worker")
    if count is None:
        return values
    if values.get("num_gpus") is not None or values.get("gpu") is not None:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "--gpus-per-worker excludes -n and -g.", "Give one of them.")
    return values | {"num_gpus": count}


def _add_roles(values: Values, body: Values) -> None:
    """Add the roles other than worker; the workers are then a role too."""
    before: list[Values] = []
    if values.get("chief"):
        before.append({"name": "chief"})
    if values.get("ps") is not None:
        before.append({"name": "ps", "replicas": values["ps"], "gpus": {"count": 0}})
    after: list[Values] = [{"name": "evaluator"}] if values.get("evaluator") else []
    if not before and not after:
        return
    if values.get("framework") != "tf":
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            "--ps, --chief and --evaluator are for TensorFlow.",
            "Add --framework tf, or define other roles in a job file.",
        )
    gang = body.pop("gang", {})
    workers: list[Values] = [{"name": "worker", "replicas": gang.pop("workers")}] if "workers" in gang else []
    body["roles"] = [*before, *workers, *after]
    if gang:
        body["gang"] = {"workers": sum(role.get("replicas", 1) for role in body["roles"]), **gang}


def _gang(values: Values) -> Values:
    """Return the gang fields from the options; they override single fields of a job file's gang."""
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
        "mixed_models": values.get("mixed_models") or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _read(path: str) -> list[WorkloadRequest]:
    from gpupool.specs.jobfile import load_job_file

    here = os.getcwd()  # noqa: PTH109 - the reader takes text
    if path == "-":
        return load_job_file(sys.stdin.buffer.read(), name="standard input", folder=here)
    return load_job_file(path, folder=here)


def _merged(from_file: Values, from_options: Values) -> WorkloadRequest:
    """Merge a job file's request with the options.

    Options win over the file, the file over this shell's environment.
    """
    env = request_body.environment([]) | from_file.get("env", {}) | from_options.get("env", {})
    if "image" in from_file or "image" in from_options:  # this shell's environment does not apply there
        env = from_file.get("env", {}) | (from_options.get("env", {}) if "image" in from_options else {})
    from gpupool.specs.request import parse_request

    umask = request_body.program_fields({}, ["-"])["umask"]
    request_id = os.urandom(16).hex()  # one for each job
    merged = {"umask": umask} | from_file | from_options | {"env": env, "request_id": request_id}
    if AMOUNT_FIELDS.isdisjoint(from_options.get("gpus", {})):  # keep the amount of the file
        merged |= {"gpus": from_file.get("gpus", {}) | from_options.get("gpus", {})}
    if "gang" in from_options:
        merged |= {"gang": from_file.get("gang", {}) | from_options["gang"]}
    return parse_request(merged)
