"""Measure the time of decisions about gangs: `python benchmarks/scheduler/gangs.py [--runs 5]`.

In process, one thread, no store, no network. On nodes of eight GPUs in racks of 25: the place of 100 members of eight
GPUs on 1,250 nodes; one decision that starts a gang of 512 members of one GPU that prefer one rack, on 500 nodes
(KAI-Scheduler's example results give 48.7 s for that, with a simulated Kubernetes around it); one decision in which a
starving gang of ten members of eight GPUs gets a hold on a cluster full of work with time limits; the next decisions,
with four such holds and 1,000 gangs of four that wait. Times are wall-clock times and CPU times.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path

from decide import GPUS_PER_NODE, NOW, RESULTS, Size, Times, empty_cluster, node, replica, spread, timed, write_result

from gpupool.domain.nodes.gpu import GpuRequest, Node
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.gang_placement import place
from gpupool.scheduling.scheduler import PendingAdded, Scheduler
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.values import PendingReplica

PER_RACK = 25


def in_racks(nodes: int) -> list[Node]:
    """Return nodes with the labels of their racks."""
    return [replace(node(n), labels={"rack": f"rack{n // PER_RACK:03}"}) for n in range(nodes)]


def cluster(nodes: int) -> Scheduler:
    """Return a cluster of free nodes and ten projects without limits."""
    return empty_cluster(Size(in_racks(nodes), [], 0, 10, 0), None)


def members(number: int, request: GpuRequest, gang: Gang, **more: float) -> list[PendingReplica]:
    """Return all replicas of a gang."""
    made = [replica(number, request, f"project{number % 10}", gang=gang, index=index) for index in range(gang.most)]
    return [replace(one, **more) for one in made]  # type: ignore[arg-type]


def one_place(scheduler: Scheduler) -> Times:
    """Find places for 100 members of eight GPUs."""
    gang = members(1, GpuRequest(8), Gang(100, 100))
    demand = scheduler.demand
    shape, account = demand.shape_of(gang[0]), demand.account_of(gang[0])
    session = SchedulingSession(scheduler.placer, demand, NOW, scheduler.settings)
    found: list[object] = []
    took = timed(lambda: found.append(place(session, gang, shape, account, 100)))
    session.close()
    if found[0] is None:
        raise SystemExit("no place was found")
    return took


def one_start() -> Times:
    """Place a gang of 512 members that prefer a rack, which has room for 200 of them."""
    scheduler = cluster(500)
    scheduler.apply_all(PendingAdded(m, NOW) for m in members(1, GpuRequest(1), Gang(512, 512, "rack")))
    found = []
    took = timed(lambda: found.append(scheduler.decide(NOW + 1)))
    if len(found[0].grants) != 512:
        raise SystemExit(f"{len(found[0].grants)} of 512 members started")
    return took


def full(nodes: int) -> Scheduler:
    """Return a cluster full of one-GPU jobs with different run times."""
    scheduler, rng = cluster(nodes), random.Random(1)
    for number in range(nodes * GPUS_PER_NODE):
        one = replica(number, GpuRequest(1), f"project{number % 10}")
        scheduler.apply(PendingAdded(replace(one, max_time_s=rng.uniform(1000, 100_000)), NOW))
    while scheduler.decide(NOW + 1).more:
        pass
    return scheduler


def reservations(nodes: int, runs: int) -> dict[str, dict[str, float]]:
    """Measure decisions that create holds, and later ones with many gangs in the queue."""
    scheduler, reserving = full(nodes), []
    for number in range(4):
        gang = members(1_000_000 + number, GpuRequest(8), Gang(10, 10), queued_at=NOW - 1000 - number)
        scheduler.apply_all(PendingAdded(m, NOW) for m in gang)
        reserving.append(timed(lambda: scheduler.decide(NOW + 2)))
    if len(scheduler.holds) != 40:
        raise SystemExit(f"{len(scheduler.holds)} places are reserved, not 40")
    for number in range(1000):
        shape = GpuRequest(1 + number % 8)
        scheduler.apply_all(PendingAdded(m, NOW) for m in members(2_000_000 + number, shape, Gang(4, 4)))
    queued = timed(lambda: scheduler.decide(NOW + 3))
    after = [timed(lambda: scheduler.decide(NOW + 4)) for _ in range(runs)]
    return {
        "reserve for 10 x 8 GPUs": spread(reserving),
        "1,000 gangs of 4 come": spread([queued]),
        "nothing free, decide": spread(after),
    }


def main() -> None:
    """Run, print and store all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "scheduler-gangs.json")
    args = parser.parse_args()
    free = cluster(1250)
    table = {
        "place 100 x 8 GPUs": spread([one_place(free) for _ in range(args.runs + 1)][1:]),
        "start 512, one rack": spread([one_start() for _ in range(args.runs)]),
        **reservations(1250, args.runs),
    }
    for name, row in table.items():
        print(f"{name:24}" + "  ".join(f"{key} {value:>10,}" for key, value in row.items()))
    write_result(args.out, {"runs": args.runs, "results": table})


if __name__ == "__main__":
    main()
