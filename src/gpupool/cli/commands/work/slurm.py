"""The commands of Slurm with their common options: sbatch, srun, salloc, squeue, scancel, sinfo, sacct, scontrol."""

from __future__ import annotations

import contextlib
import getopt
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from gpupool.cli.output import confirm, notify, show
from gpupool.cli.render import slurm
from gpupool.cli.transport.pool import PoolClient, open_pool, workload_path
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.slurm import values
from gpupool.specs.slurm.script import (
    NAME_LABEL,
    TASK,
    add_default_output,
    apply_words,
    complete,
    new_job,
    parse_script,
    read_script,
)

Options = dict[str, str]
MAX_SCRIPT_BYTES = 96 << 10  # of a script on standard input: the limit of one argument is 128 KiB
MAX_TASKS = 64
KILL = frozenset({"KILL", "9"})
MAX_INTERVAL_S = 86400
_TASKS = re.compile(r"(w[0-9a-z]{10})_(\d+|\[[\d,:-]+\])")
_LIST = re.compile(r"(?:\[[^\]]*\]|[^,])+")  # parts between commas that are not in brackets
_ENDED = frozenset({"succeeded", "failed", "stopped"})
# Starts SLURM_NTASKS tasks of "$@" and returns the highest exit status; the first task reads standard input.
TASKS = """exec 3<&0; n=0; ids=; worst=0
while [ "$n" -lt "$SLURM_NTASKS" ]; do
  if [ "$n" = 0 ]; then exec 4<&3; else exec 4</dev/null; fi
  SLURM_PROCID=$n SLURM_LOCALID=$n "$@" <&4 3<&- 4<&- & ids="$ids $!"; n=$((n + 1))
done
for id in $ids; do wait "$id"; code=$?; [ "$code" -le "$worst" ] || worst=$code; done
exit "$worst"
"""
VERBS = {"hold": "suspend", "suspend": "suspend", "release": "resume", "resume": "resume", "requeue": "restart"}
KNOWN = f"show job, show node, show hostnames, {', '.join(VERBS)}"
JOB_ONLY = frozenset({"after", "parallelism"})  # options of jobs that ``run`` does not have


def sbatch(words: list[str]) -> int:
    """Submit a script, the text on standard input, or the command of ``--wrap``."""
    from gpupool.cli.commands.work.submit import post_request
    from gpupool.cli.request.submit import build_script_body

    job = new_job()
    rest = apply_words(job, words)
    given = words[: len(words) - len(rest)]
    if job.wrap:
        if rest:
            raise _refusal("--wrap excludes a script.", "Give one of them.")
        job.name = job.name or "wrap"
        add_default_output(job)
        script = complete(job, ["/bin/sh", "-c", job.wrap], [])
    elif rest:
        script = read_script(rest[0], rest[1:], given, files=True)
    else:
        script = parse_script(_standard_input(), "-", [], given, files=True)
    pool = open_pool(start=True)
    made = post_request(pool, build_script_body(script, {}), {})
    if script.parsable or not job.quiet:
        show([str(made["id"]) if script.parsable else f"Submitted batch job {made['id']}"])
    if not script.wait:
        return 0
    from gpupool.cli.commands.work.control import wait

    return wait([made["id"]])


def _standard_input() -> str:
    data = sys.stdin.buffer.read(MAX_SCRIPT_BYTES + 1)
    if len(data) > MAX_SCRIPT_BYTES:
        raise GpupoolError(ErrorCode.TOO_LARGE, "The script is larger than 96 KiB.", "Submit it as a file.")
    return data.decode(errors="replace")


def srun(words: list[str]) -> int:
    """Run a program: in a job its tasks, else as ``gpupool run``."""
    job = new_job()
    command = apply_words(job, words)
    if not command:
        raise _refusal("srun needs a program.", "For example: srun --gres=gpu:1 python3 train.py")
    if os.environ.get("SLURM_JOB_ID") and os.environ.get("GPUPOOL_WORKLOAD_ID"):
        return _run_tasks(job.tasks if any(w.startswith(("-n", "--ntasks")) for w in words) else 1, command)
    from gpupool.cli.fast.commands import run_attached
    from gpupool.cli.request.request_body import workload_body
    from gpupool.cli.transport.local import find_transport

    script = complete(job, command, [])
    if script.singleton or job.array is not None or JOB_ONLY & script.options.keys():
        raise _refusal("Arrays and dependencies are options of sbatch.", "Submit a script with sbatch.")
    for note in script.notes:
        notify(note)
    values = script.options | ({"tty": True} if job.pty else {}) | {"quiet": job.quiet}
    tasks = 1 if job.pty else job.tasks
    program = ["/bin/sh", "-c", TASKS, "srun", *script.command] if tasks > 1 else script.command
    body = workload_body(values, program) | {"kind": "run", "env_from": script.fields["env_from"]}
    return run_attached(find_transport(start=True), body, values)


def salloc(words: list[str]) -> int:
    """Run a shell, or a program, on its own GPUs. In it srun starts tasks on the same GPUs."""
    rest = apply_words(new_job(), words)
    options = words[: len(words) - len(rest)]
    return srun([*options, *rest] if rest else [*options, "--pty", os.environ.get("SHELL") or "/bin/sh"])


def scontrol(words: list[str]) -> int:
    """Show or change jobs."""
    words = [word for word in words if word not in {"-o", "--oneliner", "-d", "--details"}]
    verb, rest = words[0] if words else "", words[1:]
    if verb in VERBS and rest:
        pool = open_pool()
        for name in _listed_names(rest):
            pool.post(workload_path(name, VERBS[verb]), {})
        return 0
    what, names = (rest[0].rstrip("s") if rest else ""), _listed_names(rest[1:])
    if verb == "show" and what == "hostname":
        show(names)
    elif verb == "show" and what == "job":
        _show_jobs(open_pool(), names)
    elif verb == "show" and what == "node":
        _show_nodes(open_pool(), names)
    else:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"'scontrol {' '.join(words)[:60]}' is not known.", f"Use {KNOWN}."
        )
    return 0


def _listed_names(words: Sequence[str]) -> list[str]:
    """Return the names in words such as ``a,b`` and ``JobId=a``."""
    return [part for word in words for part in word.rpartition("=")[2].split(",") if part]


def _show_jobs(pool: PoolClient, names: Sequence[str]) -> None:
    jobs = [pool.get(workload_path(name)) for name in names] or pool.workloads({"all": False, "reasons": True})
    for job in jobs:
        show([*slurm.job_lines(job), ""])


def _show_nodes(pool: PoolClient, names: Sequence[str]) -> None:
    nodes = pool.get("nodes")["nodes"]
    for missing in set(names) - {node["name"] for node in nodes}:
        raise GpupoolError(ErrorCode.NOT_FOUND, f"There is no node '{missing[:80]}'.", "sinfo -N lists nodes.")
    for node in nodes:
        if not names or node["name"] in names:
            show([*slurm.node_lines(node), ""])


def _run_tasks(count: int, command: Sequence[str]) -> int:
    """Run a program once for each task of a job, and return the highest exit status."""
    if not 0 < count <= MAX_TASKS:
        raise _refusal(f"{count} tasks are not possible.", f"At most {MAX_TASKS} are.")
    started = []
    for number in range(count):
        env = os.environ | {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number), "SLURM_NTASKS": str(count)}
        try:
            started.append(subprocess.Popen(command, env=env, stdin=None if number == 0 else subprocess.DEVNULL))
        except OSError as error:
            notify(f"{command[0]} cannot be started: {error.strerror}")
            return 127
    return max(code if code >= 0 else 128 - code for code in [process.wait() for process in started])


def squeue(words: list[str]) -> int:
    """List jobs that have not ended, with ``-i`` again and again."""
    names = "user= me jobs= job= name= states= partition= account= noheader format= long all array iterate="
    options, _ = _parse(words, "u:j:n:t:p:A:ho:lari:", names.split())
    text = options.get("-o", slurm.LONG_QUEUE_FORMAT if "-l" in options else slurm.QUEUE_FORMAT)
    pool, interval = open_pool(), _interval_s(options)
    while True:
        rows = slurm.format_rows(text, slurm.QUEUE_FIELDS, _jobs(pool, options), header="-h" not in options)
        if interval is None:
            show(rows)
            return 0
        show([time.strftime("%a %b %d %H:%M:%S %Y"), *rows, ""])
        sys.stdout.flush()
        time.sleep(interval)


def _interval_s(options: Options) -> float | None:
    """Return the seconds of ``-i``; none without it."""
    text = options.get("-i")
    if text is not None and (not text.isdecimal() or not 0 < int(text) <= MAX_INTERVAL_S):
        raise _refusal(f"'{text[:20]}' is not an interval.", f"Give whole seconds from 1 to {MAX_INTERVAL_S}.")
    return None if text is None else float(text)


def sinfo(words: list[str]) -> int:
    """List nodes by state."""
    options, _ = _parse(words, "hNo:lp:a", ["noheader", "Node", "format=", "long", "partition=", "all"])
    if unknown := sorted(_listed(options, "-p") - {slurm.PARTITION}):
        raise _refusal(f"There is no partition {unknown[0][:40]}.", f"The pool has one: {slurm.PARTITION}.")
    formats = {
        (False, False): slurm.NODES_FORMAT,
        (False, True): slurm.LONG_NODES_FORMAT,
        (True, False): slurm.EACH_NODE_FORMAT,
        (True, True): slurm.LONG_EACH_NODE_FORMAT,
    }
    text = options.get("-o", formats["-N" in options, "-l" in options])
    groups = slurm.node_groups(open_pool().get("nodes")["nodes"], each="-N" in options)
    show(slurm.format_rows(text, slurm.NODE_FIELDS, groups, header="-h" not in options))
    return 0


def sacct(words: list[str]) -> int:
    """List jobs, ended ones included."""
    names = "user= jobs= name= state= account= noheader format= parsable parsable2 allocations allusers array "
    options, _ = _parse(words, "u:j:s:A:no:pPXaS:E:", f"{names} starttime= endtime= units=".split(), SACCT)
    header = "-n" not in options
    pool = open_pool()
    jobs = _jobs(pool, options, ended=True)
    parsable = "P" if "-P" in options else "p" if "-p" in options else ""
    fields = options.get("-o", slurm.ACCOUNTING_FIELDS)
    if "maxrss" in fields.lower():
        jobs = [job | {"max_rss_mib": _highest_memory(pool, job)} for job in jobs]
    show(slurm.accounting_lines(fields, jobs, header=header, parsable=parsable))
    return 0


def _highest_memory(pool: PoolClient, job: dict[str, Any]) -> int:
    """Return the highest measured memory of a replica, 0 without a measurement."""
    with contextlib.suppress(GpupoolError):
        return int(pool.get(workload_path(job["id"].partition("_")[0], "efficiency"))["memory_mib"])
    return 0


def scancel(words: list[str]) -> int:
    """Stop jobs by id or name, or send them a signal."""
    long = "user= me name= jobname= state= account= partition= quiet verbose interactive signal="
    options, names = _parse(words, "u:n:t:A:p:s:qvi", long.split(), SCANCEL)
    pool, status = open_pool(), 0
    signal = options.get("--signal", "").upper().removeprefix("SIG")
    if options.keys() & {"-u", "--me", "-n", "-t", "-A", "-p"}:
        names = [*names, *(job["id"] for job in _jobs(pool, options))]
    elif not names:
        raise _refusal("scancel needs jobs.", "Give ids or names, or --me, --user, --name or --state.")
    for name in names:
        if "-i" in options and not confirm(f"Cancel job {name}?"):
            continue
        try:
            _cancel(pool, name, signal)
        except GpupoolError as error:
            from gpupool.cli.errors import report

            if "-q" not in options:
                report(error)
            status = 1
    return status


def _cancel(pool: PoolClient, name: str, signal: str) -> None:
    """Stop a job, or the tasks in ``ID_3`` or ``ID_[1-4]``; with a signal other than KILL send it instead."""
    job, tasks = _task_reference(name)
    verb = "signal" if signal and signal not in KILL else "stop"
    body = {"signal": signal} if verb == "signal" else {"force": bool(signal)}
    if tasks is None:
        pool.post(workload_path(job, verb), body)
        return
    indexes = {task: replica["index"] for task, replica in _tasks_of(pool, job)}
    missing = [task for task in tasks if task not in indexes]
    if missing:
        raise GpupoolError(ErrorCode.NOT_FOUND, f"{job} has no task {missing[0]}.", "squeue -r lists tasks.")
    for task in tasks:
        pool.post(workload_path(job, verb), body | {"index": indexes[task]})


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "sbatch": sbatch,
    "srun": srun,
    "squeue": squeue,
    "scancel": scancel,
    "sinfo": sinfo,
    "sacct": sacct,
    "salloc": salloc,
    "scontrol": scontrol,
}
LONG = {  # the short spelling of a long option
    "--user": "-u",
    "--partition": "-p",
    "--iterate": "-i",
    "--long": "-l",
    "--account": "-A",
    "--array": "-r",
    "--starttime": "-S",
    "--endtime": "-E",
    "--jobs": "-j",
    "--job": "-j",
    "--name": "-n",
    "--states": "-t",
    "--state": "-t",
    "--noheader": "-h",
    "--format": "-o",
    "--Node": "-N",
    "--parsable": "-p",
    "--parsable2": "-P",
}


SCANCEL = LONG | {"--jobname": "-n", "-s": "--signal", "--quiet": "-q", "--interactive": "-i"}
SACCT = LONG | {"--name": "--name", "--noheader": "-n", "--state": "-s"}


def _parse(
    words: list[str], short: str, long: list[str], spellings: dict[str, str] = LONG
) -> tuple[Options, list[str]]:
    try:
        found, rest = getopt.gnu_getopt(words, short, long)
    except getopt.GetoptError as error:
        raise _refusal(f"{error.msg[:1].upper()}{error.msg[1:]}.", "See docs/from-slurm.md.") from error
    return {spellings.get(flag, flag): value for flag, value in found}, rest


def _jobs(pool: PoolClient, options: Options, *, ended: bool = False) -> list[dict[str, Any]]:
    """Return the jobs and tasks that options such as ``-u``, ``-j``, ``-n`` and ``-t`` select, oldest first."""
    states = {text.strip().upper() for text in options.get("-t", options.get("-s", "")).split(",") if text.strip()}
    unknown = sorted(states - slurm.STATE_NAMES - {"ALL"})
    if unknown:
        raise _refusal(f"The state {unknown[0][:40]} is not known.", f"States: {', '.join(sorted(slurm.STATE_NAMES))}.")
    all_states = ended or bool(states)
    query = {"all": all_states, "mine": True if "--me" in options else None, "reasons": None if ended else True}
    users, accounts, names = (_listed(options, flag) for flag in ("-u", "-A", "--name" if ended else "-n"))
    partitions = set() if ended else _listed(options, "-p")
    ids = [_task_reference(part) for part in _LIST.findall(options.get("-j", ""))]
    start, end = (_time(options.get(flag), ended=flag == "-E") for flag in ("-S", "-E"))
    rows = [
        row
        for job in reversed(pool.workloads(query))
        if (not users or job["user"] in users)
        and (not accounts or job["project"] in accounts)
        and (not partitions or slurm.partition(job) in partitions)
        and (not names or {job["name"], job["labels"].get(NAME_LABEL, "")} & names)
        and job["created_at"] < end
        and (job["finished_at"] is None or job["finished_at"] >= start)
        for row in _rows(pool, job, ids, each_task="-r" in options)
    ]
    live = rows if all_states else [row for row in rows if row["state"] not in _ENDED]
    return live if not states or "ALL" in states else [row for row in live if states & {*slurm.state_names(row)}]


def _rows(
    pool: PoolClient, job: dict[str, Any], ids: Sequence[tuple[str, Sequence[int] | None]], *, each_task: bool
) -> Iterator[dict[str, Any]]:
    """Yield a job if ``ids`` name it (none: all jobs), or its tasks that ``ids`` name."""
    wanted = [tasks for ref, tasks in ids if ref in {job["id"], job["name"]}]
    if ids and not wanted:
        return
    whole = not ids or None in wanted
    if whole and not (each_task and NAME_LABEL in job["labels"] and job["completions"] > 1):
        yield job
        return
    numbers = {task for tasks in wanted for task in tasks or ()}
    for task, replica in _tasks_of(pool, job["id"]):
        if whole or task in numbers:
            yield slurm.array_task(job, replica, task)


def _tasks_of(pool: PoolClient, job: str) -> list[tuple[int, dict[str, Any]]]:
    """Return number and replica of each task of an array."""
    replicas = pool.get(workload_path(job))["replicas"]
    return [(each["parameters"][TASK], each) for each in replicas if TASK in (each["parameters"] or {})]


def _task_reference(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Return the job and the tasks in ``ID_3`` and ``ID_[1-4,7]``; no tasks for a name or an id."""
    found = _TASKS.fullmatch(text)
    return (text, None) if found is None else (found[1], values.indices(found[2].strip("[]")).tasks)


def _time(text: str | None, *, ended: bool) -> float:
    if text is None:
        return math.inf if ended else 0.0
    return values.past_time(text, datetime.now().astimezone()).timestamp()


def _listed(options: Options, flag: str) -> set[str]:
    return {part for part in options.get(flag, "").split(",") if part}


def _refusal(what: str, hint: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, what, hint)
