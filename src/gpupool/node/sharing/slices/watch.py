"""Check of slices once per second: the driver's memory counts against the tenants' ledgers.

The driver is queried on a separate thread, because it may hang. ``memory_audit`` judges the result, and the event loop
acts on it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpupool.domain.units import format_mib
from gpupool.node.host import process_tree
from gpupool.node.host.log import log_event
from gpupool.node.host.paths import ReplicaFolder
from gpupool.node.host.process_tree import Proc
from gpupool.node.host.records import ShepherdRecord
from gpupool.node.inventory.processes import command
from gpupool.node.ports import SharingHost
from gpupool.node.sharing.slices import memory_audit
from gpupool.node.sharing.slices.arbiter import Arbiter
from gpupool.node.sharing.slices.context_sizes import ContextSizes
from gpupool.node.sharing.slices.lease_folder import LeaseFolder
from gpupool.node.sharing.slices.memory_audit import MemorySample, Offence, OffenceAction, OffenceCase, OffenceFinding
from gpupool.node.sharing.slices.pages import LedgerSlot

CHECK_INTERVAL_S = 1.0
MAX_MISSED_BEATS = 4  # samples in a row without a new heartbeat of a running arbiter
_MAX_ANCESTORS = 256
_MIB = 1 << 20
BACKSTOP = "GPUPOOL_BACKSTOP"
ONLY_WARN = "warn"
_UNKNOWN = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_UUID_ROOM = 96
_TEXT_ROOM = 96  # of a driver version (80) and of a name (96)
_MOST = 4096
_SUCCESS = 0
_MIG_ENABLED = 1
_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE


@dataclass(frozen=True, slots=True)
class TenantGpu:
    """A GPU of a lease: the slice's size, and how much the driver may allocate per process by itself."""

    uuid: str
    limit_bytes: int
    allowance_bytes: int


@dataclass(frozen=True, slots=True)
class Tenant:
    """A lease: its GPUs in order, and the folders of its programs by key."""

    folder: LeaseFolder
    gpus: tuple[TenantGpu, ...]
    programs: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class TenantSample:
    """A sample of a tenant on one GPU; ``index`` is its number in the lease, None if it is not the tenant's GPU.

    ``model`` is the GPU's model with the driver's version.
    """

    tenant: Tenant
    uuid: str
    index: int | None
    memory: MemorySample
    procs: Mapping[int, Proc]
    keys: Mapping[int, str]
    model: str


class SliceWatch:
    """The loop. ``tenants`` returns the current ones, ``host`` notifies programs, ``sizes`` stores context sizes."""

    def __init__(
        self, arbiter: Arbiter, tenants: Callable[[], list[Tenant]], host: SharingHost, sizes: ContextSizes
    ) -> None:
        self.only_warn = os.environ.get(BACKSTOP) == ONLY_WARN
        self._arbiter = arbiter
        self._tenants = tenants
        self._host = host
        self._sizes = sizes
        self._nvml: GpuProcesses | None = None
        self._cases: dict[tuple[int, str], OffenceCase] = {}
        self._beat: tuple[int | None, bytes, int] = (None, b"", 0)
        self._driver = ThreadPoolExecutor(1, "nvml")
        self._task: asyncio.Task[None] | None = None

    def start(self, library: str = "") -> None:
        """Start with the first slice; ``library`` is the path of the driver's NVML (empty: none)."""
        if self._task is None:
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
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - the next check may succeed
                log_event("slices not watched", error=repr(error))

    async def check(self) -> None:
        """Check all tenants once."""
        tenants = self._tenants()
        if not tenants:
            self._cases.clear()
            return
        self._check_heartbeat(tenants[0].folder)
        if self._nvml is None:
            return
        loop = asyncio.get_running_loop()
        samples = await loop.run_in_executor(self._driver, sample_tenants, tenants, self._nvml)
        for sample in samples:
            self._process(sample)
        seen = {(sample.tenant.folder.lease, sample.uuid) for sample in samples}
        self._cases = {place: case for place, case in self._cases.items() if place in seen}

    def _check_heartbeat(self, folder: LeaseFolder) -> None:
        """Kill an arbiter that runs but whose heartbeat has stopped."""
        pid, beat = self._arbiter.pid, folder.heartbeat()
        missed = self._beat[2] + 1 if (pid, beat) == self._beat[:2] and pid is not None else 0
        self._beat = (pid, beat, missed)
        if missed >= MAX_MISSED_BEATS:
            self._beat = (None, b"", 0)
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


# -- on the driver's thread ------------------------------------------------------------------------------------------


def sample_tenants(tenants: list[Tenant], nvml: GpuProcesses) -> list[TenantSample]:
    """Read the slots, the driver's counts, and the slots again; find the tenant of each process."""
    before = _all_slots(tenants)
    used = nvml.used({gpu.uuid for tenant in tenants for gpu in tenant.gpus})
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
            found.append(TenantSample(tenant, uuid, i, memory, procs, keys, nvml.model(uuid)))
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


class _ProcessInfo(ctypes.Structure):
    """The struct nvmlProcessInfo_v2_t, which version 3 of the call also fills."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class GpuProcesses:
    """A client of one NVML library. Calls block; an unusable library reports no processes."""

    def __init__(self, library: str) -> None:
        self._path = library
        self._nvml: ctypes.CDLL | None = None
        self._handles: dict[str, ctypes.c_void_p] = {}
        self._models: dict[str, str] = {}

    def model(self, uuid: str) -> str:
        """Return driver version and model of a GPU that ``used`` has found; empty if NVML does not report it."""
        return self._models.get(uuid, "")

    def used(self, uuids: Iterable[str]) -> dict[str, dict[int, int]]:
        """Return bytes by pid of these GPUs (or MIG instances) and of all GPUs without MIG.

        GPUs for which NVML fails are omitted.
        """
        if not self._open():
            return {}
        for uuid in uuids:
            self._find(uuid)
        found = {uuid: self._processes(handle) for uuid, handle in self._handles.items()}
        return {uuid: used for uuid, used in found.items() if used is not None}

    def _open(self) -> bool:
        if self._nvml is not None:
            return True
        try:
            nvml = ctypes.CDLL(self._path)
            if nvml.nvmlInit_v2() != _SUCCESS:
                return False
        except (OSError, AttributeError):
            return False
        self._nvml = nvml
        self._list(nvml)
        return True

    def _list(self, nvml: ctypes.CDLL) -> None:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
            return
        for index in range(count.value):
            handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_ROOM)
            if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != _SUCCESS:
                continue
            if _has_mig(nvml, handle):
                continue
            if nvml.nvmlDeviceGetUUID(handle, text, ctypes.c_uint(_UUID_ROOM)) == _SUCCESS:
                self._add(nvml, text.value.decode(errors="replace"), handle)

    def _find(self, uuid: str) -> None:
        """Add a MIG instance, which is not in the device list but can be opened by UUID."""
        handle = ctypes.c_void_p()
        if uuid in self._handles or self._nvml is None:
            return
        if self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == _SUCCESS:
            self._add(self._nvml, uuid, handle)

    def _add(self, nvml: ctypes.CDLL, uuid: str, handle: ctypes.c_void_p) -> None:
        self._handles[uuid] = handle
        version, name = ctypes.create_string_buffer(_TEXT_ROOM), ctypes.create_string_buffer(_TEXT_ROOM)
        if (
            nvml.nvmlSystemGetDriverVersion(version, ctypes.c_uint(_TEXT_ROOM)) == _SUCCESS
            and nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(_TEXT_ROOM)) == _SUCCESS
        ):
            self._models[uuid] = f"{version.value.decode(errors='replace')} {name.value.decode(errors='replace')}"

    def _processes(self, handle: ctypes.c_void_p) -> dict[int, int] | None:
        room = 64
        while room <= _MOST and self._nvml is not None:
            count, infos = ctypes.c_uint(room), (_ProcessInfo * room)()
            answer = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), infos)
            if answer == _SUCCESS:
                return {int(i.pid): int(i.used) for i in infos[: count.value] if i.used != _UNKNOWN}
            if answer != _TOO_SMALL:
                return None
            room = max(room * 2, count.value + 16)
        return None


def _has_mig(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> bool:
    """Return True if MIG is on: such a GPU lists the processes of all its instances."""
    now, later = ctypes.c_uint(), ctypes.c_uint()
    answer = nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(now), ctypes.byref(later))
    return bool(answer == _SUCCESS and now.value == _MIG_ENABLED)
