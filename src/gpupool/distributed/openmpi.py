"""Open MPI: one launcher, and workers that wait for commands from it. No ssh, no keys, no files.

The launcher's ``mpirun`` reads the hosts and the remote start program from its environment. That program
(``remote_start``) connects to the rank host of a member, which runs ``mpirun``'s daemon inside the member: with its
GPUs, limits and environment, under its shepherd. Host names are invented, so that ``mpirun`` treats none of them as its
own machine.
"""

from __future__ import annotations

import ipaddress
import json
from pathlib import PurePosixPath

from gpupool.domain.work.gang import MemberAddress, Rendezvous
from gpupool.domain.work.program.supervision import NODE_PROGRAM
from gpupool.domain.work.workload import Workload

LAUNCHER = "launcher"
STARTERS = frozenset({"mpirun", "mpiexec", "orterun", "horovodrun"})
SMALLEST_COMMON_PREFIX = 16  # bits; a larger network is not used

SECRET = "GPUPOOL_GANG_SECRET"  # noqa: S105 - the name of a variable
HOSTS = "GPUPOOL_GANG_HOSTS"
LISTEN = "GPUPOOL_RANK_HOST"


def ports_needed(workload: Workload, index: int) -> int:
    """Return 1 for a worker, whose rank host listens, and 0 for the launcher."""
    return 0 if _is_launcher(workload, index) else 1


def may_join(_workload: Workload, _old: Rendezvous, _index: int, _address: str, _ports: tuple[int, ...]) -> bool:
    """Return False: MPI's world has a fixed size."""
    return False


def environment(workload: Workload, wiring: Rendezvous, index: int) -> dict[str, str]:
    """Return the launcher's variables for mpirun, or a worker's for its rank host."""
    if not _is_launcher(workload, index):
        seat = wiring.seat_of(index)
        return {SECRET: wiring.secret, LISTEN: "" if seat is None else f"{seat.address} {seat.ports[0]}"}
    found = {_host_name(workload, seat.index): [seat.address, seat.ports[0]] for seat in _workers(workload, wiring)}
    own = {
        SECRET: wiring.secret,
        HOSTS: json.dumps(found, separators=(",", ":")),
        "GPUPOOL_MPI_HOSTS": hosts(workload, wiring),
    }
    return own | _parameters(workload, wiring)


def command(workload: Workload, wiring: Rendezvous, index: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the rank host for workers; for the launcher its command, after mpirun unless it is a starter itself."""
    if not _is_launcher(workload, index):
        return (NODE_PROGRAM, "distributed/rank_host.py")
    role = workload.role_of(index)
    own = role is not None and role.argv is not None
    if not own and PurePosixPath(argv[0]).name not in STARTERS:
        argv = ("mpirun", "-np", str(_ranks(workload, wiring)), *argv)
    return (NODE_PROGRAM, "distributed/launch.py", *argv)


def _parameters(workload: Workload, wiring: Rendezvous) -> dict[str, str]:
    """Return MCA parameters as variables; the user's options and variables override them.

    No processor binding: members may share a machine, and each daemon would start with the first processor.
    """
    parameters = {
        "plm_rsh_no_tree_spawn": "1",
        "plm": "rsh",
        "orte_leave_session_attached": "1",
        "orte_default_dash_host": hosts(workload, wiring),
        "hwloc_base_binding_policy": "none",
        "rmaps_base_mapping_policy": "slot",
    }
    network = common_network([seat.address for seat in wiring.seats])
    if network:
        parameters |= {"btl_tcp_if_include": network, "oob_tcp_if_include": network}
    found = {f"OMPI_MCA_{name}": value for name, value in parameters.items()}
    return found | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def hosts(workload: Workload, wiring: Rendezvous) -> str:
    """Return the hosts and their ranks as for ``mpirun --host``: ``worker-0:2,worker-1:2``."""
    return ",".join(
        f"{_host_name(workload, seat.index)}:{workload.processes_of(seat.index)}" for seat in _workers(workload, wiring)
    )


def common_network(addresses: list[str]) -> str:
    """Return the smallest network with all addresses, as ``10.1.0.0/20``; empty if it is too large."""
    numbers = [ipaddress.ip_address(address) for address in addresses]
    if any(number.version != 4 for number in numbers):
        return ""
    if all(number.is_loopback for number in numbers):
        return "127.0.0.0/8"
    low, high = int(min(numbers, key=int)), int(max(numbers, key=int))
    prefix = 32 - (low ^ high).bit_length()
    if prefix < SMALLEST_COMMON_PREFIX:
        return ""
    return str(ipaddress.ip_network((low, min(prefix, 24)), strict=False))


def _ranks(workload: Workload, wiring: Rendezvous) -> int:
    return sum(workload.processes_of(seat.index) for seat in _workers(workload, wiring))


def _workers(workload: Workload, wiring: Rendezvous) -> list[MemberAddress]:
    return [seat for seat in wiring.seats if not _is_launcher(workload, seat.index)]


def _is_launcher(workload: Workload, index: int) -> bool:
    role = workload.role_of(index)
    return role is not None and role.name.lower() == LAUNCHER


def _host_name(workload: Workload, index: int) -> str:
    place = workload.place_in_roles(index)
    return f"member-{index}" if place is None else f"{place[0].name.lower().replace('.', '-')}-{place[1]}"
