"""Projects and departments: fair shares, and changes allowed for each role."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from pool_world import ADMIN, world_in
from web_harness import Site, words

from gpupool.domain.people.access import Department, Project, Role

MEMBER_UID = 4711  # an account of this machine that the pool has not seen: a member
RED = Project("red", quota_permille=1000, department="lab", note="vision")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return one pool for all tests here: red (quota 1) holds both GPUs, blue waits for one."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path_factory.mktemp("projects")) as world:

        async def story() -> None:
            access, departments = world.services.access, world.services.departments
            for name in ("ann", "mia"):
                await access.put_user(ADMIN, name, {"role": Role.MANAGER} if name == "mia" else {})
            await departments.create(ADMIN, Department("lab", quota_permille=1000))
            await access.create_project(ADMIN, RED)
            await access.create_project(ADMIN, Project("blue", quota_permille=1000, members=("ann", "mia")))
            for _ in range(2):
                await world.submit(ADMIN, project="red", gpus={"count": 1})
            await world.submit(ADMIN, project="blue", gpus={"count": 1}, kind="interactive")

        world.do(story())
        yield Site(world)


@pytest.fixture
def green(site: Site) -> Iterator[str]:
    """Return a project to change."""
    site.world.do(site.world.services.access.create_project(ADMIN, Project("green", note="new")))
    yield "/projects/green"
    site.world.do(site.world.services.access.delete_project(ADMIN, "green"))


def project(site: Site, name: str) -> Project:
    found = site.world.do(site.world.services.access.projects())
    return next(p for p in found if p.name == name)


def uid_of(site: Site, name: str, uid: int) -> int:
    site.world.do(site.world.services.access.put_user(ADMIN, name, {"uid": uid}))
    return uid


def test_project_list_shows_held_over_quota_and_requested_gpus(site: Site) -> None:
    page = site.get("/projects")
    said = words(page.text)
    assert "1. below quota by 1.00 GPU" in said
    assert "above its fair share by" in said
    assert "red holds 2.00 GPU, 1.00 of it over quota, quota 1.00" in page.text
    table = {line.split(",")[1]: line for line in site.get("/projects?format=csv&table=projects").text.splitlines()}
    assert table["project"].startswith("turn,project,department,quota,fair,held,borrowed,waiting")
    assert table["blue"].startswith("1,blue,,1.0,1.0,0.0,0.0,1.0,")
    assert table["red"].startswith(",red,lab,1.0,1.0,2.0,1.0,0.0,")


def test_member_sees_shares_and_no_forms(site: Site) -> None:
    for path in ("/projects", "/projects/red", "/departments/lab"):
        page = site.get(path, MEMBER_UID)
        assert page.status_code == 200
        main = page.text.partition("<main")[2]
        assert 'method="post"' not in main, path


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/projects", {"name": "mine", "weight": "1"}),
        ("/projects/red", {"quota": "9", "weight": "1"}),
        ("/projects/red/members", {"members": "eve"}),
        ("/projects/red/delete", {}),
        ("/departments", {"name": "mine", "weight": "1"}),
        ("/departments/lab", {"weight": "9"}),
        ("/departments/lab/delete", {}),
    ],
)
def test_forms_of_a_member_are_refused(site: Site, path: str, fields: dict[str, str]) -> None:
    answer = site.post(path, MEMBER_UID, page="/projects", **fields)
    assert answer.status_code == 403
    assert "FORBIDDEN" in answer.text
    assert project(site, "red") == RED
    assert "mine" not in {p.name for p in site.world.do(site.world.services.access.projects())}


def test_form_without_own_token_is_refused(site: Site) -> None:
    assert site.post("/projects/red/delete", token="").status_code == 403
    assert site.post("/projects/red/delete", token=site.token(MEMBER_UID)).status_code == 403
    assert project(site, "red")


FORM: dict[str, Any] = {
    "note": "vision",
    "department": "lab",
    "quota": "1.5",
    "over_quota": "on",
    "limit": "2",
    "user_limit": "1",
    "weight": "3",
    "model_quotas": "t4=0.5\nA100 = 1",
    "members": "ann, mia",
    "max_time": "12h",
    "idle_timeout": "30m",
    "max_time_limit": "1d",
    "max_gpus": "1",
    "max_queued": "50",
    "max_priority": "-7",
    "min_runtime": "0",
    "windows": "nights\nsat,sun",
    "node_pools": "a100, t4",
    "spread": "refuse",
    "compute_default": "cap",
    "compute_allowed": ["guarantee", "cap"],
    "sharing_default": "",
}


def test_administrator_changes_all_fields_in_one_form(site: Site, green: str) -> None:
    answer = site.post(green, page=green, **FORM)
    assert (answer.status_code, answer.headers["location"]) == (303, green)
    now = project(site, "green")
    assert (now.quota_permille, now.limit_permille, now.user_limit_permille, now.weight) == (1500, 2000, 1000, 3.0)
    assert (now.members, now.model_quotas) == (("ann", "mia"), (("A100", 1000), ("t4", 500)))
    assert (now.max_time_s, now.idle_timeout_s) == (43200.0, 1800.0)
    assert (now.rules.min_runtime_s, now.rules.max_time_limit_s) == (0.0, 86400.0)
    assert (now.rules.max_queued, now.rules.max_priority) == (50, -7)
    assert (now.rules.windows, now.rules.node_pools) == (("nights", "sat,sun"), ("a100", "t4"))
    assert now.rules.spread == "refuse"
    assert (now.compute_default, now.compute_allowed, now.sharing_default) == ("cap", ("guarantee", "cap"), None)
    cookie = answer.headers["set-cookie"].partition(";")[0]
    again = site.get(green, cookie=cookie).text
    missing = "Saved. No node is in the node pool 'a100', 't4' (no node has the label 'pool')."
    assert missing in html.unescape(words(again))
    for shown in ('value="1.5"', 'value="12h"', "A100=1\nt4=0.5", "nights\nsat,sun", 'value="cap" selected'):
        assert shown in again
    assert "changed: compute_allowed" in words(again)
    assert "Model Quota Holds a100 1 0" in words(again)

    events = again.count("changed:")
    assert site.post(green, **FORM).status_code == 303
    assert project(site, "green") == now
    assert site.get(green).text.count("changed:") == events, "saving what is there changes nothing"


@pytest.mark.parametrize(
    ("field", "typed", "said"),
    [
        ("quota", "two", "'two' is not a number of GPUs."),
        ("weight", "-1", "'-1' is not a number."),
        ("max_time", "soon", "'soon' is not a duration."),
        ("model_quotas", "t4", "'t4' has no =."),
        ("windows", "never", "'never' is not a time window."),
        ("members", "nobody", "There is no user 'nobody'."),
        ("department", "nowhere", "There is no department 'nowhere'."),
        ("note", "x" * 501, "A note has at most 500 characters."),
    ],
)
def test_invalid_form_is_shown_again_with_its_input(site: Site, green: str, field: str, typed: str, said: str) -> None:
    answer = site.post(green, **{**FORM, field: typed})
    assert answer.status_code == 422
    assert said in words(answer.text)
    assert typed in answer.text
    assert 'value="12h"' in answer.text or field == "max_time"
    assert project(site, "green") == Project("green", note="new")


def test_manager_changes_only_members_of_own_project(site: Site) -> None:
    mia = uid_of(site, "mia", 5000)
    assert "/projects/blue/members" in site.get("/projects/blue", mia).text
    assert "/projects/red/members" not in site.get("/projects/red", mia).text
    assert site.post("/projects/blue/members", mia, members="ann\nmia\nnobody").status_code == 422
    assert site.post("/projects/blue/members", mia, members="mia").status_code == 303
    assert project(site, "blue").members == ("mia",)
    assert site.post("/projects/blue", mia, **FORM).status_code == 403


def test_projects_and_departments_are_created_and_deleted(site: Site) -> None:
    asked = {"department": "lab", "quota": "0.5", "weight": "2", "members": "ann", "note": "new"}
    assert site.post("/projects", name="grey", **asked).headers["location"] == "/projects/grey"
    grey = project(site, "grey")
    assert (grey.quota_permille, grey.weight, grey.over_quota, grey.members) == (500, 2.0, False, ("ann",))
    taken = site.post("/projects", name="grey", weight="1")
    assert (taken.status_code, "already exists" in taken.text) == (422, True)
    assert site.post("/projects", name="no name", weight="1").status_code == 422
    assert site.post("/projects/grey/delete").headers["location"] == "/projects"
    busy = site.post("/projects/red/delete", page="/projects/red")
    assert busy.headers["location"] == "/projects/red", "it has live work"
    assert project(site, "red") == RED

    assert site.post("/departments", name="ops", weight="1").status_code == 303
    assert site.post("/departments/ops", quota="3", weight="2", limit="", note="x").status_code == 303
    assert "Decayed usage (GPU hours)" in words(site.get("/departments/ops").text)
    assert site.post("/departments/lab/delete", page="/departments/lab").headers["location"] == "/departments/lab"
    assert site.post("/departments/ops/delete").headers["location"] == "/projects"
    assert [d.name for d in site.world.do(site.world.services.departments.departments())] == ["lab"]


def test_unknown_object_is_not_found(site: Site) -> None:
    assert site.get("/projects/nothing").status_code == 404
    assert site.get("/departments/nothing").status_code == 404
    assert site.get("/projects/<script>").status_code == 400


def test_tables_have_rows_of_one_line(site: Site, green: str) -> None:
    shown = site.get("/projects").text
    assert '<section class="listing listing-dense" id="table-' in shown
    assert '<section class="listing" id="table-' not in shown
    assert "Recent use" in words(shown)
