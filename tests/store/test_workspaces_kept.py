"""Workspaces are read back unchanged, and an upgraded database has none."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, Engine
from test_round_trip import with_database

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.nodes.sharing import Sharing
from gpupool.domain.work.workspace import (
    EnvironmentFile,
    Snapshot,
    TaskFailure,
    TaskKind,
    Workspace,
    WorkspaceTask,
)
from gpupool.store.pool import rows

PLAIN = Workspace("h0000000001", "bob", "ann", "default", "gpu1", GpuRequest(), created_at=1.5, used_at=2.5)
FULL = Workspace(
    "h0000000002",
    "bob",
    "eve",
    "cs101",
    "gpu1",
    GpuRequest(permille=250, models=("t4",), labels=(("room", "a"),), sharing=Sharing.MPS),
    created_at=1.5,
    used_at=2.5,
    uid=1001,
    image="lab:1",
    environment="python3.11",
    snapshots=(Snapshot("h00000000s1", "clean", 3.5), Snapshot("h00000000s2", "later", 4.5)),
    disk_bytes=1 << 40,
    measured_at=5.5,
    task=WorkspaceTask(
        "h00000000t1",
        TaskKind.CLONE,
        source="h0000000001",
        snapshot="h00000000s1",
        files=(EnvironmentFile("uv.lock", "version = 1\n"), EnvironmentFile("pyproject.toml", "")),
    ),
    failure=TaskFailure("h00000000t0", "DISK_FULL", "The disk is full.", "Delete files."),
)


def test_workspaces_are_read_back_unchanged(engine: Engine) -> None:
    def check(conn: Connection) -> None:
        assert rows.WORKSPACES.all(conn) == []
        for workspace in (PLAIN, FULL):
            rows.WORKSPACES.save(conn, workspace)
        assert rows.WORKSPACES.all(conn) == [PLAIN, FULL]
        rows.WORKSPACES.delete(conn, PLAIN.id)
        with pytest.raises(GpupoolError) as caught:
            rows.WORKSPACES.delete(conn, PLAIN.id)
        assert caught.value.code is ErrorCode.UNKNOWN_WORKSPACE

    with_database(engine, check)
