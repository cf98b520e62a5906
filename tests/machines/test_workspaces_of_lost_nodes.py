"""A node that is lost together with its disk: its workspaces say so, and exports of them start on another node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machines_harness import Machines, eventually, machines


@pytest.fixture
def two_nodes() -> Iterator[Machines]:
    with machines(2, "1xT4", hasty=True) as made:
        yield made
        made.heal()


def workspace(pool: Machines, name: str) -> Any:
    return pool.json("workspace", "show", name)


def test_workspace_of_a_lost_node_waits_and_its_export_starts_elsewhere(two_nodes: Machines, tmp_path: Path) -> None:
    pool, file = two_nodes, tmp_path / "lab.tar"
    pool("workspace", "create", "lab", "-g", "1")
    lost = workspace(pool, "lab")["node"]
    pool("workspace", "start", "lab")
    pool("exec", "lab", "--", "sh", "-c", "echo saved > data")
    pool("workspace", "stop", "lab")
    assert eventually(lambda: workspace(pool, "lab")["state"] == "stopped")
    pool("workspace", "export", "lab", str(file))
    pool("workspace", "start", "lab")
    pool.nodes[lost].freeze()
    assert pool.node_becomes(lost, "down")
    pool("node", "lost", lost, "--reason", "its disk failed")
    assert eventually(lambda: workspace(pool, "lab")["state"] == "stopped")
    ended = pool.json("ps", "--all")["workloads"]
    assert any(row["name"] == "lab" and row["reason"]["code"] == "NODE_LOST" for row in ended if row["reason"]), ended

    pool("workspace", "start", "lab", "--detach")
    assert eventually(lambda: f"its workspace is stored on {lost}" in pool.json("why", "lab")["sentence"])
    refused = pool("workspace", "delete", "lab", "--forget", "--yes", ok=False)
    assert b"it must be stopped for 'delete'" in refused.stderr
    pool("workspace", "stop", "lab")
    assert eventually(lambda: workspace(pool, "lab")["state"] == "stopped")
    pool("workspace", "delete", "lab", "--forget", "--yes")

    pool("workspace", "import", "lab", str(file))
    assert workspace(pool, "lab")["node"] != lost
    pool("workspace", "start", "lab")
    assert pool.text("exec", "lab", "--", "cat", "data") == "saved\n"
    pool("workspace", "stop", "lab")
