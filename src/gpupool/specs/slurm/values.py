"""Values of Slurm's options: times, memory, GPUs, array indices and dependencies. Sources: sbatch(1), srun(1)."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import NamedTuple

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.limits import MAX_REPLICAS

_TIME = re.compile(r"(?:(\d{1,5})-)?(\d{1,7})(?::(\d{1,2}))?(?::(\d{1,2}))?")
_GPUS = re.compile(r"(?:gpu:)?(?:([A-Za-z][\w.-]*):)?(\d{1,4})")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)B?", re.IGNORECASE)
_MEMORY_UNITS = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024 * 1024}
_INDICES = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
_DELAY = re.compile(r"now(?:\+(\d{1,9})(seconds?|minutes?|hours?|days?|weeks?)?)?")
_DELAY_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(am|pm)?", re.IGNORECASE)
_NAMED_HOURS = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
_DATES = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d", "%m/%d/%y", "%m/%d/%y-%H:%M", "%m/%d/%y-%H:%M:%S")
_CONDITIONS = {"afterok": "success", "afterany": "any", "afternotok": "failure"}


class Indices(NamedTuple):
    """The tasks of an array, and how many may run at a time (None: all)."""

    tasks: tuple[int, ...]
    limit: int | None


def refusal(what: str, hint: str) -> GpupoolError:
    """Return the error of a value that cannot be used."""
    return GpupoolError(ErrorCode.INVALID_REQUEST, what, hint)


def seconds(text: str) -> int:
    """Return the seconds in ``90`` (minutes), ``MM:SS``, ``HH:MM:SS``, ``D-HH``, ``D-HH:MM`` and ``D-HH:MM:SS``."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise refusal(f"'{text[:40]}' is not a time.", "Write minutes, HH:MM:SS or D-HH:MM:SS.")
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:
        hours, minutes, rest = (*numbers, 0, 0)[:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + rest
    if len(numbers) == 3:
        return (numbers[0] * 60 + numbers[1]) * 60 + numbers[2]
    return numbers[0] * 60 + (numbers[1] if len(numbers) == 2 else 0)


def memory_mib(text: str) -> int:
    """Return the MiB in ``4000``, ``16G``, ``512M`` and ``1T``."""
    found = _MEMORY.fullmatch(text)
    mib = round(float(found[1]) * _MEMORY_UNITS[found[2].upper()]) if found else 0
    if mib < 1:
        raise refusal(f"'{text[:40]}' is not an amount of memory.", "Write MiB, or a number with K, M, G or T.")
    return mib


def gpus(text: str) -> tuple[str | None, int]:
    """Return model and number in ``2``, ``gpu:2``, ``gpu:v100:2`` and ``v100:2``; ``gpu`` and ``gpu:v100`` are one."""
    if text == "gpu":
        return None, 1
    if re.fullmatch(r"gpu:[A-Za-z][\w.-]*", text):
        return text[4:], 1
    found = _GPUS.fullmatch(text)
    if found is None:
        raise refusal(
            f"'{text[:40]}' is not a number of GPUs.", "Write gpu:2 or gpu:v100:2; other resources have none."
        )
    return (None if found[1] == "gpu" else found[1]), int(found[2])


def indices(text: str) -> Indices:
    """Return the tasks in ``1-10:2,15%4``. Raises ``GpupoolError`` also for too many."""
    listed, percent, limit = text.partition("%")
    tasks: dict[int, None] = {}
    for part in listed.split(","):
        found = _INDICES.fullmatch(part)
        first, last, step = (int(n) if n else None for n in found.groups()) if found else (None, None, None)
        if first is None or step == 0 or (last is not None and last < first):
            raise refusal(f"'{text[:40]}' is not a list of array indices.", "Write 0-9, 1-10:2, or 1,3,7%2.")
        numbers = range(first, (first if last is None else last) + 1, step or 1)
        if len(tasks) + len(numbers) > MAX_REPLICAS:
            raise refusal("The array has too many tasks.", f"At most {MAX_REPLICAS} are possible.")
        tasks.update(dict.fromkeys(numbers))
    if percent and not (limit.isdecimal() and int(limit) > 0):
        raise refusal(f"'{text[:40]}' has no number after %.", "For example 0-99%4: four at a time.")
    return Indices(tuple(tasks), int(limit) if percent else None)


_ARRAY_TASK = re.compile(r"w[0-9a-z]{10}_\d+")


def dependencies(text: str) -> tuple[list[str], bool]:
    """Return the values of ``--after`` in ``afterok:A:B,afterany:C``, and whether ``singleton`` is among them."""
    after: list[str] = []
    if "?" in text:
        raise refusal("Alternatives (?) in --dependency are not possible.", "Separate dependencies with commas.")
    parts = text.split(",")
    for part in parts:
        kind, *jobs = part.split(":")
        if part == "singleton":
            continue
        if kind not in _CONDITIONS or not all(jobs) or not jobs:
            raise refusal(
                f"The dependency '{part[:40]}' is not possible.", f"Use {', '.join(_CONDITIONS)} or singleton."
            )
        if task := next((job for job in jobs if _ARRAY_TASK.fullmatch(job)), None):
            raise refusal(
                f"A dependency on one task ({task}) of an array is not possible.",
                f"Depend on the whole array: {kind}:{task.partition('_')[0]}.",
            )
        after += [job if kind == "afterok" else f"{job}:{_CONDITIONS[kind]}" for job in jobs]
    return after, "singleton" in parts


def begin_s(text: str, now: datetime) -> float:
    """Return the seconds until ``now+1hour``, ``16:00``, ``tomorrow``, ``midnight`` or ``2030-01-20T12:34:00``."""
    delay = _DELAY.fullmatch(text)
    if delay is not None:
        return int(delay[1] or 0) * _DELAY_UNITS[(delay[2] or "second").removesuffix("s")]
    moment = _moment(text, now)
    if moment is None:
        raise refusal(f"'{text[:40]}' is not a time to begin.", "Write now+2hours, 16:00 or 2030-01-20T12:30:00.")
    return max(0.0, (moment - now).total_seconds())


def past_time(text: str, now: datetime) -> datetime:
    """Return the time in ``now-2hours``, ``today``, ``08:00`` (of today) or ``2030-01-20``."""
    delay = _DELAY.fullmatch(text.replace("now-", "now+", 1))
    if delay is not None:
        return now - timedelta(seconds=int(delay[1] or 0) * _DELAY_UNITS[(delay[2] or "second").removesuffix("s")])
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    found = today if text == "today" else _moment(text, today - timedelta(seconds=1))
    if found is None:
        raise refusal(f"'{text[:40]}' is not a time.", "Write now-2hours, 08:00 or 2030-01-20T12:30:00.")
    return found


def _moment(text: str, now: datetime) -> datetime | None:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if text in {"today", "tomorrow"}:
        return now if text == "today" else now + timedelta(days=1)
    clock = _CLOCK.fullmatch(text)
    if clock is not None and (int(clock[1]) > 23 or int(clock[2]) > 59):
        return None
    if clock is not None or text in _NAMED_HOURS:
        at = today + (timedelta(hours=_NAMED_HOURS[text]) if clock is None else _clock_time(clock))
        return at if at > now else at + timedelta(days=1)
    for form in _DATES:
        try:
            return datetime.strptime(text, form).replace(tzinfo=now.tzinfo)
        except ValueError:
            continue
    return None


def _clock_time(found: re.Match[str]) -> timedelta:
    hour = int(found[1]) % 12 + (12 if found[4].lower() == "pm" else 0) if found[4] else int(found[1])
    return timedelta(hours=hour, minutes=int(found[2]), seconds=int(found[3] or 0))
