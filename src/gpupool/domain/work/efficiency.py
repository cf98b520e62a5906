"""Compare the request of a workload with its measured use, and suggest a smaller request that would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpupool.domain.units import WHOLE_GPU, format_duration, format_mib, format_permille
from gpupool.domain.work.workload import Limits

MIN_MEASURED_S = 60.0  # shorter measurements show the start of a program only
HEADROOM = 1.25  # of the highest use, in each suggestion
WASTE = 0.6  # a suggestion is made below this part of the request
STEP_MIB = 256
IDLE_PART = 0.5
MAX_LOW_COMPUTE = 0.3


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """The stored samples of a workload's replicas together: seconds, and the highest values of one replica.

    ``samples_s`` are seconds of replicas, ``busy_s`` GPU seconds of computing, and ``idle_s`` seconds of replicas that
    held GPUs and computed on none of them. The last two are 0 where the use of GPUs cannot be measured.
    """

    samples_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0
    cpu_s: float = 0.0
    gpu_memory_mib: int = 0
    memory_mib: int = 0

    def plus(self, other: MeasuredUse) -> MeasuredUse:
        """Return both together."""
        return MeasuredUse(
            self.samples_s + other.samples_s,
            self.busy_s + other.busy_s,
            self.idle_s + other.idle_s,
            self.cpu_s + other.cpu_s,
            max(self.gpu_memory_mib, other.gpu_memory_mib),
            max(self.memory_mib, other.memory_mib),
        )


@dataclass(frozen=True, slots=True)
class GrantedGpus:
    """The GPUs of one replica: their number, and the memory and part of each."""

    count: int = 0
    memory_mib: int = 0
    permille: int = 0


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A smaller request: what was measured, and the option for the next submission (may be empty)."""

    code: str
    sentence: str
    option: str = ""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The comparison of a request with its use; percentages are None where nothing was measured."""

    measured: MeasuredUse
    gpus: GrantedGpus
    gpu_percent: float | None
    gpu_memory_percent: float | None
    cpu_percent: float | None
    memory_percent: float | None
    suggestions: tuple[Suggestion, ...]


def efficiency_of(measured: MeasuredUse, gpus: GrantedGpus, limits: Limits) -> Efficiency:
    """Compare a request with its use."""
    seconds = measured.samples_s
    held = gpus.count * gpus.permille / 1000 * seconds
    computed = measured.busy_s > 0 or measured.idle_s > 0
    return Efficiency(
        measured,
        gpus,
        gpu_percent=100 * measured.busy_s / held if held and computed else None,
        gpu_memory_percent=_percent(measured.gpu_memory_mib, gpus.count * gpus.memory_mib, seconds),
        cpu_percent=_percent(measured.cpu_s, (limits.cpus or 0) * seconds, seconds),
        memory_percent=_percent(measured.memory_mib, limits.memory_mib or 0, seconds),
        suggestions=tuple(_suggestions(measured, gpus, limits)) if seconds >= MIN_MEASURED_S else (),
    )


def _percent(used: float, requested: float, seconds: float) -> float | None:
    return 100 * used / requested if requested and seconds else None


def _suggestions(measured: MeasuredUse, gpus: GrantedGpus, limits: Limits) -> Iterator[Suggestion]:
    yield from _gpu_memory(measured, gpus)
    seconds = measured.samples_s
    if gpus.count and measured.idle_s > IDLE_PART * seconds:
        yield Suggestion(
            "GPU_IDLE",
            f"Held {_amount(gpus)} for {format_duration(seconds)}, of which "
            f"{100 * measured.idle_s / seconds:.0f}% without any computation.",
        )
    used_cpus = measured.cpu_s / seconds
    fewer = max(1, -(-int(used_cpus * HEADROOM * 10) // 10))
    if limits.cpus is not None and used_cpus < WASTE * limits.cpus and fewer < limits.cpus:
        yield Suggestion(
            "CPUS", f"Requested {limits.cpus:g} CPUs, used {used_cpus:.1f}; --cpus {fewer} would do.", f"--cpus {fewer}"
        )
    less = _rounded(measured.memory_mib)
    if limits.memory_mib is not None and measured.memory_mib and less < WASTE * limits.memory_mib:
        yield Suggestion(
            "MEMORY",
            f"Requested {format_mib(limits.memory_mib)} of memory, used {format_mib(measured.memory_mib)}; "
            f"--memory {less} would do.",
            f"--memory {less}",
        )


def _amount(gpus: GrantedGpus) -> str:
    """Return ``0.40 GPU``, ``2 GPUs`` or ``0.40 of each of 2 GPUs``."""
    whole = f"{gpus.count} GPU{'' if gpus.count == 1 else 's'}"
    if gpus.permille >= WHOLE_GPU:
        return whole
    part = format_permille(gpus.permille)
    return f"{part} GPU" if gpus.count == 1 else f"{part} of each of {whole}"


def _gpu_memory(measured: MeasuredUse, gpus: GrantedGpus) -> Iterator[Suggestion]:
    """Suggest less memory of each GPU, unless the program computes more than a small part of the time."""
    if not gpus.count or not gpus.memory_mib or not measured.gpu_memory_mib:
        return
    used = -(-measured.gpu_memory_mib // gpus.count)
    less = _rounded(used)
    whole = gpus.permille >= 1000
    busy = measured.busy_s > MAX_LOW_COMPUTE * measured.samples_s * gpus.count
    if less >= WASTE * gpus.memory_mib or (whole and busy):
        return
    each = " of each GPU" if gpus.count > 1 else ""
    yield Suggestion(
        "GPU_MEMORY",
        f"Requested {format_mib(gpus.memory_mib)} of GPU memory{each}, used {format_mib(used)}; -m {less} would do.",
        f"-m {less}",
    )


def _rounded(used_mib: int) -> int:
    """Return the use with headroom, as MiB in steps."""
    return max(STEP_MIB, -(-int(used_mib * HEADROOM) // STEP_MIB) * STEP_MIB)
