"""Compare estimates of start times with starts: `python benchmarks/scheduler/estimates.py DATA [--checkpoint none]`.

Every eighth job of ten days of the Philly trace on 64 GPUs (as `queueing.py --thin 8`), by the default policy. Whenever
the scheduler decides, a replica that has waited for 20 s and has no estimate may get one: from the run times of the
latest jobs of its virtual cluster, as in a pool. The first start of the job settles it. In the order of time each
estimate is then corrected by those that were settled before it, as in a pool. Printed: the part of the starts within
the range that should hold half of them and the one that should hold nine of ten, and the processor time of an estimate.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import process_time

import numpy as np
from decide import RESULTS, machine
from queueing import POLICIES, SAVES, THIN_CLUSTER, chosen, saving, thinned

from gpupool.scheduling.explain.background import Background
from gpupool.scheduling.explain.calibration import MAX_OUTCOMES, MIN_OUTCOMES, PredictedStart, learn
from gpupool.scheduling.holds.runtime_model import RunTimes
from gpupool.scheduling.values import ReplicaKey
from gpupool.simulate.clusters import parse_cluster
from gpupool.simulate.engine import Simulation
from gpupool.simulate.load import at_load, capacity_of

MIN_WAIT_S, KEPT = 20.0, 200
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Told:
    """An estimate: when it was made, the project, seconds until the start as predicted and as it happened."""

    made_at: float
    project: str
    predicted_s: float
    actual_s: float


class Asking(Simulation):
    """A simulation in which waiting replicas are explained now and then."""

    asks, every_s = 0, 300.0

    def prepare(self, most: int, seed: int) -> None:
        """Set the number of estimates and the seed of their choice."""
        self.most, self.rng = most, random.Random(seed)
        self.made: dict[ReplicaKey, tuple[float, float]] = {}
        self.asked: set[ReplicaKey] = set()
        self.took_ms: list[float] = []
        self.next_at = 0.0
        self.past: dict[tuple[str, str], deque[float]] = {}

    def _end(self, key: ReplicaKey, run: object, now: float, *, finished: bool) -> None:
        super()._end(key, run, now, finished=finished)  # type: ignore[arg-type]
        if finished:
            job = self.fates[int(key[0])].job
            for kind in ((job.project, job.user), (job.project, ""), ("", "")):
                self.past.setdefault(kind, deque(maxlen=KEPT)).append(job.duration_s)

    def _decide(self, now: float) -> None:
        super()._decide(now)
        if now < self.next_at or len(self.made) >= self.most:
            return
        late = [k for k, r in self._waiting.items() if k not in self.asked and now - r.queued_at >= MIN_WAIT_S]
        if late:
            self.next_at = now + self.every_s
            self._ask(self.rng.choice(late), now)

    def _ask(self, key: ReplicaKey, now: float) -> None:
        self.asked.add(key)
        if key[1] in self.fates[int(key[0])].starts:
            return
        history = {kind: RunTimes.of(list(seconds)) for kind, seconds in self.past.items()}
        began = process_time()
        found = self.scheduler.explain(key, now, background=Background(history))
        self.took_ms.append((process_time() - began) * 1000)
        if found is not None and found.foretold_s is not None:
            self.made[key] = (now, found.foretold_s)

    def told(self) -> list[Told]:
        """Return the settled estimates in the order in which they were made."""
        found = []
        for key, (at, predicted) in self.made.items():
            fate = self.fates[int(key[0])]
            if key[1] in fate.starts:
                found.append(Told(at, fate.job.project, predicted, fate.starts[key[1]] - at))
        return sorted(found, key=lambda told: told.made_at)


def coverage(told: Sequence[Told]) -> dict[str, float]:
    """Return the part of the starts within the ranges, each corrected by the estimates settled before."""
    settled = sorted(told, key=lambda one: one.made_at + one.actual_s)
    inside: dict[str, list[bool]] = {"half": [], "nine_of_ten": []}
    errors: list[float] = []
    for one in told:
        before = [o for o in settled if o.made_at + o.actual_s <= one.made_at]
        if len(before) < MIN_OUTCOMES:
            continue
        slip = learn(PredictedStart(o.predicted_s, o.actual_s) for o in before[: -MAX_OUTCOMES - 1 : -1])
        least, low, mid, high, most = slip.corrected(one.predicted_s)
        inside["half"].append(low <= one.actual_s <= high)
        inside["nine_of_ten"].append(least <= one.actual_s <= most)
        errors.append(max(one.actual_s, 1.0) / max(mid, 1.0))
    found = {name: round(float(np.mean(hits)), 3) for name, hits in inside.items()}
    within = float(np.mean([0.5 <= error <= 2 for error in errors]))
    return {"estimates": len(errors), **found, "within_factor_two": round(within, 3)}


def main() -> None:
    """Run the cases that were asked for, print them, keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that has philly/")
    parser.add_argument("--loads", nargs="+", type=float, default=[0.95])
    parser.add_argument("--checkpoint", nargs="+", default=["30m"], help="how often work saves: 30m, or none")
    parser.add_argument("--offsets", nargs="+", type=int, default=[0])
    parser.add_argument("--estimates", type=int, default=600)
    parser.add_argument("--out", type=Path, default=RESULTS / "scheduler-estimates.json")
    parser.add_argument("--raw", type=Path, help="write the estimates to this file as well")
    args = parser.parse_args()
    jobs, nodes = chosen(args.data / "philly" / "philly_jobs.csv", None), parse_cluster(THIN_CLUSTER)
    table: dict[str, object] = {}
    raw: dict[str, list[dict[str, object]]] = {}
    for load in args.loads:
        for offset in args.offsets:
            some = at_load(thinned(jobs, 8, offset, 10.0), capacity_of(nodes), load)
            for checkpoint in args.checkpoint:
                policy = saving(replace(POLICIES["pool"], rules=SAVES), checkpoint)
                run = Asking(some, nodes, (), policy.rules, policy.settings)
                run.prepare(args.estimates, offset)
                run.run()
                told = run.told()
                title = f"{load:.2f}, every 8th from {offset}, checkpoint {checkpoint}"
                p50, p99 = np.percentile(run.took_ms, [50, 99])
                table[title] = row = {**coverage(told), "ms_p50": round(p50, 1), "ms_p99": round(p99, 1)}
                raw[title] = [asdict(one) for one in told]
                print(title, row, flush=True)
                args.out.write_text(json.dumps({"machine": machine(), "results": table}, indent=2) + "\n")
                if args.raw:
                    args.raw.write_text(json.dumps(raw))


if __name__ == "__main__":
    main()
