"""The agent of a node: the programs it manages and the requests it answers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from gpupool.blobs.blob_store import BlobFolder
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.ids import split_attempt_key
from gpupool.domain.nodes.gpu import LOOPBACK, Gpu, GpuShare, NodeReport
from gpupool.domain.protocol import frames
from gpupool.domain.protocol.log_records import LogBatch
from gpupool.domain.work.program.supervision import ListeningPort, ProcessSpec, ProcessStatus
from gpupool.node.agent.attempt import (
    AttemptEntry,
    Epochs,
    Terms,
    check_spec,
    first_status,
    require_check,
    send_frame,
    share_lease,
    status_at_end,
)
from gpupool.node.agent.lazy_gpus import LazyGpus
from gpupool.node.agent.port_allocator import (
    PortAllocator,
    connect_port,
    connect_socket,
    interface_of,
    listening_ports,
)
from gpupool.node.agent.supervisor import ProgramSupervisor
from gpupool.node.files.homes import Homes
from gpupool.node.files.job_folders import JobFolders
from gpupool.node.host.heartbeat import Contact
from gpupool.node.host.log import log_event
from gpupool.node.host.paths import ReplicaFolder, RunFolder, StateFolder, boot_id, checked_key
from gpupool.node.host.preemption_notice import Notice, write_notice
from gpupool.node.host.progress_file import create_progress
from gpupool.node.host.records import Notes, StartRequest, read_exit, read_noticed, read_stop, write_notes, write_stop
from gpupool.node.inventory.driver_thread import DriverThread
from gpupool.node.inventory.mig_instances import MigCreation
from gpupool.node.ports import ImageLayers, ImageStore, Inventory, NodeProgram, PrepareRequest, Runner, SharingHost
from gpupool.node.sharing.choose import DEFAULT_SLICES, NOT_ENFORCED, SharingModes
from gpupool.node.shepherd import output_log
from gpupool.node.telemetry.sampler import Sampler

READ_LIMIT = 1 << 20  # bytes of log in one answer
MAX_SHOWN_NOTICE_BYTES = 1000
SOCKET_PATIENCE_S = 10.0  # for a program that starts and does not listen yet
SOCKET_CHECK_S = 0.1
MAX_CHECKS = 16  # commands at a time
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backends:
    """The adapters for this machine; ``slices`` names the sharing mode for parts of GPUs.

    ``address`` is the IP address by which other machines reach it.
    """

    inventory: Inventory
    runner: Runner
    images: ImageStore
    layers: ImageLayers
    slices: str = DEFAULT_SLICES
    address: str = LOOPBACK


class Agent:
    """Answers the requests of the control plane; ``services.ports.fabric.NodeLink`` describes each."""

    def __init__(self, state: StateFolder, run: RunFolder, backends: Backends, *, shared: bool = False) -> None:
        self.state = state
        self.run = run
        self.backends = backends
        self.entries: dict[str, AttemptEntry] = {}
        self._showing: set[asyncio.Task[None]] = set()
        self.epochs = Epochs(state.epochs)
        self.contact = Contact(run.heard)
        self.terms = Terms(state.term)
        self.supervisor = ProgramSupervisor(backends.runner, run, self)
        blobs = BlobFolder(state.path / "files")
        self.job_folders = JobFolders(state.path.parent / "work", blobs, shared=shared)
        self.homes = Homes(state.path.parent / "workspaces", self.workspaces_in_use, backends.layers, shared=shared)
        host = SharingHost(run.path, backends.inventory, shared, self.note, self.end_reason, store=state.path.parent)
        self.sharing = SharingModes(host, backends.slices)
        self.lazy_gpus = LazyGpus(self)
        self.sampler = Sampler(backends.inventory, backends.runner)
        self.port_allocator = PortAllocator(
            lambda: (p for e in self.entries.values() if not e.exited for p in e.request.spec.ports)
        )
        self._listeners: list[Callable[[ProcessStatus], None]] = []
        self._driver = DriverThread()
        self._mig = MigCreation(backends.inventory, state.mig_instances, run.path, shared=shared)
        self._checks = asyncio.Semaphore(MAX_CHECKS)
        self._boot = boot_id()

    # -- start and stop ----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the runner and adopt all programs found in the folders."""
        await self.backends.runner.open()
        await asyncio.to_thread(self.homes.recover)
        self.epochs.load()
        for path in sorted(self.state.replicas.iterdir()):
            self._adopt(ReplicaFolder(path))
        await self.sharing.adopt(
            [(e.request.mode, self.program(e)) for e in self.entries.values() if read_exit(e.folder) is None]
        )
        for entry in list(self.entries.values()):
            self.supervisor.examine(entry)
        await self.backends.runner.adopt(self.entries.keys())

    def _adopt(self, folder: ReplicaFolder) -> None:
        try:
            request = StartRequest.read(folder)
            checked_key(folder.key)
        except (GpupoolError, KeyError, TypeError, ValueError) as error:
            log_event("folder not understood", folder=str(folder.path), error=repr(error))
            return
        if request is None:  # nothing is started before this file is complete
            shutil.rmtree(folder.path, ignore_errors=True)
            return
        entry = AttemptEntry(folder, request, first_status(request, str(self.run.attach(folder.key))))
        entry.recall()
        self.entries[folder.key] = entry
        self.lazy_gpus.add(entry)
        self.epochs.see(folder.key, max(request.spec.epoch, request.spec.gpu_epoch, request.spec.gpu_returned))

    async def close(self) -> None:
        """Stop; programs and their shepherds continue to run."""
        await self.supervisor.close(list(self.entries.values()))
        await self.sharing.close()
        await self.backends.runner.close()
        self._driver.close()
        self.sampler.close()

    def subscribe(self, listener: Callable[[ProcessStatus], None]) -> Callable[[], None]:
        """Call ``listener`` on every change of a status; return a function that ends the subscription."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def changed(self, status: ProcessStatus) -> None:
        """Send a new status of a program to all subscribers."""
        for listener in list(self._listeners):
            listener(status)

    async def ended(self, entry: AttemptEntry) -> None:
        """Release the preparations for a program without processes."""
        try:
            await self.sharing.release(entry.request.mode, self.program(entry))
        except Exception as error:  # noqa: BLE001 - a failing mode must not delay the end
            log_event("share not released", key=entry.key, mode=entry.request.mode, error=repr(error))
        await self.backends.runner.clean(entry.folder.path)

    def note(self, key: str, sentence: str) -> None:
        """Add a note to a running program, visible to users and to the next agent."""
        entry = self.entries.get(key)
        if entry is None or entry.exited or not entry.note(sentence):
            return
        self._keep_notes(entry)
        self.changed(entry.status)

    def end_reason(self, key: str, sentence: str) -> None:
        """Store why the agent ends a process of a program; it becomes the reason in the exit report."""
        entry = self.entries.get(key)
        if entry is None or entry.exited:
            return
        entry.end_reason = sentence
        self._keep_notes(entry)

    @staticmethod
    def _keep_notes(entry: AttemptEntry) -> None:
        with contextlib.suppress(OSError):
            write_notes(entry.folder, Notes(entry.added_notes, entry.end_reason))

    # -- programs ----------------------------------------------------------------------------------------------------

    def statuses(self) -> list[ProcessStatus]:
        """Return the status of every program, including ended ones that are not forgotten."""
        return [entry.status for entry in self.entries.values()]

    def spec(self, key: str) -> ProcessSpec:
        """Return the spec with which a program was started. Raises NOT_FOUND."""
        return self._known(key).request.spec

    async def start(self, spec: ProcessSpec) -> ProcessStatus:
        """Start a program, or return the status of this key if it was started before.

        Raises ``GpupoolError``: STALE_WRITE for an older epoch than one seen of the replica, FORBIDDEN for a user that
        this agent cannot run as, INVALID_*, INTERNAL when the node's disk is full.
        """
        key = checked_key(spec.key)
        known = self.entries.get(key)
        if known is not None and known.status.epoch >= spec.epoch:
            return self._same_epoch(known, spec)
        ended = status_at_end(self.state.forgotten(key), spec.epoch)
        if ended is not None:
            return ended
        self.epochs.check_new(key, spec.epoch)
        if known is not None:
            return known.status
        traits = self.backends.runner.traits(spec)
        if spec.workspace:
            spec = self.homes.settle(spec, has_login=traits.has_login)
        else:
            spec = self.job_folders.settle(spec, has_login=traits.has_login)
        check_spec(spec, has_command=traits.has_command)
        self._check_contact(spec)
        self.supervisor.prepare_moves()
        return await self._start_new(spec)

    def _check_contact(self, spec: ProcessSpec) -> None:
        """Refuse a delayed start whose fence has passed, because the program may already run on another node."""
        if spec.fence_after_s is not None and self.contact.silent_for_s() >= spec.fence_after_s:
            raise GpupoolError(
                ErrorCode.NODE_UNREACHABLE,
                f"The node has not been in contact for {self.contact.silent_for_s():.0f} s; nothing is started.",
                "The start is sent again after both sides have reconciled.",
            )

    def _same_epoch(self, known: AttemptEntry, spec: ProcessSpec) -> ProcessStatus:
        if spec.epoch < known.status.epoch:
            self.epochs.check_new(spec.key, spec.epoch)
        return known.status

    async def _start_new(self, spec: ProcessSpec) -> ProcessStatus:
        request = StartRequest(spec, {}, (), self._boot, self.run.path)
        folder = self.state.replica(spec.key)
        entry = AttemptEntry(folder, request, first_status(request, str(self.run.attach(spec.key))), launching=True)
        self.entries[spec.key] = entry
        self.lazy_gpus.add(entry)
        self.epochs.see(spec.key, spec.epoch)
        try:
            prepared = await self.sharing.prepare(self.program(entry))
        except GpupoolError:
            del self.entries[spec.key]
            raise
        env, notes = prepared.env, prepared.notes
        mode, guarantee = (prepared.mode, prepared.guarantee) if spec.gpus or spec.separate_gpus else ("", "")
        request = replace(request, added_env=env, notes=notes, mode=mode, guarantee=guarantee, binds=prepared.binds)
        entry.set_request(request)
        await self._prepare(entry)
        await self.supervisor.launch(entry)
        return entry.status

    async def _prepare(self, entry: AttemptEntry) -> None:
        """Let the runner prepare the program, then write its request; nothing is left if one fails."""
        files = entry.request.spec.files
        own = None if files is None else self.job_folders.folder(files.workload)
        if entry.request.spec.workspace:
            own = self.homes.folder(entry.request.spec.workspace).home
        folder = entry.folder
        try:
            folder.path.mkdir(mode=0o700, exist_ok=True)
            create_progress(self.run, entry.key, entry.request.spec.uid)
            running = tuple(key for key, other in self.entries.items() if not other.exited)
            program = PrepareRequest(entry.request, folder.path, running, own)
            entry.set_request(await self.backends.runner.prepare(program))
            await asyncio.to_thread(entry.request.write, folder)
        except GpupoolError:
            await self._withdraw(entry)
            raise
        except OSError as error:
            await self._withdraw(entry)
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> GpupoolError:
        sentence = f"The node cannot write the record of the program: {error.strerror}."
        return GpupoolError(ErrorCode.INTERNAL, sentence, f"Free space in {self.state.path} on the node.")

    async def _withdraw(self, entry: AttemptEntry) -> None:
        del self.entries[entry.key]
        shutil.rmtree(entry.folder.path, ignore_errors=True)
        self.run.progress(entry.key).unlink(missing_ok=True)
        await self.ended(entry)

    async def attach_gpus(self, key: str, epoch: int, shares: tuple[GpuShare, ...]) -> None:
        """Give GPUs to a lazy program under the epoch of their lease, so that its first use of CUDA continues.

        Repetitions change nothing. Ignores a program that has ended. Raises NOT_FOUND, WRONG_STATE, INTERNAL, and
        STALE_WRITE for an older epoch than one seen, and for that of GPUs which it has returned.
        """
        entry = self._known(key)
        if entry.exited:
            return
        async with self.lazy_gpus.changing(key):
            self.lazy_gpus.require_own_gpu(entry, shares)
            entry.give_gpus(epoch, shares)
            self.epochs.see(key, epoch)
            try:
                # The record is first: the next agent completes the pages of a lease whose record names GPUs.
                await asyncio.to_thread(entry.request.write, entry.folder)
                self.sharing.attach(entry.request.mode, self.program(entry))
                await self.lazy_gpus.resume(entry)
            except OSError as error:
                raise self._not_written(error) from error

    def suspend(self, key: str, epoch: int, grace_s: float) -> None:
        """Suspend a program that has the GPUs of this epoch; return at once. Ignores unknown keys."""
        entry = self.entries.get(key)
        if entry is not None and not entry.exited and entry.request.spec.gpu_epoch == epoch:
            self.lazy_gpus.suspend(entry, grace_s)

    def stop(self, key: str, grace_s: float, notice: Notice | None = None) -> None:
        """Stop the whole tree: TERM, then KILL after the grace period. Returns at once; ignores unknown keys.

        With a ``notice`` (written first) the program's own notice signal comes before the TERM.
        """
        entry = self.entries.get(key)
        if entry is None or entry.exited:
            return
        asked, grace_s = read_stop(entry.folder), max(0.0, grace_s)
        if asked is None or grace_s < asked or (notice is None and read_noticed(entry.folder)):
            if notice is not None:
                self._write_notice(entry, notice, grace_s)
            write_stop(entry.folder, grace_s if asked is None else min(grace_s, asked), noticed=notice is not None)
        self.supervisor.examine(entry)
        self.supervisor.press_stop(entry)

    def notify(self, key: str, notice: Notice | None) -> None:
        """Write a notice for a program, and show it on attached terminals; None withdraws it. Ignores unknown keys.

        A warning about a time limit is only shown: the notice file is for what the program can react to.
        """
        entry = self.entries.get(key)
        if entry is None or entry.exited or read_stop(entry.folder) is not None:
            return
        if notice is not None:
            self._show(entry, notice)
            if notice.get("reason") == Reason.TIME_WARNING:
                return
        entry.warned = notice is not None
        if notice is None:
            self.run.notice(key).unlink(missing_ok=True)
        else:
            self._write_notice(entry, notice, None)
            self.changed(entry.status)  # activity since the last report withdraws an idle warning

    def _show(self, entry: AttemptEntry, notice: Notice) -> None:
        """Send a notice to the attached clients of a program, as a line of text."""
        text = f"warning: {notice.get('message', '')} [{notice.get('reason', '')}]".encode()[:MAX_SHOWN_NOTICE_BYTES]
        if entry.status.attach_path:
            sending = asyncio.to_thread(send_frame, entry.status.attach_path, frames.NOTE, text)
            self._showing.add(task := asyncio.get_running_loop().create_task(sending))
            task.add_done_callback(self._showing.discard)

    def _write_notice(self, entry: AttemptEntry, notice: Notice, grace_s: float | None) -> None:
        try:
            write_notice(self.run, entry.key, notice, grace_s, entry.request.spec.uid)
        except OSError as error:
            log_event("notice not written", key=entry.key, error=str(error))

    async def signal(self, key: str, signum: int) -> None:
        """Send a signal to the program's foreground process group; do nothing if it has ended."""
        entry = self._known(key)
        if not 0 < signum < 65:
            raise GpupoolError(ErrorCode.INVALID_REQUEST, f"{signum} is not a signal.", "Use a number from 1 to 64.")
        if not entry.exited:
            await asyncio.to_thread(send_frame, entry.status.attach_path, frames.SIGNAL, bytes([signum]))

    async def forget(self, key: str, *, delete_logs: bool) -> None:
        """Forget an ended program, whose end is stored in the database. Raises WRONG_STATE while it runs."""
        if delete_logs:
            await asyncio.to_thread(self._drop_files, split_attempt_key(key)[0])
        entry = self.entries.get(key)
        if entry is not None:
            if not entry.exited:
                raise GpupoolError(ErrorCode.WRONG_STATE, f"{key} has not ended.", "Stop it first.")
            await asyncio.to_thread(self.epochs.keep, key, entry.status.epoch)
            if self.entries.get(key) is entry:  # no other request has forgotten it meanwhile
                self._retire(entry)
        if delete_logs:
            folder = self.state.forgotten(checked_key(key)).path
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _drop_files(self, workload: str) -> None:
        """Delete the job folder of a deleted workload, unless a program still runs there."""
        if workload not in self.workloads_alive():
            self.job_folders.remove(workload)

    def started_programs(self) -> tuple[NodeProgram, ...]:
        """Return the programs that have started and not ended."""
        live = [entry for entry in self.entries.values() if entry.status.started_at is not None and not entry.exited]
        return tuple(self.program(entry) for entry in live)

    def program(self, entry: AttemptEntry) -> NodeProgram:
        """Return a program as sharing modes see it."""
        request = entry.request
        inside = self.backends.runner.traits(request.spec).path_inside
        return NodeProgram(request.spec, request.added_env, entry.folder.path, inside)

    def workloads_alive(self) -> frozenset[str]:
        """Return the workloads in whose job folders programs run."""
        live = (entry.request.spec for entry in self.entries.values() if not entry.exited)
        return frozenset(spec.files.workload for spec in live if spec.files is not None)

    def workspaces_in_use(self) -> frozenset[str]:
        """Return the workspaces in whose homes programs run."""
        return frozenset(e.request.spec.workspace for e in self.entries.values() if not e.exited)

    def _retire(self, entry: AttemptEntry) -> None:
        """Move the folder of an ended program and drop its entry, in one step of the event loop (see ``_in_log``)."""
        kept = self.state.forgotten(entry.key).path
        shutil.rmtree(kept, ignore_errors=True)
        os.rename(entry.folder.path, kept)  # noqa: PTH104 - one call, atomic
        del self.entries[entry.key]

    def _known(self, key: str) -> AttemptEntry:
        entry = self.entries.get(checked_key(key))
        if entry is None:
            raise GpupoolError(ErrorCode.NOT_FOUND, f"{key} is not on this node.", "It may have been deleted.")
        return entry

    # -- output ------------------------------------------------------------------------------------------------------

    async def read_log(self, key: str, cursor: str, limit: int) -> list[LogBatch]:
        """Return output from a cursor; empty when there is no more now. Raises NOT_FOUND if the output was deleted."""
        size = min(max(1, limit), READ_LIMIT)

        def read(folder: Path) -> list[LogBatch] | None:
            found = output_log.read(folder, cursor, size)
            return found if found or folder.parent.exists() else None

        found = await self._in_log(key, read)
        if found is None:
            raise GpupoolError(ErrorCode.NOT_FOUND, f"The output of {key} is not on this node.", "It was deleted.")
        return found

    async def tail_log(self, key: str, lines: int) -> str:
        """Return the cursor before the last ``lines`` lines."""
        return await self._in_log(key, lambda folder: output_log.tail(folder, lines))

    async def _in_log(self, key: str, look: Callable[[Path], T]) -> T:
        """Look in the folder of a program's output; again if the program was forgotten, and so moved, meanwhile."""
        while True:
            folder = self._log_folder(key)
            found = await asyncio.to_thread(look, folder)
            if self._log_folder(key) == folder:
                return found

    def _log_folder(self, key: str) -> Path:
        if checked_key(key) in self.entries:
            return self.entries[key].folder.log
        return self.state.forgotten(key).log

    def attach_path(self, key: str) -> str:
        """Return the socket of the program's shepherd. Raises NOT_FOUND, or WRONG_STATE once it has ended."""
        return self._present(key).status.attach_path

    async def connect_port(self, key: str, port: int | str) -> socket.socket:
        """Connect to a port, or the path of a Unix socket, on which a program, or another on its lease, listens.

        Waits a moment for the socket of a program that starts. Raises NOT_FOUND, WRONG_STATE.
        """
        if isinstance(port, str):
            return await self._connect_socket(key, port)
        entry = self._present(key)
        return await asyncio.to_thread(lambda: connect_port(self._pids_on_lease(entry), port, entry.request.spec.uid))

    async def _connect_socket(self, key: str, path: str) -> socket.socket:
        deadline = time.monotonic() + SOCKET_PATIENCE_S
        while True:
            entry = self._present(key)
            found = await asyncio.to_thread(self._try_socket, entry, path)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise GpupoolError(
                    ErrorCode.WRONG_STATE, f"No process of the job listens on the socket {path}.", "Start the server."
                )
            await asyncio.sleep(SOCKET_CHECK_S)

    def _try_socket(self, entry: AttemptEntry, path: str) -> socket.socket | None:
        return connect_socket(self._pids_on_lease(entry), path, entry.request.spec.uid)

    async def check_command(self, key: str, argv: Sequence[str], timeout_s: float) -> str:
        """Execute a command where a program runs; return its problem, empty if it ends with status 0 in time.

        Raises NOT_FOUND, WRONG_STATE, INVALID_REQUEST.
        """
        entry = self._present(key)
        require_check(argv, timeout_s)
        try:
            async with self._checks:
                return await self.backends.runner.check_command(entry.folder.path, argv, timeout_s)
        except OSError as error:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, f"The command of the check was not executed: {error}.", "It is repeated."
            ) from error

    def carried(self, key: str) -> None:
        """Record that bytes went between a program, or one of its ports, and a client."""
        entry = self.entries.get(key)
        if entry is not None:
            entry.carried = True

    @contextlib.contextmanager
    def client(self, key: str, *, port: bool) -> Iterator[None]:
        """Count a client's connection; processes linger while their lease has one to a session or a port."""
        entry = self.entries.get(key)
        counts = entry is not None and (port or entry.request.spec.linger_s is not None)
        if entry is None or not counts:
            yield
            return
        entry.clients += 1
        try:
            yield
        finally:
            entry.clients -= 1

    def end_lingering(self, now: float) -> None:
        """Stop the sessions whose linger time has passed since the last client of their lease."""
        for entry in [e for e in self.entries.values() if e.lingers_since is not None and not e.exited]:
            spec, since = entry.request.spec, entry.lingers_since or 0.0
            if any(other.clients and share_lease(other.request.spec, spec) for other in self.entries.values()):
                entry.client_at = now
            elif now - max(since, entry.client_at) >= (spec.linger_s or 0.0):
                self.stop(entry.key, spec.grace_s)

    async def listening_ports(self, key: str) -> list[ListeningPort]:
        """Return the ports on which a program, or another on its lease, listens. Raises NOT_FOUND, WRONG_STATE."""
        entry = self._present(key)
        return await asyncio.to_thread(lambda: listening_ports(self._pids_on_lease(entry)))

    def _present(self, key: str) -> AttemptEntry:
        entry = self._known(key)
        if entry.exited:
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{key} has ended.", "Its output is in the log.")
        return entry

    def _pids_on_lease(self, entry: AttemptEntry) -> frozenset[int]:
        spec = entry.request.spec
        mine = [
            other for other in list(self.entries.values()) if not other.exited and share_lease(other.request.spec, spec)
        ]
        return self.pids_of(mine)

    def pids_of(self, entries: Iterable[AttemptEntry]) -> frozenset[int]:
        """Return all processes of some programs."""
        trees = self.backends.runner.survey([entry.folder.path for entry in entries])
        return frozenset[int]().union(*(tree.pids for tree in trees.values()))

    # -- the machine -------------------------------------------------------------------------------------------------

    async def report(self) -> NodeReport:
        """Return the machine and its GPUs, from a full scan."""
        found = await self._driver.ask(self._mig.scan)
        why = self.sharing.why_advisory()
        warnings = (*found.warnings, f"{NOT_ENFORCED}{why}") if why and found.gpus else found.warnings
        partitioned = bool(found.mig_cards) or any(gpu.mig_profile for gpu in found.gpus)
        return replace(
            found,
            sharing=self.sharing.usable(partitioned=partitioned),
            warnings=warnings,
            address=self.backends.address,
            fences=True,
            last_epoch=self.epochs.last,
        )

    async def create_mig_instance(self, card: str, profile: str) -> None:
        """Create a MIG instance on a card. Raises as ``MigCreation.create``."""
        await self._driver.ask(lambda: self._mig.create(card, profile))

    async def remove_mig_instance(self, uuid: str) -> None:
        """Destroy a MIG instance that the pool created. Raises WRONG_STATE while it is in use, NOT_FOUND, FORBIDDEN."""
        live = [entry for entry in self.entries.values() if not entry.exited]
        holders = [e.key for e in live if any(share.gpu_uuid == uuid for share in e.request.spec.gpus)]
        if holders:
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{holders[0]} holds {uuid[:80]}.", "Stop it first.")
        await self._driver.ask(lambda: self._mig.remove(uuid))

    async def reserve_ports(
        self, key: str, address: str, count: int, wanted: Sequence[int]
    ) -> tuple[tuple[int, ...], str]:
        """Reserve free ports for a program that is about to start; return them and the network interface."""
        checked_key(key)
        return self.port_allocator.reserve(key, address, count, wanted), interface_of(address)

    async def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs with current health, foreign processes and use."""
        return await self._driver.ask(self._fresh_gpus)

    def _fresh_gpus(self) -> tuple[Gpu, ...]:
        pids = self.pids_of(entry for entry in list(self.entries.values()) if not entry.exited)
        return self._mig.gpus(pids | self.sharing.helpers())
