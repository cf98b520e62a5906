"""Output of squeue, sinfo and sacct. Formats and states are those of their manual pages."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.slurm.script import COMMENT_LABEL, NAME_LABEL, PARTITION_LABEL

Json = dict[str, Any]
STATES = {  # long and short names
    "queued": ("PENDING", "PD"),
    "running": ("RUNNING", "R"),
    "stopping": ("COMPLETING", "CG"),
    "suspended": ("SUSPENDED", "S"),
    "succeeded": ("COMPLETED", "CD"),
    "failed": ("FAILED", "F"),
    "stopped": ("CANCELLED", "CA"),
}
ENDINGS = {  # names of failures with these codes; an interrupted job is a failed one
    "TIME_LIMIT": ("TIMEOUT", "TO"),
    "MEMORY_LIMIT": ("OUT_OF_MEMORY", "OOM"),
    "NODE_LOST": ("NODE_FAIL", "NF"),
    "NODE_RESTARTED": ("NODE_FAIL", "NF"),
    "WAIT_EXPIRED": ("DEADLINE", "DL"),
    "DEPENDENCY_FAILED": ("CANCELLED", "CA"),
}
REASONS = {  # Slurm's reason of a pending job, by the code of ``gpupool why``
    "WAITING_FOR_GPU": "Resources",
    "CPU_OR_MEMORY": "Resources",
    "OTHER_SHARING_MODE": "Resources",
    "MIG_INSTANCE": "Resources",
    "GANG": "Resources",
    "RESERVED_FOR_OTHERS": "Priority",
    "MANY_REQUESTS": "Priority",
    "BOOKED": "Reservation",
    "DEPENDENCY": "Dependency",
    "WINDOW": "BeginTime",
    "BACK_OFF": "BeginTime",
    "SUSPENDED": "JobHeldUser",
    "PARALLELISM": "JobArrayTaskLimit",
    "PROJECT_QUOTA": "AssocGrpGRES",
    "PROJECT_LIMIT": "AssocGrpGRES",
    "DEPARTMENT_QUOTA": "AssocGrpGRES",
    "DEPARTMENT_LIMIT": "AssocGrpGRES",
    "GPU_HOURS": "AssocGrpGRESMinutes",
    "USER_LIMIT": "QOSMaxGRESPerUser",
    "NO_SUCH_MODEL": "BadConstraints",
    "TOO_LARGE": "BadConstraints",
    "OTHER_NODE_POOL": "BadConstraints",
    "NODE_CORDONED": "ReqNodeNotAvail",
    "GPU_IN_USE_BY_OTHERS": "ReqNodeNotAvail",
    "GPU_UNHEALTHY": "ReqNodeNotAvail",
    "FOLDER": "ReqNodeNotAvail",
}
STATE_NAMES = frozenset(name for names in (*STATES.values(), *ENDINGS.values()) for name in names)
PARTITION = "gpupool"
QUEUE_FORMAT = "%.18i %.9P %.20j %.8u %.2t %.12M %.6D %R"
LONG_QUEUE_FORMAT = "%.18i %.9P %.20j %.8u %.10T %.12M %.12l %.6D %R"
NODES_FORMAT = "%9P %.5a %.10l %.6D %.6t %N"
EACH_NODE_FORMAT = "%N %.6D %.9P %.6t"
LONG_EACH_NODE_FORMAT = "%N %.6D %.9P %.11T %.6c %.9m %G"
LONG_NODES_FORMAT = "%9P %.5a %.10l %.6D %.11T %.6c %.9m %G %N"
ACCOUNTING_FIELDS = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
_FIELD = re.compile(r"%(\.)?(\d{1,3})?([A-Za-z%])")


def elapsed(seconds: float | None) -> str:
    """Return ``MM:SS``, ``HH:MM:SS`` or ``D-HH:MM:SS``."""
    whole = int(seconds or 0)
    days, rest = divmod(whole, 86400)
    hours, minutes, rest = rest // 3600, rest % 3600 // 60, rest % 60
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def moment(at: float | None) -> str:
    """Return a time as ``2031-01-20T12:34:56`` in local time."""
    return "N/A" if at is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def state_names(job: Json) -> tuple[str, str]:
    """Return the long and the short name of a job's state."""
    ending = job["ending"] if job["state"] == "failed" else None
    return ENDINGS.get(ending["code"] if ending else "", STATES[job["state"]])


def array_task(job: Json, replica: Json, task: int) -> Json:
    """Return a task of an array in the form of a job."""
    state = {"pending": "suspended" if job["suspended"] else "queued", "starting": "running"}
    if replica["state"] == "pending" and job["counts"]["running"] >= job["parallelism"] and not job.get("waiting"):
        job = job | {"waiting": {"code": "PARALLELISM", "message": ""}}
    own = {key: replica[key] for key in ("node", "exit_status", "started_at", "finished_at", "ending")}
    return job | own | {"id": f"{job['id']}_{task}", "state": state.get(replica["state"], replica["state"])}


def job_name(job: Json) -> str:
    """Return the name that the script gave, else the workload's."""
    return str(job["labels"].get(NAME_LABEL) or job["name"])


def partition(job: Json) -> str:
    """Return the partition that was given for the job, which selects no nodes, else that of the pool."""
    return str(job["labels"].get(PARTITION_LABEL) or PARTITION)


def _comment(job: Json) -> str:
    return str(job["labels"].get(COMMENT_LABEL, ""))


def _ran(job: Json) -> float:
    if job["started_at"] is None:
        return 0.0
    return max(0.0, float(job["finished_at"] or time.time()) - float(job["started_at"]))


def reason(job: Json) -> str:
    """Return Slurm's reason of a pending job; ``None`` for other jobs, and as long as the reason is not known."""
    waiting = job.get("waiting") or {}
    return REASONS.get(waiting.get("code", ""), "None") if job["state"] == "queued" else "None"


def _exit_code(job: Json) -> str:
    """Return the exit status and the signal; of an array those of the task that explains its end."""
    status = job["exit_status"] or (job["ending"] or {}).get("exit_status") or 0
    return f"0:{status - 128}" if 128 < status < 193 else f"{status}:0"


def _node_or_reason(job: Json) -> str:
    return f"({reason(job)})" if job["state"] == "queued" else str(job["node"] or "")


def _gres(job: Json) -> str:
    gpus = job["gpus"]
    return f"gres/gpu:{gpus['count']}" if gpus["count"] else "N/A"


def _nodes(job: Json) -> str:
    return job["node"] or "None assigned"


def _cpus(job: Json) -> str:
    return f"{job['cpus'] or 1:g}"


def job_lines(job: Json) -> list[str]:
    """Return a job as scontrol shows it; ``waiting`` may be missing."""
    limit = elapsed(job["max_time_s"]) if job["max_time_s"] else "UNLIMITED"
    return [
        f"JobId={job['id']} JobName={job_name(job)}",
        f"   UserId={job['user']} Account={job['project']} Priority={job['priority']}",
        f"   JobState={state_names(job)[0]} Reason={reason(job)} ExitCode={_exit_code(job)}",
        f"   RunTime={_clock(_ran(job))} TimeLimit={limit}",
        f"   SubmitTime={moment(job['created_at'])}",
        f"   StartTime={moment(job['started_at'])} EndTime={moment(job['finished_at'])}",
        f"   Partition={partition(job)} NodeList={job['node'] or '(null)'} NumNodes=1 NumCPUs={_cpus(job)}",
        f"   MinMemoryNode={job['memory_mib'] or 0}M TresPerNode={_gres(job)}",
        f"   Command={' '.join(job['command'] or ()) or '(null)'}",
        f"   WorkDir={job['workdir'] or '(null)'}",
        f"   Comment={_comment(job) or '(null)'}",
    ]


def node_lines(node: Json) -> list[str]:
    """Return a node as scontrol shows it."""
    used = sum(gpu["allocated_permille"] for gpu in node["gpus"]) / 1000
    return [
        f"NodeName={node['name']} State={_node_state(node).upper()}",
        f"   CPUTot={node['cpus']:g} RealMemory={node['memory_mib']}",
        f"   Gres={_node_gres(node)} AllocTRES=gres/gpu={used:g}",
        f"   Reason={node['cordon_reason'] or '(null)'}",
    ]


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


QUEUE_FIELDS: Mapping[str, tuple[str, Callable[[Json], object]]] = {
    "i": ("JOBID", lambda j: j["id"]),
    "A": ("JOBID", lambda j: j["id"]),
    "F": ("ARRAY_JOB_ID", lambda j: j["id"]),
    "P": ("PARTITION", partition),
    "j": ("NAME", job_name),
    "u": ("USER", lambda j: j["user"]),
    "a": ("ACCOUNT", lambda j: j["project"]),
    "t": ("ST", lambda j: state_names(j)[1]),
    "T": ("STATE", lambda j: state_names(j)[0]),
    "M": ("TIME", lambda j: elapsed(_ran(j))),
    "l": ("TIME_LIMIT", lambda j: elapsed(j["max_time_s"]) if j["max_time_s"] else "UNLIMITED"),
    "D": ("NODES", lambda _: 1),
    "C": ("CPUS", lambda j: f"{j['cpus'] or 1:g}"),
    "m": ("MIN_MEMORY", lambda j: f"{j['memory_mib']}M" if j["memory_mib"] else "0"),
    "b": ("TRES_PER_NODE", _gres),
    "Q": ("PRIORITY", lambda j: j["priority"]),
    "R": ("NODELIST(REASON)", _node_or_reason),
    "N": ("NODELIST", lambda j: j["node"] or ""),
    "r": ("REASON", reason),
    "S": ("START_TIME", lambda j: moment(j["started_at"])),
    "V": ("SUBMIT_TIME", lambda j: moment(j["created_at"])),
    "k": ("COMMENT", lambda j: _comment(j) or "(null)"),
    "Z": ("WORK_DIR", lambda j: j["workdir"] or ""),
}


def _node_state(node: Json) -> str:
    if node["state"] != "up":
        return "drain" if node["cordon_reason"] or node["state"] == "cordoned" else "down"
    taken = [gpu["allocated_permille"] for gpu in node["gpus"]]
    return "idle" if not any(taken) else "alloc" if all(part >= 1000 for part in taken) else "mix"


def _node_gres(node: Json) -> str:
    models = [gpu["model"].replace(" ", "-").lower() for gpu in node["gpus"]]
    return ",".join(f"gpu:{model}:{models.count(model)}" for model in dict.fromkeys(models)) or "(null)"


def _one(nodes: Sequence[Json]) -> Json:
    return nodes[0]


NODE_FIELDS: Mapping[str, tuple[str, Callable[[Sequence[Json]], object]]] = {
    "P": ("PARTITION", lambda _: f"{PARTITION}*"),
    "R": ("PARTITION", lambda _: PARTITION),
    "a": ("AVAIL", lambda _: "up"),
    "l": ("TIMELIMIT", lambda _: "infinite"),
    "D": ("NODES", len),
    "t": ("STATE", lambda nodes: _node_state(_one(nodes))),
    "T": ("STATE", lambda nodes: _node_state(_one(nodes))),
    "N": ("NODELIST", lambda nodes: ",".join(node["name"] for node in nodes)),
    "n": ("HOSTNAMES", lambda nodes: ",".join(node["name"] for node in nodes)),
    "G": ("GRES", lambda nodes: _node_gres(_one(nodes))),
    "c": ("CPUS", lambda nodes: f"{_one(nodes)['cpus']:g}"),
    "m": ("MEMORY", lambda nodes: _one(nodes)["memory_mib"]),
}

ACCOUNTING: Mapping[str, Callable[[Json], object]] = {
    "jobid": lambda j: j["id"],
    "jobname": job_name,
    "partition": partition,
    "comment": _comment,
    "account": lambda j: j["project"],
    "user": lambda j: j["user"],
    "alloccpus": _cpus,
    "ncpus": _cpus,
    "reqcpus": _cpus,
    "nnodes": lambda _: 1,
    "priority": lambda j: j["priority"],
    "reason": reason,
    "maxrss": lambda j: f"{j['max_rss_mib']}M" if j.get("max_rss_mib") else "",
    "state": lambda j: state_names(j)[0],
    "exitcode": _exit_code,
    "elapsed": lambda j: _clock(_ran(j)),
    "elapsedraw": lambda j: int(_ran(j)),
    "submit": lambda j: moment(j["created_at"]),
    "start": lambda j: moment(j["started_at"]),
    "end": lambda j: moment(j["finished_at"]),
    "nodelist": _nodes,
    "reqmem": lambda j: f"{j['memory_mib']}M" if j["memory_mib"] else "0",
    "alloctres": lambda j: _gres(j).replace("N/A", ""),
    "reqtres": lambda j: _gres(j).replace("N/A", ""),
    "timelimit": lambda j: elapsed(j["max_time_s"]) if j["max_time_s"] else "UNLIMITED",
    "workdir": lambda j: j["workdir"] or "",
}


def format_rows(
    text: str, fields: Mapping[str, tuple[str, Callable[[Any], object]]], rows: Iterable[Any], *, header: bool
) -> list[str]:
    """Return lines in a format such as ``%.12i %t``. Raises ``GpupoolError`` for an unknown letter."""
    unknown = next((found[3] for found in _FIELD.finditer(text) if found[3] not in {*fields, "%"}), None)
    if unknown is not None:
        known = " ".join(f"%{letter}" for letter in fields)
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"The field %{unknown} is not known.", f"Known fields: {known}.")

    def line(value: Callable[[str], object]) -> str:
        return _FIELD.sub(lambda found: _padded(found, value), text).rstrip()

    head = [line(lambda letter: fields[letter][0])] if header else []
    return [*head, *(line(lambda letter, row=row: fields[letter][1](row)) for row in rows)]  # type: ignore[misc]


def _padded(found: re.Match[str], value: Callable[[str], object]) -> str:
    if found[3] == "%":
        return "%"
    text, width = str(value(found[3])), int(found[2] or 0)
    if not width:
        return text
    return text[:width].rjust(width) if found[1] else text[:width].ljust(width)


def node_groups(nodes: Iterable[Json], *, each: bool) -> list[list[Json]]:
    """Return nodes with the same state and GPUs together, or each one."""
    groups: dict[tuple[str, ...], list[Json]] = {}
    for node in nodes:
        key = (_node_state(node), _node_gres(node), *([node["name"]] if each else []))
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def accounting_lines(names: str, jobs: Sequence[Json], *, header: bool, parsable: str) -> list[str]:
    """Return the lines of sacct. ``parsable``: empty for columns, ``|`` for fields, ``|`` and a newline for ``-p``."""
    columns = []
    for name in names.split(","):
        field, _, width = name.partition("%")
        if field.lower() not in ACCOUNTING or (not width.removeprefix("-").isdecimal() and width):
            known = ", ".join(ACCOUNTING)
            raise GpupoolError(ErrorCode.INVALID_REQUEST, f"The field '{name[:40]}' is not known.", f"Fields: {known}.")
        columns.append((field, width))
    rows = [[str(ACCOUNTING[field.lower()](job)) for field, _ in columns] for job in jobs]
    head = [[field for field, _ in columns]] if header else []
    if parsable:
        end = "|" if parsable == "p" else ""
        return ["|".join(row) + end for row in [*head, *rows]]
    sizes = [int(width.removeprefix("-") or (16 if field.lower() == "jobid" else 12)) for field, width in columns]
    rule = [["-" * size for size in sizes]] if header else []
    lines = [*head, *rule, *rows]
    left = [width.startswith("-") for _, width in columns]
    return [
        " ".join(
            cell[:size].ljust(size) if to_left else cell[:size].rjust(size)
            for cell, size, to_left in zip(row, sizes, left, strict=True)
        )
        for row in lines
    ]
