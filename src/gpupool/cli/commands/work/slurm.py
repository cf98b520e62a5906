"""The commands of Slurm: sbatch, srun, squeue, scancel, sinfo and sacct, with their common options."""

from __future__ import annotations

import getopt
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpupool.cli.output import notify, show
from gpupool.cli.render import slurm
from gpupool.cli.transport.pool import PoolClient, open_pool, workload_path
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.slurm.script import (
    NAME_LABEL,
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
    from gpupool.cli.fast import commands as fast

    script = complete(job, command, [])
    if script.singleton or job.array is not None or JOB_ONLY & script.options.keys():
        raise _refusal("Arrays and dependencies are options of sbatch.", "Submit a script with sbatch.")
    for note in script.notes:
        notify(note)
    values = script.options | ({"tty": True} if job.pty else {}) | {"quiet": job.quiet}
    return fast.run(values, script.command)


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
    """List jobs that have not ended."""
    names = "user= me jobs= job= name= states= partition= account= noheader format= long start all iterate= Format="
    options, _ = _parse(words, "u:j:n:t:p:A:ho:lai:O:", names.split())
    text = options.get("-o", slurm.QUEUE_FORMAT)
    jobs = _jobs(open_pool(), options)
    show(slurm.format_rows(text, slurm.QUEUE_FIELDS, jobs, header="-h" not in options))
    return 0


def sinfo(words: list[str]) -> int:
    """List nodes by state."""
    options, _ = _parse(words, "hNo:lp:a", ["noheader", "Node", "format=", "long", "partition=", "all"])
    text = options.get("-o", "%N %.6D %.9P %.6t" if "-N" in options else slurm.NODES_FORMAT)
    groups = slurm.node_groups(open_pool().get("nodes")["nodes"], each="-N" in options)
    show(slurm.format_rows(text, slurm.NODE_FIELDS, groups, header="-h" not in options))
    return 0


def sacct(words: list[str]) -> int:
    """List jobs, ended ones included."""
    names = "user= jobs= name= state= noheader format= parsable parsable2 allocations allusers starttime= endtime= "
    options, _ = _parse(words, "u:j:s:no:pPXaS:E:", f"{names} delimiter= units= brief".split(), SACCT)
    header = "-n" not in options
    options["-h"] = ""
    jobs = _jobs(open_pool(), options, ended=True)
    parsable = "P" if "-P" in options else "p" if "-p" in options else ""
    show(slurm.accounting_lines(options.get("-o", slurm.ACCOUNTING_FIELDS), jobs, header=header, parsable=parsable))
    return 0


def scancel(words: list[str]) -> int:
    """Stop jobs by id or name."""
    options, names = _parse(words, "u:n:t:qvi", ["user=", "me", "name=", "state=", "quiet", "verbose"])
    pool, status = open_pool(), 0
    if options.keys() & {"-u", "--me", "-n", "-t"}:
        names = [*names, *(job["id"] for job in _jobs(pool, options))]
    elif not names:
        raise _refusal("scancel needs jobs.", "Give ids or names, or --me, --user, --name or --state.")
    for name in names:
        try:
            pool.post(workload_path(name, "stop"), {"force": False})
        except GpupoolError as error:
            from gpupool.cli.errors import report

            report(error)
            status = 1
    return status


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "sbatch": sbatch,
    "srun": srun,
    "squeue": squeue,
    "scancel": scancel,
    "sinfo": sinfo,
    "sacct": sacct,
}
LONG = {  # the short spelling of a long option
    "--user": "-u",
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
    """Return the jobs that options such as ``-u``, ``-j``, ``-n`` and ``-t`` select, oldest first."""
    states = [text.strip().upper() for text in options.get("-t", options.get("-s", "")).split(",") if text.strip()]
    unknown = [state for state in states if state not in slurm.BY_SLURM_STATE and state != "ALL"]
    if unknown:
        raise _refusal(f"The state {unknown[0][:40]} is not known.", f"States: {', '.join(slurm.BY_SLURM_STATE)}.")
    wanted = [slurm.BY_SLURM_STATE[state] for state in states if state != "ALL"]
    query = {"all": ended or bool(states), "state": wanted, "mine": True if "--me" in options else None}
    query["reasons"] = None if ended else True
    jobs: Iterable[dict[str, Any]] = pool.workloads(query)
    users, ids, names = (_listed(options, flag) for flag in ("-u", "-j", "-n" if not ended else "--name"))
    return [
        job
        for job in reversed(list(jobs))
        if (not users or job["user"] in users)
        and (not ids or {job["id"], job["name"]} & ids)
        and (not names or {job["name"], job["labels"].get(NAME_LABEL, "")} & names)
    ]


def _listed(options: Options, flag: str) -> set[str]:
    return {part for part in options.get(flag, "").split(",") if part}


def _refusal(what: str, hint: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, what, hint)
