"""Simulation of a real pool's history on other machines."""

from __future__ import annotations

from e2e_pool import RealPool


def test_history_of_pool_is_simulated_with_another_node(new_pool: RealPool) -> None:
    new_pool("project", "create", "whatif", "--quota", "1")
    new_pool("submit", "alone", "--project", "whatif", "-g", "2", "--", "sleep", "1")
    new_pool("submit", "sweep", "-g", "1", "--completions", "3", "--", "sleep", "0.2")
    assert new_pool.becomes("alone", "succeeded")
    assert new_pool.becomes("sweep", "succeeded")
    shown = new_pool.json("simulate", "--from-pool", "--since", "1h", "--add-nodes", "2x4xT4", "--quota", "whatif=2")
    now, changed = shown["base"], shown["changed"]
    assert (now["gpus"], changed["gpus"]) == (2, 10)
    assert now["jobs"] == changed["jobs"] >= 4
    assert changed["finished"] == changed["jobs"]
    assert changed["wait_s"]["max"] == 0.0
    assert now["projects"]["whatif"]["submitted"] == 1
    assert "CURRENT" in new_pool.text("simulate", "--from-pool", "--add-nodes", "1x1xT4")
    wrong = new_pool("simulate", "--from-pool", "--without", "nobody", ok=False)
    assert wrong.returncode != 0
    assert b"There is no node nobody" in wrong.stderr
