"""The options of sbatch and srun: one row for each, with what it becomes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from gpupool.specs.slurm import values

_NAME = re.compile(r"[^a-z0-9-]+")


@dataclass(slots=True)
class SlurmJob:
    """A job in Slurm's words. ``options`` are those of ``submit``, by the names of their values."""

    now: datetime
    options: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    tasks: int = 1
    tasks_per_node: int | None = None
    nodes: int = 1
    cpus_per_task: int | None = None
    memory_per_cpu: int | None = None
    memory_per_gpu: int | None = None
    gpus_per_task: int | None = None
    array: values.Indices | None = None
    singleton: bool = False
    output: str = ""
    error: str = ""
    append: bool = False
    partition: str = ""
    comment: str = ""
    wrap: str = ""
    parsable: bool = False
    wait: bool = False
    quiet: bool = False
    pty: bool = False
    notes: list[str] = field(default_factory=list)


Apply = Callable[[SlurmJob, str], None]


class SlurmOption(NamedTuple):
    """One option: its spellings, its value (empty: a flag), its effect, and a note when it has none."""

    flags: tuple[str, ...]
    metavar: str
    apply: Apply | None
    note: str = ""


def _set(name: str, convert: Callable[[str], Any] = str) -> Apply:
    def apply(job: SlurmJob, text: str) -> None:
        job.options[name] = convert(text)

    return apply


def _attribute(name: str, convert: Callable[[str], Any] = str) -> Apply:
    def apply(job: SlurmJob, text: str) -> None:
        setattr(job, name, convert(text))

    return apply


def _whole(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1_000_000:
        raise values.refusal(f"'{text[:40]}' is not a whole number above 0.", "Write a number.")
    return int(text)


def _name(job: SlurmJob, text: str) -> None:
    job.name = text
    job.options["name"] = _NAME.sub("-", text.lower()).strip("-")[:40] or "job"


def _gpus(job: SlurmJob, text: str) -> None:
    model, count = values.gpus(text)
    job.options["num_gpus"] = count
    if model is not None:
        job.options["model"] = [model]


def _gres(job: SlurmJob, text: str) -> None:
    for part in () if text == "none" else text.split(","):
        if part.partition(":")[0] != "gpu":
            raise values.refusal(f"The resource '{part[:40]}' is not a number of GPUs.", "Write gpu:2 or gpu:v100:2.")
        _gpus(job, part)


def _gpus_per_task(job: SlurmJob, text: str) -> None:
    _gpus(job, text)
    job.gpus_per_task = job.options.pop("num_gpus")


def _time(job: SlurmJob, text: str) -> None:
    if text.upper() not in {"UNLIMITED", "INFINITE", "0"}:
        job.options["max_time"] = f"{values.seconds(text)}s"


def _memory(job: SlurmJob, text: str) -> None:
    if text != "0":  # all memory of the node
        job.options["memory"] = str(values.memory_mib(text))


def _nodes(job: SlurmJob, text: str) -> None:
    job.nodes = _whole(text.partition("-")[0])


def _nodelist(job: SlurmJob, text: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text):
        raise values.refusal(
            "--nodelist takes one node here.", "Name one node, or select nodes by a label: --constraint."
        )
    job.options.setdefault("filter", []).append(f"node={text}")


def _constraint(job: SlurmJob, text: str) -> None:
    if not re.fullmatch(r"[\w.-]+(=[\w.-]+)?", text):
        raise values.refusal("--constraint takes one feature here.", "Name one label of the nodes: KEY=VALUE.")
    key, equals, value = text.partition("=")
    if equals:
        job.options.setdefault("filter", []).append(f"{key}={value}")
    else:
        job.options.setdefault("model", []).append(key)


def _dependency(job: SlurmJob, text: str) -> None:
    after, job.singleton = values.dependencies(text)
    if after:
        job.options["after"] = after


def _begin(job: SlurmJob, text: str) -> None:
    delay_s = values.begin_s(text, job.now)
    if delay_s > 0:
        job.options["begin"] = f"{delay_s:.0f}s"


def _exclusive(job: SlurmJob, _text: str) -> None:
    job.options["sharing"] = "whole"
    job.notes.append("--exclusive reserves whole GPUs; other jobs may use other GPUs and CPUs of the node")


def _export(job: SlurmJob, text: str) -> None:
    for part in text.split(","):
        if part not in {"ALL", "NONE", "NIL"}:
            job.options.setdefault("env", []).append(part)
    if text in {"NONE", "NIL"}:
        job.notes.append("--export=NONE has no effect; the environment of this shell is passed on")


def _nice(job: SlurmJob, text: str) -> None:
    number = int(text) if re.fullmatch(r"-?\d{1,9}", text) else 100
    job.options["priority"] = str(max(-1000, min(1000, -number)))


def _signal(job: SlurmJob, text: str) -> None:
    name = text.rpartition(":")[2].partition("@")[0].removeprefix("SIG")
    numbers = {"10": "USR1", "12": "USR2", "2": "INT", "15": "TERM"}
    job.options["notice_signal"] = numbers.get(name, name)


def _row(flags: str, metavar: str, apply: Apply | None, note: str = "") -> SlurmOption:
    return SlurmOption(tuple(flags.split()), metavar, apply, note)


_MAIL = "mail goes to your address in the pool: gpupool user set NAME --email ADDRESS"
GANG = "a gang of several nodes is submitted with --workers"
OPTIONS = (
    _row("-J --job-name", "NAME", _name),
    _row("-G --gpus", "[MODEL:]N", _gpus),
    _row("--gres", "gpu[:MODEL][:N]", _gres),
    _row("--gpus-per-node", "[MODEL:]N", _gpus),
    _row("--gpus-per-task", "[MODEL:]N", _gpus_per_task),
    _row("-c --cpus-per-task", "N", _attribute("cpus_per_task", _whole)),
    _row("-n --ntasks", "N", _attribute("tasks", _whole)),
    _row("--ntasks-per-node --tasks-per-node", "N", _attribute("tasks_per_node", _whole)),
    _row("-N --nodes", "N", _nodes),
    _row("--mem", "SIZE", _memory),
    _row("--mem-per-cpu", "SIZE", _attribute("memory_per_cpu", values.memory_mib)),
    _row("--mem-per-gpu", "SIZE", _attribute("memory_per_gpu", values.memory_mib)),
    _row("-t --time", "TIME", _time),
    _row("-a --array", "INDICES[%N]", _attribute("array", values.indices)),
    _row("-d --dependency", "LIST", _dependency),
    _row("-b --begin", "TIME", _begin),
    _row("-o --output", "PATTERN", _attribute("output")),
    _row("-e --error", "PATTERN", _attribute("error")),
    _row("--open-mode", "MODE", _attribute("append", lambda text: text.startswith("a"))),
    _row("-D --chdir", "DIR", _set("workdir")),
    _row("-A --account", "NAME", _set("project")),
    _row("-p --partition", "NAME", _attribute("partition"), "there are no partitions; --pool selects nodes by a label"),
    _row("-w --nodelist", "NODE", _nodelist),
    _row("-C --constraint", "FEATURE", _constraint),
    _row("--exclusive", "", _exclusive),
    _row("--export", "LIST", _export),
    _row("--nice", "[N]", _nice),
    _row("--requeue", "", lambda job, _: job.options.update(preemptible=True)),
    _row("--no-requeue", "", lambda job, _: job.options.update(preemptible=False)),
    _row("--signal", "SIGNAL[@S]", _signal),
    _row("--wrap", "COMMAND", _attribute("wrap")),
    _row("--parsable", "", _attribute("parsable", lambda _: True)),
    _row("-W --wait", "", _attribute("wait", lambda _: True)),
    _row("-Q --quiet", "", _attribute("quiet", lambda _: True)),
    _row("--pty", "", _attribute("pty", lambda _: True)),
    _row("--comment", "TEXT", _attribute("comment")),
    _row("-v --verbose", "", None),
    _row("-u --unbuffered", "", None),
    _row("-K --kill-on-bad-exit", "", None, "tasks end by themselves"),
    _row("--mail-type", "LIST", _set("mail")),
    _row("--mail-user", "ADDRESS", None, _MAIL),
    _row("-q --qos", "NAME", None, "there are no classes of service; use --priority"),
    _row("--reservation", "NAME", None, "users of a reservation use it without an option"),
    _row("-s --oversubscribe", "", None, "slices share GPUs: #GPUPOOL -p 0.5"),
    _row("--gpu-bind", "TEXT", None, "programs see only their GPUs"),
    _row("--cpu-bind", "TEXT", None, "CPUs are limited, not bound"),
    _row("--hint", "TEXT", None, "CPUs are limited, not bound"),
    _row("--distribution -m", "TEXT", None, "one program is started"),
    _row("--get-user-env", "", None, "the environment of this shell is passed on"),
)
BY_FLAG = {flag: option for option in OPTIONS for flag in option.flags}
REFUSED = {
    "-x": "nodes cannot be excluded",
    "--exclude": "nodes cannot be excluded",
    "--het-group": GANG,
    "--licenses": "there are no licenses",
    "-L": "there are no licenses",
    "--test-only": "use 'gpupool plan'",
}
