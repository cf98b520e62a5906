"""Progress of a pool that does not respond yet, judged by its processes and not by elapsed time.

A busy machine can take minutes to start a pool, and ending a slow start wastes its work. So a start fails only in three
cases: a process of the pool keeps dying, it reports why it cannot run, or nothing has changed for a minute. A change is
CPU time, a page read from disk, a new phase, or a runnable process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpupool.client.discovery import Location
from gpupool.daemon.folders import log_path
from gpupool.daemon.process.children import KILLED, LOOPING_AFTER, ChildName, ChildState
from gpupool.daemon.process.identity import ProcessIdentity
from gpupool.daemon.process.logs import tail
from gpupool.daemon.process.phases import StartPhase, read_phase
from gpupool.daemon.process.record import read_record, read_state
from gpupool.domain.errors import ErrorCode, GpupoolError

FIRST_NOTICE_S = 3.0
NOTICE_EVERY_S = 15.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.25
_REFUSED = "exit status 2"  # the control plane or the agent could not begin and has logged the reason
_REFUSAL_LIMIT = 2000  # characters of a line of the reason
_REFUSAL = re.compile(
    r"^(?:control plane|agent) not running: (?P<message>.+) \[(?P<code>[A-Z_]+)\](?:\n  (?P<hint>.*))?", re.MULTILINE
)
_HOPELESS = frozenset(  # a retry does not help
    {
        ErrorCode.PORT_TAKEN,
        ErrorCode.DATABASE_CORRUPT,
        ErrorCode.DATABASE_NEWER,
        ErrorCode.DATABASE_FOREIGN,
        ErrorCode.DATABASE_OTHER_POOL,
        ErrorCode.UNSUPPORTED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_FILE,
    }
)


class StalledError(GpupoolError):
    """A pool that neither responds nor makes progress; its processes may still be alive."""


class SupervisorKilledError(GpupoolError):
    """A supervisor that was killed while its pool started: it did not end by itself, so another start may succeed."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Signs that a process works: each value but the last grows while it does.

    ``runnable``: it waits for a processor (or has one), so the machine is slow and not the process.
    """

    pid: int
    cpu_ticks: int
    disk_faults: int
    runnable: bool

    @classmethod
    def of(cls, pid: int) -> Activity | None:
        """Read it from ``/proc`` (see proc_pid_stat(5)); None for a process that is gone or hidden."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return None
        return cls(pid, int(fields[11]) + int(fields[12]), int(fields[9]), fields[0] == b"R")


class StartProgress:
    """Records since when nothing has changed. Pure: the caller observes and has the clock."""

    def __init__(self, now: float) -> None:
        self._moved_at = now
        self._seen: object = None

    def stalled_s(self, now: float, seen: object, *, runnable: bool) -> float:
        """Record an observation; return for how long nothing has changed."""
        if runnable or seen != self._seen:
            self._seen, self._moved_at = seen, now
        return now - self._moved_at


class Pace:
    """The pause between two observations: short at first, longer later, because waiting needs CPU time too."""

    def __init__(self) -> None:
        self._pause_s = SHORTEST_PAUSE_S

    def next_s(self) -> float:
        """Return the next pause in seconds."""
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 1.05, LONGEST_PAUSE_S)
        return pause_s


class Notices:
    """Tells a user what is waited for: after some seconds, then at each change and periodically."""

    def __init__(self, tell: Callable[[str], None], now: float) -> None:
        self._tell = tell
        self._began = now
        self._due = now + FIRST_NOTICE_S
        self._said = ""

    def tick(self, now: float, doing: str) -> None:
        """Tell it if it is time to."""
        if now < self._due or (doing == self._said and now < self._due + NOTICE_EVERY_S - FIRST_NOTICE_S):
            return
        self._tell(f"still starting ({now - self._began:.0f} s): {doing}")
        self._due, self._said = now + FIRST_NOTICE_S, doing


class StartWatch:
    """Watches the pool at a place until it responds; call ``look`` periodically.

    ``tell`` gets a line if it takes long. The awaited process is the control plane, or the agent on a machine that is a
    node of a cluster.
    """

    def __init__(
        self,
        location: Location,
        tell: Callable[[str], None],
        stall_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._location = location
        self._stall_s = stall_s
        self._clock = clock
        self._progress = StartProgress(clock())
        self._notices = Notices(tell, clock())
        self._first_restarts: int | None = None  # of the awaited process, when the watch began

    def look(self) -> bool:
        """Return whether the pool still runs and may yet respond; False if its supervisor has ended.

        Raises the error of a process that refused to begin, ``GpupoolError`` (POOL_START_FAILED) if one keeps dying,
        and ``StalledError`` if nothing has changed for too long.
        """
        supervisor, children = self._read()
        if supervisor is None:
            return False
        self._raise_if_hopeless(children)
        name = _awaited(children)
        child = next((child for child in children if child["name"] == name), None)
        now, doing = self._clock(), self._doing(child)
        if child is not None and self._keeps_ending(child):
            stalled_s = self._progress.stalled_s(now, "keeps dying", runnable=False)  # many short lives are no progress
        elif doing.endswith(StartPhase.READY):  # all that it had to do is done
            stalled_s = self._progress.stalled_s(now, doing, runnable=False)
        else:
            seen = Activity.of((child or {}).get("pid") or supervisor.pid)
            moved = (doing, seen and replace(seen, runnable=False))
            stalled_s = self._progress.stalled_s(now, moved, runnable=seen is not None and seen.runnable)
        if stalled_s >= self._stall_s:
            raise self._stalled(doing, stalled_s, name, _mark(child or {}))
        self._notices.tick(now, doing)
        return True

    def steady(self) -> bool:
        """Return whether all processes run. Raises as ``look`` does for one that keeps dying."""
        _, children = self._read()
        self._raise_if_hopeless(children)
        return bool(children) and all(child["state"] == ChildState.RUNNING for child in children)

    def _read(self) -> tuple[ProcessIdentity | None, list[dict[str, Any]]]:
        """Return the living supervisor and its children from its state file."""
        state = read_state(self._location)
        supervisor = ProcessIdentity.from_dict(state)
        if supervisor is not None and supervisor.alive:
            return supervisor, state["children"]
        try:
            record = read_record(self._location.state_dir)
        except PermissionError:  # another user's; the state file is readable by everybody
            return None, []
        return (record.supervisor, []) if record is not None and record.alive else (None, [])

    def _doing(self, child: dict[str, Any] | None) -> str:
        if child is None:
            return "the supervisor starts"
        name = str(child["name"]).replace("-", " ")
        if not child.get("pid"):
            return f"the {name} is started again ({child['last_exit']})"
        if child["name"] == ChildName.CONTROL_PLANE:
            return f"the {name} {read_phase(self._location.run_dir, child['pid'])}"
        return f"the {name} looks for GPUs"

    def _keeps_ending(self, child: dict[str, Any]) -> bool:
        """Return whether the awaited process died repeatedly, however long each life took on a slow machine."""
        if self._first_restarts is None:
            self._first_restarts = int(child["restarts"])
        deaths = int(child["restarts"]) - self._first_restarts
        return bool(child["state"] == ChildState.CRASH_LOOP) or deaths >= LOOPING_AFTER

    def _raise_if_hopeless(self, children: list[dict[str, Any]]) -> None:
        """Raise for a child that cannot start or keeps dying; not while it is killed from outside: that may stop."""
        for child in children:
            if child["last_exit"] == _REFUSED:
                self._raise_if_refused(child)
            loops = child["state"] == ChildState.CRASH_LOOP
            if child["name"] == _awaited(children):
                loops = self._keeps_ending(child)
            if loops and child["last_exit"] != KILLED:
                why = f"its {child['name']} keeps ending ({child['last_exit']})"
                raise failed(why, self._location, child["name"], _mark(child))

    def _raise_if_refused(self, child: dict[str, Any]) -> None:
        """Raise the error that a process logged when it refused to begin, if a retry would not help."""
        log = log_path(self._location.state_dir, child["name"])
        said = list(_REFUSAL.finditer(tail(log, since=_mark(child), line_limit=_REFUSAL_LIMIT)))
        if said and said[-1]["code"] in _HOPELESS:
            raise GpupoolError(
                ErrorCode(said[-1]["code"]), said[-1]["message"], said[-1]["hint"] or "See 'gpupool doctor'."
            )

    def _stalled(self, doing: str, stalled_s: float, process: str, since: int) -> StalledError:
        return StalledError(
            ErrorCode.POOL_START_FAILED,
            f"The pool does not answer and has made no progress for {stalled_s:.0f} s: {doing}.",
            f"{quoted(self._location, process, since)}"
            "'gpupool status' shows its processes, 'gpupool down' stops it, 'gpupool doctor' searches for the cause.",
        )


def failed(why: str, location: Location, process: str, since: int) -> GpupoolError:
    """Return the error of a pool that did not start, with the log of a process since a position."""
    return GpupoolError(
        ErrorCode.POOL_START_FAILED,
        f"The pool did not start: {why}.",
        f"{quoted(location, process, since)}'gpupool doctor' searches for the cause.",
    )


def quoted(location: Location, process: str, since: int) -> str:
    """Return the last lines of a log after a position; without lines only its path."""
    log = log_path(location.state_dir, process)
    lines = tail(log, since=since)
    return f"The last lines of {log}:\n{lines}\n" if lines else f"The log {log} has no lines of this start.\n"


def _awaited(children: list[dict[str, Any]]) -> str:
    names = {child["name"] for child in children}
    return ChildName.AGENT if names and ChildName.CONTROL_PLANE not in names else ChildName.CONTROL_PLANE


def _mark(child: dict[str, Any]) -> int:
    """Return where in its log the child's present start attempts begin."""
    return int(child.get("log_from", 0))
