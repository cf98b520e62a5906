"""Slices that hold: the share library in every program, the arbiter for time, the driver's own books as a check.

Each lease has a folder (``lease_folder``) whose pages library and arbiter share. Limits are the lease's: all programs
on it and all their processes together. The folder goes with the last program on the lease.

What it covers: programs that load the NVIDIA driver through the C library's loader (glibc), which is all that use CUDA
in practice; a statically linked program cannot use CUDA at all. It is no wall: a process that goes round the library
is noticed by ``watch``, warned and ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import GpuShare
from gpupool.domain.sharing import guarantee
from gpupool.domain.supervision import ProcessSpec
from gpupool.node.arbiter import Arbiter, Message
from gpupool.node.containers.places import Places
from gpupool.node.journal import say
from gpupool.node.native import Product
from gpupool.node.ports import Prepared, Running, SharingHost, SliceCount
from gpupool.node.sharing import pages
from gpupool.node.sharing.drivers import DriverPaths
from gpupool.node.sharing.lease_folder import LeaseFolder, make_lease_folder, make_leases_folder, stale_folders
from gpupool.node.sharing.means import Means, find_means
from gpupool.node.sharing.preload import VARIABLE
from gpupool.node.sharing.variables import SIMULATED_NOTE, visible_gpus
from gpupool.node.sharing.watch import Tenant, Watch

LEASE_DIR = "GPUPOOL_LEASE_DIR"
LEASES = "leases"
WARNING_LIMIT = 300  # characters
UNHOOKED_NOTE = "the driver handed out functions that the share library does not know: limits may not hold for them"
_MIB = 1 << 20


@dataclass(slots=True)
class _Lease:
    """A lease with programs on it, by key; ``counts`` are the arbiter's latest, by GPU: seconds held, bytes, when."""

    folder: LeaseFolder
    gpus: tuple[GpuShare, ...]
    programs: dict[str, Running] = field(default_factory=dict)
    counts: dict[str, tuple[float, int, float]] = field(default_factory=dict)


class ShareSharing:
    """The mode for parts of GPUs wherever the native parts are there."""

    name: ClassVar[str] = "share"

    def __init__(self, host: SharingHost) -> None:
        self._host = host
        self._parent = host.folder / LEASES
        self._found: Means | str | None = None
        self._leases: dict[int, _Lease] = {}
        self._arbiter = Arbiter(Product.ARBITER.path, self._heard)
        self._watch = Watch(self._arbiter, self._tenants, host.note)

    def missing(self) -> str:
        """Why this node cannot hold programs to slices; looked for once."""
        if self._found is None:
            self._found = find_means(self._host)
        return self._found if isinstance(self._found, str) else ""

    def _means(self) -> Means:
        why = self.missing()
        if isinstance(self._found, Means):
            return self._found
        raise GpupoolError(ErrorCode.UNSUPPORTED, f"This node cannot hold programs to slices: {why}")

    # -- the life of a lease -----------------------------------------------------------------------------------------

    async def adopt(self, running: Sequence[Running]) -> None:
        """Take over leases that have programs, tell a new arbiter of them, remove the folders of others."""
        for program in running:
            self._adopt(program)
        for path in stale_folders(self._parent, frozenset(lease.folder.path for lease in self._leases.values())):
            LeaseFolder(0, path, 0).remove()
        for lease in self._leases.values():
            self._begin(lease)

    def _adopt(self, program: Running) -> None:
        number, path = _lease_of(program.spec), Path(program.env.get(LEASE_DIR, ""))
        lease = self._leases.get(number)
        if lease is None:
            folder = LeaseFolder(number, path, len(program.spec.gpus))
            if path.parent != self._parent or not folder.sound():
                say("pages of a lease are gone", lease=number, key=program.spec.key, folder=str(path))
                return
            lease = self._leases[number] = _Lease(folder, program.spec.gpus)
        lease.programs[program.spec.key] = program

    async def prepare(self, program: Running) -> Prepared:
        """A folder for a new lease, or one more program on one that is there."""
        spec, means = program.spec, self._means()
        number = _lease_of(spec)
        lease = self._leases.get(number)
        try:
            if lease is None:
                lease = self._make(number, spec, means)
            else:
                self._admit(lease, spec)
        except OSError as error:
            raise GpupoolError(
                ErrorCode.INTERNAL,
                f"The node cannot make the pages of a slice: {error.strerror}.",
                f"Make room in {self._parent} on the node.",
            ) from error
        lease.programs[spec.key] = program
        notes = (SIMULATED_NOTE,) if spec.emulated else ()
        return Prepared(self.name, _environment(spec, means, lease.folder), guarantee(self.name, spec.compute), notes)

    def _make(self, number: int, spec: ProcessSpec, means: Means) -> _Lease:
        drivers = means.drivers if spec.container is None else _drivers_inside(means.drivers, self._host.folder)
        try:
            control = pages.control_pages(f"lease {number}", drivers.cuda, drivers.nvml, _gpu_pages(spec, means))
        except ValueError as error:
            raise GpupoolError(
                ErrorCode.UNSUPPORTED,
                f"These shares cannot be put on the pages of a slice: {error}.",
                f"A slice has parts of at most {pages.MAX_GPUS} GPUs.",
            ) from error
        make_leases_folder(self._parent, shared=self._host.shared)
        folder = make_lease_folder(self._parent, number, control, len(spec.gpus), spec.uid)
        lease = self._leases[number] = _Lease(folder, spec.gpus)
        self._begin(lease)
        return lease

    def _begin(self, lease: _Lease) -> None:
        self._arbiter.add(lease.folder.path)
        self._watch.start(self._means().drivers.nvml)

    @staticmethod
    def _admit(lease: _Lease, spec: ProcessSpec) -> None:
        users = {program.spec.uid for program in lease.programs.values()}
        if spec.uid not in users:
            lease.folder.open_to_all()

    async def release(self, program: Running) -> None:
        """The folder goes with the last program on the lease."""
        number = _lease_of(program.spec)
        lease = self._leases.get(number)
        if lease is None or lease.programs.pop(program.spec.key, None) is None or lease.programs:
            return
        del self._leases[number]
        self._arbiter.remove(lease.folder.path)
        lease.folder.remove()

    async def close(self) -> None:
        """The arbiter ends with the agent: until there is another, the hardware shares time; memory limits stay."""
        await self._watch.close()
        await self._arbiter.close()

    # -- what is heard -----------------------------------------------------------------------------------------------

    def helpers(self) -> frozenset[int]:
        """None: the arbiter uses no GPU."""
        return frozenset()

    def _tenants(self) -> list[Tenant]:
        return [
            Tenant(
                lease.folder,
                tuple((gpu.gpu_uuid, gpu.memory_mib * _MIB) for gpu in lease.gpus),
                {key: program.folder for key, program in lease.programs.items()},
            )
            for lease in self._leases.values()
        ]

    def counts(self) -> dict[str, dict[str, SliceCount]]:
        """What the arbiter last said of each program's lease."""
        return {
            key: {uuid: SliceCount(*count, sole=len(lease.programs) == 1) for uuid, count in lease.counts.items()}
            for lease in self._leases.values()
            for key in lease.programs
        }

    def _heard(self, message: Message) -> None:
        used = message.get("usage")
        lease = self._by_path(used) if isinstance(used, dict) else None
        if isinstance(used, dict) and lease is not None:
            held_s, used_bytes = used.get("held_ns", 0) / 1e9, used.get("used_bytes", 0)
            lease.counts[used.get("uuid", "")] = (held_s, used_bytes, time.monotonic())
            if used.get("unhooked_count"):
                self._note(lease, UNHOOKED_NOTE)
        if isinstance(warning := message.get("warning"), str):
            self._note_warning(warning[:WARNING_LIMIT], message)

    def _note_warning(self, warning: str, message: Message) -> None:
        lease = self._by_path(message)
        if lease is None and "lease" in message:
            return  # it went while the arbiter looked
        say("arbiter warns", **message)
        self._note(lease, warning)

    def _note(self, lease: _Lease | None, sentence: str) -> None:
        for key in () if lease is None else lease.programs:
            self._host.note(key, sentence)

    def _by_path(self, message: Message) -> _Lease | None:
        path = str(message.get("lease", ""))
        return next((lease for lease in self._leases.values() if str(lease.folder.path) == path), None)


def _drivers_inside(drivers: DriverPaths, run_folder: Path) -> DriverPaths:
    """Where programs in a container find the drivers: a real one where it is outside too, a simulated one is moved."""
    places = Places(run_folder)
    return DriverPaths(places.moved(drivers.cuda), places.moved(drivers.nvml))


def _lease_of(spec: ProcessSpec) -> int:
    return spec.lease or spec.epoch


def _gpu_pages(spec: ProcessSpec, means: Means) -> list[pages.GpuPage]:
    return [
        pages.GpuPage(
            uuid=share.gpu_uuid,
            memory_limit_bytes=share.memory_mib * _MIB,
            context_bytes=means.context_bytes(share.gpu_uuid, share.memory_mib * _MIB),
            weight_permille=share.permille,
            policy=spec.compute,
        )
        for share in spec.gpus
    ]


def _environment(spec: ProcessSpec, means: Means, folder: LeaseFolder) -> dict[str, str]:
    return {
        **visible_gpus(spec, simulated=spec.emulated),
        **means.env,
        VARIABLE: means.libraries.preload(spec.env.get(VARIABLE, "")),
        LEASE_DIR: str(folder.path),
    }
