"""The gateway as a child of the supervisor: started for services only, restarted with its last table."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from standin_pool import StandInPool, eventually, start

from free_ports import free_port
from gpupool.daemon.config import GATEWAY_PORT, PoolConfig, PoolKind
from gpupool.daemon.process import launch
from gpupool.daemon.process.children import ChildName, child_command
from gpupool.daemon.process.gateway_switch import want_gateway
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.protocol.gateway_table import GATEWAY_ADDRESS, GATEWAY_SOCKET, Route, RouteAccess, Table, encode


def gateway_of(config: PoolConfig) -> dict[str, Any] | None:
    children = launch.pool_status(config.location)["children"]
    return next((child for child in children if child["name"] == "gateway"), None)


def address_of(config: PoolConfig) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads((Path(config.run_dir) / GATEWAY_ADDRESS).read_text())
        return found
    return {}


def listens(config: PoolConfig) -> bool:
    child = gateway_of(config)
    return child is not None and child["pid"] is not None and address_of(config).get("pid") == child["pid"]


def code_of(config: PoolConfig) -> str:
    """Return the code of the error that a service answers."""
    with suppress(OSError):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{address_of(config)['port']}/s/t/n/", timeout=20)
        except urllib.error.HTTPError as error:
            return str(json.loads(error.read())["code"])
    return ""


def test_a_pool_without_services_runs_no_gateway(pool: StandInPool) -> None:
    start(pool.config)
    assert gateway_of(pool.config) is None
    assert not (Path(pool.config.run_dir) / GATEWAY_SOCKET).exists()


def test_the_gateway_is_started_restarted_with_its_table_and_ended(pool: StandInPool) -> None:
    config = pool.config
    start(config)
    want_gateway(config.state_dir)
    assert eventually(lambda: listens(config))
    path = Path(config.run_dir) / GATEWAY_SOCKET
    assert path.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(path))
        control.sendall(encode(Table(1, (Route("t", "n", RouteAccess.PROJECT),))))
        assert eventually(lambda: code_of(config) == "UNAUTHENTICATED")
        stored = Path(config.state_dir) / "gateway-table.json"
        assert eventually(stored.exists)
        assert stored.stat().st_mode & 0o777 == 0o600
        before, port = gateway_of(config), address_of(config)["port"]
        assert before is not None
        os.kill(before["pid"], signal.SIGKILL)
        assert eventually(lambda: listens(config) and address_of(config)["pid"] != before["pid"])
    assert address_of(config)["port"] == port
    assert code_of(config) == "UNAUTHENTICATED"  # with the stored table, without a control plane
    after = gateway_of(config)
    assert after is not None
    assert after["restarts"] == 1
    want_gateway(config.state_dir, wanted=False)
    assert eventually(lambda: gateway_of(config) is None)
    assert code_of(config) == ""


def test_a_restarted_pool_starts_its_gateway_again(pool: StandInPool) -> None:
    start(pool.config)
    want_gateway(pool.config.state_dir)
    assert eventually(lambda: listens(pool.config))
    port = address_of(pool.config)["port"]
    assert launch.stop(pool.config.location)
    assert code_of(pool.config) == ""
    start(pool.config)
    assert eventually(lambda: listens(pool.config))
    assert address_of(pool.config)["port"] == port


def test_a_port_that_was_asked_for_is_waited_for(pool: StandInPool) -> None:
    port = free_port()
    config = replace(pool.config, gateway_port=port)
    with socket.create_server(("127.0.0.1", port)):
        start(config)
        want_gateway(config.state_dir)
        assert eventually(lambda: "is in use" in str(address_of(config).get("error")))
        child = gateway_of(config)
        assert child is not None
        assert "--gateway-port" in Path(child["log"]).read_text()
    assert eventually(lambda: address_of(config).get("port") == port)
    child = gateway_of(config)
    assert child is not None
    assert child["restarts"] == 0


def test_arguments_of_the_gateway() -> None:
    config = PoolConfig("/state", "/run/x", PoolKind.USER)
    own = child_command(config, ChildName.GATEWAY)
    assert own[-7:] == ("--state-dir", "/state", "--run-dir", "/run/x", "--port", str(GATEWAY_PORT), "--fallback")
    public = replace(
        config, gateway_port=443, listen="[::]:8443", tls_self_signed=True, trusted_proxies=("10.0.0.0/8",)
    )
    command = " ".join(child_command(public, ChildName.GATEWAY))
    assert command.endswith(
        "--port 443 --trusted-proxy 10.0.0.0/8 --host :: --tls-cert /state/tls/cert.pem --tls-key /state/tls/key.pem"
    )
    given = replace(public, tls_cert="/a.pem", tls_key="/b.pem")
    assert child_command(given, ChildName.GATEWAY)[-1] == "/b.pem"


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(GpupoolError) as refused:
        PoolConfig("/state", "/run/x", gateway_port=port)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
