"""Readiness of replicas: one task for each running replica repeats its check.

A check connects through the node's agent, so it works on every node, and only reaches a port on which a process of the
replica itself listens: another program on the same port is not taken for it. A command is executed by the agent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gpupool.domain.errors import GpupoolError
from gpupool.domain.work.service import Probe, ProbeKind
from gpupool.services.ports.fabric import AttachStream, Fabric

MAX_HEAD_BYTES = 4096
_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not listened on
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r\n]")


@dataclass(slots=True)
class Readiness:
    """The result of the checks of one attempt. ``known``: there was one. ``served``: it has been ready.

    ``since`` is the time of the last change of ``ready``, ``began`` that of the first check. ``load_s`` is the time
    from then until it was ready; None if it was ready at once. ``message`` is the reason why it is not ready.
    ``direct``: it listens on its node's address, so that a gateway on another node reaches it.
    """

    since: float
    ready: bool = False
    known: bool = False
    served: bool = False
    failed: int = 0
    message: str = "not checked yet"
    direct: bool = True
    began: float = 0.0
    load_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """An attempt to check: its key, node, port and address."""

    key: str
    node: str
    port: int
    probe: Probe
    host: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        """Return the command of the probe with the port and the address of the replica."""
        words = self.probe.command
        return tuple(word.replace("{port}", str(self.port)).replace("{host}", self.host) for word in words)


class ReadinessChecks:
    """Runs the checks of all targets; ``changed`` is called after each change of a result."""

    def __init__(
        self,
        fabric: Fabric,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        self.results: dict[str, Readiness] = {}
        self._fabric = fabric
        self._now = now
        self._sleep = sleep
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def watch(self, targets: Mapping[str, ProbeTarget]) -> None:
        """Check these targets from now on, and no others."""
        for key in self._tasks.keys() - targets.keys():
            self._tasks.pop(key).cancel()
            self.results.pop(key, None)
        for key in targets.keys() - self._tasks.keys():
            self.results[key] = Readiness(self._now(), began=self._now())
            self._tasks[key] = asyncio.create_task(self._repeat(targets[key], self.results[key]))

    def close(self) -> None:
        """Stop all checks."""
        self.watch({})

    async def _repeat(self, target: ProbeTarget, result: Readiness) -> None:
        while True:
            problem = await self.check(target)
            if not problem and not result.ready:
                result.direct = await self._listens_on_address(target)
            self._note(target.probe, result, problem)
            await self._sleep(target.probe.every_s)

    def _note(self, probe: Probe, result: Readiness, problem: str) -> None:
        first = not result.known
        result.known = True
        result.message = problem
        result.failed = result.failed + 1 if problem else 0
        ready = not problem or (result.ready and result.failed < probe.failures)
        if ready != result.ready:
            result.ready, result.since = ready, self._now()
            if ready and not result.served and not first:
                result.load_s = result.since - result.began
            result.served |= ready
        elif not first:
            return
        self._changed()

    async def _listens_on_address(self, target: ProbeTarget) -> bool:
        """Return whether the replica listens on its node's address, and not only on a loopback one."""
        try:
            listening = await self._fabric.link(target.node).listening_ports(target.key)
        except GpupoolError:
            return True
        addresses = {each.address for each in listening if each.port == target.port}
        return not addresses or not addresses.isdisjoint({*_ANY, target.host})

    async def check(self, target: ProbeTarget) -> str:
        """Return the problem of a replica; empty if it is ready."""
        try:
            if target.probe.kind is ProbeKind.COMMAND:
                link = self._fabric.link(target.node)
                return await link.check_command(target.key, target.command, target.probe.timeout_s)
            async with asyncio.timeout(target.probe.timeout_s):
                stream = await self._fabric.link(target.node).connect_port(target.key, target.port, activity=False)
                try:
                    return await _get(stream, target) if target.probe.kind is ProbeKind.HTTP else ""
                finally:
                    await stream.close()
        except TimeoutError:
            return f"no answer on port {target.port} within {target.probe.timeout_s:g} s"
        except GpupoolError as error:
            return error.message
        except OSError as error:
            return f"port {target.port}: {error.strerror or error}"


async def _get(stream: AttachStream, target: ProbeTarget) -> str:
    """Return the problem of the answer to a GET of the probe's path."""
    path = target.probe.path
    head = f"GET {path} HTTP/1.1\r\nHost: localhost:{target.port}\r\nUser-Agent: gpupool-probe\r\n"
    await stream.write(f"{head}Accept: */*\r\nConnection: close\r\n\r\n".encode())
    answer = b""
    while b"\n" not in answer and len(answer) < MAX_HEAD_BYTES:
        data = await stream.read(MAX_HEAD_BYTES)
        if not data:
            break
        answer += data
    found = _STATUS.match(answer)
    if found is None:
        return f"{path} on port {target.port} did not answer in HTTP"
    return "" if 200 <= int(found[1]) < 400 else f"{path} answered {found[1].decode()}"
