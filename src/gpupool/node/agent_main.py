"""Start a node's agent: ``python -I -m gpupool.node.agent_main --state DIR --run DIR --name NAME``.

The inventory and the runner are built in or found by entry points of packages. Periodic work samples the activity of
programs and deletes old logs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import LOOPBACK
from gpupool.domain.units import format_mib
from gpupool.domain.work.program.supervision import Progress
from gpupool.node.agent.agent import Agent, Backends
from gpupool.node.agent.attempt import AttemptEntry
from gpupool.node.agent.server import AgentServer
from gpupool.node.host import cgroups, locks
from gpupool.node.host.log import log_event
from gpupool.node.host.paths import RunFolder, StateFolder
from gpupool.node.host.progress_file import read_progress
from gpupool.node.inventory.emulated import DEFAULT_EMULATION, EmulatedInventory, parse_emulation
from gpupool.node.inventory.host import read_host
from gpupool.node.inventory.nvml import NoGpusError, NvmlInventory
from gpupool.node.ports import Inventory, ProcessTree, Runner
from gpupool.node.runners.container.runner import ContainerRunner
from gpupool.node.runners.process.runner import ProcessRunner
from gpupool.node.sharing.choose import DEFAULT_SLICES, mode_class
from gpupool.node.shepherd import output_log

RUNNERS = "gpupool.runners"
INVENTORIES = "gpupool.inventories"
_BUILT_IN = frozenset({NvmlInventory.name, EmulatedInventory.name})
EXIT_REFUSED = 2
SAMPLE_INTERVAL_S = 5.0
REPORT_INTERVAL_S = 30.0  # activity is reported at most this often per program
PRUNE_INTERVAL_S = 3600.0
LINGER_INTERVAL_S = 1.0
MAX_LOG_AGE_S = 14 * 86400.0
MAX_LOG_BYTES = 5 << 30


class ActivitySampler:
    """Records when each program was last active: on its GPUs if that is measurable, by CPU time, or by its clients.

    Bytes to and from clients count, not open connections. Programs on one lease are active together. If
    the processes on a real GPU cannot be distinguished, all its use counts for the program.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._reported_at: dict[str, float] = {}
        self._unreported: set[str] = set()  # programs whose status changed after the last report

    async def run(self) -> None:
        """Sample forever."""
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            try:
                await self.sample()
            except Exception as error:  # noqa: BLE001 - the next sample may succeed
                log_event("activity not sampled", error=repr(error))

    async def sample(self) -> None:
        """Sample every running program once."""
        live = [e for e in self._agent.entries.values() if e.status.started_at is not None and not e.exited]
        self._forget_ended({e.key for e in live})
        if not live:
            return
        trees = await asyncio.to_thread(self._agent.backends.runner.survey, [e.folder.path for e in live])
        progress = await asyncio.to_thread(self._read_progress, [e.key for e in live])
        busy = await self._busy_gpus([e for e in live if e.key not in self._agent.sampler.computed])
        now = time.monotonic()
        active = [e for e in live if self._active(e, trees.get(e.key), busy, now)]
        keys, leases = {e.key for e in active}, {e.request.spec.lease for e in active} - {0}
        for entry in live:
            worked = entry.key in keys or entry.request.spec.lease in leases
            if entry.exited:
                continue
            if entry.take_progress(progress[entry.key]) or worked:
                self._unreported.add(entry.key)
            if worked:
                entry.touch()
            if entry.key in self._unreported:
                self._report(entry, now)

    def _forget_ended(self, live: set[str]) -> None:
        self._reported_at = {key: at for key, at in self._reported_at.items() if key in live}
        self._unreported &= live

    def _read_progress(self, keys: list[str]) -> dict[str, Progress]:
        return {key: read_progress(self._agent.run, key, time.time()) for key in keys}

    async def _busy_gpus(self, live: list[AttemptEntry]) -> frozenset[str]:
        """Return the real GPUs in use; they are queried only when a program holds one."""
        if all(e.request.spec.emulated or not e.request.spec.gpus for e in live):
            return frozenset()
        with contextlib.suppress(GpupoolError):
            return frozenset(gpu.uuid for gpu in await self._agent.gpus() if gpu.utilisation_percent > 0)
        return frozenset()

    def _active(self, entry: AttemptEntry, tree: ProcessTree | None, busy: frozenset[str], now: float) -> bool:
        carried = entry.take_carried()
        worked = (tree is not None and entry.sample(tree.cpu_s, now)) or carried
        seen_at = self._agent.sampler.computed.get(entry.key)
        if seen_at is not None:
            return worked or seen_at > now - SAMPLE_INTERVAL_S - 1
        return worked or any(share.gpu_uuid in busy for share in entry.request.spec.gpus)

    def _report(self, entry: AttemptEntry, now: float) -> None:
        """Send the status of a program, or leave it to a later sample if the last report is too recent."""
        if entry.warned or now - self._reported_at.get(entry.key, -REPORT_INTERVAL_S) >= REPORT_INTERVAL_S:
            self._reported_at[entry.key] = now
            self._unreported.discard(entry.key)
            self._agent.changed(entry.status)


async def end_lingering_forever(agent: Agent) -> None:
    """End the processes of closed sessions after their linger time."""
    while True:
        await asyncio.sleep(LINGER_INTERVAL_S)
        agent.end_lingering(time.time())


async def prune_forever(agent: Agent) -> None:
    """Delete logs of forgotten programs, by age and by total size."""
    while True:
        try:
            await asyncio.to_thread(prune, agent.state.ended, MAX_LOG_AGE_S, MAX_LOG_BYTES)
            await asyncio.to_thread(agent.epochs.prune, MAX_LOG_AGE_S)
            await asyncio.to_thread(agent.job_folders.prune, agent.workloads_alive())
            await asyncio.to_thread(agent.homes.empty_trash)
        except OSError as error:
            log_event("old logs not pruned", error=str(error))
        await asyncio.sleep(PRUNE_INTERVAL_S)


def prune(ended: Path, keep_age_s: float, keep_bytes: int) -> int:
    """Delete folders of forgotten programs by age, then the oldest above a total size; return the number deleted."""
    folders = sorted(((path.stat().st_mtime, path) for path in ended.iterdir()), reverse=True)
    oldest, room, gone = time.time() - keep_age_s, keep_bytes, 0
    for changed_at, path in folders:
        room -= output_log.size(path / "log")
        if changed_at < oldest or room < 0:
            shutil.rmtree(path, ignore_errors=True)
            gone += 1
    return gone


def main(argv: Sequence[str] | None = None) -> int:
    """Run an agent until SIGTERM or SIGINT, and return its exit status: 0, or 2 if it could not start.

    Programs continue to run after the agent has ended.
    """
    options = _parser().parse_args(argv)
    try:
        return asyncio.run(_run(options))
    except GpupoolError as error:
        sys.stderr.write(f"agent not running: {error}\n")  # ``gpupool up`` shows this line
        return EXIT_REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpupool-agent", description="The agent of one GPU machine.")
    parser.add_argument("--state", type=Path, required=True, help="folder for files that outlive the agent")
    parser.add_argument("--run", type=Path, required=True, help="folder for sockets")
    parser.add_argument("--name", required=True, help="the node's name in the pool")
    parser.add_argument("--runner", default="process", help="how programs are run (entry point gpupool.runners)")
    parser.add_argument("--shared", action="store_true", help="let other users reach the sockets of their programs")
    parser.add_argument("--slices", default=DEFAULT_SLICES, help="how parts of GPUs are shared (gpupool.sharing)")
    parser.add_argument("--address", default=LOOPBACK, help="the IP address by which other machines reach this one")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--nvml", action="store_true", help="use the GPUs that the NVIDIA driver reports, or fail")
    which.add_argument("--emulate", metavar="SPEC", help="emulated GPUs, for example 4xT4,2xV100")
    return parser


async def _run(options: argparse.Namespace) -> int:
    state, run = StateFolder(options.state), RunFolder(options.run)
    lock = _own(state, run, shared=options.shared)
    agent = Agent(state, run, _backends(options, state, run), shared=options.shared)
    server = AgentServer(agent)
    stopped = _stop_event()
    # Requests are served only after all programs are adopted. Hints that are missed until then do no harm.
    cgroups.prepare()
    await agent.open()
    await server.open()
    looks = agent.sampler.run(agent.started_programs, agent.sharing)
    chores = [
        asyncio.create_task(work)
        for work in (
            ActivitySampler(agent).run(),
            prune_forever(agent),
            end_lingering_forever(agent),
            agent.lazy_gpus.run(),
            looks,
        )
    ]
    log_event("agent ready", pid=os.getpid(), name=options.name, programs=len(agent.entries))
    await stopped.wait()
    for chore in chores:
        chore.cancel()
    await server.close()
    await agent.close()
    os.close(lock)
    log_event("agent stopped")
    return 0


def _stop_event() -> asyncio.Event:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def _own(state: StateFolder, run: RunFolder, *, shared: bool) -> int:
    """Create the folders and lock them for this agent; return the descriptor that holds the lock."""
    try:
        state.make()
        run.make(shared=shared)
        lock = locks.take(state.lock)
    except OSError as error:
        raise GpupoolError(
            ErrorCode.POOL_START_FAILED,
            f"The agent cannot use {error.filename or state.path}: {error.strerror}.",
            "Check the owner of the folder and the free space on the disk.",
        ) from error
    if lock is None:
        raise GpupoolError(
            ErrorCode.POOL_ALREADY_RUNNING,
            f"Another agent uses {state.path}.",
            "Use that agent, or stop it first.",
        )
    return lock


def _backends(options: argparse.Namespace, state: StateFolder, run: RunFolder) -> Backends:
    if options.nvml:
        inventory: Inventory = NvmlInventory.open(options.name, "")
    else:
        inventory = open_inventory(options.emulate, options.name)
    mode_class(options.slices)  # reject an unknown mode now, not at the first start
    runner = ContainerRunner(open_runner(options.runner), state.path, run)
    return Backends(inventory, runner, runner, runner.layers, options.slices, options.address)


def open_runner(name: str) -> Runner:
    """Return the runner of that name: built in, or from a package with the entry points ``gpupool.runners``.

    Raises ``GpupoolError(UNSUPPORTED)`` for an unknown name.
    """
    if name == ProcessRunner.name:
        return ProcessRunner()
    points = entry_points(group=RUNNERS)
    if name not in points.names:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"Unknown runner '{name[:40]}'.",
            f"Installed: {', '.join(sorted(points.names | {ProcessRunner.name}))}.",
        )
    runner: Runner = points[name].load()()
    return runner


def open_inventory(emulate: str | None, node_name: str | None) -> Inventory:
    """Return the inventory of this machine.

    ``emulate`` like ``4xT4,2xV100`` requests emulated GPUs (empty: one T4). None looks for real ones: first with NVML,
    then with inventories from other packages. Without any, it is one emulated T4, with a warning in its reports. Raises
    ``GpupoolError(INVALID_REQUEST)`` for an invalid ``emulate``.
    """
    if emulate is not None:
        return EmulatedInventory(node_name, parse_emulation(emulate))
    try:
        return NvmlInventory(node_name)
    except NoGpusError as error:
        return _from_plugins(read_host(node_name).name) or _emulated_fallback(node_name, error.reason)


def _from_plugins(node_name: str) -> Inventory | None:
    for point in entry_points(group=INVENTORIES):
        if point.name not in _BUILT_IN:
            try:
                found: Inventory = point.load().open(node_name, "")
            except GpupoolError:
                continue
            return found
    return None


def _emulated_fallback(node_name: str | None, reason: str) -> Inventory:
    cards = parse_emulation(DEFAULT_EMULATION)
    what = f"{len(cards)} {cards[0].name} with {format_mib(cards[0].memory_mib)}"
    return EmulatedInventory(node_name, cards, (f"No GPUs: {reason}. Emulating {what}: programs run on the CPU.",))


if __name__ == "__main__":
    status = main()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(status)  # a driver that hangs in a worker thread must not keep the agent from ending
