"""The control plane's connection to the gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpupool.daemon import gateway_link
from gpupool.daemon.config import PoolConfig
from gpupool.daemon.gateway_link import GatewayLink
from gpupool.daemon.process.gateway_switch import gateway_wanted
from gpupool.domain.protocol.gateway_table import GATEWAY_SOCKET, Report, Route, RouteAccess

ROUTE = Route("project", "service", RouteAccess.PUBLIC)


def test_first_route_is_sent_at_once_though_the_link_was_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_link, "IDLE_RETRY_S", 3600.0)
    monkeypatch.setattr(gateway_link, "RETRY_S", 0.02)
    tables: asyncio.Queue[bytes] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tables.put_nowait(await reader.readline())
        writer.close()

    def report(_report: Report) -> None: ...

    async def story() -> None:
        link = GatewayLink(PoolConfig(str(tmp_path), str(tmp_path)))
        running = asyncio.create_task(link.run(report))
        for _ in range(2):
            link.publish([])
            await asyncio.sleep(0.1)
            assert not gateway_wanted(str(tmp_path))
            link.publish([ROUTE])
            assert gateway_wanted(str(tmp_path))
            await asyncio.sleep(0.1)  # the gateway starts
            server = await asyncio.start_unix_server(take, str(tmp_path / GATEWAY_SOCKET))
            async with asyncio.timeout(10), server:
                assert b'"service"' in await tables.get()
        running.cancel()

    asyncio.run(story())
