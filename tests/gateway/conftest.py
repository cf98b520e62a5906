"""A gateway process, and replicas that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gateway_process import ControlPlane, GatewayProcess, Replica


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    found = GatewayProcess(tmp_path)
    found.start()
    yield found
    found.stop()
    log = found.log()
    assert "Traceback" not in log, log


@pytest.fixture
def control(gateway: GatewayProcess) -> ControlPlane:
    return gateway.control_plane()


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Callable[..., Replica]]:
    started: list[Replica] = []

    def start(name: str = "r0", *arguments: str, port: int = 0) -> Replica:
        started.append(Replica(tmp_path, name, *arguments, port=port))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.stop()
