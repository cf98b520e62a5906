"""The node's agent: which programs it keeps, and what may be asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpupool.blobs.keep import BlobFolder
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import LOOPBACK, Gpu, NodeReport
from gpupool.domain.ids import split_attempt_key
from gpupool.domain.logrecords import Stretch
from gpupool.domain.supervision import ProcessSpec, ProcessStatus
from gpupool.node import logs
from gpupool.node.contact import Contact
from gpupool.node.containers.box import Box
from gpupool.node.containers.service import Containers
from gpupool.node.driver import DriverThread
from gpupool.node.entry import Entry, first_status, status_at_end
from gpupool.node.epochs import Epochs
from gpupool.node.files import ports as files_ports
from gpupool.node.files.workspaces import Workspaces
from gpupool.node.journal import say
from gpupool.node.keeper import Keeper
from gpupool.node.notice import Notice, write_notice
from gpupool.node.orders import beside, check_spec, send_signal, write_order
from gpupool.node.paths import ReplicaFolder, RunFolder, StateFolder, boot_id, checked_key
from gpupool.node.portbook import PortBook, interface_of
from gpupool.node.ports import Inventory, Runner, Running, SharingHost
from gpupool.node.record import (
    Order,
    read_exit,
    read_notes,
    read_noticed,
    read_stop,
    write_notes,
    write_stop,
)
from gpupool.node.sharing.choose import DEFAULT_SLICES, SharingModes
from gpupool.node.telemetry import Sampler

READ_LIMIT = 1 << 20  # bytes of log in one answer


@dataclass(frozen=True, slots=True)
class Backends:
    """What the composition root found for this machine; ``slices`` names the mode for parts of GPUs.

    ``address`` is the IP address by which other machines reach it.
    """

    inventory: Inventory
    runner: Runner
    slices: str = DEFAULT_SLICES
    address: str = LOOPBACK


class Agent:
    """Answers the requests of the control plane; see ``services.ports.NodeLink`` for what each means."""

    def __init__(self, state: StateFolder, run: RunFolder, backends: Backends, *, shared: bool = False) -> None:
        self.state = state
        self.run = run
        self.backends = backends
        self.entries: dict[str, Entry] = {}
        self.epochs = Epochs(state.epochs)
        self.contact = Contact(run.heard)
        self.keeper = Keeper(backends.runner, run, self)
        blobs = BlobFolder(state.path / "files")
        self.workspaces = Workspaces(state.path.parent / "work", blobs, shared=shared)
        self.sharing = SharingModes(SharingHost(run.path, backends.inventory, shared, self.note), backends.slices)
        self.sampler = Sampler(backends.inventory, backends.runner)
        self.containers = Containers(state.path, run)
        self.portbook = PortBook(lambda: (p for e in self.entries.values() if not e.exited for p in e.order.spec.ports))
        self._listeners: list[Callable[[ProcessStatus], None]] = []
        self._driver = DriverThread()
        self._boot = boot_id()

    # -- coming and going --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Get the runner ready and take over whatever the folders tell of."""
        await self.backends.runner.open()
        self.epochs.load()
        for path in sorted(self.state.replicas.iterdir()):
            self._adopt(ReplicaFolder(path))
        await self.sharing.adopt(
            [(e.order.mode, _running(e)) for e in self.entries.values() if read_exit(e.folder) is None]
        )
        for entry in list(self.entries.values()):
            self.keeper.examine(entry)
        await self.containers.remove_strangers(self.entries.keys())

    def _adopt(self, folder: ReplicaFolder) -> None:
        try:
            order = Order.read(folder)
            checked_key(folder.key)
        except (GpupoolError, KeyError, TypeError, ValueError) as error:
            say("folder not understood", folder=str(folder.path), error=repr(error))
            return
        if order is None:  # nothing is started before this file is whole
            shutil.rmtree(folder.path, ignore_errors=True)
            return
        entry = Entry(folder, order, first_status(order, str(self.run.attach(folder.key))))
        for note in read_notes(folder):
            entry.note(note)
        self.entries[folder.key] = entry
        self.epochs.see(folder.key, order.spec.epoch)

    async def close(self) -> None:
        """Let go; programs and their shepherds run on."""
        await self.keeper.close(list(self.entries.values()))
        await self.containers.close()
        await self.sharing.close()
        await self.backends.runner.close()
        self._driver.close()
        self.sampler.close()

    def subscribe(self, listener: Callable[[ProcessStatus], None]) -> Callable[[], None]:
        """Be told of every change of a status from now on; the answer ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _publish(self, status: ProcessStatus) -> None:
        for listener in list(self._listeners):
            listener(status)

    def changed(self, status: ProcessStatus) -> None:
        """A program's status is new."""
        self._publish(status)

    async def ended(self, entry: Entry) -> None:
        """No process of a program is left: what was prepared for it goes."""
        try:
            await self.sharing.release(entry.order.mode, _running(entry))
        except Exception as error:  # noqa: BLE001 - a mode that fails must not hold up the end
            say("share not released", key=entry.key, mode=entry.order.mode, error=repr(error))
        await self.containers.clean(entry.folder.path)

    def note(self, key: str, sentence: str) -> None:
        """Add a note to a program that runs, for all to see and for the next agent."""
        entry = self.entries.get(key)
        if entry is None or entry.exited or not entry.note(sentence):
            return
        with contextlib.suppress(OSError):
            write_notes(entry.folder, entry.said)
        self._publish(entry.status)

    def publish_activity(self, entry: Entry) -> None:
        """Tell that a program was active."""
        self._publish(entry.status)

    # -- programs ----------------------------------------------------------------------------------------------------

    def statuses(self) -> list[ProcessStatus]:
        """Every program kept, those that ended and are not forgotten included."""
        return [entry.status for entry in self.entries.values()]

    async def start(self, spec: ProcessSpec) -> ProcessStatus:
        """Start a program, or return the status of this key if it was started before.

        Raises ``GpupoolError``: STALE_WRITE for an older epoch than one seen of the replica, FORBIDDEN for a user this
        agent cannot run as, INVALID_*, INTERNAL when the node's disk takes no more.
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
        spec = self.workspaces.settle(spec)
        check_spec(spec)
        self._check_contact(spec)
        return await self._start_new(spec)

    def _check_contact(self, spec: ProcessSpec) -> None:
        """A start that was held up on the way must not run where its fence has passed: others may run it by now."""
        if spec.fence_after_s is not None and self.contact.silent_for_s() >= spec.fence_after_s:
            raise GpupoolError(
                ErrorCode.NODE_UNREACHABLE,
                f"The node has not been in contact for {self.contact.silent_for_s():.0f} s; nothing is started.",
                "The start is sent again once both sides have compared.",
            )

    def _same_epoch(self, known: Entry, spec: ProcessSpec) -> ProcessStatus:
        if spec.epoch < known.status.epoch:
            self.epochs.check_new(spec.key, spec.epoch)
        return known.status

    async def _start_new(self, spec: ProcessSpec) -> ProcessStatus:
        order = Order(spec, {}, (), self._boot, self.run.path)
        folder = self.state.replica(spec.key)
        entry = Entry(folder, order, first_status(order, str(self.run.attach(spec.key))), launching=True)
        self.entries[spec.key] = entry
        self.epochs.see(spec.key, spec.epoch)
        try:
            prepared = await self.sharing.prepare(_running(entry))
        except GpupoolError:
            del self.entries[spec.key]
            raise
        env, notes = prepared.env, prepared.notes
        mode, guarantee = (prepared.mode, prepared.guarantee) if spec.gpus else ("", "")
        entry.take(replace(order, added_env=env, notes=notes, mode=mode, guarantee=guarantee))
        await self._write_order(entry, await self._pack(entry))
        await self.keeper.launch(entry)
        return entry.status

    async def _pack(self, entry: Entry) -> Box | None:
        try:
            files = entry.order.spec.files
            folder = None if files is None else self.workspaces.folder(files.workload)
            return await self.containers.pack(entry.order, self._running_keys(), folder)
        except GpupoolError:
            del self.entries[entry.key]
            await self.ended(entry)
            raise

    def _running_keys(self) -> tuple[str, ...]:
        return tuple(key for key, entry in self.entries.items() if not entry.exited)

    async def _write_order(self, entry: Entry, box: Box | None) -> None:
        try:
            await asyncio.to_thread(write_order, entry.folder, entry.order, box)
        except OSError as error:
            del self.entries[entry.key]
            shutil.rmtree(entry.folder.path, ignore_errors=True)
            await self.ended(entry)
            raise GpupoolError(
                ErrorCode.INTERNAL,
                f"The node cannot keep a record of the program: {error.strerror}.",
                f"Make room in {self.state.path} on the node.",
            ) from error

    def stop(self, key: str, grace_s: float, notice: Notice | None = None) -> None:
        """TERM, then KILL after the grace, to the whole tree; returns at once. Unknown keys are ignored.

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
        self.keeper.examine(entry)
        self.keeper.press_stop(entry)

    def notify(self, key: str, notice: Notice | None) -> None:
        """Tell a program something that it may have to act on; None: it is no longer true. Unknown keys are ignored."""
        entry = self.entries.get(key)
        if entry is None or entry.exited or read_stop(entry.folder) is not None:
            return
        if notice is None:
            self.run.notice(key).unlink(missing_ok=True)
        else:
            self._write_notice(entry, notice, None)

    def _write_notice(self, entry: Entry, notice: Notice, grace_s: float | None) -> None:
        try:
            write_notice(self.run, entry.key, notice, grace_s, entry.order.spec.uid)
        except OSError as error:
            say("notice not written", key=entry.key, error=str(error))

    async def signal(self, key: str, signum: int) -> None:
        """Send a signal to the program's foreground process group; a program that has ended hears nothing."""
        entry = self._known(key)
        if not 0 < signum < 65:
            raise GpupoolError(ErrorCode.INVALID_REQUEST, f"{signum} is not a signal.", "Use a number from 1 to 64.")
        if not entry.exited:
            await asyncio.to_thread(send_signal, entry.status.attach_path, signum)

    async def forget(self, key: str, *, delete_logs: bool) -> None:
        """The end is written elsewhere: do not report it again. Raises WRONG_STATE while the program lives."""
        if delete_logs:
            await asyncio.to_thread(self._drop_files, split_attempt_key(key)[0])
        entry = self.entries.get(key)
        if entry is None:
            if delete_logs:
                folder = self.state.forgotten(checked_key(key)).path
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            return
        if not entry.exited:
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{key} has not ended.", "Stop it first.")
        del self.entries[key]
        await asyncio.to_thread(self._retire, entry, delete_logs=delete_logs)

    def _drop_files(self, workload: str) -> None:
        """Its work is deleted: so is its folder, unless something still runs there."""
        if workload not in self.workloads_alive():
            self.workspaces.remove(workload)

    def workloads_alive(self) -> frozenset[str]:
        """Workloads in whose folders programs run."""
        live = (entry.order.spec for entry in self.entries.values() if not entry.exited)
        return frozenset(spec.files.workload for spec in live if spec.files is not None)

    def _retire(self, entry: Entry, *, delete_logs: bool) -> None:
        self.epochs.keep(entry.key, entry.status.epoch)
        kept = self.state.forgotten(entry.key).path
        shutil.rmtree(kept, ignore_errors=True)
        os.rename(entry.folder.path, kept)  # noqa: PTH104 - one call, atomic
        if delete_logs:
            shutil.rmtree(kept, ignore_errors=True)

    def _known(self, key: str) -> Entry:
        entry = self.entries.get(checked_key(key))
        if entry is None:
            raise GpupoolError(ErrorCode.NOT_FOUND, f"{key} is not on this node.", "It may have been forgotten.")
        return entry

    # -- output ------------------------------------------------------------------------------------------------------

    async def read_log(self, key: str, cursor: str, limit: int) -> list[Stretch]:
        """Output from a cursor; empty when there is no more now."""
        folder = self._log_folder(key)
        return await asyncio.to_thread(logs.read, folder, cursor, min(max(1, limit), READ_LIMIT))

    async def tail_log(self, key: str, lines: int) -> str:
        """The cursor from which about ``lines`` lines follow."""
        return await asyncio.to_thread(logs.tail, self._log_folder(key), lines)

    def _log_folder(self, key: str) -> Path:
        if checked_key(key) in self.entries:
            return self.entries[key].folder.log
        return self.state.forgotten(key).log

    def attach_path(self, key: str) -> str:
        """Where the program's shepherd listens. Raises NOT_FOUND, or WRONG_STATE once it has ended."""
        entry = self._known(key)
        if entry.exited:
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{key} has ended.", "Its output is in the log.")
        return entry.status.attach_path

    async def connect_port(self, key: str, port: int) -> socket.socket:
        """A connection to a port on which a program listens, or another on its lease. Raises NOT_FOUND, WRONG_STATE."""
        entry = self._known(key)
        if entry.exited:
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{key} has ended.", "Its output is in the log.")
        return await asyncio.to_thread(self._connect_port, entry, port)

    def _connect_port(self, entry: Entry, port: int) -> socket.socket:
        spec = entry.order.spec
        mine = [other for other in list(self.entries.values()) if not other.exited and beside(other.order.spec, spec)]
        trees = self.backends.runner.survey([other.folder.path for other in mine])
        return files_ports.connect(frozenset[int]().union(*(tree.pids for tree in trees.values())), port, spec.uid)

    # -- the machine -------------------------------------------------------------------------------------------------

    async def report(self) -> NodeReport:
        """The machine and its GPUs, from a full scan."""
        found = await self._driver.ask(self.backends.inventory.report)
        return replace(found, sharing=self.sharing.usable(), address=self.backends.address, fences=True)

    async def reserve_ports(
        self, key: str, address: str, count: int, wanted: Sequence[int]
    ) -> tuple[tuple[int, ...], str]:
        """Free ports for a program that is about to start, and the network interface that has the address."""
        checked_key(key)
        return self.portbook.reserve(key, address, count, wanted), interface_of(address)

    async def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs with fresh health, foreign processes and use."""
        return await self._driver.ask(self._fresh_gpus)

    def _fresh_gpus(self) -> tuple[Gpu, ...]:
        trees = self.backends.runner.survey([e.folder.path for e in list(self.entries.values()) if not e.exited])
        pids = frozenset[int]().union(*(tree.pids for tree in trees.values()))
        return self.backends.inventory.gpus(pids | self.sharing.helpers())


def _running(entry: Entry) -> Running:
    return Running(entry.order.spec, entry.order.added_env, entry.folder.path)
