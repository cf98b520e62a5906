"""Enforced slices: the share library in every program, the arbiter for time, and the driver's counts as a check.

Each lease has a folder (``lease_folder``) with pages that library and arbiter share. Limits apply to the lease: all
programs on it and all their processes together. The folder is deleted with the last program on the lease.

It covers programs that load the NVIDIA driver through the C library's loader (glibc), which are all CUDA programs in
practice; a statically linked program cannot use CUDA. It is not a security boundary: a process that bypasses the
library is detected by ``watch``, warned and ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.nodes.sharing import ComputePolicy, describe_guarantee
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.host import native
from gpupool.node.host.log import log_event
from gpupool.node.host.native import Product
from gpupool.node.inventory.emulated import EmulatedInventory
from gpupool.node.inventory.fake_driver import VARIABLE as FAKE_GPUS
from gpupool.node.ports import NodeProgram, PreparedShare, SharingHost, SliceCount
from gpupool.node.sharing.drivers import CUDA, DriverPaths, find_drivers
from gpupool.node.sharing.emulation import FAKES, context_bytes, describe_gpus, path_with_tools, tools_folder
from gpupool.node.sharing.preload import VARIABLE, Libraries, libraries
from gpupool.node.sharing.slices import pages
from gpupool.node.sharing.slices.arbiter import Arbiter, Message
from gpupool.node.sharing.slices.context_sizes import ContextSizes
from gpupool.node.sharing.slices.driver_binds import UNCOVERED, DriverBinds, plan_binds
from gpupool.node.sharing.slices.lease_folder import (
    LeaseFolder,
    make_lease_folder,
    make_leases_folder,
    stale_folders,
)
from gpupool.node.sharing.slices.suspension import CheckpointHelper, SuspendedGpu, Suspender, slot_lives
from gpupool.node.sharing.slices.watch import GrantCount, SliceWatch, Tenant, TenantGpu
from gpupool.node.sharing.variables import SIMULATED_NOTE, visible_gpus

LEASE_DIR = "GPUPOOL_LEASE_DIR"
LEASES = "leases"
CONTEXT_SIZES = "context-sizes.json"
SUSPEND = "GPUPOOL_SUSPEND"  # an agent's variable, 1: programs may be suspended on real GPUs
MAX_WARNING_CHARS = 300  # characters
UNHOOKED_NOTE = "the driver provides functions that the share library does not know: limits may not apply to them"
_MIB = 1 << 20
# Memory that the driver may take for a process after its context was created: modules, local memory, heaps. Local
# memory and stacks grow with the number of processors, so it is a fraction of the GPU's memory.
DRIVER_GROWTH_BYTES = 1 << 30
DRIVER_GROWTH_DIVISOR = 16
CONTEXT_BYTES = 256 << 20  # before the first measurement on a GPU model; at most a quarter of the slice
_SHARE = (Product.SHARE_CUDA, Product.SHARE_CUDA_ALIAS, Product.SHARE_NVML)


@dataclass(slots=True)
class _Lease:
    """A lease with its programs by key; ``counts`` are the arbiter's latest by GPU: seconds held, bytes, time.

    ``served``: the arbiter and the watch know it; not while its processes are suspended, or about to be.
    """

    folder: LeaseFolder
    gpus: tuple[GpuShare, ...]
    programs: dict[str, NodeProgram] = field(default_factory=dict)
    counts: dict[str, tuple[float, int, float]] = field(default_factory=dict)
    grants: dict[str, GrantCount] = field(default_factory=dict)
    served: bool = True

    @property
    def policy(self) -> ComputePolicy:
        """Return the compute policy of the lease."""
        return next(iter(self.programs.values())).spec.compute


class ShareSharing:
    """The mode for parts of GPUs, wherever the native libraries are installed."""

    name: ClassVar[str] = "share"

    def __init__(self, host: SharingHost) -> None:
        self._host = host
        self._parent = host.folder / LEASES
        self._found: ShareCapabilities | str | None = None
        self._leases: dict[int, _Lease] = {}
        self._arbiter = Arbiter(Product.ARBITER.path, self._on_message)
        self._sizes = ContextSizes(host.folder / CONTEXT_SIZES)
        self._watch = SliceWatch(self._arbiter, self._tenants, host, self._sizes)
        self._found_suspender: Suspender | None = None

    def missing(self) -> str:
        """Return why this node cannot enforce slices; determined once."""
        if self._found is None:
            self._found = find_capabilities(self._host)
        return self._found if isinstance(self._found, str) else ""

    @property
    def _suspender(self) -> Suspender:
        """The suspender of this node. Raises ``GpupoolError`` where suspension is not allowed."""
        if self._found_suspender is None:
            caps = self._caps()
            if not caps.env and os.environ.get(SUSPEND) != "1":
                raise GpupoolError(
                    ErrorCode.UNSUPPORTED, "Its node does not suspend programs.", f"Set {SUSPEND}=1 for its agent."
                )
            env = {name: value for name, value in os.environ.items() if name not in {VARIABLE, LEASE_DIR}}
            helper = CheckpointHelper(caps.drivers.cuda, env | dict(caps.env))
            self._found_suspender = Suspender(helper, caps.drivers.nvml)
        return self._found_suspender

    def _caps(self) -> ShareCapabilities:
        why = self.missing()
        if isinstance(self._found, ShareCapabilities):
            return self._found
        raise GpupoolError(ErrorCode.UNSUPPORTED, f"GPU share enforcement is unavailable on this node: {why}")

    # -- leases ------------------------------------------------------------------------------------------------------

    async def adopt(self, running: Sequence[NodeProgram]) -> None:
        """Take over leases with programs, send them to a new arbiter, delete the folders of others."""
        for program in sorted(running, key=lambda each: not each.spec.gpu_epoch):
            self._adopt(program)
        for path in stale_folders(self._parent, frozenset(lease.folder.path for lease in self._leases.values())):
            LeaseFolder(0, path, 0).remove()
        for lease in self._leases.values():
            if lease.gpus and lease.served:
                self._begin(lease)

    def _adopt(self, program: NodeProgram) -> None:
        number, path = program.spec.lease_number, Path(program.env.get(LEASE_DIR, ""))
        lease = self._leases.get(number)
        if program.spec.separate_gpus:
            self._adopt_attachable(number, path, program)
            return
        if lease is None:
            folder = LeaseFolder(number, path, len(program.spec.gpus))
            if path.parent != self._parent or not folder.sound():
                log_event("pages of a lease are gone", lease=number, key=program.spec.key, folder=str(path))
                return
            lease = self._leases[number] = _Lease(folder, program.spec.gpus)
        lease.programs[program.spec.key] = program

    def _adopt_attachable(self, number: int, path: Path, program: NodeProgram) -> None:
        """Take over a program whose lease gets and returns GPUs; write pages that the last agent could not write."""
        folder = LeaseFolder(number, path, 0)
        if path.parent != self._parent or not folder.attachable():
            log_event("folder of a lease is gone", lease=number, key=program.spec.key, folder=str(path))
            return
        served = not folder.suspended_gpu()
        if not served:
            folder = LeaseFolder(number, path, 1)
        lease = self._leases.setdefault(number, _Lease(folder, (), served=served))
        lease.programs[program.spec.key] = program
        if lease.gpus or not program.spec.gpus:
            return
        if not program.spec.gpu_epoch:  # another program on the lease, whose record may name GPUs returned since
            whole = LeaseFolder(number, path, len(program.spec.gpus))
            if whole.sound():
                lease.folder, lease.gpus = whole, program.spec.gpus
            return
        try:
            self._complete(lease, program)
        except (OSError, GpupoolError) as error:
            log_event("pages of a lease not written", lease=number, error=repr(error))

    def attach(self, program: NodeProgram) -> None:
        """Write the pages of a lazy lease and inform the arbiter; its programs then find the pages."""
        lease = self._leases.get(program.spec.lease_number)
        if lease is None:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, f"{program.spec.key} has no lease on this node.", "Start it again."
            )
        lease.programs[program.spec.key] = program
        if not lease.gpus:
            self._complete(lease, program)
            if lease.served:
                self._begin(lease)

    def _complete(self, lease: _Lease, program: NodeProgram) -> None:
        spec = program.spec
        lease.folder = lease.folder.complete(self._control(lease.folder.lease, program), len(spec.gpus), spec.uid)
        lease.gpus = spec.gpus

    def wanted_at(self, program: NodeProgram) -> float | None:
        """Return when a program first waited for the pages of its lazy lease."""
        lease = self._leases.get(program.spec.lease_number)
        return None if lease is None else lease.folder.wanted_at()

    def in_use(self, program: NodeProgram) -> bool:
        """Return whether a process has a slot of the lease; the slots of the dead stay while it is suspended."""
        lease = self._leases.get(program.spec.lease_number)
        if lease is None or not lease.folder.suspended_gpu():
            return lease is None or any(lease.folder.read_slots(gpu) for gpu in range(len(lease.gpus)))
        return any(slot_lives(slot) for slot in lease.folder.read_slots(0))

    def detach(self, program: NodeProgram, pids: Callable[[], frozenset[int]]) -> bool:
        """Remove the pages of a lazy lease unless a process has them, and inform the arbiter."""
        lease = self._leases.get(program.spec.lease_number)
        if lease is None or not lease.folder.withdraw(pids):
            return False
        self._take_gpus(lease)
        lease.folder, lease.served = LeaseFolder(lease.folder.lease, lease.folder.path, 0), True
        return True

    def _take_gpus(self, lease: _Lease) -> None:
        self._arbiter.remove(lease.folder.path)
        lease.gpus = ()
        lease.counts.clear()
        lease.grants.clear()

    def suspended_gpu(self, program: NodeProgram) -> str:
        """Return the GPU whose memory the lease has in the host's memory; empty: none."""
        lease = self._leases.get(program.spec.lease_number)
        return "" if lease is None else lease.folder.suspended_gpu()

    def calls(self, program: NodeProgram) -> int:
        """Return the calls of the driver by all processes of the lease."""
        lease = self._leases.get(program.spec.lease_number)
        return 0 if lease is None else sum(slot.calls for slot in lease.folder.read_slots(0))

    async def suspend(self, program: NodeProgram, pids: Callable[[], frozenset[int]], timeout_s: float) -> None:
        """Suspend all processes of the lease and take its GPU."""
        lease = self._leases.get(program.spec.lease_number)
        if lease is None or len(lease.gpus) != 1:
            raise GpupoolError(ErrorCode.WRONG_STATE, "The program does not use exactly one GPU.", "It continues.")
        gpu = SuspendedGpu(lease.folder, lease.gpus[0].gpu_uuid, pids, program.spec.memory_mib)
        suspender, lease.served = self._suspender, False
        self._arbiter.remove(lease.folder.path)
        try:
            await suspender.suspend(gpu, timeout_s)
        except GpupoolError:
            self._serve_again(lease)
            raise
        self._take_gpus(lease)

    async def resume(self, program: NodeProgram, pids: Callable[[], frozenset[int]]) -> None:
        """Let the processes of the lease run again."""
        lease = self._leases.get(program.spec.lease_number)
        if lease is not None and (gpu := lease.folder.suspended_gpu()):
            await self._suspender.resume(SuspendedGpu(lease.folder, gpu, pids, None))
            self._serve_again(lease)

    def _serve_again(self, lease: _Lease) -> None:
        """Serve a lease again whose processes run; after a failure, they may still be suspended."""
        lease.served = not lease.folder.suspended_gpu()
        if lease.served:
            self._begin(lease)

    def want_gpus(self, program: NodeProgram) -> None:
        """Note that the suspended program wants its GPU back."""
        lease = self._leases.get(program.spec.lease_number)
        if lease is not None:
            lease.folder.ask()

    async def prepare(self, program: NodeProgram) -> PreparedShare:
        """Create a folder for a new lease, or add the program to an existing lease."""
        spec, caps = program.spec, self._caps()
        number = spec.lease_number
        lease = self._leases.get(number)
        try:
            if lease is None:
                lease = self._make(number, program)
            else:
                self._admit(lease, spec)
        except OSError as error:
            raise GpupoolError(
                ErrorCode.INTERNAL,
                f"The node cannot create the pages of a slice: {error.strerror}.",
                f"Free space in {self._parent} on the node.",
            ) from error
        lease.programs[spec.key] = program
        notes: tuple[str, ...] = (SIMULATED_NOTE,) if spec.emulated else ()
        if spec.container is None and caps.binds.why_not:
            notes += (UNCOVERED.format(why=caps.binds.why_not),)
        return PreparedShare(
            self.name,
            _environment(spec, caps, lease.folder),
            describe_guarantee(self.name, spec.compute),
            notes,
            caps.binds.of(lease.folder.path, container=spec.container is not None),
        )

    def _make(self, number: int, program: NodeProgram) -> _Lease:
        spec = program.spec
        control = self._control(number, program) if spec.gpus or not spec.separate_gpus else None
        make_leases_folder(self._parent, shared=self._host.shared)
        attachable = spec.separate_gpus
        folder = make_lease_folder(self._parent, number, control, len(spec.gpus), spec.uid, attachable=attachable)
        lease = self._leases[number] = _Lease(folder, spec.gpus)
        if control is not None:
            self._begin(lease)
        return lease

    def _control(self, number: int, program: NodeProgram) -> bytes:
        """Return the control pages of a new lease."""
        caps = self._caps()
        cuda, nvml = program.path_inside(caps.drivers.cuda), program.path_inside(caps.drivers.nvml)
        try:
            gpus = self._gpu_pages(program.spec, caps)
            suspendable = program.spec.suspendable and len(gpus) == 1
            return pages.control_pages(f"lease {number}", cuda, nvml, gpus, suspendable=suspendable)
        except ValueError as error:
            raise GpupoolError(
                ErrorCode.UNSUPPORTED,
                f"The pages of a slice cannot hold these shares: {error}.",
                f"A slice can have parts of at most {pages.MAX_GPUS} GPUs.",
            ) from error

    def _begin(self, lease: _Lease) -> None:
        self._arbiter.add(lease.folder.path)
        self._watch.start(self._caps().drivers.nvml)

    @staticmethod
    def _admit(lease: _Lease, spec: ProcessSpec) -> None:
        users = {program.spec.uid for program in lease.programs.values()}
        if spec.uid not in users:
            lease.folder.open_to_all()

    async def release(self, program: NodeProgram) -> None:
        """Delete the folder with the last program on the lease."""
        number = program.spec.lease_number
        lease = self._leases.get(number)
        if lease is None or lease.programs.pop(program.spec.key, None) is None or lease.programs:
            return
        del self._leases[number]
        self._arbiter.remove(lease.folder.path)
        lease.folder.remove()

    async def close(self) -> None:
        """End the arbiter. Until the next one starts, the hardware shares time; memory limits remain."""
        await self._watch.close()
        await self._arbiter.close()
        if self._found_suspender is not None:
            await self._found_suspender.close()

    # -- messages and counts -----------------------------------------------------------------------------------------

    def helpers(self) -> frozenset[int]:
        """Return the process that suspends others; the arbiter uses no GPU."""
        pid = None if self._found_suspender is None else self._found_suspender.pid
        return frozenset() if pid is None else frozenset({pid})

    def _tenants(self) -> list[Tenant]:
        return [
            Tenant(
                lease.folder,
                tuple(self._tenant_gpu(gpu, lease) for gpu in lease.gpus),
                {key: program.folder for key, program in lease.programs.items()},
            )
            for lease in self._leases.values()
            if lease.gpus and lease.served
        ]

    def _tenant_gpu(self, share: GpuShare, lease: _Lease) -> TenantGpu:
        limit = share.memory_mib * _MIB
        card = limit * 1000 // max(1, share.permille)
        allowance = self._context_bytes(share, self._caps()) + max(DRIVER_GROWTH_BYTES, card // DRIVER_GROWTH_DIVISOR)
        grant = lease.grants.get(share.gpu_uuid)
        return TenantGpu(share.gpu_uuid, limit, allowance, share.permille, lease.policy, grant)

    def _context_bytes(self, share: GpuShare, caps: ShareCapabilities) -> int:
        """Return the assumed context size, at most half of the slice: it may be an overestimate."""
        limit = share.memory_mib * _MIB
        known = self._sizes.of(share.gpu_uuid)
        return caps.context_bytes(share.gpu_uuid, limit) if known is None else min(known, limit // 2)

    def _gpu_pages(self, spec: ProcessSpec, caps: ShareCapabilities) -> list[pages.GpuPage]:
        return [
            pages.GpuPage(
                uuid=share.gpu_uuid,
                memory_limit_bytes=share.memory_mib * _MIB,
                context_bytes=self._context_bytes(share, caps),
                weight_permille=share.permille,
                policy=spec.compute,
            )
            for share in spec.gpus
        ]

    def counts(self) -> dict[str, dict[str, SliceCount]]:
        """Return the arbiter's last counts for each program's lease."""
        return {
            key: {uuid: SliceCount(*count, sole=len(lease.programs) == 1) for uuid, count in lease.counts.items()}
            for lease in self._leases.values()
            for key in lease.programs
        }

    def _on_message(self, message: Message) -> None:
        used = message.get("usage")
        lease = self._by_path(used) if isinstance(used, dict) else None
        if isinstance(used, dict) and lease is not None:
            held_s, used_bytes = used.get("held_ns", 0) / 1e9, used.get("used_bytes", 0)
            uuid, now = used.get("uuid", ""), time.monotonic()
            lease.counts[uuid] = (held_s, used_bytes, now)
            lease.grants[uuid] = GrantCount(held_s, used.get("ungated", 0), now)
            if used.get("unhooked_count"):
                self._note(lease, UNHOOKED_NOTE)
        if isinstance(warning := message.get("warning"), str):
            self._note_warning(warning[:MAX_WARNING_CHARS], message)

    def _note_warning(self, warning: str, message: Message) -> None:
        lease = self._by_path(message)
        if lease is None and "lease" in message:
            return  # it was released meanwhile
        log_event("arbiter warns", **message)
        self._note(lease, warning)

    def _note(self, lease: _Lease | None, sentence: str) -> None:
        for key in () if lease is None else lease.programs:
            self._host.note(key, sentence)

    def _by_path(self, message: Message) -> _Lease | None:
        path = str(message.get("lease", ""))
        return next((lease for lease in self._leases.values() if str(lease.folder.path) == path), None)


def _environment(spec: ProcessSpec, caps: ShareCapabilities, folder: LeaseFolder) -> dict[str, str]:
    return {
        **visible_gpus(spec, simulated=spec.emulated),
        **caps.env,
        **path_with_tools(spec, caps.tools),
        VARIABLE: caps.libraries.preload(spec.env.get(VARIABLE, "")),
        LEASE_DIR: str(folder.path),
    }


@dataclass(frozen=True, slots=True)
class ShareCapabilities:
    """The libraries and drivers that enforce slices. ``env`` is set for every program.

    ``tools`` is the folder with the programs of emulated GPUs.
    """

    libraries: Libraries
    drivers: DriverPaths
    binds: DriverBinds
    env: Mapping[str, str] = field(default_factory=dict)
    emulated_contexts: Mapping[str, int] = field(default_factory=dict)
    tools: Path | None = None

    def context_bytes(self, uuid: str, limit_bytes: int) -> int:
        """Return the estimated context size on a GPU without a measurement, in a slice of that size."""
        return self.emulated_contexts.get(uuid, min(CONTEXT_BYTES, limit_bytes // 4))


def find_capabilities(host: SharingHost) -> ShareCapabilities | str:
    """Return the capabilities of this node; or why slices cannot be enforced and what to do."""
    if why := native.missing():
        return why
    found = libraries(host, _SHARE)
    if isinstance(found, str):
        return found
    return _emulated(host, found) if isinstance(host.inventory, EmulatedInventory) else _real(found)


def _emulated(host: SharingHost, found: Libraries) -> ShareCapabilities | str:
    fakes = libraries(host, FAKES)
    if isinstance(fakes, str):
        return fakes
    environment = describe_gpus(host)
    if isinstance(environment, str):
        return environment
    drivers = DriverPaths(*fakes.names)
    binds = _binds(found, drivers, environment[FAKE_GPUS])
    return ShareCapabilities(found, drivers, binds, environment, context_bytes(environment), tools_folder(host))


def _real(found: Libraries) -> ShareCapabilities | str:
    drivers = find_drivers()
    if not drivers.cuda:
        return f"The driver's library {CUDA} is not found: run ldconfig, or install the driver's CUDA part."
    return ShareCapabilities(found, drivers, _binds(found, drivers, ""))


def _binds(found: Libraries, drivers: DriverPaths, gpus: str) -> DriverBinds:
    cuda, _alias, nvml = found.names
    return plan_binds(cuda, nvml, drivers, gpus)
