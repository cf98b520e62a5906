"""Two accounts of a machine with one root pool: each reaches its own workloads by SSH only."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_pool import RealPool, fresh_pool

from accounts import ANN, BOB, as_user
from gpupool.client import Client
from gpupool.client.ssh.configuration import host_key, require_asyncssh
from gpupool.client.ssh.target import SessionProgram, SshTarget, find_target
from gpupool.client.transport.endpoint import UnixEndpoint
from gpupool.client.transport.websocket_dialer import WebSocketDialer

pytestmark = [pytest.mark.root, pytest.mark.needs("root", "asyncssh")]


@pytest.fixture(scope="module")
def system_pool() -> Iterator[RealPool]:
    with fresh_pool("1xT4") as made:
        yield made


def test_workload_of_another_user_is_out_of_reach(system_pool: RealPool) -> None:
    socket = str(system_pool.run / "api.sock")

    def submit() -> str:
        with Client(socket) as client:
            options = {"fraction": 0.1, "kind": "interactive", "name": "hers", "workdir": "/"}
            return client.submit(["sleep", "100000"], **options).id

    home = system_pool.folder / "ann"
    home.mkdir()
    os.chown(home, ANN, ANN)

    def key() -> str:
        os.environ["HOME"] = str(home)
        os.environ.pop("XDG_CONFIG_HOME", None)
        return str(host_key().private)

    require_asyncssh().generate_private_key("ssh-ed25519")  # the accounts may be unable to read the packages
    private = Path(as_user(ANN, key))
    assert private.is_relative_to(home)
    assert private.stat().st_mode & 0o777 == 0o600
    assert as_user(BOB, private.read_text).startswith("PermissionError")

    workload = as_user(ANN, submit)
    assert system_pool.becomes(workload, "running")

    def find() -> str:
        with Client(socket) as client:
            return find_target(client, "gpupool.hers").workload

    def run() -> str:
        with Client(socket) as client:
            return client.submit(SessionProgram("id -u", {}).request(SshTarget(workload, 0, "hers"))).id

    async def dial(what: str) -> str:
        dialer = WebSocketDialer(UnixEndpoint(socket))
        async with await dialer.connect(SshTarget(workload, 0, "hers").path(what)) as stream:
            await stream.wait_closed()
            return str(stream.close_reason)

    assert as_user(ANN, find) == workload
    assert as_user(BOB, find).startswith(f"GpupoolError: hers belongs to uid-{ANN}.")
    assert as_user(ANN, run).startswith("w")
    assert "[FORBIDDEN]" in as_user(BOB, run)
    for what in ("ports/80", "attach"):
        assert as_user(BOB, lambda what=what: asyncio.run(dial(what))).startswith("FORBIDDEN")
