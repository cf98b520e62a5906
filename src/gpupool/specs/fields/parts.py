"""The nested objects of a request: GPUs, sweeps, gangs and dependencies."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Placement
from gpupool.domain.nodes.sharing import WHOLE_MODES, ComputePolicy, Sharing, traits_of
from gpupool.specs import limits
from gpupool.specs.fields import quantities
from gpupool.specs.fields.sweep import Range, check_parameter_names, grid_size
from gpupool.specs.fields.templates import Scalar
from gpupool.specs.text.error_messages import refusal, reworded


class Condition(StrEnum):
    """Condition on the end of a dependency, before the workload may start."""

    SUCCESS = "success"
    ANY = "any"
    FAILURE = "failure"


class Strict(BaseModel):
    """Base of all parts: no unknown fields, no implicit type conversion."""

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
    """GPUs for each replica: on one node, with the same share of each."""

    count: quantities.GpuCount = 1
    """Number of GPUs, up to 1024; 0: none, for work on CPUs only."""
    fraction: quantities.Fraction = None
    """Share of each GPU, above 0 and up to 1 in steps of 0.001; default: whole GPUs."""
    memory_mib: quantities.Size = None
    """Share of each GPU, as memory: MiB, or text such as 4G."""
    models: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=limits.MAX_MODELS)
    ] = Field(default_factory=list)
    """Accepted GPU models, by words of their names (t4, a100); empty: any."""
    labels: Labels = Field(default_factory=dict)
    """Required labels of the node."""
    compute: Annotated[ComputePolicy, Field(strict=False)] | None = None
    """Compute policy of the share: guarantee, cap or none; default: that of the project."""
    sharing: Annotated[Sharing, Field(strict=False)] | None = None
    """Sharing mode: whole, share, mps, mig or advisory; default: that of the GPU."""
    placement: Annotated[Placement, Field(strict=False)] | None = None
    """Preferred placement: pack (keep free GPUs usable for others) or spread (lowest load)."""

    @model_validator(mode="after")
    def _one_part(self) -> Self:
        if self.count == 0 and (self.fraction is not None or self.memory_mib is not None):
            raise refusal(
                ErrorCode.INVALID_REQUEST,
                "A part of a GPU needs a GPU.",
                "Omit the part (-p, -m), or request a GPU.",
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
        if part and self.sharing in WHOLE_MODES:
            raise refusal(
                ErrorCode.INVALID_REQUEST,
                f"The sharing mode {self.sharing} does not support a part of a GPU.",
                "Omit the part (-p, -m); --model 1g.10gb chooses the size of a MIG instance.",
                ("sharing",),
            )
        if self.sharing is not None and self.count > 1 and traits_of(self.sharing).single_gpu:
            raise refusal(
                ErrorCode.INVALID_REQUEST,
                f"The sharing mode {self.sharing} is for one GPU, or a part of one.",
                "Request one GPU, or another mode.",
                ("sharing",),
            )
        return self


class RandomRange(Strict):
    """Distribution of one parameter: between ``min`` and ``max``, or one of ``choices``."""

    min: float | None = None
    """Lowest value."""
    max: float | None = None
    """Highest value."""
    log: bool = False
    """Log-uniform instead of uniform; min must be above 0."""
    integer: bool = False
    """Whole numbers only."""
    choices: Annotated[list[Value], Field(min_length=1, max_length=limits.MAX_REPLICAS)] | None = None
    """Values with equal probability."""

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
        """Return the input for ``sweep.draw``."""
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
    """Random draws of parameters, each drawn independently."""

    samples: quantities.ReplicaCount
    """Number of runs, 1 to 10000."""
    seed: Annotated[int, Field(ge=0, le=limits.MAX_INTEGER)] | None = None
    """Seed: the same one draws the same values; default: a different one for each submission."""
    parameters: Annotated[dict[str, RandomRange], Field(min_length=1)]
    """Distributions of the parameters, by name."""


class SweepSpec(Strict):
    """Sets of parameters, one for each run: exactly one of ``grid``, ``list`` and ``random``."""

    grid: Annotated[dict[str, Annotated[list[Value], Field(min_length=1)]], Field(min_length=1)] | None = None
    """Values by parameter; all combinations run."""
    rows: Annotated[list[Annotated[dict[str, Value], Field(min_length=1)]], Field(min_length=1)] | None = Field(
        default=None, alias="list"
    )
    """List of parameter sets."""
    random: RandomSweep | None = None
    """Random draws of parameters."""

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
        """Return the parameter names of each run of a list, or once for a grid or random draws."""
        if self.rows is not None:
            return [list(row) for row in self.rows]
        return [list(self.grid if self.grid is not None else self.random.parameters if self.random else ())]

    @property
    def size(self) -> int:
        """Return the number of runs."""
        if self.grid is not None:
            return grid_size(self.grid)
        return self.random.samples if self.random else len(self.rows or ())


class AfterSpec(Strict):
    """A dependency: a workload that must end first."""

    workload: Annotated[str, Field(min_length=1, max_length=limits.MAX_REFERENCE)]
    """Name or id of the workload."""
    condition: Annotated[Condition, Field(strict=False)] = Condition.SUCCESS
    """Required end: success, or any (it may also fail)."""


class GangSpec(Strict):
    """Replicas that start together or not at all."""

    workers: quantities.ReplicaCount
    """Number of replicas, 1 to 10000."""
    min: quantities.OptionalReplicaCount = None
    """Minimum number that can start; the others join when GPUs become free. Default: all."""
    within: quantities.LabelKey | None = None
    """Node label (rack, zone, ...) with equal values on the nodes of the gang; node: a single node."""
    strict: bool = False
    """Require equal values: wait instead of starting on nodes with different ones."""
    mixed_models: bool = False
    """Allow GPUs of several models; default: all GPUs of a gang are of one model."""

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.min is not None and self.min > self.workers:
            sentence = f"is {self.min}, more than the {self.workers} workers."
            raise refusal(ErrorCode.INVALID_COUNT, sentence, "Give at most this number.", ("min",))
        if self.strict and self.within is None:
            raise refusal(ErrorCode.INVALID_REQUEST, "needs a label: give within.", "Add within.", ("strict",))
        return self
