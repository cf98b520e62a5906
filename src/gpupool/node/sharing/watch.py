"""Once a second, while there are slices: the driver's books against the tenants', and what follows from it.

The driver is asked on a thread of its own, since it may hang; what it says is judged by ``reconcile`` and acted upon on
the event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpupool.domain.units import format_mib
from gpupool.node import proctree, reconcile
from gpupool.node.arbiter import Arbiter
from gpupool.node.inventory.processes import command
from gpupool.node.journal import say
from gpupool.node.paths import ReplicaFolder
from gpupool.node.proctree import Proc
from gpupool.node.reconcile import Case, Finding, GpuLook, Offence, Step
from gpupool.node.record import ShepherdRecord
from gpupool.node.sharing.gpu_processes import GpuProcesses
from gpupool.node.sharing.lease_folder import LeaseFolder
from gpupool.node.sharing.pages import Slot

EVERY_S = 1.0
BEATS_MISSED = 4  # looks in a row at which a living arbiter's heartbeat has stood still
_MOST_ANCESTORS = 256
_MIB = 1 << 20
BACKSTOP = "GPUPOOL_BACKSTOP"
ONLY_WARN = "warn"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A lease: its GPUs in order, with the limit in bytes of each, and the folders of its programs by key."""

    folder: LeaseFolder
    gpus: tuple[tuple[str, int], ...]
    programs: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of a tenant on one GPU; ``index`` is its number in the lease, None when it is not the tenant's."""

    tenant: Tenant
    uuid: str
    index: int | None
    look: GpuLook
    procs: Mapping[int, Proc]
    keys: Mapping[int, str]


class Watch:
    """The loop. ``tenants`` gives those there are now; ``note`` adds a note to a program."""

    def __init__(self, arbiter: Arbiter, tenants: Callable[[], list[Tenant]], note: Callable[[str, str], None]) -> None:
        self.only_warn = os.environ.get(BACKSTOP) == ONLY_WARN
        self._arbiter = arbiter
        self._tenants = tenants
        self._note = note
        self._nvml: GpuProcesses | None = None
        self._cases: dict[tuple[int, str], Case] = {}
        self._beat: tuple[int | None, bytes, int] = (None, b"", 0)
        self._driver = ThreadPoolExecutor(1, "nvml")
        self._task: asyncio.Task[None] | None = None

    def start(self, library: str = "") -> None:
        """Watch, from the first slice on; ``library`` is the path of the driver's NVML (empty: it has none)."""
        if self._task is None:
            self._nvml = GpuProcesses(library) if library else None
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._driver.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - the next look may do better
                say("slices not watched", error=repr(error))

    async def look(self) -> None:
        """Once at everything."""
        tenants = self._tenants()
        if not tenants:
            self._cases.clear()
            return
        self._listen(tenants[0].folder)
        if self._nvml is None:
            return
        loop = asyncio.get_running_loop()
        sights = await loop.run_in_executor(self._driver, see, tenants, self._nvml)
        for sight in sights:
            self._settle(sight)
        seen = {(sight.tenant.folder.lease, sight.uuid) for sight in sights}
        self._cases = {place: case for place, case in self._cases.items() if place in seen}

    def _listen(self, folder: LeaseFolder) -> None:
        """An arbiter that lives and does nothing is as bad as none."""
        pid, beat = self._arbiter.pid, folder.heartbeat()
        missed = self._beat[2] + 1 if (pid, beat) == self._beat[:2] and pid is not None else 0
        self._beat = (pid, beat, missed)
        if missed >= BEATS_MISSED:
            self._beat = (None, b"", 0)
            self._arbiter.kill("its heartbeat stands still")

    def _settle(self, sight: Sight) -> None:
        lease = sight.tenant.folder.lease
        if sight.index is not None and (amount := reconcile.correction(sight.look)) is not None:
            self._arbiter.correct(sight.tenant.folder.path, sight.index, amount)
        finding = reconcile.judge(sight.look)
        case = self._cases.setdefault((lease, sight.uuid), Case())
        newest = [] if finding is None else sorted(finding.pids, key=lambda pid: -sight.procs[pid].start)
        step = case.next(finding, newest, only_warn=self.only_warn)
        if step is not None and finding is not None:
            self._take(sight, finding, *step)

    def _take(self, sight: Sight, finding: Finding, step: Step, pid: int) -> None:
        who = f"process {pid} ({command(pid)})" if pid else ""
        what = _words(sight.uuid, finding)
        sentence = {
            Step.WARN: f"{what}." if self.only_warn else f"{what}. If that goes on, the newest such process is ended.",
            Step.TERM: f"{what}: {who} was asked to end.",
            Step.KILL: f"{what}: {who} was killed.",
        }[step]
        say(
            "share exceeded",
            step=step,
            lease=sight.tenant.folder.lease,
            pid=pid,
            offence=finding.offence,
            said=sentence,
        )
        if step in reconcile.SIGNALS:
            proctree.send(sight.procs[pid], reconcile.SIGNALS[step])
        for key in {sight.keys[p] for p in ((pid,) if pid else finding.pids)}:
            self._note(key, sentence)


def _words(uuid: str, finding: Finding) -> str:
    used, limit = (format_mib(amount // _MIB) for amount in (finding.used_bytes, finding.limit_bytes))
    pids = ", ".join(str(pid) for pid in sorted(finding.pids)[:4])
    return {
        Offence.TOO_MUCH: f"Its processes use {used} of GPU {uuid}, more than the {limit} of its slice",
        Offence.UNKNOWN: f"It uses {used} of GPU {uuid} without the share library (process {pids})",
        Offence.NOT_ITS_GPU: f"It uses {used} of GPU {uuid}, which was not given to it (process {pids})",
    }[finding.offence]


# -- on the driver's thread ------------------------------------------------------------------------------------------


def see(tenants: list[Tenant], nvml: GpuProcesses) -> list[Sight]:
    """Slots, then the driver's books, then slots again; and whose each process is."""
    before = _all_slots(tenants)
    used = nvml.used({uuid for tenant in tenants for uuid, _ in tenant.gpus})
    after = _all_slots(tenants)
    procs, owners = _owners({pid for by_pid in used.values() for pid in by_pid}, _shepherds(tenants))
    own_ns = Path("/proc/self/ns/pid").stat().st_ino
    found = []
    for number, tenant in enumerate(tenants):
        index = {uuid: i for i, (uuid, _) in enumerate(tenant.gpus)}
        for uuid, by_pid in used.items():
            mine = {pid: size for pid, size in by_pid.items() if owners.get(pid, (-1, ""))[0] == number}
            i = index.get(uuid)
            if i is None and not mine:
                continue
            limit = None if i is None else tenant.gpus[i][1]
            slots = ((), ()) if i is None else (before[number, i], after[number, i])
            keys = {pid: owners[pid][1] for pid in mine}
            found.append(Sight(tenant, uuid, i, GpuLook(limit, *slots, mine, own_ns), procs, keys))
    return found


def _all_slots(tenants: list[Tenant]) -> dict[tuple[int, int], tuple[Slot, ...]]:
    return {
        (number, gpu): tenant.folder.read_slots(gpu)
        for number, tenant in enumerate(tenants)
        for gpu in range(len(tenant.gpus))
    }


def _shepherds(tenants: list[Tenant]) -> dict[int, tuple[int, int, str]]:
    """By the pid of each program's supervisor: when that started, the number of the tenant, the program's key."""
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
    """The processes that descend from a supervisor, and the tenant and program of each."""
    procs: dict[int, Proc] = {}
    owners: dict[int, tuple[int, str]] = {}
    for pid in pids:
        proc = at = proctree.read_proc(pid)
        for _ in range(_MOST_ANCESTORS):
            if at is None or proc is None:
                break
            shepherd = shepherds.get(at.pid)
            if shepherd is not None and shepherd[0] == at.start:
                procs[pid], owners[pid] = proc, shepherd[1:]
                break
            at = proctree.read_proc(at.ppid) if at.ppid > 1 else None
    return procs, owners
