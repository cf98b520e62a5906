"""The ports on which a workload listens, each with the address or command that opens it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from gpupool.domain.errors import GpupoolError
from gpupool.domain.nodes.gpu import LOOPBACK
from gpupool.domain.people.access import Actor
from gpupool.domain.work.supervision import ListeningPort
from gpupool.domain.work.workload import Workload
from gpupool.services.pool import PoolServices
from gpupool.web.pages.workload.view import ShownAttempt

TIMEOUT_S = 1.0  # a page does not wait longer for a node


@dataclass(frozen=True, slots=True)
class ServedPort:
    """A port of a program. ``url`` opens it in the visitor's browser (empty: only ``command`` does, by a tunnel)."""

    port: int
    program: str
    address: str
    url: str
    command: str


async def served_ports(
    services: PoolServices, actor: Actor, workload: Workload, chosen: ShownAttempt, *, same_machine: bool
) -> list[ServedPort]:
    """Return the ports of a running replica; none if its node does not answer in time.

    ``same_machine``: the visitor's browser runs on the control plane's machine.
    """
    try:
        async with asyncio.timeout(TIMEOUT_S):
            found = await services.files.listening_ports(actor, workload.id, chosen.index)
    except (GpupoolError, TimeoutError):
        return []
    replicas = await services.workloads.replicas_of(workload)
    name = next((row.node for row in replicas if row.index == chosen.index), None)
    node = next((node for node in await services.nodes.nodes() if node.name == name), None)
    local = same_machine and name == services.info.own_node
    ref = workload.name if workload.completions == 1 else f"{workload.name}/{chosen.index}"
    return ports_shown(found, ref, LOOPBACK if node is None else node.report.address, local=local)


def ports_shown(found: Sequence[ListeningPort], ref: str, node_address: str, *, local: bool) -> list[ServedPort]:
    """Return one row for each port; ``local``: the browser runs on the node at ``node_address``."""
    rows = {port.port: port for port in reversed(found)}  # the first listener of a port is shown
    return [
        ServedPort(number, port.program, port.address, _url(port, node_address, local=local), _command(ref, number))
        for number, port in sorted(rows.items())
    ]


def _url(port: ListeningPort, node_address: str, *, local: bool) -> str:
    listens = ip_address(port.address)
    if local and (listens.is_unspecified or port.address == LOOPBACK):
        return f"http://{LOOPBACK}:{port.port}/"
    if listens.is_loopback or node_address in {"", LOOPBACK}:
        return ""
    host = node_address if listens.is_unspecified else port.address
    return f"http://[{host}]:{port.port}/" if ":" in host else f"http://{host}:{port.port}/"


def _command(ref: str, port: int) -> str:
    return f"gpupool open {ref} {port}"
