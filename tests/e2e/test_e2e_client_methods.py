"""Methods of the Python client for administrators, services and workspaces, against a whole pool."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_pool import RealPool, eventually

from gpupool import Client
from gpupool.domain.errors import ErrorCode, GpupoolError

SERVER = Path(__file__).parents[2] / "examples" / "services" / "openai_server.py"


@pytest.fixture
def client(pool: RealPool) -> Iterator[Client]:
    with pool.client as made:
        yield made


def is_deleted(client: Client, service: str) -> bool:
    """Delete a service, which is refused while its replicas end."""
    try:
        client.delete_service(service)
    except GpupoolError as error:
        if error.code is not ErrorCode.WRONG_STATE:
            raise
        return False
    return True


def test_departments_are_created_changed_and_deleted(client: Client) -> None:
    made = client.create_department("research", quota_permille=1500, weight=2.0)
    assert (made.name, made.quota_permille, made.weight) == ("research", 1500, 2.0)
    assert client.change_department("research", note="B 2.14").note == "B 2.14"
    client.create_project("vision", department="research")
    assert "research" in [department.department for department in client.fair_share().departments]
    client.delete_project("vision")
    client.delete_department("research")
    assert "research" not in [department.name for department in client.departments()]


def test_backups_and_warnings_are_changed_and_others_stay(client: Client, tmp_path: Path) -> None:
    before = client.backups()
    changed = client.change_backups(every_s=3600.0, keep=3)
    assert (changed.every_s, changed.keep, changed.folder) == (3600.0, 3, before.folder)
    assert client.change_backups(every_s=None).every_s is None
    client.change_backups(keep=before.keep)
    sender = client.warnings().sender
    assert client.change_warnings(before_s=1200.0).before_s == 1200.0
    assert client.warnings().sender == sender
    with pytest.raises(GpupoolError) as caught:
        client.change_warnings(smtp_port=0)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_service_is_updated_undone_protected_and_deleted(client: Client) -> None:
    command = [sys.executable, str(SERVER), "--port", "{port}"]
    service = {"replicas": 1, "ready": {"http": "/health"}, "access": "token"}
    made = client.serve("chat", command, gpus={"fraction": 0.1}, service=service)
    assert eventually(lambda: client.service("chat").ready == 1)
    assert made.definition is not None
    changed = client.update_service("chat", {**made.definition, "command": [*command, "--model", "second"]})
    assert len(changed.revisions) == 2
    undone = client.undo_service("chat").definition
    assert undone is not None
    assert undone["command"] == command
    assert len(client.service_token("chat")) > 20
    assert client.service("chat").tokens == 1
    assert client.delete_service_tokens("chat").tokens == 0
    client.stop_service("chat")
    assert eventually(lambda: is_deleted(client, "chat"))
    assert "chat" not in [each.name for each in client.services()]


def test_snapshots_are_made_shared_restored_cloned_and_deleted(client: Client) -> None:
    client.create_workspace("lab", gpus=0)
    assert client.assign_gpus("lab", {"fraction": 0.5}).gpus.permille == 500
    client.snapshot_workspace("lab", "first")
    assert [each.name for each in client.workspace("lab").snapshots] == ["first"]
    shared = client.share_snapshot("lab", "first").snapshots
    assert [each.shared for each in shared] == [True]
    assert client.shared_snapshots() == [], "one's own are not in the list"
    client.restore_workspace("lab", "first")
    assert client.clone_workspace("lab", "copy", "first").name == "copy"
    assert client.delete_snapshot("lab", "first").snapshots == []
    for name in ("lab", "copy"):
        client.delete_workspace(name)
    assert [each.name for each in client.workspaces() if each.name in {"lab", "copy"}] == []
