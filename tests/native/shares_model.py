"""Measures who gets how much of a simulated GPU: real processes under the share library, with the real arbiter.

Each scenario has a GPU of its own, so that several run at once: simulated kernels need no processor. What a tenant was
served is what the fake driver's clock says, so a slow machine makes figures coarser but not wrong.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from arbiter_harness import Arbiter
from lease_folder import POLICY_GUARANTEE, LeasedGpu, LeaseFolder
from metronome import Metronome
from native_harness import NATIVE, PROGRAMS, FakeGpu, clean_environment, fake_gpus_folder

from requires import cc

_PROCESSES_AT, _PROCESS_BYTES, _PROCESSES = 4096, 256, 512
_SAMPLE_S = 0.1
_STALLED = 0.01  # of a window: what one tenant of ten loses at most then is a point
_SETTLE_S = 1.0  # in which the arbiter makes up for what came before a window


@dataclass(frozen=True, slots=True)
class Program:
    """One tenant with one process; ``does`` are the arguments of programs/shares_client.c."""

    does: str
    weight: int = 500
    policy: int = POLICY_GUARANTEE


@dataclass(frozen=True, slots=True)
class Scenario:
    """Tenants of one GPU."""

    name: str
    programs: tuple[Program, ...]
    gated: bool = True

    @property
    def due(self) -> list[float]:
        """Return the expected percentage of each tenant if all want the GPU."""
        return [100 * program.weight / sum(p.weight for p in self.programs) for program in self.programs]


@dataclass(frozen=True, slots=True)
class Measured:
    """GPU time in ns that each tenant had been served at each sample, and the moments of the samples in seconds."""

    scenario: Scenario
    at_s: list[float]
    served: list[list[int]]
    responses_us: list[list[int]]
    held_ns: list[int]
    ungated: int
    grants: list[int] = field(default_factory=list)
    stalled_s: float = 0.0
    """For how long the machine kept a processor from who wanted it."""

    @property
    def seconds(self) -> float:
        """Return the duration of the measurement."""
        return self.at_s[-1] - self.at_s[0]

    @property
    def totals(self) -> list[int]:
        """Return the served time of each tenant in total."""
        return [line[-1] - line[0] for line in self.served]

    @property
    def shares(self) -> list[float]:
        """Return the parts of the served time, in percent."""
        return [100 * one / sum(self.totals) for one in self.totals]

    @property
    def utilisation(self) -> float:
        """Return the part of the time in which the GPU worked, in percent."""
        return sum(self.totals) / (self.seconds * 1e9) * 100

    def worst_error(self, window_s: float) -> float:
        """Return the largest difference in points between a tenant's part in any window and its fair share."""
        wide, worst = round(window_s / _SAMPLE_S), 0.0
        for end in range(wide, len(self.at_s)):
            parts = [line[end] - line[end - wide] for line in self.served]
            errors = (abs(100 * p / max(1, sum(parts)) - due) for p, due in zip(parts, self.scenario.due, strict=True))
            worst = max(worst, *errors)
        return worst


def build_client(native_out: Path, folder: Path) -> Path:
    """Build programs/shares_client.c, linked against the driver's name."""
    client = folder / "shares_client"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", f"-I{NATIVE / 'include'}", f"-I{native_out}"]
    linked = [f"-L{native_out / 'fake'}", "-l:libcuda.so.1"]
    cc(*flags, "-o", client, PROGRAMS / "shares_client.c", *linked)
    return client


class _Tenant:
    """A running process and what it says."""

    def __init__(self, client: Path, program: Program, environment: dict[str, str]) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([client, *program.does.split()], env=environment, text=True, **pipes)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.responses_us: list[int] = []
        self._thread = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        self._thread.start()
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.responses_us.append(int(line))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class _State:
    """The state of one simulated GPU."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)

    def served(self) -> dict[int, int]:
        """Return the values by pid."""
        found = {}
        for slot in range(_PROCESSES):
            at = _PROCESSES_AT + slot * _PROCESS_BYTES
            state, pid, _, served = struct.unpack_from("IIQQ", self._map, at)
            if state == 1:
                found[pid] = served
        return found


@contextlib.contextmanager
def _leases(
    scenarios: Sequence[Scenario], gpus: Sequence[FakeGpu], native_out: Path, folder: Path
) -> Iterator[list[list[LeaseFolder]]]:
    drivers = (native_out / "fake/libcuda.so.1", native_out / "fake/libnvidia-ml.so.1")
    with contextlib.ExitStack() as stack:
        yield [
            [
                stack.enter_context(
                    LeaseFolder(
                        folder / f"lease-{i}-{j}",
                        [LeasedGpu(gpu.uuid_bytes, 1 << 30, 0, program.weight, program.policy, 0, gpu.uuid)],
                        *drivers,
                    )
                )
                for j, program in enumerate(scenario.programs)
            ]
            for i, (scenario, gpu) in enumerate(zip(scenarios, gpus, strict=True))
        ]


def _environment(lease: LeaseFolder, gpu: FakeGpu, folder: Path, native_out: Path, *, gated: bool) -> dict[str, str]:
    common = {"GPUPOOL_FAKE_GPUS": str(folder), "CUDA_VISIBLE_DEVICES": gpu.uuid}
    common["LD_LIBRARY_PATH"] = str(native_out / "fake")
    own = lease.environment(native_out / "share/libcuda.so.1") if gated else {}
    return clean_environment() | common | own


class _Samples:
    """Served time of each tenant, ten times a second, and the delay of the machine."""

    def __init__(self, states: Sequence[_State], tenants: Sequence[Sequence[_Tenant]]) -> None:
        self._states, self._tenants = states, tenants
        self.at_s: list[float] = []
        self.served: list[list[list[int]]] = [[[] for _ in group] for group in tenants]

    def take(self, metronome: Metronome, seconds: float, patience_s: float) -> float:
        """Wait for a window of this length in which the machine ran; without one, keep all of it.

        Returns for how long it did not run in what is kept.
        """
        wide, begin = round(seconds / _SAMPLE_S), time.monotonic()
        for number in range(round((seconds + patience_s) / _SAMPLE_S) + 1):
            time.sleep(max(0.0, begin + number * _SAMPLE_S - time.monotonic()))
            self._one()
            if (
                number >= wide
                and metronome.late_s(self.at_s[-1 - wide] - _SETTLE_S, self.at_s[-1]) <= _STALLED * seconds
            ):
                self._keep_last(wide + 1)
                break
        return metronome.late_s(self.at_s[0], self.at_s[-1])

    def _one(self) -> None:
        self.at_s.append(time.monotonic())
        for state, group, lines in zip(self._states, self._tenants, self.served, strict=True):
            known = state.served()
            for tenant, line in zip(group, lines, strict=True):
                line.append(known.get(tenant.process.pid, line[-1] if line else 0))

    def _keep_last(self, count: int) -> None:
        self.at_s = self.at_s[-count:]
        self.served = [[line[-count:] for line in lines] for lines in self.served]


def measure(
    native_out: Path,
    folder: Path,
    scenarios: Sequence[Scenario],
    seconds: float,
    *,
    warm_s: float = 0.5,
    patience_s: float = 0.0,
) -> list[Measured]:
    """Run all at once, up to ``patience_s`` longer until there is a window in which the machine ran."""
    folder.mkdir(parents=True, exist_ok=True)
    client = build_client(native_out, folder)
    gpus = [FakeGpu(uuid=f"GPU-00000000-0000-0000-0000-{i + 1:012x}", context_bytes=0) for i in range(len(scenarios))]
    fakes = fake_gpus_folder(folder / "gpus", gpus)
    with (
        _leases(scenarios, gpus, native_out, folder) as leases,
        Arbiter(native_out / "gpupool-arbiter") as arbiter,
        Metronome() as metronome,
        contextlib.ExitStack() as stack,
    ):
        tenants: list[list[_Tenant]] = []
        for scenario, gpu, group in zip(scenarios, gpus, leases, strict=True):
            tenants.append([])
            for program, lease in zip(scenario.programs, group, strict=True):
                if scenario.gated:
                    arbiter.add(lease)
                tenant = _Tenant(client, program, _environment(lease, gpu, fakes, native_out, gated=scenario.gated))
                stack.callback(tenant.end)
                tenants[-1].append(tenant)
        for tenant in (one for group in tenants for one in group):
            tenant.begin()
        time.sleep(warm_s)
        samples = _Samples([_State(fakes / f"gpu-{i}.state") for i in range(len(gpus))], tenants)
        stalled_s = samples.take(metronome, seconds, patience_s)
        time.sleep(1.1)
        usages = [[arbiter.usage(lease) or {} for lease in group] for group in leases]
    return [
        Measured(
            scenario,
            samples.at_s,
            lines,
            [list(tenant.responses_us) for tenant in group],
            [int(usage.get("held_ns", 0)) for usage in usage_of],
            sum(int(usage.get("ungated", 0)) for usage in usage_of),
            [int(usage.get("grants", 0)) for usage in usage_of],
            stalled_s,
        )
        for scenario, lines, group, usage_of in zip(scenarios, samples.served, tenants, usages, strict=True)
    ]
