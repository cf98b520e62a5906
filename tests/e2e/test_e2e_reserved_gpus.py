"""A GPU that is reserved for one workspace is refused to another, and then moves there, with the same results."""

from __future__ import annotations

import pytest
from e2e_pool import RealPool, eventually, fresh_pool
from test_e2e_workspaces import becomes, remove

SCRIPT = "import os; print(sum(n * n for n in range(1000))); print(bool(os.environ['CUDA_VISIBLE_DEVICES']))"


def run_script(pool: RealPool, name: str) -> list[str]:
    return pool.text("exec", name, "--", "python3", "-c", SCRIPT).split()


def held_by(pool: RealPool) -> dict[str, list[str]]:
    """Return the names of the workloads that hold each GPU."""
    return {gpu["uuid"]: [holder["name"] for holder in gpu["holders"]] for gpu in pool.json("list-gpus")["gpus"]}


def used_gpu_s(pool: RealPool) -> float:
    """Return the GPU seconds that the usage report counts for the owner."""
    return sum(float(row["gpu_seconds"]) for row in pool.json("usage")["rows"])


def test_gpu_is_assigned_while_stopped_refused_to_another_and_moved(new_pool: RealPool) -> None:
    pool = new_pool
    pool("workspace", "create", "first", "-g", "2", "--reserved")
    pool("workspace", "create", "second", "-n", "0")
    assert eventually(lambda: list(held_by(pool).values()) == [["first-reserved"]] * 2)
    [shares] = [row for row in pool.json("fairshare")["projects"] if row["project"] == "default"]
    assert shares["held_permille"] == 2000
    assert eventually(lambda: used_gpu_s(pool) > 0), "metered while stopped"
    pool("workspace", "start", "second")
    assert run_script(pool, "second") == ["332833500", "False"], "on the CPU"
    refused = pool("workspace", "assign", "second", "-g", "1", ok=False)
    assert b"second is running; it must be stopped for 'assign'" in refused.stderr
    pool("workspace", "stop", "second")
    assert becomes(pool, "second", "stopped")
    pool("workspace", "assign", "second", "-g", "1")
    pool("workspace", "start", "second", "--detach")
    pool("workspace", "create", "late", "-g", "1", "--reserved")
    listed = next(line for line in pool.text("workspace", "list").splitlines() if line.startswith("late"))
    assert "1 (reservation waits)" in listed
    assert "no GPU is reserved yet: 'gpupool why" in listed
    pool("workspace", "delete", "late", "-y")
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


def test_mig_instance_stays_with_a_stopped_workspace() -> None:
    with fresh_pool("1xA100-80GB[3g.40gb,2g.20gb]") as pool:
        pool("workspace", "create", "lab", "-g", "1", "--gpu-model", "3g.40gb", "--reserved")
        assert eventually(lambda: sorted(held_by(pool).values()) == [[], ["lab-reserved"]])
        [instance] = [uuid for uuid, holders in held_by(pool).items() if holders]
        pool("submit", "other", "-g", "1", "--gpu-model", "3g.40gb", "--wait", "1s", "--", "sleep", "600")
        assert pool.becomes("other", "stopped", "failed"), "it waits in vain"
        pool("workspace", "start", "lab")
        assert held_by(pool)[instance] == ["lab"]
        assert pool.text("exec", "lab", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").strip() == instance
        pool("workspace", "stop", "lab")
        assert eventually(lambda: held_by(pool)[instance] == ["lab-reserved"])
        pool("workspace", "unassign", "lab")
        assert eventually(pool.all_free)
