"""PyTorch: the variables that ``torchrun`` sets for its ranks, and those that it reads itself.

A program that is started directly is one rank per member; ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and the others are
those of torch's environment initialisation. A member that runs ``torchrun`` gets its options as ``PET_*`` variables,
which exist for every option, and starts as many ranks as the member has GPUs.

With ``on_member_end`` continue, a member may return by itself. It meets the others through torchrun's c10d rendezvous
at the first member, which is therefore always needed. Otherwise the size of a round is fixed, and the next one may be
smaller or larger.
"""

from __future__ import annotations

from gpupool.domain.work.gang import Rendezvous
from gpupool.domain.work.workload import OnMemberEnd, Workload

PORTS = 2  # the store of the ranks, the rendezvous of torchrun


def ports_needed(_workload: Workload, _index: int) -> int:
    """Return two ports: every member may be the first of its round."""
    return PORTS


def may_join(workload: Workload, old: Rendezvous, index: int, _address: str, _ports: tuple[int, ...]) -> bool:
    """Return True for torchrun with a rendezvous, unless this member hosts the rendezvous."""
    return workload.on_member_end is OnMemberEnd.CONTINUE and old.seats[0].index != index


def environment(workload: Workload, wiring: Rendezvous, index: int) -> dict[str, str]:
    """Return the variables of a rank and of torchrun."""
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


def command(_workload: Workload, _wiring: Rendezvous, _index: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command unchanged."""
    return argv


def _interface(wiring: Rendezvous, index: int) -> dict[str, str]:
    """Return the network interface for the ranks: their default, from the host's name, is often loopback."""
    seat = wiring.seat_of(index)
    if seat is None or not seat.interface:
        return {}
    return {"GLOO_SOCKET_IFNAME": seat.interface, "NCCL_SOCKET_IFNAME": f"={seat.interface}"}


def _of_torchrun(workload: Workload, wiring: Rendezvous, index: int) -> dict[str, str]:
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
