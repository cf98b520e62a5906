"""An agent in memory and the fabric that reaches it.

The agent outlives control planes. It keeps the contract of ``NodeLink``: a start is idempotent by key,
an
older epoch of a replica is refused, and an end is reported until it is forgotten. It can lose messages before or after
it acts on them, delay its answers, restart, and be unreachable.
"""

from __future__ import annotations

import asyncio
import signal
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from fake_mig import FakeMig

from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Gpu, GpuShare, NodeReport
from gpupool.domain.nodes.telemetry import NodeSample
from gpupool.domain.protocol.log_records import OUT, RECORD, LogBatch
from gpupool.domain.work.program.file_tree import FilesSpec
from gpupool.domain.work.program.supervision import (
    ExitReason,
    ExitReport,
    ListeningPort,
    ProcessPhase,
    ProcessSpec,
    ProcessStatus,
)
from gpupool.domain.work.workspace import TaskKind, WorkspaceTask
from gpupool.services.ports.fabric import AttachStream, FabricEvent, NodeLink
from gpupool.services.ports.files import FilesLink, Making

NODE = "here"
GPU_MIB = 16_000

T = TypeVar("T")


def unreachable() -> GpupoolError:
    return GpupoolError(ErrorCode.NODE_UNREACHABLE, f"Node {NODE} does not answer.", "Look.")


@dataclass
class Program:
    """The agent's record of one attempt."""

    spec: ProcessSpec
    status: ProcessStatus
    kill_at: float | None = None

    @property
    def running(self) -> bool:
        return self.status.phase is not ProcessPhase.EXITED


@dataclass
class FakeHome:
    """The home of a workspace (under the empty name) and its snapshots: a number stands for the files of each."""

    copies: dict[str, int]

    @property
    def size(self) -> int:
        return sum(self.copies.values())


@dataclass
class FakeAgent:
    """One machine. ``polite`` programs end as soon as they are asked; others when their grace period is over."""

    now: Callable[[], float]
    gpus: int = 2
    model: str = "Tesla T4"
    polite: bool = True
    fail_starts: bool = False
    mode: tuple[str, str] = ("", "")  # reported sharing mode of programs, and its guarantees
    reachable: bool = True
    losses: list[str] = field(default_factory=list)  # result of the next calls: "ok", "before" or "after"
    holding: asyncio.Event | None = None  # while not set, answers wait (the operation is done)
    programs: dict[str, Program] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)  # real starts by key
    ends: dict[str, ExitReport] = field(default_factory=dict)  # every end so far
    epochs: dict[str, tuple[int, int]] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    listening: set[str] = field(default_factory=set)  # workloads whose programs listen on their ports
    checks: list[tuple[tuple[str, ...], float]] = field(default_factory=list)  # commands, with their time limits
    notices: dict[str, dict[str, Any] | None] = field(default_factory=dict)  # last attempt of each program
    signals: list[tuple[str, int]] = field(default_factory=list)
    deleted_logs: list[str] = field(default_factory=list)
    looks: list[NodeSample] = field(default_factory=list)
    homes: dict[str, FakeHome] = field(default_factory=dict)
    home_tasks: Counter[str] = field(default_factory=Counter)  # requests by task
    attach_error: GpupoolError | None = None
    suspend_answer: str | None = ""  # why it refuses to suspend a program; None: it never answers
    home_error: GpupoolError | None = None  # the answer to changes of homes
    slow_homes: bool = False  # changes of homes stay in progress
    output: dict[str, bytes] = field(default_factory=dict)  # of programs, by key
    ports: dict[str, Sequence[ListeningPort]] = field(default_factory=dict)  # of programs, by key
    mig: FakeMig | None = None  # a card in MIG mode, in addition
    listener: FakeFabric | None = None
    in_flight: int = 0
    unheard_since: float | None = None

    # Changes by the test

    def running(self) -> list[Program]:
        return [program for program in self.programs.values() if program.running]

    def end(self, key: str, code: int | None = 0, signum: int | None = None, reason: ExitReason | None = None) -> None:
        """End the program; a stop that was requested before sets the reason."""
        program = self.programs[key]
        if not program.running:
            return
        asked = program.kill_at is not None
        why = reason or (ExitReason.STOPPED if asked else ExitReason.EXITED)
        report = ExitReport(why, code, signum, "", self.now())
        program.status = replace(program.status, phase=ProcessPhase.EXITED, exit=report)
        self.ends[key] = report
        self.tell(program.status)

    def time_passes(self) -> None:
        for key, program in list(self.programs.items()):
            if program.running and program.kill_at is not None and self.now() >= program.kill_at:
                self.end(key, None, signal.SIGKILL)
            if program.running and self._fenced(program.spec.fence_after_s):
                self.end(key, None, signal.SIGTERM, ExitReason.FENCED)

    def _fenced(self, after_s: float | None) -> bool:
        since = self.unheard_since
        return after_s is not None and since is not None and self.now() - since >= after_s

    def active(self, key: str) -> None:
        program = self.programs[key]
        program.status = replace(program.status, last_active_at=self.now())
        self.tell(program.status)

    def saves(self, key: str, step: int | None = None) -> None:
        """Let a program report a checkpoint that it has just saved."""
        program = self.programs[key]
        program.status = replace(program.status, saved_at=self.now(), step=step)
        self.tell(program.status)

    def tell(self, status: ProcessStatus) -> None:
        if self.listener is not None and self.reachable:
            self.listener.inbox.put_nowait(FabricEvent(NODE, status=status))

    def go(self, *, up: bool) -> None:
        """Make the agent reachable or unreachable; its programs continue."""
        self.reachable = up
        self.unheard_since = None if up else self.now()
        if self.listener is not None:
            self.listener.inbox.put_nowait(FabricEvent(NODE, up=up))

    def hiccup(self) -> None:
        """Break and restore the connection."""
        if self.reachable:
            self.go(up=False)
            self.go(up=True)

    def reboot(self) -> None:
        """Restart the machine: every program is gone, and the agent remembers them."""
        for key in [p.spec.key for p in self.running()]:
            self.programs[key].kill_at = None
            self.end(key, None, signal.SIGKILL, ExitReason.NODE_RESTARTED)
        self.hiccup()

    # Calls of the control plane

    async def answer(self, deed: Callable[[], T]) -> T:
        """Execute and answer, unless the message is lost on the way or the answer on the way back."""
        self.in_flight += 1
        try:
            await asyncio.sleep(0)
            fate = self.losses.pop(0) if self.losses else "ok"
            if not self.reachable or fate == "before":
                raise unreachable()
            result = deed()
            if self.holding is not None:
                await self.holding.wait()
            if not self.reachable or fate == "after":
                raise unreachable()
        except GpupoolError as error:
            if error.code is ErrorCode.NODE_UNREACHABLE:
                self.hiccup()
            raise
        else:
            return result
        finally:
            self.in_flight -= 1

    def spec(self, key: str) -> ProcessSpec:
        if key not in self.programs:
            raise GpupoolError(ErrorCode.NOT_FOUND, "no such program", "Look.")
        return self.programs[key].spec

    def start(self, spec: ProcessSpec) -> ProcessStatus:
        if spec.key in self.programs:
            return self.programs[spec.key].status
        replica, _, attempt = spec.key.rpartition(".")
        if self.epochs.get(replica, (-1, -1)) >= (spec.epoch, int(attempt)):
            raise GpupoolError(ErrorCode.STALE_WRITE, "an older epoch comes too late", "Look.")
        if any(p.spec.key.rpartition(".")[0] == replica for p in self.running()):
            raise AssertionError(f"two attempts of {replica} at once")
        if self.fail_starts:
            raise GpupoolError(ErrorCode.INVALID_REQUEST, "no such program", "Look.")
        self.epochs[replica] = (spec.epoch, int(attempt))
        self.starts[spec.key] += 1
        status = ProcessStatus(
            spec.key,
            spec.epoch,
            ProcessPhase.RUNNING,
            1000 + len(self.starts),
            self.now(),
            attach_path="/attach",
            mode=self.mode[0],
            guarantee=self.mode[1],
            gpu_epoch=spec.gpu_epoch,
        )
        self.programs[spec.key] = Program(spec, status)
        self.tell(status)
        return status

    def stop(self, key: str, grace_s: float, notice: dict[str, Any] | None = None) -> None:
        program = self.programs.get(key)
        if program is None or not program.running:
            return
        self.notify(key, notice)
        until = self.now() + grace_s
        program.kill_at = until if program.kill_at is None else min(until, program.kill_at)
        if self.polite or grace_s == 0:
            self.end(key, None, signal.SIGTERM)

    def attach_gpus(self, key: str, epoch: int, shares: Sequence[GpuShare]) -> None:
        program = self.programs[key]
        if self.attach_error is not None:
            raise self.attach_error
        assert program.spec.separate_gpus
        if program.status.suspended_gpu:
            assert [share.gpu_uuid for share in shares] == [program.status.suspended_gpu], "memory of another GPU"
        if epoch == program.spec.gpu_returned:
            raise GpupoolError(ErrorCode.STALE_WRITE, "These GPUs were returned.", "")
        if program.running and epoch >= program.spec.gpu_epoch:
            program.spec = replace(program.spec, gpus=tuple(shares), gpu_epoch=epoch)
            program.status = replace(program.status, gpu_epoch=epoch, suspended_gpu="")
            self.tell(program.status)

    def suspend(self, key: str, epoch: int, grace_s: float) -> None:
        """Suspend a program and let it want its GPUs back at once, or refuse that."""
        del grace_s
        program = self.programs.get(key)
        if program is None or not program.running or program.spec.gpu_epoch != epoch or self.suspend_answer is None:
            return
        if self.suspend_answer:
            program.status = replace(program.status, not_suspended=self.suspend_answer)
            self.tell(program.status)
            return
        self.suspend_now(key)
        self.use_cuda(key)

    def suspend_now(self, key: str) -> None:
        """Suspend a program that has GPUs, as if it had not used them for a while."""
        program = self.programs[key]
        (share,) = program.spec.gpus
        program.status = replace(program.status, suspended_gpu=share.gpu_uuid)
        self.return_gpus(key)

    def forget_suspended(self, key: str) -> None:
        """Let the suspended processes of a program end, but not the program."""
        program = self.programs[key]
        program.status = replace(program.status, suspended_gpu="")
        self.tell(program.status)

    def use_cuda(self, key: str) -> None:
        """Let a lazy program use CUDA for the first time."""
        program = self.programs[key]
        program.status = replace(program.status, gpu_wanted_at=self.now())
        self.tell(program.status)

    def return_gpus(self, key: str) -> None:
        """Let a lazy program return its GPUs."""
        program = self.programs[key]
        epoch = program.spec.gpu_epoch
        program.spec = replace(program.spec, gpus=(), gpu_epoch=0, gpu_returned=epoch)
        program.status = replace(program.status, gpu_wanted_at=None, gpu_epoch=0, gpu_returned=epoch)
        self.tell(program.status)

    def notify(self, key: str, notice: dict[str, Any] | None) -> None:
        self.notices[key] = notice

    def forget(self, key: str, *, delete_logs: bool) -> None:
        if delete_logs:
            self.deleted_logs.append(key)
        program = self.programs.get(key)
        if program is not None and not program.running:
            del self.programs[key]
            self.forgotten.add(key)

    @property
    def last_epoch(self) -> int:
        return max((epoch for epoch, _attempt in self.epochs.values()), default=0)

    def change_home(self, task: WorkspaceTask, workspace: str) -> int | None:
        """Change homes as ``node/files/homes.py`` does; the size of a home stands for its files."""
        self.home_tasks[task.id] += 1
        if self.home_error is not None:
            raise self.home_error
        if self.slow_homes:
            return None
        if task.kind in {TaskKind.CREATE, TaskKind.CLONE}:
            size = self.homes[task.source].copies[task.snapshot] if task.source else 0
            self.homes.setdefault(workspace, FakeHome({"": size}))
        home = self.homes.get(workspace)
        if home is None:
            return 0
        if task.kind is TaskKind.SNAPSHOT:
            home.copies[task.snapshot] = home.copies[""]
        elif task.kind is TaskKind.RESTORE:
            home.copies[""] = home.copies[task.snapshot]
        elif task.kind is TaskKind.DROP_SNAPSHOT:
            home.copies.pop(task.snapshot, None)
        elif task.kind is TaskKind.DELETE:
            self.homes.pop(workspace)
        return home.size

    def report(self) -> NodeReport:
        cards = tuple(Gpu(f"GPU-{i}", i, self.model, GPU_MIB, emulated=True) for i in range(self.gpus))
        return NodeReport(
            NODE,
            16.0,
            64_000,
            cards if self.mig is None else (*cards, *self.mig.gpus()),
            emulated=True,
            boot_id="boot",
            agent_version="0",
            fences=True,
            last_epoch=self.last_epoch,
            mig_cards=() if self.mig is None else (self.mig.card(),),
        )

    def change_mig(self, change: Callable[[FakeMig], None]) -> NodeReport:
        assert self.mig is not None
        change(self.mig)
        return self.report()


class HasAllFiles(FilesLink):
    """A node that has all file contents and creates every folder at once; its homes are values in memory."""

    def __init__(self, agent: FakeAgent) -> None:
        self._agent = agent

    async def blob_missing(self, space: str, blobs: Sequence[tuple[str, int]]) -> list[int]:
        return [size for _, size in blobs]

    async def tree_make(self, files: FilesSpec, uid: int | None, env: dict[str, str]) -> Making:
        return Making.MADE

    async def home_task(self, task: WorkspaceTask, workspace: str, uid: int | None) -> int | None:
        return await self._agent.answer(lambda: self._agent.change_home(task, workspace))

    async def home_usage(self, workspace: str) -> int:
        return int(await self._agent.answer(lambda: self._agent.homes[workspace].size))

    async def close(self) -> None:
        pass


class OpenPort(AttachStream):
    """A connection to a port that says nothing."""

    async def read(self, limit: int) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        pass

    async def close(self) -> None:
        pass


class FakeLink(NodeLink):
    """The control plane's connection to the agent."""

    def __init__(self, agent: FakeAgent) -> None:
        self.name = NODE
        self._agent = agent

    async def report(self) -> NodeReport:
        return await self._agent.answer(self._agent.report)

    async def gpus(self) -> Sequence[Gpu]:
        return (await self.report()).gpus

    async def create_mig_instance(self, card: str, profile: str) -> NodeReport:
        change = partial(FakeMig.create, card=card, profile=profile)
        return await self._agent.answer(lambda: self._agent.change_mig(change))

    async def remove_mig_instance(self, uuid: str) -> NodeReport:
        change = partial(FakeMig.remove, uuid=uuid)
        return await self._agent.answer(lambda: self._agent.change_mig(change))

    async def samples(self, after: int) -> Sequence[NodeSample]:
        """Return samples; this call is never lost, because losses are for operations."""
        if not self._agent.reachable:
            raise unreachable()
        looks = self._agent.looks
        return [look for look in looks if look.number > after] if looks and looks[-1].number >= after else list(looks)

    async def list(self) -> Sequence[ProcessStatus]:
        return await self._agent.answer(lambda: [p.status for p in self._agent.programs.values()])

    async def spec(self, key: str) -> ProcessSpec:
        return await self._agent.answer(lambda: self._agent.spec(key))

    async def connect_port(self, key: str, port: int | str, *, activity: bool) -> AttachStream:
        """Connect to a program that listens; which programs do is up to the test."""
        if key.partition(".")[0] not in self._agent.listening:
            raise GpupoolError(ErrorCode.WRONG_STATE, f"No process of the job listens on port {port}.", "")
        return OpenPort()

    async def check_command(self, key: str, argv: Sequence[str], timeout_s: float) -> str:
        """Note the command; it succeeds where the program listens."""
        self._agent.checks.append((tuple(argv), timeout_s))
        return "" if key.partition(".")[0] in self._agent.listening else "the command ended with status 1: loading"

    async def reserve_ports(
        self, key: str, address: str, count: int, wanted: Sequence[int] = ()
    ) -> tuple[tuple[int, ...], str]:
        first = 20_000 + zlib.crc32(key.encode()) % 9_000
        return tuple(wanted) or tuple(range(first, first + count)), "lo"

    async def start(self, spec: ProcessSpec) -> ProcessStatus:
        spec = decode(ProcessSpec, spec.to_dict())
        return await self._agent.answer(lambda: self._agent.start(spec))

    async def attach_gpus(self, key: str, epoch: int, shares: Sequence[GpuShare]) -> None:
        await self._agent.answer(lambda: self._agent.attach_gpus(key, epoch, shares))

    async def suspend(self, key: str, epoch: int, grace_s: float) -> None:
        await self._agent.answer(lambda: self._agent.suspend(key, epoch, grace_s))

    async def stop(self, key: str, grace_s: float, notice: dict[str, Any] | None = None) -> None:
        await self._agent.answer(lambda: self._agent.stop(key, grace_s, notice))

    async def end(self, key: str, grace_s: float) -> None:
        await self._agent.answer(lambda: self._agent.stop(key, grace_s))

    async def notify(self, key: str, notice: dict[str, Any] | None) -> None:
        await self._agent.answer(lambda: self._agent.notify(key, notice))

    async def signal(self, key: str, signum: int) -> None:
        await self._agent.answer(lambda: self._agent.signals.append((key, signum)))

    async def forget(self, key: str, *, delete_logs: bool = False) -> None:
        await self._agent.answer(lambda: self._agent.forget(key, delete_logs=delete_logs))

    async def read_log(self, key: str, cursor: str, limit: int) -> Sequence[LogBatch]:
        data = self._agent.output.get(key, b"")
        record = RECORD.pack(0, OUT, len(data)) + data
        return [LogBatch(0, len(record), record)] if data and not cursor else []

    async def tail_log(self, key: str, lines: int) -> str:
        raise NotImplementedError

    async def files(self) -> FilesLink:
        return HasAllFiles(self._agent)

    async def attach(self, key: str) -> AttachStream:
        raise NotImplementedError

    async def listening_ports(self, key: str) -> Sequence[ListeningPort]:
        return self._agent.ports.get(key, ())


class FakeFabric:
    """The connection to one agent; each control plane has its own."""

    def __init__(self, agent: FakeAgent) -> None:
        self.agent = agent
        self.inbox: asyncio.Queue[FabricEvent] = asyncio.Queue()
        self._announced = False

    async def start(self) -> None:
        self.agent.listener = self
        if self.agent.reachable:
            self.inbox.put_nowait(FabricEvent(NODE, up=True))

    def link(self, node: str) -> NodeLink:
        if node != NODE or not self._announced:
            raise unreachable()
        return FakeLink(self.agent)

    async def events(self) -> AsyncIterator[FabricEvent]:
        while True:
            event = await self.inbox.get()
            self._announced = self._announced or event.up is True
            yield event

    async def close(self) -> None:
        if self.agent.listener is self:
            self.agent.listener = None
