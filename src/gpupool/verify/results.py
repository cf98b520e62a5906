"""Results of checks: outcomes, cards and the whole report, with their JSON form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any, Self

SUSPECT_BELOW = 0.9  # of the median of the same model
MIN_CARDS_TO_COMPARE = 3  # with two, the median says nothing about which one is slow
RATES = frozenset(
    {"host_to_device_gib_s", "device_to_host_gib_s", "memory_gib_s", "gemm_tflop_s"}
)  # compared; more is better


class CheckOutcome(StrEnum):
    """The outcome of a check, in order of severity."""

    OK = "ok"
    SKIPPED = "skipped"  # it could not be done here; the note says why
    SUSPECT = "suspect"  # it works, but worse than it should
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Options of a check: the level, and the length of the burn of level 3.

    ``emulated``: use sizes for a CPU. ``in_slice``: also check the memory limit of the slice.
    """

    level: int = 1
    burn_s: float = 60.0
    emulated: bool = False
    in_slice: bool = False


_SEVERITY = {outcome: place for place, outcome in enumerate(CheckOutcome)}
_EXIT_STATUS = {CheckOutcome.OK: 0, CheckOutcome.SKIPPED: 0, CheckOutcome.SUSPECT: 1, CheckOutcome.FAIL: 2}


def exit_status(outcome: CheckOutcome) -> int:
    """Return 0 for ok and skipped, 1 for suspect, 2 for fail."""
    return _EXIT_STATUS[outcome]


def worst(outcomes: Iterable[CheckOutcome]) -> CheckOutcome:
    """Return the most severe outcome: fail, suspect, ok; ``skipped`` only if nothing was checked."""
    found = set(outcomes)
    done = found - {CheckOutcome.SKIPPED}
    return max(done or found or {CheckOutcome.SKIPPED}, key=_SEVERITY.__getitem__)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check: its outcome, a sentence (required unless ok), and measured values.

    The name of a value ends with its unit.
    """

    name: str
    outcome: CheckOutcome = CheckOutcome.OK
    note: str = ""
    values: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"name": self.name, "outcome": str(self.outcome), "note": self.note, "values": dict(self.values)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the check of a JSON form. Raises KeyError or ValueError if it is not one."""
        values = {str(name): float(value) for name, value in data["values"].items()}
        return cls(str(data["name"]), CheckOutcome(data["outcome"]), str(data["note"]), values)


@dataclass(frozen=True, slots=True)
class Subject:
    """One GPU and its checks."""

    index: int
    uuid: str
    model: str
    checks: tuple[Check, ...]

    @property
    def outcome(self) -> CheckOutcome:
        """Return the most severe outcome of its checks."""
        return worst(check.outcome for check in self.checks)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the subject of a JSON form. Raises KeyError or ValueError if it is not one."""
        checks = tuple(Check.from_dict(check) for check in data["checks"])
        return cls(int(data["index"]), str(data["uuid"]), str(data["model"]), checks)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        checks = [check.to_dict() for check in self.checks]
        named = {"index": self.index, "uuid": self.uuid, "model": self.model}
        return {**named, "outcome": str(self.outcome), "checks": checks}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of one run on one node. ``emulated``: the GPUs are simulated, so rates mean nothing."""

    node: str
    level: int
    emulated: bool
    driver_version: str
    checks: tuple[Check, ...]
    gpus: tuple[Subject, ...]

    @property
    def outcome(self) -> CheckOutcome:
        """Return the most severe outcome of the node and its GPUs."""
        return worst([*(check.outcome for check in self.checks), *(gpu.outcome for gpu in self.gpus)])

    @property
    def exit_status(self) -> int:
        """Return 0 for ok, 1 for suspect, 2 for fail."""
        return exit_status(self.outcome)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the report of a JSON form. Raises KeyError or ValueError if it is not one."""
        checks = tuple(Check.from_dict(check) for check in data["checks"])
        gpus = tuple(Subject.from_dict(gpu) for gpu in data["gpus"])
        named = str(data["node"]), int(data["level"]), bool(data["emulated"]), str(data["driver_version"])
        return cls(*named, checks, gpus)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, in the form of ``verify.schema.json``."""
        return {
            "version": 1,
            "node": self.node,
            "level": self.level,
            "emulated": self.emulated,
            "driver_version": self.driver_version,
            "outcome": str(self.outcome),
            "checks": [check.to_dict() for check in self.checks],
            "gpus": [gpu.to_dict() for gpu in self.gpus],
        }


def compare_with_peers(gpus: tuple[Subject, ...], others: Iterable[Subject] = ()) -> tuple[Subject, ...]:
    """Return the GPUs with rates below 90 % of the median of their model as suspect.

    ``others`` have earlier results of other GPUs. A model with fewer than three measured GPUs is not compared.
    """
    own = {gpu.uuid for gpu in gpus}
    peers = (*gpus, *(gpu for gpu in others if gpu.uuid not in own))
    return tuple(
        Subject(gpu.index, gpu.uuid, gpu.model, tuple(_compared(check, gpu.model, peers) for check in gpu.checks))
        for gpu in gpus
    )


def _compared(check: Check, model: str, gpus: tuple[Subject, ...]) -> Check:
    if check.outcome is not CheckOutcome.OK:
        return check
    for name in sorted(RATES & check.values.keys()):
        peers = [
            other.values[name] for gpu in gpus if gpu.model == model for other in gpu.checks if name in other.values
        ]
        usual = median(peers)
        if len(peers) >= MIN_CARDS_TO_COMPARE and check.values[name] < SUSPECT_BELOW * usual:
            part = 100 * check.values[name] / usual
            note = f"{name} is {check.values[name]:.4g}: {part:.0f} % of the median of this model ({usual:.4g})"
            return Check(check.name, CheckOutcome.SUSPECT, note, check.values)
    return check


def bus_bandwidth(size: float, seconds: float, count: int) -> float:
    """Return the bus bandwidth in the unit of ``size`` per second."""
    return size / seconds * 2 * (count - 1) / count
