"""Comparison of the GPU time that the driver reports for a tenant with the time that the arbiter granted. Pure.

A process that launches kernels without the share library (through a second copy of the driver, for example) uses time
that was never granted. The check compares two rates of about a second each. A tenant is in *excess* while it uses more
than the larger of its grant and its share, by a margin, and another party is concerned: another tenant on the GPU, or
the policy ``cap``. Use within the share harms nobody, and a single second proves nothing, because the two rates are
not measured at the same moments; so the steps need several samples in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MIN_PAUSE, MAX_PAUSE = 0.5, 0.9  # parts of each second
FORGIVE_SAMPLES = 600  # without excess, after which the steps begin anew
MIN_PERCENT = 1.0  # processes below this use are not blamed


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The margin in percent of the GPU, and the samples until each step.

    A throttled tenant is paused for ``throttled`` samples. If it is in excess again after that, it is asked to end.
    """

    margin_percent: float = 15.0
    warn: int = 5
    throttle: int = 10
    throttled: int = 20

    @classmethod
    def parse(cls, text: str) -> TimeLimits:
        """Return the limits in a text like ``15,5,10,20``; missing ones have defaults. Raises ValueError."""
        if not text.strip():
            return cls()
        margin, *rest = text.split(",")
        counts = [int(word) for word in rest]
        if len(counts) >= len(cls.__dataclass_fields__) or min(counts, default=1) < 1:
            raise ValueError(f"not a margin and three positive numbers: {text}")
        return cls(float(margin), *counts)


@dataclass(frozen=True, slots=True)
class TimeSample:
    """One tenant on one GPU in percent of its time: used by process, granted, and its share.

    ``concerned``: another tenant is on the GPU, or the share is a cap. ``unknown`` are processes without the library.
    """

    used: Mapping[int, float]
    granted: float
    share: float
    concerned: bool
    unknown: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TimeFinding:
    """An excess in one sample, in percent of the GPU's time. ``pids`` are blamed, the largest user first."""

    used: float
    granted: float
    share: float
    pids: tuple[int, ...]

    @property
    def pause(self) -> float:
        """Return the part of each second for which processes are paused, so that the share remains."""
        return min(MAX_PAUSE, max(MIN_PAUSE, 1 - self.share / self.used))


def judge_time(sample: TimeSample, limits: TimeLimits) -> TimeFinding | None:
    """Return the excess of a sample, if any."""
    used = sum(sample.used.values())
    if not sample.concerned or used - max(sample.granted, sample.share) <= limits.margin_percent:
        return None
    users = sorted((pid for pid, part in sample.used.items() if part >= MIN_PERCENT), key=lambda pid: -sample.used[pid])
    unknown = [pid for pid in users if pid in sample.unknown]
    return TimeFinding(used, sample.granted, sample.share, tuple(unknown or users))


class TimeAction(StrEnum):
    """The steps, in order."""

    WARN = "warn"
    THROTTLE = "throttle"
    TERM = "term"
    KILL = "kill"


@dataclass(slots=True)
class TimeCase:
    """The excesses of one tenant on one GPU over several samples."""

    in_a_row: int = 0
    clean: int = 0
    warned: bool = False
    left: int = 0  # samples for which it stays throttled
    was_throttled: bool = False
    asked: set[int] = field(default_factory=set)

    def next(self, finding: TimeFinding | None, limits: TimeLimits, *, only_warn: bool) -> TimeAction | None:
        """Return the next step after one more sample; it concerns ``finding.pids``."""
        if self.left > 0:
            self.left -= 1
            finding = None
        self.in_a_row = 0 if finding is None else self.in_a_row + 1
        self.clean = self.clean + 1 if finding is None else 0
        if self.clean == FORGIVE_SAMPLES:
            self.warned = self.was_throttled = False
        if finding is None or self.in_a_row < limits.warn:
            return None
        if not self.warned:
            self.warned = True
            return TimeAction.WARN
        if self.was_throttled and not only_warn:
            return self._end(finding.pids, limits)
        if self.in_a_row < limits.throttle or only_warn:
            return None
        self.was_throttled, self.left, self.in_a_row = True, limits.throttled, 0
        return TimeAction.THROTTLE

    def _end(self, pids: tuple[int, ...], limits: TimeLimits) -> TimeAction:
        """Ask the processes to end; kill them if they are still in excess after as many samples as for a warning."""
        self.in_a_row -= limits.warn
        if self.asked.isdisjoint(pids):
            self.asked.update(pids)
            return TimeAction.TERM
        return TimeAction.KILL
