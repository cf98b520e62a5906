"""Lost machines: their work is not lost, nothing runs twice, no GPU is leased twice."""

from __future__ import annotations

import itertools
import random
import sqlite3
import time

from machines_harness import Machines, Weather, eventually
from ticks import TICK, attempts

FENCE_S = 5
SEED = 11


def check_leases(pool: Machines) -> None:
    """Check that no two programs held a whole GPU at the same time."""
    with sqlite3.connect(f"file:{pool.state}/pool.db?mode=ro", uri=True) as connection:
        rows = connection.execute(
            "select s.gpu_uuid, l.granted_at, coalesce(l.released_at, 1e18) from lease_shares s"
            " join leases l on l.epoch = s.epoch where s.permille = 1000 order by s.gpu_uuid, l.granted_at, l.epoch"
        ).fetchall()
    for (gpu, _, end), (other, begin, _) in itertools.pairwise(rows):
        assert gpu != other or end <= begin, (gpu, end, begin)


def test_work_of_lost_machines_moves_and_never_runs_twice(pool: Machines) -> None:
    pool.ask("PATCH", "policy", {"node_lost_after_s": FENCE_S})
    names = ("frozen", "cut")
    for name in names:
        line = f"echo this is $GPUPOOL_ATTEMPT; {TICK.format(pool.work / name)}"
        pool.submit(name, line, grace="1s", restart="on-failure")
    assert all(pool.becomes(name, "running") for name in names)
    assert eventually(lambda: all(1 in attempts(pool.work / name) for name in names))
    first = {name: pool.nodes[pool.node_of(name)] for name in names}
    first["frozen"].freeze()
    first["cut"].weather(Weather.CUT)
    for name in names:
        assert eventually(lambda n=name: pool.replica(n)["attempt"] == 2 and pool.state_of(n) == "running")
        assert pool.node_of(name) != first[name].name
        events = pool.get(f"events?workload={name}&limit=100")["events"]
        assert "NODE_LOST" in [event["reason"] for event in events]
    assert eventually(lambda: all(2 in attempts(pool.work / name) for name in names))
    pool.heal()
    for name in names:
        ran = attempts(pool.work / name)
        assert ran[1][1] < ran[2][0], "both attempts ran at the same time"
        assert eventually(lambda n=name: first[n].programs() == [])
        key = f"{pool.get(f'workloads/{name}')['id']}."
        assert eventually(lambda n=name, k=key: all(s["exit"] for s in first[n].ask("list") if s["key"].startswith(k)))
        for attempt in (1, 2):
            assert eventually(lambda n=name, a=attempt: f"this is {a}\n" in pool.output(n, a)), "from where it ran"
    check_leases(pool)


def test_machines_without_control_plane_end_batch_work_which_is_retried(pool: Machines) -> None:
    pool.ask("PATCH", "policy", {"node_lost_after_s": FENCE_S})
    path = pool.work / "alone"
    pool.submit("alone", TICK.format(path), grace="1s")
    pool.submit("sits", "while :; do sleep 0.2; done", kind="interactive")
    assert pool.becomes("alone", "running")
    assert pool.becomes("sits", "running")
    assert eventually(lambda: 1 in attempts(path))
    node, kept = pool.nodes[pool.node_of("alone")], pool.key_of("sits")
    pool.kill_control_plane()
    assert eventually(lambda: node.programs() == []), "the fence"
    pool.up()
    assert eventually(lambda: pool.replica("alone")["attempt"] == 2 and pool.state_of("alone") == "running")
    assert eventually(lambda: 2 in attempts(path))
    ran = attempts(path)
    assert ran[1][1] < ran[2][0]
    assert (pool.state_of("sits"), pool.key_of("sits")) == ("running", kept)
    check_leases(pool)


def test_each_job_succeeds_once_under_random_faults(pool: Machines) -> None:
    """Losses are short: no program is fenced, so each job must run exactly once."""
    dice = random.Random(SEED)
    pool.ask("PATCH", "policy", {"node_lost_after_s": None})
    ran = pool.work / "ran"
    names = [f"job-{number}" for number in range(12)]
    for name in names:
        pool.submit(name, f"echo {name} >> {ran}; sleep {dice.uniform(0.2, 1.0):.1f}")
    for _ in range(8):
        node = dice.choice(list(pool.nodes.values()))
        match dice.choice(("cut", "frozen", "deaf", "kill agent", "kill control plane")):
            case "cut":
                node.weather(Weather.CUT)
            case "frozen":
                node.weather(Weather.FROZEN)
            case "deaf":
                node.weather(Weather.DEAF)
            case "kill agent":
                node.kill()
                node.start()
            case _:
                pool.kill_control_plane()
                pool.up(ok=False)
        time.sleep(dice.uniform(0.1, 0.6))
        if dice.random() < 0.6:
            node.weather(Weather.FINE)
    pool.heal()
    assert all(pool.becomes(name, "succeeded", "failed", "stopped") for name in names)
    assert {name: pool.state_of(name) for name in names} == dict.fromkeys(names, "succeeded")
    assert sorted(ran.read_text().split()) == sorted(names)
    assert eventually(lambda: all(node.programs() == [] for node in pool.nodes.values())), "their shepherds ended too"
    check_leases(pool)
