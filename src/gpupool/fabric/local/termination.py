"""End all programs on this machine, for a machine that leaves its cluster or was removed from it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from gpupool.domain.work.program.supervision import ProcessPhase
from gpupool.fabric.local.link import connection

GRACE_S = 10.0
ANSWER_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.5


async def end_programs(agent: Path) -> None:
    """Stop all programs through the agent and wait until they have ended.

    Raises ``OSError``, ``EOFError`` or ``ValueError`` if the agent does not answer.
    """
    async with connection(agent) as (reader, writer):

        async def ask(method: str, **params: Any) -> Any:
            writer.write(json.dumps({"id": 1, "method": method, "params": params}).encode() + b"\n")
            await writer.drain()
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                line = await reader.readline()
            if not line:
                raise EOFError("the agent closed the connection")
            return json.loads(line).get("result")

        while live := [status["key"] for status in await ask("list") or [] if status["phase"] != ProcessPhase.EXITED]:
            for key in live:
                await ask("stop", key=key, grace_s=GRACE_S)
            await asyncio.sleep(POLL_INTERVAL_S)
