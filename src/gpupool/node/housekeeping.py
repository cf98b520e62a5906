"""What the agent does by itself every few seconds or hours: sample activity, let old logs go."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from pathlib import Path

from gpupool.domain.errors import GpupoolError
from gpupool.node import logs
from gpupool.node.agent import Agent
from gpupool.node.entry import Entry
from gpupool.node.journal import say
from gpupool.node.ports import Tree

SAMPLE_S = 5.0
TELL_S = 30.0  # activity is told at most this often per program
PRUNE_S = 3600.0
KEEP_AGE_S = 14 * 86400.0
KEEP_BYTES = 5 << 30


class Activity:
    """Notes when each program was last active: on its GPUs, as far as that can be seen, or by processor time.

    Of a program on a real GPU of which nobody can tell who computes on it, everything there counts as its own.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._told: dict[str, float] = {}

    async def run(self) -> None:
        """Sample for ever."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            try:
                await self.sample()
            except Exception as error:  # noqa: BLE001 - the next sample may do better
                say("activity not sampled", error=repr(error))

    async def sample(self) -> None:
        """One look at every program that runs."""
        live = [e for e in self._agent.entries.values() if e.status.started_at is not None and not e.exited]
        if not live:
            self._told.clear()
            return
        trees = await asyncio.to_thread(self._agent.backends.runner.survey, [e.folder.path for e in live])
        busy = await self._busy_gpus([e for e in live if e.key not in self._agent.sampler.computed])
        now = time.monotonic()
        for entry in live:
            if not entry.exited and self._active(entry, trees.get(entry.key), busy, now):
                self._note(entry, now)

    async def _busy_gpus(self, live: list[Entry]) -> frozenset[str]:
        """Those real GPUs that computed something; asked only when a program holds one."""
        if all(e.order.spec.emulated or not e.order.spec.gpus for e in live):
            return frozenset()
        with contextlib.suppress(GpupoolError):
            return frozenset(gpu.uuid for gpu in await self._agent.gpus() if gpu.utilisation_percent > 0)
        return frozenset()

    def _active(self, entry: Entry, tree: Tree | None, busy: frozenset[str], now: float) -> bool:
        worked = tree is not None and entry.sample(tree.cpu_s, now)
        seen_at = self._agent.sampler.computed.get(entry.key)
        if seen_at is not None:
            return worked or seen_at > now - SAMPLE_S - 1
        return worked or any(share.gpu_uuid in busy for share in entry.order.spec.gpus)

    def _note(self, entry: Entry, now: float) -> None:
        entry.touch()
        if now - self._told.get(entry.key, -TELL_S) >= TELL_S:
            self._told[entry.key] = now
            self._agent.publish_activity(entry)


async def prune_for_ever(agent: Agent) -> None:
    """Let logs of forgotten programs go, by age and by size over all."""
    while True:
        try:
            await asyncio.to_thread(prune, agent.state.ended, KEEP_AGE_S, KEEP_BYTES)
            await asyncio.to_thread(agent.epochs.prune, KEEP_AGE_S)
            await asyncio.to_thread(agent.workspaces.prune, agent.workloads_alive())
        except OSError as error:
            say("old logs not pruned", error=str(error))
        await asyncio.sleep(PRUNE_S)


def prune(ended: Path, keep_age_s: float, keep_bytes: int) -> int:
    """Delete folders of forgotten programs that are too old, then the oldest beyond a size; returns how many."""
    folders = sorted(((path.stat().st_mtime, path) for path in ended.iterdir()), reverse=True)
    oldest, room, gone = time.time() - keep_age_s, keep_bytes, 0
    for changed_at, path in folders:
        room -= logs.size(path / "log")
        if changed_at < oldest or room < 0:
            shutil.rmtree(path, ignore_errors=True)
            gone += 1
    return gone
