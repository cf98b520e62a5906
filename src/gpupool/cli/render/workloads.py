"""Tables and details of workloads: list, description, wait reasons and events."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from gpupool.cli.endings import attempt_text, ending_lines
from gpupool.cli.render.results import efficiency_pairs
from gpupool.cli.render.text import Style, clean, clock, pairs, since, table
from gpupool.domain.units import format_duration, format_mib, format_permille
from gpupool.domain.work.gpu_use import GPU_USE_TEXT

Json = dict[str, Any]

HEADERS = ("NAME", "STATE", "KIND", "PROJECT", "USER", "GPUS", "REPLICAS", "NODE", "AGE", "ID", "ABOUT")
_LESS_IMPORTANT = tuple(map(HEADERS.index, ("KIND", "ID", "REPLICAS", "PROJECT", "NODE", "USER", "AGE")))
_ON_PREEMPT = {"kill": "killed on preemption", "suspend": "suspended on preemption"}
MIN_SHOWN_LOSS_S = 36.0  # a hundredth of a GPU hour
REPLICA_HEADERS = ("INDEX", "STATE", "ATTEMPT", "NODE", "GPUS", "EXIT", "STARTED", "RAN", "ABOUT")


def workload_lines(workloads: Sequence[Json], now: float, style: Style) -> list[str]:
    """Return the table of ``ps``."""
    return table(HEADERS, [_row(w, now) for w in workloads], style, state=1, optional=_LESS_IMPORTANT)


def _row(w: Json, now: float) -> tuple[object, ...]:
    return (
        w["name"],
        w["state"],
        w["kind"],
        w["project"],
        w["user"],
        gpus_text(w["gpus"]) if w["on"] is None else "(shared)",
        replicas_text(w),
        w["node"] or "-",
        since(w["created_at"], now),
        w["id"],
        about(w, now),
    )


def about(w: Json, now: float) -> str:
    """Return one phrase about a workload: why it waits, how it ended, or its command."""
    reason = (w["reason"] or {}).get("message", "")
    if w.get("retrying"):
        return f"{attempt_text(w['retrying'], now)}: {reason}"
    if w["state"] in {"queued", "suspended"} and (waits := (w.get("waiting") or {}).get("message", reason)):
        return str(waits)
    if w["state"] in {"failed", "stopped"} and w.get("ending"):
        return ending_lines(w["ending"])[0]
    if w.get("lazy") in GPU_USE_TEXT and w["state"] == "running":
        return GPU_USE_TEXT[w["lazy"]]
    if w["expires_at"] is not None and w["state"] == "running":
        return f"until {clock(w['expires_at'])} ({format_duration(w['expires_at'] - now)} left)"
    return command_text(w)


def command_text(w: Json) -> str:
    """Return the command as a shell line; ``-`` when there is none or it is hidden from the caller."""
    return shlex.join(w["command"]) if w["command"] else "-"


def gpus_text(gpus: Json) -> str:
    """Return the GPUs of each replica: ``0.50``, ``2``, ``2 x 0.50``, ``4 GiB``, with models, sharing and policy."""
    if gpus["memory_mib"] is not None:
        part = format_mib(gpus["memory_mib"])
    else:
        part = "" if gpus["permille"] == 1000 else format_permille(gpus["permille"])
    count = gpus["count"]
    amount = (f"{count} x {part}" if count > 1 else part) if part else str(count)
    policy = gpus.get("compute", "guarantee")
    compute = "" if policy == "guarantee" else f"compute:{policy}"
    return " ".join(part for part in (amount, "|".join(gpus["models"]), gpus.get("sharing"), compute) if part)


def replicas_text(w: Json) -> str:
    """Return ``2/4 done, 2 running`` for several replicas, of which stopped ones are not done; ``-`` for one."""
    if w["completions"] == 1:
        return "-"
    counts = w["counts"]
    parts = [f"{counts['succeeded'] + counts['failed']}/{w['completions']} done"]
    parts += [f"{counts[state]} {state}" for state in ("running", "failed", "stopped") if counts[state]]
    return ", ".join(parts)


def _dependency(after: Json) -> str:
    condition = ":failure" if after.get("failure_only") else "" if after["success_only"] else ":any"
    return f"{after.get('name') or after['workload']}{condition}"


def detail_lines(
    w: Json, events: Sequence[Json], why: Json | None, now: float, style: Style, used: Json | None = None
) -> list[str]:
    """Return the lines of ``describe``; ``used`` is the efficiency of the workload."""
    lines = pairs([*_facts(w, now), *(efficiency_pairs(used) if used else ())], style)
    if why is not None:
        lines += ["", style.bold("Why it waits"), *(f"  {line}" for line in why_lines(why, style))]
    lines += ["", *replica_lines(w["replicas"], now, style)]
    notes = dict.fromkeys(note for replica in w["replicas"] for note in replica["notes"])
    lines += [style.dim(f"note: {clean(note)}") for note in notes]
    if events:
        lines += ["", style.bold("Events"), *event_lines(events, style)]
    return lines


def _facts(w: Json, now: float) -> list[tuple[str, object]]:
    reason, ended, again = w["reason"] or {}, w.get("ending"), w.get("retrying")
    return [
        ("Name", w["name"]),
        ("Id", w["id"]),
        ("State", f"{w['state']} [{reason['code']}]" if reason.get("code") else w["state"]),
        ("Reason", reason.get("message") if ended is None else ""),
        ("Ended", ended and ending_lines(ended)[0]),
        ("Ended by", ended and (ended["user"] or ended["decided_by"])),
        ("Suggestion", ended and ended["remedy"]),
        ("Attempt", again and attempt_text(again, now)),
        ("Kind", f"{w['kind']}, preemptible" if w["preemptible"] else w["kind"]),
        ("Project", w["project"]),
        ("User", w["user"]),
        ("Priority", w["priority"]),
        ("Gang", _gang_text(w.get("gang"))),
        ("Framework", _framework_text(w)),
        ("GPUs", gpus_text(w["gpus"]) if w["on"] is None else f"shared with {w['on']}"),
        ("Lazy" if w["limits"].get("lazy") else "GPU use", _lazy_text(w)),
        ("Sharing", f"{w['sharing']}: {w['guarantees']}" if w["gpus"]["count"] or w.get("roles") else ""),
        ("Replicas", replicas_text(w) if w["completions"] > 1 else ""),
        ("Command", command_text(w)),
        ("Folder", w["workdir"]),
        ("Image", w.get("image")),
        ("Volumes", ", ".join(w.get("volumes") or [])),
        ("Exit status", w["exit_status"]),
        ("Submitted", f"{clock(w['created_at'])} ({since(w['created_at'], now)} ago)"),
        ("Started", clock(w["started_at"]) if w["started_at"] else ""),
        ("Finished", clock(w["finished_at"]) if w["finished_at"] else ""),
        ("Expires", clock(w["expires_at"]) if w["expires_at"] else ""),
        ("Limits", _limits_text(w["limits"])),
        ("Starts only", ", ".join(w.get("windows", ()))),
        ("Restart", _restart_text(w["retry"])),
        ("Evicted", _evictions_text(w["replicas"])),
        ("Progress", _progress_text(w["replicas"], now)),
        ("Unsaved", _unsaved_text(w["replicas"])),
        ("After", ", ".join(map(_dependency, w["after"]))),
        ("Labels", ", ".join(f"{key}={value}" for key, value in w["labels"].items())),
    ]


def _lazy_text(w: Json) -> str:
    if not w["limits"].get("lazy"):
        return GPU_USE_TEXT.get(w.get("lazy") or "", "")
    return GPU_USE_TEXT.get(w.get("lazy") or "", "it gets its GPUs at its first use of CUDA")


def _restart_text(retry: Json) -> str:
    text = f"{retry['policy']}, up to {retry['backoff_limit']} retries"
    same = retry.get("same_limit")
    return f"{text}, fewer after {same} immediate failures with the same status" if same else text


def _evictions_text(replicas: Sequence[Json]) -> str:
    """Return the number of evictions by the pool, and the lost work."""
    times = sum(replica["interruptions"] for replica in replicas)
    lost_s = sum(replica.get("lost_gpu_s", 0.0) for replica in replicas)
    lost = f"; {lost_s / 3600:,.2f} GPU hours of work lost" if lost_s >= MIN_SHOWN_LOSS_S else ""
    return f"{times} {'time' if times == 1 else 'times'}{lost}" if times else ""


def _progress_text(replicas: Sequence[Json], now: float) -> str:
    """Return the step and the checkpoint that a program reported; of several, the one that is furthest back."""
    reported = [r for r in replicas if r.get("saved_at") is not None or r.get("step") is not None]
    if not reported:
        return ""
    last = min(reported, key=lambda r: (r["step"] or 0, r["saved_at"] or 0.0))
    parts = [] if last["step"] is None else [f"step {last['step']:,}"]
    if last["saved_at"] is not None:
        parts.append(f"last checkpoint {since(last['saved_at'], now)} ago")
    return ", ".join(parts) + (f" (replica {last['index']})" if len(replicas) > 1 else "")


def _unsaved_text(replicas: Sequence[Json]) -> str:
    """Return the work that an eviction now would lose."""
    lost_s = sum(replica.get("unsaved_gpu_s", 0.0) for replica in replicas)
    return f"an eviction now would lose {lost_s / 3600:,.2f} GPU hours" if lost_s >= MIN_SHOWN_LOSS_S else ""


def _gang_text(gang: Json | None) -> str:
    if gang is None:
        return ""
    least = "" if gang["min"] == gang["workers"] else f"{gang['min']} to "
    size = _roles_text(gang["roles"]) if gang.get("roles") else f"{least}{gang['workers']} workers"
    within = f", {'only' if gang['strict'] else 'preferably'} within one {gang['within']}" if gang["within"] else ""
    models = ", on GPUs of any model" if gang.get("mixed_models") else ""
    return f"{size} that start together{within}{models}"


def _roles_text(roles: Sequence[Json]) -> str:
    """Return ``1 chief, 2 ps (no GPU) and 4 worker``."""
    parts = [
        f"{role['replicas']} {clean(role['name'])}" + ("" if role["gpus"]["count"] else " (no GPU)") for role in roles
    ]
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def _framework_text(w: Json) -> str:
    """Return ``torch, round 2; when a member is lost: restart``."""
    gang = w.get("gang")
    if gang is None or not w.get("framework"):
        return ""
    number = f", round {gang['round']}" if gang["round"] else ""
    return f"{w['framework']}{number}; when a member is lost: {gang['on_member_end']}"


def _limits_text(limits: Json) -> str:
    times = (("wait", "wait_s"), ("time", "max_time_s"), ("idle", "idle_timeout_s"), ("grace", "grace_s"))
    parts = [f"{name} {format_duration(limits[key])}" for name, key in times if limits[key] is not None]
    if limits["cpus"] is not None:
        parts.append(f"{limits['cpus']:g} cpus")
    if limits["memory_mib"] is not None:
        parts.append(f"memory {format_mib(limits['memory_mib'])}")
    parts += [_ON_PREEMPT[limits["on_preempt"]]] if limits.get("on_preempt") in _ON_PREEMPT else []
    if limits.get("return_after_s") is not None:
        parts.append(f"returns unused GPUs after {format_duration(limits['return_after_s'])}")
    return ", ".join([*parts, f"log {format_mib(limits['log_limit_mib'])}"])


def replica_lines(replicas: Sequence[Json], now: float, style: Style) -> list[str]:
    """Return the table of replicas."""
    return table(REPLICA_HEADERS, [_replica_row(r, now) for r in replicas], style, state=1)


def _replica_row(r: Json, now: float) -> tuple[object, ...]:
    ran = None if r["started_at"] is None else (r["finished_at"] or now) - r["started_at"]
    held = ", ".join(f"{gpu['index']}:{format_permille(gpu['permille'])}" for gpu in r["gpus"])
    parameters = " ".join(f"{key}={value}" for key, value in (r["parameters"] or {}).items())
    attempt = attempt_text(r["retrying"], now) if r.get("retrying") else ""
    said = "; ".join(part for part in (parameters, attempt, r["message"] or r["reason"]) if part)
    status = "-" if r["exit_status"] is None else r["exit_status"]
    started = clock(r["started_at"])
    return (
        f"{r['index']} {clean(r['role'])}" if r.get("role") else r["index"],
        r["state"],
        r["attempt"],
        r["node"] or "-",
        held or "-",
        status,
        started,
        format_duration(ran),
        said,
    )


def why_lines(why: Json, style: Style) -> list[str]:
    """Return the lines of ``why``."""
    lines = [f"{clean(why['sentence'])} [{why['code']}]"]
    if why["position"]:
        ahead = f"{why['ahead_total']} ahead in the pool, {why['ahead_in_project']} of them in its project"
        lines.append(f"Position {why['ahead_total'] + 1} in the queue ({ahead}).")
    if why["estimate_s"] is not None:
        lines.append(f"It should start in about {estimate_text(why)}: {clean(why['estimate_basis'])}.")
        least, most = why.get("estimate_least_s"), why.get("estimate_most_s")
        if least is not None and most is not None and most - least > why["estimate_s"] / 10:
            lines.append(f"Half of such estimates are within that range, nine of ten within {_from_to(least, most)}.")
    elif why["estimate_basis"]:
        lines.append(f"No estimate: {clean(why['estimate_basis'])}.")
    return lines + [style.dim(f"suggestion: {clean(hint)}") for hint in why["would_help"]]


def estimate_text(why: Json) -> str:
    """Return ``40m00s (25m00s to 1h10m)``, without the range if there is none or it is narrow."""
    likely, low, high = why["estimate_s"], why.get("estimate_low_s"), why.get("estimate_high_s")
    text = format_duration(likely)
    if low is None or (high is not None and high - low <= likely / 10):
        return text
    if high is None:
        return f"{text} ({format_duration(low)} or more)"
    return f"{text} ({_from_to(low, high)})"


def _from_to(low: float, high: float) -> str:
    return f"{format_duration(low)} to {format_duration(high)}"


def event_lines(events: Sequence[Json], style: Style) -> list[str]:
    """Return one line per event, oldest first."""
    return [event_line(event, style) for event in events]


def event_line(event: Json, style: Style) -> str:
    """Return ``2026-11-21 01:28:23  STARTED  train/0  ann: message``."""
    index = "" if event["index"] is None else f"/{event['index']}"
    about_what = f"{event['workload']}{index}" if event["workload"] else event["target"]
    reason = style.bold(f"{event['reason']:<17}")
    who = f"{clean(event['actor'])}: {clean(event['message'])}"
    return f"{style.dim(clock(event['at']))}  {reason}  {clean(about_what or '-')}  {who}"
