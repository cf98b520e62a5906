"""Starts a node's agent: ``python -I -m gpupool.node.agent_main --state DIR --run DIR --name NAME``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import LOOPBACK
from gpupool.node import locks
from gpupool.node.agent import Agent, Backends
from gpupool.node.agent_server import AgentServer
from gpupool.node.housekeeping import Activity, prune_for_ever
from gpupool.node.inventory.choose import open_inventory
from gpupool.node.inventory.nvml import NvmlInventory
from gpupool.node.journal import say
from gpupool.node.paths import RunFolder, StateFolder
from gpupool.node.ports import Inventory
from gpupool.node.runners.choose import open_runner
from gpupool.node.sharing.choose import DEFAULT_SLICES, mode_class

EXIT_REFUSED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run an agent until SIGTERM or SIGINT; programs run on. 0 after that, 2 when it could not begin."""
    options = _parser().parse_args(argv)
    try:
        return asyncio.run(_run(options))
    except GpupoolError as error:
        say("agent not started", **error.to_dict())
        return EXIT_REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpupool-agent", description="The agent of one GPU machine.")
    parser.add_argument("--state", type=Path, required=True, help="folder for what outlives the agent")
    parser.add_argument("--run", type=Path, required=True, help="folder for sockets")
    parser.add_argument("--name", required=True, help="the node's name in the pool")
    parser.add_argument("--runner", default="process", help="how programs are run (entry point gpupool.runners)")
    parser.add_argument("--shared", action="store_true", help="let other users pass to their programs' sockets")
    parser.add_argument("--slices", default=DEFAULT_SLICES, help="how parts of GPUs are shared (gpupool.sharing)")
    parser.add_argument("--address", default=LOOPBACK, help="the IP address by which other machines reach this one")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--nvml", action="store_true", help="the GPUs that the NVIDIA driver reports, or fail")
    which.add_argument("--emulate", metavar="SPEC", help="emulated GPUs, for example 4xT4,2xV100")
    return parser


async def _run(options: argparse.Namespace) -> int:
    state, run = StateFolder(options.state), RunFolder(options.run)
    lock = _own(state, run, shared=options.shared)
    agent = Agent(state, run, _backends(options), shared=options.shared)
    server = AgentServer(agent)
    stopped = _stop_event()
    # Nobody may ask before everything has been taken over; hints that are missed until then do no harm.
    await agent.open()
    await server.open()
    looks = agent.sampler.run(agent.entries, agent.sharing)
    chores = [asyncio.create_task(work) for work in (Activity(agent).run(), prune_for_ever(agent), looks)]
    say("agent ready", pid=os.getpid(), name=options.name, programs=len(agent.entries))
    await stopped.wait()
    for chore in chores:
        chore.cancel()
    await server.close()
    await agent.close()
    os.close(lock)
    say("agent stopped")
    return 0


def _stop_event() -> asyncio.Event:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def _own(state: StateFolder, run: RunFolder, *, shared: bool) -> int:
    """Make the folders and be their only agent; the descriptor returned holds that."""
    try:
        state.make()
        run.make(shared=shared)
        lock = locks.take(state.lock)
    except OSError as error:
        raise GpupoolError(
            ErrorCode.POOL_START_FAILED,
            f"The agent cannot use {error.filename or state.path}: {error.strerror}.",
            "Check who owns the folder and whether the disk is full.",
        ) from error
    if lock is None:
        raise GpupoolError(
            ErrorCode.POOL_ALREADY_RUNNING,
            f"Another agent uses {state.path}.",
            "Use that one, or stop it first.",
        )
    return lock


def _backends(options: argparse.Namespace) -> Backends:
    if options.nvml:
        inventory: Inventory = NvmlInventory.open(options.name, "")
    else:
        inventory = open_inventory(options.emulate, options.name)
    mode_class(options.slices)  # a name that nobody has is refused now, not at the first start
    return Backends(inventory, open_runner(options.runner), options.slices, options.address)


if __name__ == "__main__":
    status = main()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(status)  # a driver that hangs in a worker thread must not keep the agent from ending
