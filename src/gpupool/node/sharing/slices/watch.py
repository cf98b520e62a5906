"""Check of slices once per second: the driver's counts of memory and time against the tenants' ledgers and grants.

The driver is queried on a separate thread, because it may hang. ``memory_audit`` and ``time_audit`` judge the result,
and the event loop acts on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpupool.domain.nodes.sharing import ComputePolicy
from gpupool.domain.units import format_mib
from gpupool.node.host import process_tree
from gpupool.node.host.log import log_event
from gpupool.node.host.paths import ReplicaFolder, read_json, write_json
from gpupool.node.host.process_tree import Proc
from gpupool.node.host.records import ShepherdRecord
from gpupool.node.inventory.processes import command
from gpupool.node.ports import SharingHost
from gpupool.node.sharing.slices import memory_audit
from gpupool.node.sharing.slices.arbiter import Arbiter
from gpupool.node.sharing.slices.context_sizes import ContextSizes
from gpupool.node.sharing.slices.gpu_processes import GpuProcesses
from gpupool.node.sharing.slices.lease_folder import LeaseFolder
from gpupool.node.sharing.slices.memory_audit import MemorySample, Offence, OffenceAction, OffenceCase, OffenceFinding
from gpupool.node.sharing.slices.pages import LedgerSlot
from gpupool.node.sharing.slices.time_audit import (
    TimeAction,
    TimeCase,
    TimeFinding,
    TimeLimits,
    TimeSample,
    judge_time,
)

CHECK_INTERVAL_S = 1.0
MAX_MISSED_BEATS = 4  # samples in a row without a new heartbeat of a running arbiter
_MAX_ANCESTORS = 256
_MIB = 1 << 20
BACKSTOP = "GPUPOOL_BACKSTOP"
ONLY_WARN = "warn"
TIME_CHECK = "GPUPOOL_TIME_CHECK"  # margin in percent, and samples: see ``TimeLimits``
PAUSED = "paused-processes.json"
_MAX_GRANT_AGE_S = 3.0
_MAX_NAMED = 3  # processes
_TIME_SIGNALS = {TimeAction.TERM: signal.SIGTERM, TimeAction.KILL: signal.SIGKILL}


@dataclass(frozen=True, slots=True)
class GrantCount:
    """The arbiter's count for one lease on one GPU: seconds held, launches that did not wait, and when it came."""

    held_s: float
    ungated: int
    at: float


@dataclass(frozen=True, slots=True)
class TenantGpu:
    """A GPU of a lease: the slice's size, and how much the driver may allocate per process by itself.

    ``grant`` is the arbiter's last count; None if there is none.
    """

    uuid: str
    limit_bytes: int
    allowance_bytes: int
    permille: int
    policy: ComputePolicy
    grant: GrantCount | None


@dataclass(frozen=True, slots=True)
class Tenant:
    """A lease: its GPUs in order, and the folders of its programs by key."""

    folder: LeaseFolder
    gpus: tuple[TenantGpu, ...]
    programs: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class TenantSample:
    """A sample of a tenant on one GPU; ``index`` is its number in the lease, None if it is not the tenant's GPU.

    ``model`` is the GPU's model with the driver's version. ``busy`` is the percentage of the GPU's time by process;
    None if the driver does not report it.
    """

    tenant: Tenant
    uuid: str
    index: int | None
    memory: MemorySample
    procs: Mapping[int, Proc]
    keys: Mapping[int, str]
    model: str
    busy: Mapping[int, float] | None


class _Beat(NamedTuple):
    """A heartbeat of the arbiter, as read from the control file of one lease; empty if that could not be read."""

    pid: int | None
    folder: Path
    value: bytes


class SliceWatch:
    """The loop. ``tenants`` returns the current ones, ``host`` notifies programs, ``sizes`` stores context sizes."""

    def __init__(
        self, arbiter: Arbiter, tenants: Callable[[], list[Tenant]], host: SharingHost, sizes: ContextSizes
    ) -> None:
        self.only_warn = os.environ.get(BACKSTOP) == ONLY_WARN
        self._time_limits = _time_limits()
        self._arbiter = arbiter
        self._tenants = tenants
        self._host = host
        self._sizes = sizes
        self._nvml: GpuProcesses | None = None
        self._cases: dict[tuple[int, str], OffenceCase] = {}
        self._time_cases: dict[tuple[int, str], TimeCase] = {}
        self._rates: dict[tuple[int, str], _Rate] = {}
        self._paused = PausedProcesses(host.folder / PAUSED)
        self._pause: dict[tuple[int, str], tuple[tuple[Proc, ...], float]] = {}  # of throttled tenants
        self._beat = _Beat(None, Path(), b"")
        self._missed = 0  # checks in a row that read the same heartbeat
        self._driver = ThreadPoolExecutor(1, "nvml")
        self._task: asyncio.Task[None] | None = None

    def start(self, library: str = "") -> None:
        """Start with the first slice; ``library`` is the path of the driver's NVML (empty: none)."""
        if self._task is None:
            self._paused.resume_left()
            self._nvml = GpuProcesses(library) if library else None
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop the loop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._driver.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        while True:
            await self._wait()
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - the next check may succeed
                log_event("slices not watched", error=repr(error))

    async def _wait(self) -> None:
        """Wait until the next check; processes of throttled tenants are paused for a part of that time."""
        part = max((part for _procs, part in self._pause.values()), default=0.0) * CHECK_INTERVAL_S
        if part:
            with self._paused.pause([proc for procs, _part in self._pause.values() for proc in procs]):
                await asyncio.sleep(part)
        await asyncio.sleep(CHECK_INTERVAL_S - part)

    async def check(self) -> None:
        """Check all tenants once."""
        tenants = self._tenants()
        if not tenants:
            for known in (self._cases, self._time_cases, self._rates, self._pause):
                known.clear()
            return
        self._check_heartbeat(tenants[0].folder)
        if self._nvml is None:
            return
        loop = asyncio.get_running_loop()
        samples = await loop.run_in_executor(self._driver, sample_tenants, tenants, self._nvml)
        for sample in samples:
            self._process(sample)
            self._process_time(sample, samples)
        seen = {(sample.tenant.folder.lease, sample.uuid) for sample in samples}
        for known in (self._cases, self._time_cases, self._rates, self._pause):
            for place in known.keys() - seen:
                del known[place]

    def _check_heartbeat(self, folder: LeaseFolder) -> None:
        """Kill an arbiter that runs but whose heartbeat has stopped.

        Each lease has its own count, so only two values of one lease are compared. A file that cannot be read (its
        lease has just ended) says nothing.
        """
        beat = _Beat(self._arbiter.pid, folder.path, folder.heartbeat())
        stopped = beat == self._beat and beat.pid is not None and beat.value != b""
        self._beat, self._missed = beat, self._missed + 1 if stopped else 0
        if self._missed >= MAX_MISSED_BEATS:
            self._missed = 0
            self._arbiter.kill("its heartbeat stands still")

    def _process(self, sample: TenantSample) -> None:
        lease = sample.tenant.folder.lease
        if sample.index is not None and (amount := memory_audit.correction(sample.memory)) is not None:
            self._arbiter.correct(sample.tenant.folder.path, sample.index, amount)
            for size in memory_audit.context_sizes(sample.memory):
                self._sizes.learn(sample.uuid, sample.model, size)
        finding = memory_audit.judge(sample.memory)
        case = self._cases.setdefault((lease, sample.uuid), OffenceCase())
        newest = [] if finding is None else sorted(finding.pids, key=lambda pid: -sample.procs[pid].start)
        step = case.next(finding, newest, only_warn=self.only_warn)
        if step is not None and finding is not None:
            self._act(sample, finding, *step)

    def _process_time(self, sample: TenantSample, samples: Sequence[TenantSample]) -> None:
        if sample.index is None:
            return
        gpu, place = sample.tenant.gpus[sample.index], (sample.tenant.folder.lease, sample.uuid)
        granted = self._rates.setdefault(place, _Rate()).percent(gpu.grant, time.monotonic())
        case = self._time_cases.setdefault(place, TimeCase())
        finding = None
        serving = self._arbiter.pid is not None and self._missed == 0
        if sample.busy is not None and granted is not None and serving and gpu.policy is not ComputePolicy.NONE:
            others = any(s.uuid == sample.uuid and s.busy and s.tenant is not sample.tenant for s in samples)
            concerned = others or gpu.policy is ComputePolicy.CAP
            unknown = memory_audit.unknown_processes(sample.memory)
            look = TimeSample(sample.busy, granted, gpu.permille / 10, concerned, unknown)
            finding = judge_time(look, self._time_limits)
        step = case.next(finding, self._time_limits, only_warn=self.only_warn)
        if case.left == 0:
            self._pause.pop(place, None)
        if step is not None and finding is not None:
            self._act_on_time(sample, finding, step)

    def _act_on_time(self, sample: TenantSample, finding: TimeFinding, step: TimeAction) -> None:
        lease, procs = sample.tenant.folder.lease, tuple(sample.procs[pid] for pid in finding.pids)
        who = ", ".join(f"{pid} ({command(pid)})" for pid in finding.pids[:_MAX_NAMED])
        what = (
            f"Processes use {finding.used:.0f} % of the time of GPU {sample.uuid} without waiting for their turns: "
            f"{finding.granted:.0f} % were granted, and the share is {finding.share:.0f} % (process {who})"
        )
        seconds = self._time_limits.throttled * CHECK_INTERVAL_S
        sentence = {
            TimeAction.WARN: f"{what}. {self._time_outlook()}".strip(),
            TimeAction.THROTTLE: f"{what}: paused for {finding.pause:.0%} of each of the next {seconds:.0f} s.",
            TimeAction.TERM: f"{what}: asked to stop.",
            TimeAction.KILL: f"{what}: killed.",
        }[step]
        numbers = {"used": round(finding.used), "granted": round(finding.granted), "share": round(finding.share)}
        log_event("time exceeded", step=step, lease=lease, pids=list(finding.pids), **numbers, said=sentence)
        for key in {sample.keys[pid] for pid in finding.pids}:
            self._host.note(key, sentence)
            if step in _TIME_SIGNALS:
                self._host.end_reason(key, sentence)
        if step is TimeAction.THROTTLE:
            self._pause[lease, sample.uuid] = procs, finding.pause
        for proc in procs if step in _TIME_SIGNALS else ():
            process_tree.send(proc, _TIME_SIGNALS[step])

    def _time_outlook(self) -> str:
        return "" if self.only_warn else "They are throttled if this continues, and then stopped."

    def _act(self, sample: TenantSample, finding: OffenceFinding, step: OffenceAction, pid: int) -> None:
        who = f"process {pid} ({command(pid)})" if pid else ""
        what = _describe(sample.uuid, finding)
        sentence = {
            OffenceAction.WARN: f"{what}. {self._outlook(finding)}".strip(),
            OffenceAction.TERM: f"{what}: {who} was asked to stop.",
            OffenceAction.KILL: f"{what}: {who} was killed.",
        }[step]
        log_event(
            "share exceeded",
            step=step,
            lease=sample.tenant.folder.lease,
            pid=pid,
            offence=finding.offence,
            said=sentence,
        )
        keys = {sample.keys[p] for p in ((pid,) if pid else finding.pids)}
        for key in keys:
            self._host.note(key, sentence)
        if step in memory_audit.SIGNALS:
            for key in keys:
                self._host.end_reason(key, sentence)
            process_tree.send(sample.procs[pid], memory_audit.SIGNALS[step])

    def _outlook(self, finding: OffenceFinding) -> str:
        if finding.offence is Offence.DRIVER:
            return "No process is stopped for this; allocations are refused until use decreases."
        return "" if self.only_warn else "If this continues, the newest such process is stopped."


def _describe(uuid: str, finding: OffenceFinding) -> str:
    used, limit = (format_mib(amount // _MIB) for amount in (finding.used_bytes, finding.limit_bytes))
    pids = ", ".join(str(pid) for pid in sorted(finding.pids)[:4])
    return {
        Offence.DRIVER: f"{used} of GPU {uuid} are in use, more than the {limit} of the slice: the driver allocated "
        "memory after the program (modules, local memory, heaps)",
        Offence.TOO_MUCH: f"Its processes use {used} of GPU {uuid}, more than the {limit} of its slice",
        Offence.UNKNOWN: f"It uses {used} of GPU {uuid} without the share library (process {pids})",
        Offence.NOT_ITS_GPU: f"It uses {used} of GPU {uuid}, which is not allocated to it (process {pids})",
    }[finding.offence]


@dataclass(slots=True)
class _Rate:
    """Turns the arbiter's sums into percent of the time."""

    last: GrantCount | None = None
    rate: float | None = None

    def percent(self, grant: GrantCount | None, now: float) -> float | None:
        """Return the granted percentage; None if it is unknown or launches did not have to wait for a grant.

        The arbiter reports each second as long as the lease has attached processes.
        """
        if grant is None:
            return 0.0
        before, self.last = self.last, grant
        if before is not None and grant.at > before.at:
            regular = grant.ungated == before.ungated and grant.held_s >= before.held_s
            self.rate = 100 * (grant.held_s - before.held_s) / (grant.at - before.at) if regular else None
        return 0.0 if now - grant.at > _MAX_GRANT_AGE_S else self.rate


class PausedProcesses:
    """Stops processes for a moment. A file names them, so that an agent that was killed leaves none stopped."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @contextlib.contextmanager
    def pause(self, procs: Sequence[Proc]) -> Iterator[None]:
        """Stop the processes and resume them at the end."""
        with contextlib.suppress(OSError):
            write_json(self._file, {"paused": [(proc.pid, proc.start) for proc in procs]}, durable=False)
        try:
            for proc in procs:
                process_tree.send(proc, signal.SIGSTOP)
            yield
        finally:
            for proc in procs:
                process_tree.send(proc, signal.SIGCONT)
            self._file.unlink(missing_ok=True)

    def resume_left(self) -> None:
        """Resume processes that an earlier agent has left stopped."""
        for pid, start in (read_json(self._file) or {}).get("paused", ()):
            proc = process_tree.read_proc(pid)
            if proc is not None and proc.start == start:
                process_tree.send(proc, signal.SIGCONT)
        self._file.unlink(missing_ok=True)


def _time_limits() -> TimeLimits:
    try:
        return TimeLimits.parse(os.environ.get(TIME_CHECK, ""))
    except ValueError as error:
        log_event("time check has its default limits", variable=TIME_CHECK, error=str(error))
        return TimeLimits()


# -- on the driver's thread ------------------------------------------------------------------------------------------


def sample_tenants(tenants: list[Tenant], nvml: GpuProcesses) -> list[TenantSample]:
    """Read the slots, the driver's counts, and the slots again; find the tenant of each process."""
    before = _all_slots(tenants)
    used = nvml.used({gpu.uuid for tenant in tenants for gpu in tenant.gpus})
    busy = {uuid: nvml.busy(uuid) for uuid in used}
    after = _all_slots(tenants)
    procs, owners = _owners({pid for by_pid in used.values() for pid in by_pid}, _shepherds(tenants))
    own_ns = Path("/proc/self/ns/pid").stat().st_ino
    found = []
    for number, tenant in enumerate(tenants):
        index = {gpu.uuid: i for i, gpu in enumerate(tenant.gpus)}
        for uuid, by_pid in used.items():
            mine = {pid: size for pid, size in by_pid.items() if owners.get(pid, (-1, ""))[0] == number}
            i = index.get(uuid)
            if i is None and not mine:
                continue
            limit, allowance = (None, 0) if i is None else (tenant.gpus[i].limit_bytes, tenant.gpus[i].allowance_bytes)
            slots = ((), ()) if i is None else (before[number, i], after[number, i])
            keys = {pid: owners[pid][1] for pid in mine}
            memory = MemorySample(limit, *slots, mine, own_ns, allowance)
            of_all = busy[uuid]
            of_mine = None if of_all is None else {pid: of_all[pid] for pid in mine if pid in of_all}
            found.append(TenantSample(tenant, uuid, i, memory, procs, keys, nvml.model(uuid), of_mine))
    return found


def _all_slots(tenants: list[Tenant]) -> dict[tuple[int, int], tuple[LedgerSlot, ...]]:
    return {
        (number, gpu): tenant.folder.read_slots(gpu)
        for number, tenant in enumerate(tenants)
        for gpu in range(len(tenant.gpus))
    }


def _shepherds(tenants: list[Tenant]) -> dict[int, tuple[int, int, str]]:
    """Return, by the pid of each shepherd, its start time, the tenant's number, and the program's key."""
    found = {}
    for number, tenant in enumerate(tenants):
        for key, folder in tenant.programs.items():
            record = ShepherdRecord.read(ReplicaFolder(folder))
            if record is not None:
                found[record.pid] = (record.start, number, key)
    return found


def _owners(
    pids: Iterable[int], shepherds: Mapping[int, tuple[int, int, str]]
) -> tuple[dict[int, Proc], dict[int, tuple[int, str]]]:
    """Return the processes that descend from a shepherd, and the tenant and program of each."""
    procs: dict[int, Proc] = {}
    owners: dict[int, tuple[int, str]] = {}
    for pid in pids:
        proc = at = process_tree.read_proc(pid)
        for _ in range(_MAX_ANCESTORS):
            if at is None or proc is None:
                break
            shepherd = shepherds.get(at.pid)
            if shepherd is not None and shepherd[0] == at.start:
                procs[pid], owners[pid] = proc, shepherd[1:]
                break
            at = process_tree.read_proc(at.ppid) if at.ppid > 1 else None
    return procs, owners
