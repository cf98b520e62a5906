"""A head that leads, or is the only one, does not leave its pool, also when it is forced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpupool.client.discovery import Location
from gpupool.daemon.cluster.joining import leave
from gpupool.daemon.config import MachineRole, PoolConfig, PoolKind, save_config
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.heads import Head
from gpupool.fabric.ray.head_selection import keep_heads


@pytest.mark.parametrize("force", [False, True])
def test_only_head_cannot_leave_and_keeps_its_keys(tmp_path: Path, force: bool) -> None:
    state, run = tmp_path / "state", tmp_path / "run"
    (state / "cluster").mkdir(parents=True)
    config = PoolConfig(
        str(state), str(run), PoolKind.USER, role=MachineRole.HEAD, cluster_address="10.0.0.1", node_name="h1"
    )
    save_config(config)
    member = {"url": "https://127.0.0.1:1", "certificate": "pem", "node": "h1", "secret": "s"}
    (state / "cluster" / "member.json").write_text(json.dumps(member))
    keep_heads(state / "cluster", [Head("h1", "https://127.0.0.1:1", "pem", "10.0.0.1", 8650)])
    with pytest.raises(GpupoolError) as caught:
        leave(Location(str(state), str(run), "user"), force=force)
    assert caught.value.code is ErrorCode.WRONG_STATE
    assert {entry.name for entry in (state / "cluster").iterdir()} == {"member.json", "heads.json"}
