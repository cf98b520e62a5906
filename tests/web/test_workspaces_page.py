"""The pages of workspaces and of served ports without a browser: what they say, who may see and do what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from pool_world import ADMIN, ANN, world_in
from web_harness import Site, words

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Role
from gpupool.domain.work.program.supervision import ListeningPort
from gpupool.domain.work.workspace import Workspace, WorkspaceState
from gpupool.services.workspaces.service import NewWorkspace
from gpupool.web.pages.workload.view import ports_shown

ANN_UID, BOB_UID, EVE_UID = 1001, 1002, 1003


@pytest.fixture
def people(tmp_path: Any) -> Iterator[Site]:
    """Return an application: Ann and Bob are members, Eve is a viewer; their workspaces have limits of disk."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path) as world:
        members = (("ann", ANN_UID, Role.MEMBER), ("bob", BOB_UID, Role.MEMBER), ("eve", EVE_UID, Role.VIEWER))
        for name, uid, role in members:
            world.do(world.services.access.put_user(ADMIN, name, {"uid": uid, "role": role}))
        rules = {"user_workspace_mib": 20, "workspace_mib": 100}
        world.do(world.services.access.change_project(ADMIN, "default", {"rules": rules}))
        yield Site(world)


def new(site: Site, name: str = "lab", **wanted: Any) -> Workspace:
    service = site.world.services.workspaces

    async def story() -> Workspace:
        row = await service.settled(await service.create(ANN, NewWorkspace(name, **wanted)), 30)
        assert row is not None
        return row

    return site.world.do(story())


def state(site: Site, row: Workspace) -> WorkspaceState:
    service = site.world.services.workspaces
    return service.state(service.get(ADMIN, row.id))


def notice(site: Site, answer: Any, uid: int = ANN_UID) -> str:
    """Return the text of the page, with its notice, to which a form leads."""
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"].partition(";")[0]
    return words(site.get(answer.headers["location"], uid, cookie=cookie).text)


def test_list_shows_state_size_node_and_disk_with_its_limits(people: Site) -> None:
    assert "No workspaces" in words(people.get("/workspaces", ANN_UID).text)
    row = new(people, environment="python3.11")
    people.world.agent.homes[row.id].copies[""] = 10 << 20
    saved = people.post(f"/workspaces/{row.id}/snapshots", ANN_UID, name="one")
    assert "Snapshot one saved." in notice(people, saved)
    said = words(people.get("/workspaces", ANN_UID).text)
    assert "lab python3.11 ■ stopped ann default 1 here 20.0 MiB 1" in said
    assert "ann in default: 20.0 MiB of 20 MiB" in said
    assert "the project default: 20.0 MiB of 100 MiB" in said


def test_workspace_starts_with_a_size_and_stops(people: Site) -> None:
    row = new(people)
    page = f"/workspaces/{row.id}"
    for typed, wrong in (("1.5", "neither a part"), ("many", "not"), ("4000", "not a number of GPUs")):
        refused = people.post(f"{page}/start", ANN_UID, page=page, gpus=typed)
        assert wrong in notice(people, refused), typed
        assert state(people, row) is WorkspaceState.STOPPED
    assert "Starting lab: GPUs 0.25." in notice(people, people.post(f"{page}/start", ANN_UID, gpus="0.25"))
    assert state(people, row) is WorkspaceState.RUNNING
    running = people.get(page, ANN_UID).text
    assert "GPUs 0.25" in words(running)
    assert "/start" not in running
    session = people.world.services.workspaces.session(row)
    assert session is not None
    assert f"/workloads/{session.id}/shell" in running
    shell = people.post(f"/workloads/{session.id}/shell", ANN_UID).headers["location"].split("/")[2].split("#")[0]
    [spec] = [p.spec for p in people.world.agent.running() if p.spec.key.startswith(shell)]
    assert (spec.workspace, spec.cwd) == (row.id, "")
    assert "must be stopped" in notice(people, people.post(f"{page}/snapshots", ANN_UID, page=page, name="one"))
    assert "Its files stay on here" in notice(people, people.post(f"{page}/stop", ANN_UID))
    assert state(people, row) is WorkspaceState.STOPPED
    assert 'value="0.25"' in people.get(page, ANN_UID).text
    assert "Starting lab: GPUs none." in notice(people, people.post(f"{page}/start", ANN_UID, gpus="0"))


def test_form_reserves_the_gpus_of_a_new_workspace(people: Site) -> None:
    made = people.post("/workspaces", ANN_UID, name="kept", gpus="1", reserved="yes")
    assert "Workspace kept created on here." in notice(people, made)
    assert "1 (reserved)" in words(people.get("/workspaces", ANN_UID).text)
    people.post("/workspaces", ANN_UID, name="late", gpus="2", reserved="yes")
    assert "2 (reservation waits)" in words(people.get("/workspaces", ANN_UID).text)
    refused = people.post("/workspaces", ANN_UID, page="/workspaces", name="part", gpus="0.5", reserved="yes")
    assert "Only whole GPUs" in words(refused.text)


def test_waiting_session_shows_its_wait_reason(people: Site) -> None:
    row = new(people)
    people.world.do(people.world.submit(ADMIN, gpus={"count": 2}, kind="interactive"))
    people.post(f"/workspaces/{row.id}/start", ANN_UID, gpus="1")
    assert "its workspace is stored on here" in words(people.get(f"/workspaces/{row.id}", ANN_UID).text)


def test_snapshot_is_restored_and_deleted(people: Site) -> None:
    row = new(people)
    page, home = f"/workspaces/{row.id}", people.world.agent.homes[row.id]
    home.copies[""] = 10
    people.post(f"{page}/snapshots", ANN_UID, name="ten")
    home.copies[""] = 20
    [snapshot] = people.world.services.workspaces.get(ANN, "lab").snapshots
    text = people.get(page, ANN_UID).text
    assert "by those of ten? The present files are lost." in text
    restored = people.post(f"{page}/snapshots/{snapshot.id}/restore", ANN_UID)
    assert "lab restored from ten." in notice(people, restored)
    assert home.copies[""] == 10
    assert "Snapshot ten deleted." in notice(people, people.post(f"{page}/snapshots/{snapshot.id}/delete", ANN_UID))
    assert list(home.copies) == [""]


def test_delete_lists_losses_and_needs_the_name(people: Site) -> None:
    row = new(people)
    page = f"/workspaces/{row.id}"
    people.world.agent.homes[row.id].copies[""] = 3 << 20
    people.post(f"{page}/snapshots", ANN_UID, name="one")
    assert "This deletes its home and 1 snapshot (6.0 MiB on here)." in words(people.get(page, ANN_UID).text)
    assert "Nothing was deleted" in notice(people, people.post(f"{page}/delete", ANN_UID, page=page, name="bob"))
    assert state(people, row) is WorkspaceState.STOPPED
    assert people.post(f"{page}/delete", ANN_UID, name="lab").headers["location"] == "/workspaces"
    assert people.world.services.workspaces.all(ADMIN) == []
    assert people.get(page, ANN_UID).status_code == 404


def test_change_in_progress_and_its_failure_are_shown(people: Site) -> None:
    row = new(people)
    page = f"/workspaces/{row.id}"
    people.world.agent.home_error = GpupoolError(ErrorCode.DISK_FULL, "The disk is full.", "Delete files.")
    failed = people.post(f"{page}/snapshots", ANN_UID, page=page, name="one")
    assert "The disk is full." in notice(people, failed)
    assert "The disk is full." in words(people.get("/workspaces", ANN_UID).text)
    people.world.agent.home_error, people.world.agent.slow_homes = None, True
    assert "being copied" in notice(people, people.post(f"{page}/snapshots", ANN_UID, name="one"))
    assert "◔ copying snapshot in progress" in words(people.get("/workspaces", ANN_UID).text)
    assert "/delete" not in people.get(page, ANN_UID).text


def test_workspace_is_created_from_the_form(people: Site) -> None:
    fields = {"name": "mine", "gpus": "4G", "environment": "python:3.11"}
    answer = people.post("/workspaces", ANN_UID, **fields)
    [row] = people.world.services.workspaces.all(ANN)
    assert answer.headers["location"] == f"/workspaces/{row.id}"
    assert (row.gpus.memory_mib, row.environment) == (4096, "python3.11")
    again = people.post("/workspaces", ANN_UID, **fields)
    assert (again.status_code, 'value="4G"' in again.text) == (422, True)
    assert "There is already a workspace" in words(again.text)
    for field, typed in (("name", "no name"), ("gpus", "x"), ("environment", "ruby"), ("node", "nowhere")):
        wrong = people.post("/workspaces", ANN_UID, **{**fields, "name": "other", field: typed})
        assert (wrong.status_code, typed in wrong.text) == (422, True), field


def test_others_neither_see_nor_change_a_workspace(people: Site) -> None:
    row = new(people)
    for uid in (BOB_UID, EVE_UID):
        assert "No workspaces" in words(people.get("/workspaces", uid).text)
        assert row.id not in people.get("/workspaces?format=csv&table=workspaces", uid).text
        for ref in (row.id, "lab"):
            assert people.get(f"/workspaces/{ref}", uid).status_code == 404
    for verb in (
        "start",
        "stop",
        "snapshots",
        "snapshots/h1/restore",
        "snapshots/h1/delete",
        "delete",
        "clone",
        "gpus",
        "snapshots/h1/share",
    ):
        refused = people.post(f"/workspaces/{row.id}/{verb}", BOB_UID, name="lab", gpus="1")
        assert f"There is no workspace '{row.id}'." in notice(people, refused, BOB_UID), verb
        assert people.post(f"/workspaces/{row.id}/{verb}", EVE_UID, name="lab").status_code == 403, verb
        assert people.post(f"/workspaces/{row.id}/{verb}", ANN_UID, token="", name="lab").status_code == 403, verb
    assert people.post("/workspaces", EVE_UID, name="mine", gpus="0").status_code == 403
    assert state(people, row) is WorkspaceState.STOPPED
    assert "lab" in people.get("/workspaces").text, "an administrator manages all"


def test_ports_of_program_are_shown_to_users_who_may_attach(people: Site) -> None:
    job = people.world.do(people.world.submit(ANN, name="serve", gpus={"count": 0}))
    [program] = people.world.agent.running()
    people.world.agent.ports[program.spec.key] = [ListeningPort(6006, "127.0.0.1", 7, "tensorboard")]
    shown = "tensorboard on port 6006 gpupool open serve 6006"
    assert shown in words(people.get(f"/workloads/{job.id}", ANN_UID).text)
    for uid in (BOB_UID, EVE_UID):
        assert "6006" not in people.get(f"/workloads/{job.id}", uid).text
    people.world.do(people.world.end(job))
    assert "6006" not in people.get(f"/workloads/{job.id}", ANN_UID).text


@pytest.mark.parametrize(
    ("address", "node", "local", "url"),
    [
        ("127.0.0.1", "10.0.0.5", False, ""),
        ("127.0.0.1", "10.0.0.5", True, "http://127.0.0.1:8888/"),
        ("0.0.0.0", "10.0.0.5", True, "http://127.0.0.1:8888/"),
        ("0.0.0.0", "10.0.0.5", False, "http://10.0.0.5:8888/"),
        ("::", "2001:db8::5", False, "http://[2001:db8::5]:8888/"),
        ("0.0.0.0", "127.0.0.1", False, ""),
        ("10.0.0.6", "10.0.0.5", True, "http://10.0.0.6:8888/"),
        ("::1", "10.0.0.5", False, ""),
    ],
)
def test_port_has_an_address_only_where_a_browser_reaches_it(address: str, node: str, local: bool, url: str) -> None:
    [shown] = ports_shown([ListeningPort(8888, address, 7, "python3")], "lab", node, local=local)
    assert (shown.url, shown.command, shown.program) == (url, "gpupool open lab 8888", "python3")


def test_each_port_is_shown_once_with_its_first_program() -> None:
    found = [ListeningPort(8888, "127.0.0.1", 7, "first"), ListeningPort(6006, "::", 8, "tensorboard")]
    found.append(ListeningPort(8888, "::1", 9, "second"))
    shown = ports_shown(found, "sweep/3", "127.0.0.1", local=False)
    assert [(row.port, row.program) for row in shown] == [(6006, "tensorboard"), (8888, "first")]
    assert shown[0].command == "gpupool open sweep/3 6006"


def test_snapshot_is_shared_and_cloned_by_another_user(people: Site) -> None:
    row = new(people)
    page = f"/workspaces/{row.id}"
    people.post(f"{page}/snapshots", ANN_UID, name="start")
    [snapshot] = people.world.services.workspaces.get(ANN, "lab").snapshots
    assert "Shared with you" not in words(people.get("/workspaces", BOB_UID).text)
    shared = people.post(f"{page}/snapshots/{snapshot.id}/share", ANN_UID, shared="1")
    assert "Snapshot start shared with default." in notice(people, shared)
    assert "Stop sharing" in words(people.get(page, ANN_UID).text)
    assert "Shared with you" in words(people.get("/workspaces", BOB_UID).text)
    assert people.get(page, BOB_UID).status_code == 404
    cloned = people.post(f"{page}/clone", BOB_UID, name="mine", snapshot="start")
    assert "Workspace mine created on here." in notice(people, cloned, BOB_UID)
    people.post(f"{page}/snapshots/{snapshot.id}/share", ANN_UID)
    assert "Shared with you" not in words(people.get("/workspaces", BOB_UID).text)
    refused = people.post(f"{page}/clone", BOB_UID, page="/workspaces", name="again", snapshot="start")
    assert "There is no workspace" in notice(people, refused, BOB_UID)


def test_workspace_is_cloned_and_gets_gpus(people: Site) -> None:
    row = new(people)
    page = f"/workspaces/{row.id}"
    assert "Workspace copy created" in notice(people, people.post(f"{page}/clone", ANN_UID, name="copy", snapshot=""))
    assigned = people.post(f"{page}/gpus", ANN_UID, gpus="1", reserved="1")
    assert "GPUs of the next start of lab: 1." in notice(people, assigned)
    assert people.world.services.workspaces.get(ANN, "lab").reserved
    assert "GPUs of the next start of lab: none." in notice(people, people.post(f"{page}/gpus", ANN_UID, gpus="0"))
    refused = people.post(f"{page}/gpus", ANN_UID, page=page, gpus="0.5", reserved="1")
    assert "can be reserved" in notice(people, refused)
