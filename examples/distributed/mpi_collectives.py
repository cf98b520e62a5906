"""Allreduce, allgather and broadcast over all ranks with mpi4py, checked against NumPy.

    gpupool submit collectives --workers 4 --framework mpi -- python3 mpi_collectives.py

It also works under `mpirun -np 4 python3 mpi_collectives.py`: it does not depend on the pool.
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

SIZE = 100_000


def of_rank(rank: int) -> np.ndarray:
    """Return the initial data of a rank."""
    return np.random.default_rng(rank).standard_normal(SIZE)


def main() -> int:
    """Return 0 if all results equal those of NumPy."""
    world = MPI.COMM_WORLD
    own, everybodys = of_rank(world.rank), np.stack([of_rank(rank) for rank in range(world.size)])

    added = np.empty_like(own)
    world.Allreduce(own, added)
    gathered = np.empty_like(everybodys)
    world.Allgather(own, gathered)
    sent = own.copy()
    world.Bcast(sent, root=world.size - 1)

    right = {
        "allreduce": np.allclose(added, everybodys.sum(axis=0), rtol=1e-12),
        "allgather": np.array_equal(gathered, everybodys),
        "broadcast": np.array_equal(sent, everybodys[-1]),
    }
    verdicts = world.gather((world.rank, MPI.Get_processor_name(), right))
    for rank, host, found in verdicts or ():
        print(f"rank {rank} of {world.size} on {host}: " + ", ".join(f"{k} {v}" for k, v in found.items()), flush=True)
    return 0 if all(right.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
