"""What torch is told: the variables that ``torchrun`` sets for the ranks it starts, and those it reads itself.

A program that is started directly is one rank for each member: ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and the others
are those of torch's environment initialisation. A member whose program is ``torchrun`` finds its own options as
``PET_*`` variables, in which every option of it can be given, and starts as many ranks as the member has GPUs.

A member that may come back by itself (``on_member_end`` continue) meets the others by torchrun's c10d rendezvous at
the first member, which therefore cannot be spared; otherwise the size of a round is fixed, and the next one may be
smaller or larger.
"""

from __future__ import annotations

from gpupool.domain.wiring import Wiring
from gpupool.domain.workload import OnMemberEnd, Workload

PORTS = 2  # the store of the ranks, the rendezvous of torchrun


def ports_needed(_workload: Workload, _index: int) -> int:
    """Every member may be the first of its round."""
    return PORTS


def may_join(workload: Workload, old: Wiring, index: int, _address: str, _ports: tuple[int, ...]) -> bool:
    """Only torchrun can let others in, and only as long as the member at which they meet is there."""
    return workload.on_member_end is OnMemberEnd.CONTINUE and old.seats[0].index != index


def environment(workload: Workload, wiring: Wiring, index: int) -> dict[str, str]:
    """Of a rank, and of a torchrun."""
    first, rank, members = wiring.seats[0], wiring.rank_of(index), len(wiring.seats)
    master = {"MASTER_ADDR": first.address, "MASTER_PORT": str(first.ports[0])}
    ranks = {
        "RANK": str(rank),
        "WORLD_SIZE": str(members),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": str(members),
        "NODE_RANK": str(rank),
        "TORCHELASTIC_RESTART_COUNT": str(wiring.round - 1),
    }
    return {**master, **ranks, **_of_torchrun(workload, wiring, index), **_interface(wiring, index)}


def command(_workload: Workload, _wiring: Wiring, _index: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """As it is."""
    return argv


def _interface(wiring: Wiring, index: int) -> dict[str, str]:
    """Which network the ranks use: their own guess is the one that the host's name leads to, often loopback."""
    seat = wiring.seat_of(index)
    if seat is None or not seat.interface:
        return {}
    return {"GLOO_SOCKET_IFNAME": seat.interface, "NCCL_SOCKET_IFNAME": f"={seat.interface}"}


def _of_torchrun(workload: Workload, wiring: Wiring, index: int) -> dict[str, str]:
    first, gang = wiring.seats[0], workload.gang
    common = {"PET_NPROC_PER_NODE": str(workload.processes_of(index))}
    if workload.on_member_end is OnMemberEnd.CONTINUE and gang is not None:
        return common | {
            "PET_NNODES": f"{gang.least}:{gang.most}" if gang.least < gang.most else str(gang.most),
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": f"{_host(first.address)}:{first.ports[1]}",
            "PET_RDZV_ID": f"{workload.id}-{wiring.round}",
            "PET_MAX_RESTARTS": str(workload.retry.backoff_limit),
        }
    return common | {
        "PET_NNODES": str(len(wiring.seats)),
        "PET_NODE_RANK": str(wiring.rank_of(index)),
        "PET_MASTER_ADDR": first.address,
        "PET_MASTER_PORT": str(first.ports[0]),
    }


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
