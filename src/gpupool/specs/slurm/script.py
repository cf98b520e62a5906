"""Read job scripts with ``#SBATCH`` and ``#GPUPOOL`` lines.

As in sbatch, the lines end at the first command of the script; options of the command line win over them.
"""

from __future__ import annotations

import os
import shlex
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from gpupool.domain.errors import GpupoolError
from gpupool.specs.limits import MAX_LABEL_VALUE
from gpupool.specs.slurm.options import BY_FLAG, GANG, REFUSED, SlurmJob
from gpupool.specs.slurm.output import PROGRAM, VARIABLE, redirected
from gpupool.specs.slurm.values import refusal
from gpupool.specs.text.files import read_bounded

OWN, SLURM = "#GPUPOOL", "#SBATCH"
TASK = "task"  # the parameter of an array's sweep
NAME_LABEL = "slurm-job-name"
PARTITION_LABEL = "slurm-partition"
COMMENT_LABEL = "slurm-comment"


@dataclass(slots=True)
class JobScript:
    """A script as a submission: options of ``submit``, its command, fields of the request, and notes for the user.

    ``own`` are the words of ``#GPUPOOL`` lines.
    """

    options: dict[str, Any]
    command: list[str]
    own: list[str]
    fields: dict[str, Any] = field(default_factory=dict)
    singleton: str = ""
    wait: bool = False
    parsable: bool = False
    notes: list[str] = field(default_factory=list)


def is_script(path: str) -> bool:
    """Return whether a word names a file that begins with ``#!``."""
    try:
        with Path(path).open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def read_script(
    path: str, arguments: Sequence[str], slurm_words: Sequence[str] = (), *, files: bool = False
) -> JobScript:
    """Return the submission of a script. ``slurm_words`` are options of sbatch that win over the script's.

    ``files``: without ``--output`` it writes to sbatch's default files.
    Raises ``GpupoolError`` with the line of an option that cannot be used.
    """
    text = read_bounded(Path(path), path).decode(errors="replace")
    return parse_script(text, path, arguments, slurm_words, files=files)


def parse_script(
    text: str, path: str, arguments: Sequence[str], slurm_words: Sequence[str] = (), *, files: bool = False
) -> JobScript:
    """Return the submission of a script's text; the text of ``-`` (standard input) becomes part of the command."""
    job, own, lines = new_job(), list[str](), text.splitlines()
    if not text.startswith("#!"):
        raise refusal(f"{path} does not begin with #!.", "Begin the script with #!/bin/bash.")
    for number, kind, words in _headers(path, lines):
        try:
            if kind == OWN:
                own += words
            else:
                apply_words(job, words)
        except GpupoolError as error:
            raise GpupoolError(error.code, f"{path} line {number}: {error.message}", error.hint) from error
    rest = apply_words(job, slurm_words)
    if rest:
        raise refusal(f"'{rest[0][:40]}' is not an option.", "Options come before the script.")
    job.name = job.name or ("sbatch" if path == "-" else Path(path).name)
    interpreter = shlex.split(lines[0][2:]) or ["/bin/sh"]
    program = ["-c", text, "sbatch"] if path == "-" else [_location(path, job)]
    if files:
        add_default_output(job)
    return complete(job, [*interpreter, *program, *arguments], own)


def add_default_output(job: SlurmJob) -> None:
    """Set the file of sbatch: ``slurm-%j.out``, for arrays ``slurm-%A_%a.out``."""
    job.output = job.output or ("slurm-%j.out" if job.array is None else "slurm-%A_%a.out")


def new_job() -> SlurmJob:
    """Return a job without options, submitted now."""
    return SlurmJob(datetime.now().astimezone())


def _headers(path: str, lines: Sequence[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Yield number, kind and words of the header lines."""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            return
        kind = next((k for k in (OWN, SLURM) if text.startswith((f"{k} ", f"{k}\t"))), None)
        if kind is None:
            continue
        try:
            yield number, kind, shlex.split(text[len(kind) :], comments=True)
        except ValueError as error:
            raise refusal(f"{path} line {number} cannot be read: {error}.", "Close the quotes.") from error


def apply_words(job: SlurmJob, words: Sequence[str]) -> list[str]:
    """Apply options of sbatch to a job, and return the words after them. Raises ``GpupoolError``."""
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        flag, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        option = BY_FLAG.get(flag)
        if option is None:
            known = REFUSED.get(flag, "it is not in the table of known options")
            raise refusal(f"The option {flag[:40]} of Slurm cannot be used: {known}.", "See docs/from-slurm.md.")
        optional = flag in {"--nice", "--exclusive"}
        if option.metavar and not equals and not optional:
            if not rest:
                raise refusal(f"{flag} needs a value.", f"Write {flag}={option.metavar}.")
            value = rest.pop(0)
        if option.apply is not None:
            option.apply(job, value)
        if option.note:
            job.notes.append(f"{flag} has no effect: {option.note}")
    return rest


def complete(job: SlurmJob, command: list[str], own: list[str]) -> JobScript:
    """Return the submission of a job. Raises ``GpupoolError`` for combinations that are not possible."""
    if job.nodes > 1:
        raise refusal(f"--nodes={job.nodes} is not possible: {GANG}.", "Use 'gpupool submit --workers N'.")
    options, tasks = job.options, max(job.tasks, job.tasks_per_node or 1)
    if job.gpus_per_task is not None:
        options["num_gpus"] = job.gpus_per_task * tasks
    options.setdefault("num_gpus", 0)  # as in Slurm, a job without this option has no GPU
    options["backoff_limit"] = 0  # as in Slurm, a program that failed is not restarted
    if job.cpus_per_task is not None or tasks > 1:
        options["cpus"] = float((job.cpus_per_task or 1) * tasks)
    if job.memory_per_cpu is not None:
        options["memory"] = str(round(job.memory_per_cpu * options.get("cpus", 1)))
    if job.memory_per_gpu is not None:
        options["memory"] = str(job.memory_per_gpu * max(1, options["num_gpus"]))
    if job.array is not None and job.array.limit is not None:
        options["parallelism"] = job.array.limit
    fields: dict[str, Any] = {"env_from": _known_at_start(job)}
    if job.array is not None:
        fields["sweep"] = {"grid": {TASK: list(job.array.tasks)}}
    options.setdefault("label", []).extend(_labels(job))
    options["env"] = [*(f"{name}={value}" for name, value in _known_now(job, tasks).items()), *options.get("env", [])]
    if job.output or job.error or job.array is not None:
        fields["env"] = {VARIABLE: PROGRAM}
        command = redirected(command, job.output, job.error, append=job.append)
    singleton = _label(job.name) if job.singleton else ""
    notes = list(dict.fromkeys(job.notes))
    return JobScript(options, command, own, fields, singleton, wait=job.wait, parsable=job.parsable, notes=notes)


def _location(path: str, job: SlurmJob) -> str:
    """Return the script's path from the folder where the job starts."""
    return os.path.abspath(path) if os.path.isabs(path) or "workdir" in job.options else path  # noqa: PTH100, PTH117


def _labels(job: SlurmJob) -> list[str]:
    """Return the labels from which squeue and sacct show a job."""
    found = {NAME_LABEL: _label(job.name), PARTITION_LABEL: job.partition and _label(job.partition)}
    comment = "".join(" " if unicodedata.category(c) == "Cc" else c for c in job.comment)
    found[COMMENT_LABEL] = comment[:MAX_LABEL_VALUE]
    return [f"{key}={value}" for key, value in found.items() if value]


def _label(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)[:60].strip("._-") or "job"


def _known_at_start(job: SlurmJob) -> dict[str, str]:
    """Return variables by the names of ``EnvSource``."""
    found = {"SLURM_JOB_ID": "id", "SLURM_JOBID": "id", "SLURM_JOB_USER": "user", "SLURM_JOB_ACCOUNT": "project"}
    found |= dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME"), "node")
    return found | ({"SLURM_ARRAY_JOB_ID": "id"} if job.array is not None else {})


def _known_now(job: SlurmJob, tasks: int) -> dict[str, str]:
    found = {"SLURM_JOB_NAME": job.name, "SLURM_SUBMIT_HOST": os.uname().nodename}
    found["SLURM_SUBMIT_DIR"] = str(Path.cwd())
    found |= {"SLURM_CLUSTER_NAME": "gpupool", "SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
    found |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "1")
    found |= dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0")
    found["SLURM_JOB_PARTITION"] = job.partition or "gpupool"
    if job.comment:
        found["SLURM_JOB_COMMENT"] = job.comment
    if job.cpus_per_task is not None:
        found["SLURM_CPUS_PER_TASK"] = str(job.cpus_per_task)
    if "cpus" in job.options:
        found |= dict.fromkeys(("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"), f"{job.options['cpus']:g}")
    if "memory" in job.options:
        found["SLURM_MEM_PER_NODE"] = job.options["memory"]
    if job.options.get("num_gpus"):
        found |= dict.fromkeys(("SLURM_GPUS", "SLURM_GPUS_ON_NODE"), str(job.options["num_gpus"]))
    if job.array is not None:
        tasks_of = job.array.tasks
        found |= {"SLURM_ARRAY_TASK_COUNT": str(len(tasks_of)), "SLURM_ARRAY_TASK_MIN": str(min(tasks_of))}
        found["SLURM_ARRAY_TASK_MAX"] = str(max(tasks_of))
    return found
