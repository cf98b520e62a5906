"""Runs the arbiter's round robin in virtual time with simulated tenants (programs/arbiter_drr_sim.c)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from native_harness import NATIVE, PROGRAMS

from requires import cc

US, MS, S = 1_000, 1_000_000, 1_000_000_000
NONE, GUARANTEE, CAP = 0, 1, 2
SAMPLE_NS = 100 * MS
_ROOM = 4096


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant: what it may have and what it does."""

    weight: int = 500
    policy: int = GUARANTEE
    kernels: tuple[int, ...] = (50 * US,)
    burst: int = 0
    think: int = 0
    gap: int = 0
    inflight: int = 4 * MS
    wake: int = 50 * US
    drained: int = 100 * US
    starts: int = 0
    ends: int = 0
    processes: int = 1
    stopped: bool = False


class _Spec(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("kernels", ctypes.c_int64 * 4),
        *(
            (name, ctypes.c_int64)
            for name in ("burst", "think", "gap", "inflight", "wake", "drained", "starts", "ends")
        ),
        ("processes", ctypes.c_uint32),
        ("stopped", ctypes.c_uint32),
    )


class _Result(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("served", "held", "longest_wait", "grants"))


class _Outcome(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("idle_wanted", "longest_idle_wanted", "early_overlaps", "two_grants", "steps")
    )


class Settings(ctypes.Structure):
    """struct drr_settings; zeros are defaults."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            "quantum",
            "least_quantum",
            "least_hold",
            "drain",
            "absent",
            "longest_debt",
            "patience",
            "look_every",
            "look",
        )
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run; times in ns, one entry for each tenant."""

    served: list[int]
    held: list[int]
    longest_wait: list[int]
    grants: list[int]
    idle_wanted: int
    longest_idle_wanted: int
    early_overlaps: int
    two_grants: int
    steps: int
    samples: list[list[int]] = field(repr=False)
    responses: list[list[int]] = field(repr=False)

    @property
    def shares(self) -> list[float]:
        """Return the parts of the served time, in percent."""
        return [100 * one / sum(self.served) for one in self.served]

    def worst_error(self, wanted: Sequence[float], window_ns: int, warm_ns: int = 0) -> float:
        """Return the largest error of a tenant's part of the served time in any window, in percentage points."""
        wide, first = window_ns // SAMPLE_NS, warm_ns // SAMPLE_NS
        points = [[0, *line] for line in self.samples]
        worst = 0.0
        for end in range(first + wide, len(points[0])):
            parts = [line[end] - line[end - wide] for line in points]
            worst = max(worst, *(abs(100 * part / sum(parts) - due) for part, due in zip(parts, wanted, strict=True)))
        return worst


@cache
def _library() -> ctypes.CDLL:
    sources = [PROGRAMS / "arbiter_drr_sim.c", NATIVE / "arbiter/drr.c", NATIVE / "arbiter/drr_account.c"]
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", f"-I{NATIVE}"]
    with TemporaryDirectory(prefix="gpupool-drr-") as folder:
        out = Path(folder, "sim.so")
        cc(*flags, "-o", out, *sources)
        return ctypes.CDLL(str(out))


def run(tenants: Sequence[Tenant], seconds: float = 10.0, settings: Settings | None = None) -> Outcome:
    """Simulate these tenants on one GPU for some time."""
    count, duration = len(tenants), int(seconds * S) // SAMPLE_NS * SAMPLE_NS
    per = duration // SAMPLE_NS
    specs, results = (_Spec * count)(), (_Result * count)()
    for spec, tenant in zip(specs, tenants, strict=True):
        for name, _ in _Spec._fields_:
            if name != "kernels":
                setattr(spec, name, int(getattr(tenant, name)))
        spec.kernels[:] = (*tenant.kernels, 0, 0, 0, 0)[:4]
    samples, responses = (ctypes.c_int64 * (count * per))(), (ctypes.c_int64 * (count * _ROOM))()
    responded, out = (ctypes.c_int64 * count)(), _Outcome()
    given = ctypes.byref(settings) if settings is not None else None
    answer = _library().simulate(
        given,
        specs,
        ctypes.c_uint32(count),
        ctypes.c_int64(duration),
        ctypes.c_int64(SAMPLE_NS),
        results,
        ctypes.byref(out),
        samples,
        responses,
        responded,
        ctypes.c_int64(_ROOM),
    )
    assert answer == 0
    return Outcome(
        served=[one.served for one in results],
        held=[one.held for one in results],
        longest_wait=[one.longest_wait for one in results],
        grants=[one.grants for one in results],
        idle_wanted=out.idle_wanted,
        longest_idle_wanted=out.longest_idle_wanted,
        early_overlaps=out.early_overlaps,
        two_grants=out.two_grants,
        steps=out.steps,
        samples=[list(samples[i * per : (i + 1) * per]) for i in range(count)],
        responses=[sorted(responses[i * _ROOM : i * _ROOM + responded[i]]) for i in range(count)],
    )
