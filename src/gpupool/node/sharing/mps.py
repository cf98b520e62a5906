"""Slices by NVIDIA's Multi-Process Service: kernels of several programs of one user run on a GPU at the same time.

What holds, and who holds it:

- **Memory**: the driver refuses a *process* more than the slice (``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT``). The limit is
  each process's, so a program of several can use it several times.
- **Compute**: with the policy ``cap`` a process runs on at most its percentage of the GPU's processors
  (``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``, whole percents). That is a cap and no reservation.
- **Faults**: a fatal fault of one client ends all clients of the server, and it takes no new ones until they are gone.

Therefore one daemon serves one user on one GPU, and while it does, no other user's programs are started on that GPU by
this mode: a GPU's MPS server belongs to one user at a time, another one's clients would wait until it is idle.
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
from gpupool.domain.gpu import ComputePolicy, GpuShare
from gpupool.domain.sharing import guarantee
from gpupool.domain.supervision import ProcessSpec
from gpupool.node.inventory.emulated import EmulatedInventory
from gpupool.node.journal import say
from gpupool.node.ports import Prepared, Running, SharingHost
from gpupool.node.sharing import mps_daemon
from gpupool.node.sharing.mps_daemon import CONTROL, PIPES, MpsDaemon
from gpupool.node.sharing.variables import visible_gpus

NOTES = (
    "the memory limit holds for each process of the program by itself",
    "a fatal fault of any program of yours on this GPU under MPS ends all of them",
)
GONE = "the MPS daemon of this program was killed: start the program again"
_LOOK_S = 2.0
_SECRET_BYTES = 6
_PERCENT = 10  # thousandths


@dataclass(slots=True)
class _Served:
    """A daemon and the programs that use it, by key."""

    daemon: MpsDaemon
    programs: dict[str, Running] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)  # its processes when it was last alive
    told: bool = False  # that it is dead

    def look(self) -> None:
        """Remember its processes: servers may outlive it."""
        found = self.daemon.processes()
        if self.daemon.alive:  # else they have been read while it died, when its servers were no longer below it
            self.seen = found


class MpsSharing:
    """The mode for parts of GPUs of one user each; needs ``nvidia-cuda-mps-control``."""

    name: ClassVar[str] = "mps"

    def __init__(self, host: SharingHost) -> None:
        self._host = host
        self._parent = host.folder / "mps"
        self._served: list[_Served] = []
        self._locks: dict[str, asyncio.Lock] = {}  # by GPU: daemons come and go one after the other
        self._watch: asyncio.Task[None] | None = None

    def missing(self) -> str:
        """MPS is a part of the driver's tools, and of real GPUs."""
        if isinstance(self._host.inventory, EmulatedInventory):
            return "Emulated GPUs have no MPS."
        if mps_daemon.control_program() is None:
            return f"{CONTROL} is not installed: install the NVIDIA driver's compute utilities."
        return ""

    # -- programs ----------------------------------------------------------------------------------------------------

    async def adopt(self, running: Sequence[Running]) -> None:
        """Find the daemons of these programs again, and end those that nobody uses any more."""
        by_pipes: dict[str, list[Running]] = {}
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
        self._look_after()

    async def prepare(self, program: Running) -> Prepared:
        """A daemon for the program's user and GPU, started if there is none."""
        share = _only_share(program.spec)
        async with self._lock(share.gpu_uuid):
            self._refuse_other_users(program.spec, share.gpu_uuid)
            served = self._serving(share.gpu_uuid)
            if served is None:
                served = _Served(await mps_daemon.start(self._new_daemon(program.spec, share.gpu_uuid)))
                self._served.append(served)
            served.programs[program.spec.key] = program
        self._look_after()
        env = visible_gpus(program.spec) | served.daemon.env | limits(program.spec, share)
        return Prepared(self.name, env, guarantee(self.name, program.spec.compute), NOTES)

    async def release(self, program: Running) -> None:
        """The daemon goes with the last program that uses it."""
        for served in [s for s in self._served if program.spec.key in s.programs]:
            async with self._lock(served.daemon.gpu_uuid):
                served.programs.pop(program.spec.key, None)
                if served.programs or served not in self._served:
                    continue
                self._served.remove(served)
                await mps_daemon.stop(served.daemon, served.seen)
                say("MPS daemon stopped", gpu=served.daemon.gpu_uuid, uid=served.daemon.uid)

    def _lock(self, gpu_uuid: str) -> asyncio.Lock:
        return self._locks.setdefault(gpu_uuid, asyncio.Lock())

    def _serving(self, gpu_uuid: str) -> _Served | None:
        """The living daemon of a GPU."""
        return next((s for s in self._served if s.daemon.gpu_uuid == gpu_uuid and s.daemon.alive), None)

    def _refuse_other_users(self, spec: ProcessSpec, gpu_uuid: str) -> None:
        uid = _user(spec)[0]
        other = next((s for s in self._served if s.daemon.gpu_uuid == gpu_uuid and s.daemon.uid != uid), None)
        if other is not None:
            raise GpupoolError(
                ErrorCode.NO_CAPACITY,
                f"GPU {gpu_uuid} serves another user by MPS, and MPS serves one user at a time.",
                "Wait until that user's programs have ended, or ask for the sharing mode share.",
            )

    def _new_daemon(self, spec: ProcessSpec, gpu_uuid: str) -> MpsDaemon:
        self._parent.mkdir(mode=0o700, exist_ok=True)
        self._parent.chmod(0o711 if self._host.shared else 0o700)
        name = secrets.token_hex(_SECRET_BYTES)
        return MpsDaemon(self._parent / name, *_user(spec), gpu_uuid)

    # -- the node ----------------------------------------------------------------------------------------------------

    def helpers(self) -> frozenset[int]:
        """Daemons and servers: NVML shows them on the GPUs, and they are the pool's own."""
        return frozenset(pid for served in list(self._served) for pid in {**served.seen, **served.daemon.processes()})

    async def close(self) -> None:
        """Daemons go on serving; the next agent finds them."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch

    def _look_after(self) -> None:
        if self._served and (self._watch is None or self._watch.done()):
            self._watch = asyncio.create_task(self._tell_of_the_dead())

    async def _tell_of_the_dead(self) -> None:
        """Programs whose daemon was killed get no new context; they are told once. New programs get a new daemon."""
        while self._served:
            for served in self._served:
                served.look()
            for served in [s for s in self._served if not s.told and not s.daemon.alive]:
                served.told = True
                say("MPS daemon is gone", gpu=served.daemon.gpu_uuid, uid=served.daemon.uid)
                for key in served.programs:
                    self._host.note(key, GONE)
            await asyncio.sleep(_LOOK_S)


def limits(spec: ProcessSpec, share: GpuShare) -> dict[str, str]:
    """What keeps a client to its part. The GPU is number 0: the daemon and the program are shown no other."""
    memory = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={share.memory_mib}M"}
    if spec.compute is not ComputePolicy.CAP:
        return memory
    return {**memory, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, share.permille // _PERCENT))}


def _user(spec: ProcessSpec) -> tuple[int, int]:
    uid = os.geteuid() if spec.uid is None else spec.uid
    gid = os.getegid() if spec.gid is None else spec.gid
    return uid, gid


def _only_share(spec: ProcessSpec) -> GpuShare:
    if len(spec.gpus) != 1:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"A program can have a part of one GPU by MPS, not of {len(spec.gpus)}.",
            "Ask for one GPU, for whole GPUs, or for the sharing mode share.",
        )
    return spec.gpus[0]
