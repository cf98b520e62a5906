"""The scheduling policy, changed in a pool that runs: restartable work is moved together, and the policy is kept."""

from __future__ import annotations

from e2e_pool import RealPool, eventually

STAY = 'trap "exit 0" TERM; echo attempt $GPUPOOL_ATTEMPT; while :; do sleep 0.05; done'


def test_work_is_consolidated_for_a_whole_gpu_request(pool: RealPool) -> None:
    before = pool.json("policy", "show")
    pool("policy", "set", "--min-runtime", "1s", "--consolidate-after", "1s")
    try:
        for name in ("left", "right"):  # one on each GPU: for each a neighbour that leaves
            pool("submit", name, "-g", "0.4", "--", "sh", "-c", STAY)
            pool("submit", f"beside-{name}", "-g", "0.55", "--", "sleep", "1000")
            assert pool.becomes(f"beside-{name}", "running")
        for name in ("left", "right"):
            pool("stop", f"beside-{name}")
        assert eventually(lambda: sorted(pool.free_permille()) == [600, 600])
        pool("submit", "whole", "-g", "1", "--interactive", "--", "sleep", "1000")
        assert pool.becomes("whole", "running"), "0.4 and 0.4 fit on one GPU"
        assert eventually(lambda: sorted(pool.free_permille()) == [0, 200])
        moved = [name for name in ("left", "right") if "Consolidation for" in pool.text("events", name)]
        assert len(moved) == 1, "one of them is moved, the other left alone"
        assert eventually(lambda: "attempt 2" in pool.text("logs", moved[0]))
    finally:
        pool("policy", "set", "--min-runtime", "1m", "--consolidate-after", "1m")
    assert pool.json("policy", "show") == before


def test_policy_survives_crash_and_only_administrators_change_it(own_pool: RealPool) -> None:
    own_pool("policy", "set", "--half-life", "12h", "--order", "shortest", "--turn", "never")
    own_pool("policy", "set", "--topology", "block,rack")
    own_pool.kill_child("control-plane")
    kept = own_pool.json("policy", "show")
    assert (kept["half_life_s"], kept["order"], kept["turn_s"]) == (43_200, "shortest", None)
    assert "half life:" in own_pool.text("policy", "show")
    assert kept["topology"] == ["block", "rack"]
    assert "block > rack" in own_pool.text("policy", "show")
    assert b"the largest domains first" in own_pool("policy", "set", "--topology", "rack,rack", ok=False).stderr
    own_pool("policy", "set", "--topology", "none")
    assert own_pool.json("policy", "show")["topology"] == []
    refused = own_pool("policy", "set", "--half-life", "1s", ok=False)
    assert refused.returncode != 0
    assert b"half_life_s" in refused.stderr
    with own_pool.client as client:
        assert client.change_policy(usage_weight=0).usage_weight == 0
        assert client.policy().half_life_s == 43_200
