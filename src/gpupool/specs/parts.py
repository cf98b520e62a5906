"""The parts of a request that have fields of their own: GPUs, sweeps, gangs, and what must end first."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import ComputePolicy, Placement, Sharing
from gpupool.specs import limits, quantities
from gpupool.specs.problems import refusal, reworded
from gpupool.specs.sweep import Range, check_parameter_names, grid_size
from gpupool.specs.templates import Scalar


class Condition(StrEnum):
    """How a workload must have ended before one that comes after it may start."""

    SUCCESS = "success"
    ANY = "any"


class Strict(BaseModel):
    """What all parts have in common: no unknown fields, no values of another type."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


def _scalar(value: object) -> object:
    if not isinstance(value, str | int | float):
        raise refusal(ErrorCode.INVALID_REQUEST, "must be text, a number, or true or false.")
    if isinstance(value, str) and len(value) > limits.MAX_VALUE_LENGTH:
        raise refusal(ErrorCode.TOO_LARGE, f"is longer than {limits.MAX_VALUE_LENGTH} characters.")
    return value


Value = Annotated[Scalar, BeforeValidator(_scalar)]
Labels = Annotated[dict[quantities.LabelKey, quantities.LabelValue], Field(max_length=limits.MAX_LABELS)]


class GpuSpec(Strict):
    """GPUs of one node that each replica gets: the same part of each."""

    count: quantities.GpuCount = 1
    """How many GPUs, up to 1024; 0: none, for work that needs processors only."""
    fraction: quantities.Fraction = None
    """The part of each GPU, above 0 and up to 1 in steps of 0.001; all of it when neither part is given."""
    memory_mib: quantities.Size = None
    """The part of each GPU as its memory: MiB, or text such as 4G."""
    models: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=limits.MAX_MODELS)
    ] = Field(default_factory=list)
    """Models that will do, as a part of their name (t4, a100); any when empty."""
    labels: Labels = Field(default_factory=dict)
    """Labels that the node must have."""
    compute: Annotated[ComputePolicy, Field(strict=False)] | None = None
    """What the part means for compute time: guarantee, cap or none; the project's default when absent."""
    sharing: Annotated[Sharing, Field(strict=False)] | None = None
    """How the part is kept apart from others: whole, share, mps, mig or advisory; the GPU's own when absent."""
    placement: Annotated[Placement, Field(strict=False)] | None = None
    """Which place is taken of several: pack (what is left stays of use to others) or spread (the emptiest)."""

    @model_validator(mode="after")
    def _one_part(self) -> Self:
        if self.count == 0 and (self.fraction is not None or self.memory_mib is not None):
            raise refusal(
                ErrorCode.INVALID_REQUEST,
                "There is no part of no GPU.",
                "Leave the part (-p, -m) out, or ask for a GPU.",
                ("fraction" if self.fraction is not None else "memory_mib",),
            )
        if self.fraction is not None and self.memory_mib is not None:
            raise refusal(
                ErrorCode.INVALID_REQUEST,
                "A GPU's part is given twice, by fraction and by memory.",
                "Give one of fraction (-p) and memory_mib (-m).",
                ("memory_mib",),
            )
        return self

    @model_validator(mode="after")
    def _mode_of_part(self) -> Self:
        part = self.memory_mib is not None or self.fraction not in {None, 1.0}
        if part and self.sharing in {Sharing.WHOLE, Sharing.MIG}:
            raise refusal(
                ErrorCode.INVALID_REQUEST,
                f"The sharing mode {self.sharing} does not go with a part of a GPU.",
                "Leave the part (-p, -m) out; --model 1g.10gb chooses the size of a MIG instance.",
                ("sharing",),
            )
        if self.sharing is Sharing.MPS and self.count > 1:
            raise refusal(
                ErrorCode.INVALID_REQUEST,
                "The sharing mode mps is for one GPU, or a part of one.",
                "Ask for one GPU, or for another mode.",
                ("sharing",),
            )
        return self


class RandomRange(Strict):
    """How one parameter is drawn: between ``min`` and ``max``, or from ``choices``."""

    min: float | None = None
    """Lowest value."""
    max: float | None = None
    """Highest value."""
    log: bool = False
    """Spread evenly in the logarithm (needs min above 0)."""
    integer: bool = False
    """Whole numbers only."""
    choices: Annotated[list[Value], Field(min_length=1, max_length=limits.MAX_REPLICAS)] | None = None
    """Values to choose from, each as likely."""

    @model_validator(mode="after")
    def _range_or_choices(self) -> Self:
        if self.choices is not None:
            if self.min is not None or self.max is not None or self.log or self.integer:
                raise refusal(ErrorCode.INVALID_REQUEST, "must have choices, or min and max, not both.")
            return self
        if self.min is None or self.max is None:
            raise refusal(ErrorCode.INVALID_REQUEST, "must have min and max, or choices.")
        _check_range(self.min, self.max, log=self.log, integer=self.integer)
        return self

    def drawn(self) -> Range | tuple[Scalar, ...]:
        """The same for ``sweep.draw``."""
        if self.choices is not None:
            return tuple(self.choices)
        return Range(self.min or 0.0, self.max or 0.0, self.log, self.integer)


def _check_range(low: float, high: float, *, log: bool, integer: bool) -> None:
    if low > high or not math.isfinite(high - low):
        raise refusal(ErrorCode.INVALID_REQUEST, "must have a min that is not above its max.")
    if log and low <= 0:
        raise refusal(ErrorCode.INVALID_REQUEST, "must have a min above 0 when log is true.")
    if integer and not (low.is_integer() and high.is_integer()):
        raise refusal(ErrorCode.INVALID_REQUEST, "must have whole numbers as min and max when integer is true.")


class RandomSweep(Strict):
    """Random draws: so many runs, each parameter drawn by itself."""

    samples: quantities.ReplicaCount
    """How many runs, 1 to 10000."""
    seed: Annotated[int, Field(ge=0, le=limits.MAX_INTEGER)] | None = None
    """The same seed draws the same values; without one they differ with every submission."""
    parameters: Annotated[dict[str, RandomRange], Field(min_length=1)]
    """The parameters by name."""


class SweepSpec(Strict):
    """Sets of parameters, one per run: exactly one of ``grid``, ``list`` and ``random``."""

    grid: Annotated[dict[str, Annotated[list[Value], Field(min_length=1)]], Field(min_length=1)] | None = None
    """Values by parameter; every combination is run."""
    rows: Annotated[list[Annotated[dict[str, Value], Field(min_length=1)]], Field(min_length=1)] | None = Field(
        default=None, alias="list"
    )
    """Sets of parameters, run as they are."""
    random: RandomSweep | None = None
    """Random draws."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(part is not None for part in (self.grid, self.rows, self.random)) != 1:
            raise refusal(ErrorCode.INVALID_REQUEST, "must have exactly one of grid, list and random.")
        if self.size > limits.MAX_REPLICAS:
            raise refusal(ErrorCode.INVALID_COUNT, f"has {self.size} runs; at most {limits.MAX_REPLICAS} are possible.")
        try:
            for names in self.name_sets():
                check_parameter_names(names)
        except GpupoolError as error:
            raise reworded(error) from error
        return self

    def name_sets(self) -> list[list[str]]:
        """The names of the parameters, for each run of a list and once for the others."""
        if self.rows is not None:
            return [list(row) for row in self.rows]
        return [list(self.grid if self.grid is not None else self.random.parameters if self.random else ())]

    @property
    def size(self) -> int:
        """How many runs there are."""
        if self.grid is not None:
            return grid_size(self.grid)
        return self.random.samples if self.random else len(self.rows or ())


class AfterSpec(Strict):
    """A workload that must end first."""

    workload: Annotated[str, Field(min_length=1, max_length=limits.MAX_REFERENCE)]
    """Its name or id."""
    condition: Annotated[Condition, Field(strict=False)] = Condition.SUCCESS
    """Whether it must have succeeded (success) or only ended (any)."""


class GangSpec(Strict):
    """Replicas that start together or not at all."""

    workers: quantities.ReplicaCount
    """How many replicas, 1 to 10000."""
    min: quantities.OptionalReplicaCount = None
    """With how many it can start already; the others join as GPUs come free. All of them when absent."""
    within: quantities.LabelKey | None = None
    """The node label whose value their nodes should share: rack, zone, ...; node for one node."""
    strict: bool = False
    """Wait rather than start on nodes that do not share it."""

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.min is not None and self.min > self.workers:
            sentence = f"is {self.min}, more than the {self.workers} workers there are."
            raise refusal(ErrorCode.INVALID_COUNT, sentence, "Give at most as many.", ("min",))
        if self.strict and self.within is None:
            raise refusal(ErrorCode.INVALID_REQUEST, "needs a label: say within what.", "Add within.", ("strict",))
        return self
