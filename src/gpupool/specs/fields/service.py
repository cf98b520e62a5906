"""The section ``service`` of a request of the kind service: port, readiness, replicas, addresses and updates."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.protocol.gateway_table import (
    DEFAULT_HELD,
    DEFAULT_HOLD_S,
    MAX_BODY_BYTES,
    MAX_HELD,
)
from gpupool.domain.work.program.supervision import MAX_CHECK_CHARS, MAX_CHECK_S
from gpupool.domain.work.service import (
    MAX_REPLICAS,
    Access,
    Probe,
    ProbeKind,
    Routing,
    ScalePolicy,
    UpdatePolicy,
    check_scale,
)
from gpupool.specs.fields import quantities
from gpupool.specs.fields.parts import Strict
from gpupool.specs.text.error_messages import reworded

_RANGE = re.compile(r"([0-9]{1,4})(?:\.\.([0-9]{1,4}))?")
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"
_HOST = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$"

Path = Annotated[str, StringConstraints(pattern=r"^/[!-~]{0,1023}$")]
ModelName = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]
HostName = Annotated[str, StringConstraints(max_length=253, pattern=_HOST)]


def parse_replicas(value: object) -> tuple[int, int]:
    """Return the limits of ``2``, ``"2"`` or ``"0..4"``. Raises ``GpupoolError(INVALID_COUNT)``."""
    found = None if isinstance(value, bool) else _RANGE.fullmatch(str(value).strip()[:20])
    if found is None:
        raise GpupoolError(
            ErrorCode.INVALID_COUNT,
            f"'{str(value)[:40]}' is not a number of replicas."
            if isinstance(value, str | int)
            else "must be a number of replicas.",
            f"Give a number from 1 to {MAX_REPLICAS}, or a range such as 0..4.",
        )
    least = int(found[1])
    policy = check_scale(ScalePolicy(least, least if found[2] is None else int(found[2])))
    return policy.least, policy.most


def _replicas(value: object) -> object:
    try:
        least, most = parse_replicas(value)
    except GpupoolError as error:
        raise reworded(error) from error
    return str(least) if least == most else f"{least}..{most}"


def _names(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Defaults(Strict):
    """A section whose fields have their defaults if they are null or missing."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: given for name, given in value.items() if given is not None}
        return value


class ReadySpec(Defaults):
    """Readiness check of a replica: http or command; default: its port accepts connections."""

    http: Path | None = None
    """Path that answers a GET with a status from 200 to 399."""
    command: Annotated[list[quantities.Text], Field(min_length=1, max_length=64)] | None = None
    """Command that ends with status 0 where the replica runs, also in its container. {port} and {host} are replaced."""
    within: quantities.Duration = 600.0
    """Longest time until a replica is ready; then it is restarted, and an update ends without effect."""
    every: quantities.Duration = 2.0
    """Time between two checks."""
    timeout: quantities.Duration = 5.0
    """Time limit of a check."""
    failures: Annotated[int, Field(ge=1, le=100)] = 3
    """Failed checks in sequence after which a ready replica gets no more requests."""

    @model_validator(mode="after")
    def _check_command(self) -> ReadySpec:
        if self.command is None:
            return self
        if self.http is not None:
            raise ValueError("Give either http or command.")
        if sum(map(len, self.command)) > MAX_CHECK_CHARS:
            raise ValueError(f"The command has more than {MAX_CHECK_CHARS} characters.")
        if (self.timeout or 0.0) > MAX_CHECK_S:
            raise ValueError(f"The timeout of a command is at most {MAX_CHECK_S:g}s.")
        return self


class ScaleSpec(Defaults):
    """Rules for the number of replicas."""

    concurrency: Annotated[int, Field(ge=1, le=100_000)] = 8
    """Requests at a time for each replica."""
    up: quantities.DurationOrZero = 10.0
    """Time that more demand must last until a replica is added."""
    down: quantities.DurationOrZero = 300.0
    """Time that less demand must last until a replica is removed."""
    to_zero: quantities.DurationOrZero = 900.0
    """Time without requests until the last replica stops, if replicas begins with 0."""
    min_loaded: quantities.DurationOrZero = 60.0
    """Time that a replica stays before it may give its GPUs to another service."""


class UpdateSpec(Defaults):
    """Rules for updates."""

    surge: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    """Additional replicas during an update; with 0 a replica stops before its successor starts."""
    drain: quantities.DurationOrZero = 120.0
    """Time that a replica has to end its requests before it is stopped."""


class HeldSpec(Defaults):
    """Rules for requests that arrive while no replica is ready."""

    requests: Annotated[int, Field(ge=0, le=MAX_HELD)] = DEFAULT_HELD
    """Requests that may wait; others are answered with 503."""
    time: Annotated[quantities.DurationOrZero, Field(le=3600)] = DEFAULT_HOLD_S
    """Longest wait of a request, up to an hour."""


class ServiceSpec(Defaults):
    """A server with replicas and a stable address (kind service)."""

    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the server on its node; 0 (default): a free one. {port} in the command and in env is replaced by it."""
    port_env: Annotated[str, StringConstraints(pattern=_VARIABLE)] = "PORT"
    """Variable that has the port."""
    replicas: Annotated[str, BeforeValidator(_replicas, json_schema_input_type=str | int)] = "1"
    """Number of replicas, or a range such as 0..4: by the number of requests."""
    ready: ReadySpec = Field(default_factory=ReadySpec)
    """Readiness check."""
    scale: ScaleSpec = Field(default_factory=ScaleSpec)
    """Rules for the number of replicas."""
    update: UpdateSpec = Field(default_factory=UpdateSpec)
    """Rules for updates."""
    held: HeldSpec = Field(default_factory=HeldSpec)
    """Rules for requests that arrive while no replica is ready."""
    model: Annotated[
        list[ModelName], Field(max_length=32), BeforeValidator(_names, json_schema_input_type=str | list[str])
    ] = Field(default_factory=list)
    """Model names by which OpenAI clients choose this service; one, or a list."""
    hosts: Annotated[list[HostName], Field(max_length=16)] = Field(default_factory=list)
    """Host names whose requests go to this service."""
    access: Annotated[Access, Field(strict=False)] = Access.PROJECT
    """Users whose requests are answered: public, members (of the pool), project or token."""
    body: quantities.Size = 1024
    """Largest body of a request: MiB, or text such as 20M."""

    def probe(self) -> Probe:
        """Return the readiness check."""
        ready = self.ready
        kind = ProbeKind.COMMAND if ready.command else ProbeKind.HTTP if ready.http else ProbeKind.TCP
        return Probe(
            kind,
            ready.http or "",
            ready.within or 600.0,
            ready.every or 2.0,
            ready.timeout or 5.0,
            ready.failures,
            tuple(ready.command or ()),
        )

    def scale_policy(self) -> ScalePolicy:
        """Return the rules for the number of replicas."""
        least, most = parse_replicas(self.replicas)
        rules = self.scale
        times = (rules.up or 0.0, rules.down or 0.0, rules.to_zero or 0.0, rules.min_loaded or 0.0)
        return ScalePolicy(least, most, rules.concurrency, *times)

    def update_policy(self) -> UpdatePolicy:
        """Return the rules for updates."""
        return UpdatePolicy(self.update.surge, self.update.drain or 0.0)

    def routing(self, tokens: tuple[str, ...] = ()) -> Routing:
        """Return the rules for requests, with the digests of its tokens."""
        return Routing(
            self.access,
            tuple(self.model),
            tuple(self.hosts),
            tokens,
            self.held.requests,
            self.held.time or 0.0,
            min((self.body or 1024) << 20, MAX_BODY_BYTES),
        )
