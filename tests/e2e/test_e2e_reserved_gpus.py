"""A GPU that is reserved for one workspace is refused to another, and then moves there, with the same results."""

from __future__ import annotations

import pytest
from e2e_pool import RealPool, eventually
from test_e2e_workspaces import becomes, remove

SCRIPT = "import os; print(sum(n * n for n in range(1000))); print(bool(os.environ['CUDA_VISIBLE_DEVICES']))"


def run_script(pool: RealPool, name: str) -> list[str]:
    return pool.text("exec", name, "--", "python3", "-c", SCRIPT).split()


def held_by(pool: RealPool) -> dict[str, list[str]]:
    """Return the names of the workloads that hold each GPU."""
    return {gpu["uuid"]: [holder["name"] for holder in gpu["holders"]] for gpu in pool.json("list-gpus")["gpus"]}


def test_gpu_is_assigned_while_stopped_refused_to_another_and_moved(new_pool: RealPool) -> None:
    pool = new_pool
    pool("workspace", "create", "first", "-g", "2", "--reserved")
    pool("workspace", "create", "second", "-n", "0")
    assert eventually(lambda: list(held_by(pool).values()) == [["first-reserved"]] * 2)
    pool("workspace", "start", "second")
    assert run_script(pool, "second") == ["332833500", "False"], "on the CPU"
    refused = pool("workspace", "assign", "second", "-g", "1", ok=False)
    assert b"second is running; it must be stopped for 'assign'" in refused.stderr
    pool("workspace", "stop", "second")
    assert becomes(pool, "second", "stopped")
    pool("workspace", "assign", "second", "-g", "1")
    pool("workspace", "start", "second", "--detach")
    reason = "2 GPUs are reserved for stopped workspaces: first-reserved"
    assert eventually(lambda: reason in pool.json("why", "second")["sentence"])
    pool("workspace", "start", "first")
    assert run_script(pool, "first") == ["332833500", "True"]
    assert list(held_by(pool).values()) == [["first"]] * 2
    pool("workspace", "stop", "first")
    assert eventually(lambda: list(held_by(pool).values()) == [["first-reserved"]] * 2)
    assert "2 (reserved)" in pool.text("workspace", "list")
    pool("workspace", "unassign", "first")
    assert pool.becomes("second", "running")
    assert run_script(pool, "second") == ["332833500", "True"]
    pool("workspace", "start", "first")
    assert run_script(pool, "first") == ["332833500", "False"]
    remove(pool, "first", "second")
    assert eventually(pool.all_free)


@pytest.mark.parametrize("when", ["stopped", "started"])
def test_killed_control_plane_keeps_the_reservation(own_pool: RealPool, when: str) -> None:
    pool = own_pool
    pool("workspace", "create", "lab", "-g", "1", "--reserved")
    assert eventually(lambda: list(held_by(pool).values()) == [["lab-reserved"]])
    if when == "started":
        pool("workspace", "start", "lab")
    pool.kill_child("control-plane")
    expected = "lab" if when == "started" else "lab-reserved"
    assert eventually(lambda: list(held_by(pool).values()) == [[expected]])
    remove(pool, "lab")
    assert eventually(pool.all_free)
