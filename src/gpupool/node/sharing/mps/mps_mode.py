"""Slices with NVIDIA's Multi-Process Service: kernels of one user's programs run on a GPU at the same time.

Limits, and what enforces them:

- **Memory**: the driver limits each *process* to the slice (``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT``). A program with
  several processes can use the limit several times.
- **Compute**: with the policy ``cap``, a process runs on at most its percentage of the GPU's processors
  (``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``, whole percents). That is a cap and no reservation.
- **Faults**: a fatal fault of one client ends all clients of the server, which takes no new ones until then.

Therefore one daemon serves one user on one GPU. While it runs, this mode starts no programs of other users on that GPU.
An MPS server serves one user at a time, so clients of other users would wait until it is idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.nodes.sharing import ComputePolicy, describe_guarantee
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.host.log import log_event
from gpupool.node.inventory.emulated import EmulatedInventory
from gpupool.node.ports import NodeProgram, PreparedShare, SharingHost
from gpupool.node.sharing.mps import mps_daemon
from gpupool.node.sharing.mps.mps_daemon import CONTROL, PIPES, MpsDaemon
from gpupool.node.sharing.variables import visible_gpus

NOTES = (
    "the memory limit applies to each process of the program separately",
    "a fatal fault of one of your programs with MPS on this GPU ends all of them",
)
GONE = "the MPS daemon of this program was killed: start the program again"
_CHECK_INTERVAL_S = 2.0
_SECRET_BYTES = 6
_PERMILLE_PER_PERCENT = 10


@dataclass(slots=True)
class _Served:
    """A daemon and the programs that use it, by key."""

    daemon: MpsDaemon
    programs: dict[str, NodeProgram] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)  # processes of the daemon when it was last alive
    noted: bool = False  # programs have a note that it is dead

    def look(self) -> None:
        """Remember its processes: servers may outlive it."""
        found = self.daemon.processes()
        if self.daemon.alive:  # else it died during the scan, and its servers were no longer its children
            self.seen = found


class MpsSharing:
    """The mode for parts of GPUs, with one user per GPU; needs ``nvidia-cuda-mps-control``."""

    name: ClassVar[str] = "mps"

    def __init__(self, host: SharingHost) -> None:
        self._host = host
        self._parent = host.folder / "mps"
        self._served: list[_Served] = []
        self._locks: dict[str, asyncio.Lock] = {}  # by GPU: daemons are started and stopped one at a time
        self._watch: asyncio.Task[None] | None = None

    def missing(self) -> str:
        """Return why MPS cannot be used: it needs real GPUs and the driver's tools."""
        if isinstance(self._host.inventory, EmulatedInventory):
            return "Emulated GPUs have no MPS."
        if mps_daemon.control_program() is None:
            return f"{CONTROL} is not installed: install the NVIDIA driver's compute utilities."
        return ""

    # -- programs ----------------------------------------------------------------------------------------------------

    async def adopt(self, running: Sequence[NodeProgram]) -> None:
        """Adopt the daemons of these programs, and end daemons without programs."""
        by_pipes: dict[str, list[NodeProgram]] = {}
        for program in running:
            by_pipes.setdefault(program.env.get(PIPES, ""), []).append(program)
        for record in sorted(self._parent.glob("*.json")) if self._parent.is_dir() else ():
            daemon = mps_daemon.read_daemon(record)
            if daemon is None:
                record.unlink(missing_ok=True)
            elif programs := by_pipes.get(str(daemon.pipes)):
                self._served.append(_Served(daemon, {p.spec.key: p for p in programs}))
            else:
                await mps_daemon.stop(daemon)
        self._ensure_watch()

    async def prepare(self, program: NodeProgram) -> PreparedShare:
        """Return the variables for the daemon of the program's user and GPU; start it if needed."""
        share = _only_share(program.spec)
        async with self._lock(share.gpu_uuid):
            self._refuse_other_users(program.spec, share.gpu_uuid)
            served = self._serving(share.gpu_uuid)
            if served is None:
                served = _Served(await mps_daemon.start(self._new_daemon(program.spec, share.gpu_uuid)))
                self._served.append(served)
            served.programs[program.spec.key] = program
        self._ensure_watch()
        env = visible_gpus(program.spec) | served.daemon.env | limits(program.spec, share)
        return PreparedShare(self.name, env, describe_guarantee(self.name, program.spec.compute), NOTES)

    async def release(self, program: NodeProgram) -> None:
        """End the daemon with the last program that uses it."""
        for served in [s for s in self._served if program.spec.key in s.programs]:
            async with self._lock(served.daemon.gpu_uuid):
                served.programs.pop(program.spec.key, None)
                if served.programs or served not in self._served:
                    continue
                self._served.remove(served)
                await mps_daemon.stop(served.daemon, served.seen)
                log_event("MPS daemon stopped", gpu=served.daemon.gpu_uuid, uid=served.daemon.uid)

    def _lock(self, gpu_uuid: str) -> asyncio.Lock:
        return self._locks.setdefault(gpu_uuid, asyncio.Lock())

    def _serving(self, gpu_uuid: str) -> _Served | None:
        """Return the living daemon of a GPU."""
        return next((s for s in self._served if s.daemon.gpu_uuid == gpu_uuid and s.daemon.alive), None)

    def _refuse_other_users(self, spec: ProcessSpec, gpu_uuid: str) -> None:
        uid = _user(spec)[0]
        other = next((s for s in self._served if s.daemon.gpu_uuid == gpu_uuid and s.daemon.uid != uid), None)
        if other is not None:
            raise GpupoolError(
                ErrorCode.NO_CAPACITY,
                f"GPU {gpu_uuid} is in use by another user with MPS, which serves one user at a time.",
                "Wait until that user's programs have ended, or request the sharing mode share.",
            )

    def _new_daemon(self, spec: ProcessSpec, gpu_uuid: str) -> MpsDaemon:
        self._parent.mkdir(mode=0o700, exist_ok=True)
        self._parent.chmod(0o711 if self._host.shared else 0o700)
        name = secrets.token_hex(_SECRET_BYTES)
        return MpsDaemon(self._parent / name, *_user(spec), gpu_uuid)

    # -- the node ----------------------------------------------------------------------------------------------------

    def helpers(self) -> frozenset[int]:
        """Return daemons and servers: NVML shows them on the GPUs, but they are not foreign."""
        return frozenset(pid for served in list(self._served) for pid in {**served.seen, **served.daemon.processes()})

    async def close(self) -> None:
        """Stop; daemons continue, and the next agent adopts them."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch

    def _ensure_watch(self) -> None:
        if self._served and (self._watch is None or self._watch.done()):
            self._watch = asyncio.create_task(self._watch_daemons())

    async def _watch_daemons(self) -> None:
        """Note once on programs whose daemon was killed that they get no new context.

        New programs get a new daemon.
        """
        while self._served:
            for served in self._served:
                served.look()
            for served in [s for s in self._served if not s.noted and not s.daemon.alive]:
                served.noted = True
                log_event("MPS daemon is gone", gpu=served.daemon.gpu_uuid, uid=served.daemon.uid)
                for key in served.programs:
                    self._host.note(key, GONE)
            await asyncio.sleep(_CHECK_INTERVAL_S)


def limits(spec: ProcessSpec, share: GpuShare) -> dict[str, str]:
    """Return the variables that limit a client. The GPU is number 0: daemon and program see no other."""
    memory = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={share.memory_mib}M"}
    if spec.compute is not ComputePolicy.CAP:
        return memory
    return {**memory, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, share.permille // _PERMILLE_PER_PERCENT))}


def _user(spec: ProcessSpec) -> tuple[int, int]:
    uid = os.geteuid() if spec.uid is None else spec.uid
    gid = os.getegid() if spec.gid is None else spec.gid
    return uid, gid


def _only_share(spec: ProcessSpec) -> GpuShare:
    if len(spec.gpus) != 1:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"With MPS a program can have a part of one GPU, not of {len(spec.gpus)}.",
            "Request one GPU, whole GPUs, or the sharing mode share.",
        )
    return spec.gpus[0]
