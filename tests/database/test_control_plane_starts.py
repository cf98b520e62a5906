"""Clients wait for a control plane that starts and has not yet heard from PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from databases import PostgresServer
from e2e_pool import RealPool, eventually, fresh_pool

from gpupool.client.discovery import Location
from gpupool.daemon.local_api import health

SHORT_S = 2.0  # a new session is still being opened
LONG_S = 7.0  # longer than that may take, and than a client waits for a standby


@pytest.fixture(scope="module")
def pool(server: PostgresServer) -> Iterator[RealPool]:
    with fresh_pool("1xT4", "--database", server.fresh()) as made:
        yield made


@contextmanager
def starting_without_answer(pool: RealPool, server: PostgresServer) -> Iterator[None]:
    """Let its control plane start while the server does not answer."""
    with server.frozen():
        os.kill(pool.pids()["control-plane"], signal.SIGKILL)
        place = Location(str(pool.state), str(pool.run), "system")
        assert eventually(lambda: health(place).get("starting"))
        yield


def ended_well(client: subprocess.Popen[bytes]) -> bytes:
    out, err = client.communicate(timeout=60)
    assert client.returncode == 0, err
    return out


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def test_commands_wait_for_a_control_plane_that_starts(
    pool: RealPool, server: PostgresServer, executor: ThreadPoolExecutor
) -> None:
    following = pool.begin("events", "-f")
    assert following.stdout is not None
    pool("submit", "--name", "first", "--", "true")
    assert any(b"EXITED" in line for line in following.stdout)
    with starting_without_answer(pool, server):
        clients = [pool.begin("ps", "-a", "--json"), pool.begin("submit", "--name", "later", "--", "true")]
        listing = executor.submit(lambda: pool.state_of("first"))
        time.sleep(SHORT_S)
    for client in clients:
        ended_well(client)
    assert listing.result(timeout=60) == "succeeded"
    assert any(b"EXITED" in line for line in following.stdout), "the stream has ended"
    following.kill()
    following.communicate()


def test_run_waits_as_long_as_the_control_plane_starts(pool: RealPool, server: PostgresServer) -> None:
    with starting_without_answer(pool, server):
        client = pool.begin("run", "--", "echo", "done")
        time.sleep(LONG_S)
        assert client.poll() is None
    assert ended_well(client) == b"done\n"
