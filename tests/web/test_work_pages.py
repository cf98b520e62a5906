"""The pages of work without a browser: what they say, who may see and do what."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from pool_world import ADMIN, ANN, BOB, World, world_in
from web_harness import Site, words

from gpupool.domain.errors import GpupoolError
from gpupool.domain.people.access import Role
from gpupool.domain.work.workload import Workload, WorkloadState
from gpupool.services.access.saved_views import MAX_VIEWS, SavedViews
from gpupool.services.ports.store import WorkloadFilter

ANN_UID, BOB_UID, EVE_UID = 1001, 1002, 1003
SECRET = "open-sesame"


@pytest.fixture(scope="module")
def shared_people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return one application for all tests here: Ann and Bob are members, Eve is a viewer."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path_factory.mktemp("people")) as world:
        members = (("ann", ANN_UID, Role.MEMBER), ("bob", BOB_UID, Role.MEMBER), ("eve", EVE_UID, Role.VIEWER))
        for name, uid, role in members:
            world.do(world.services.access.put_user(ADMIN, name, {"uid": uid, "role": role}))
        yield Site(world)


@pytest.fixture
def people(shared_people: Site) -> Iterator[Site]:
    """Stop and delete the workloads that a test leaves."""
    yield shared_people
    shared_people.world.do(clear(shared_people.world))


async def clear(world: World) -> None:
    work = world.services.workloads
    await work.stop_everything(ADMIN)
    await world.settle()
    for workload in await work.list(ADMIN, WorkloadFilter(limit=1000)):
        await work.delete(ADMIN, workload.id)


def submit(site: Site, **body: Any) -> Workload:
    return site.world.do(site.world.submit(**body))


def private(site: Site) -> Workload:
    """Return a running workload of Ann's with a secret in its command, environment and folder."""
    return submit(site, actor=ANN, name="hers", command=["serve", SECRET], env={"KEY": SECRET}, workdir=f"/{SECRET}")


def test_one_variable_is_not_plural(people: Site) -> None:
    assert "Environment (1 variable)" in words(people.get(f"/workloads/{private(people).id}").text)


# The queue


def test_queue_shows_order_wait_reason_and_estimate(people: Site) -> None:
    submit(people, name="hog", gpus={"count": 2}, max_time="1h")
    first, second = submit(people, name="one"), submit(people, name="two", actor=BOB, priority=100)
    people.get("/queue")  # reasons are asked for within a budget of time: what is missing comes with the next look
    page = people.get("/queue")
    why = people.world.do(people.world.services.workloads.why(ADMIN, first.id))
    said = words(page.text)
    assert why.sentence[1:] in said
    assert page.text.index(f"/workloads/{second.id}") < page.text.index(f"/workloads/{first.id}")
    assert "below its fair share" in said or "at its fair share" in said
    rows = list(csv.DictReader(io.StringIO(people.get("/queue?format=csv&table=queue").text)))
    assert [(row["name"], row["order"]) for row in rows] == [("two", "1"), ("one", "2")]


def test_empty_queue_shows_next_step(people: Site) -> None:
    assert "The queue is empty" in words(people.get("/queue").text)


def test_waiting_workload_shows_position_and_reason(people: Site) -> None:
    submit(people, name="hog", gpus={"count": 2})
    submit(people, name="urgent", priority=100)
    last = submit(people, name="last")
    said = words(people.get(f"/workloads/{last.id}").text)
    assert "Wait reason" in said
    assert "urgent of ann: priority 100 over 0" in said


def test_page_names_the_workloads_that_must_end_first(people: Site) -> None:
    first, second = submit(people, actor=ANN, name="first"), submit(people, actor=ANN, name="second")
    after = [{"workload": "first", "condition": "failure"}, {"workload": "second", "condition": "any"}]
    last = submit(people, actor=ANN, name="last", after=after)
    shown = people.get(f"/workloads/{last.id}", ANN_UID).text
    assert f'<a href="/workloads/{first.id}">first</a> (failure)' in shown
    assert f'<a href="/workloads/{second.id}">second</a> (any result)' in shown


def test_timeline_of_a_short_run_has_tenths(people: Site) -> None:
    run = submit(people, actor=ANN, name="short")
    shown = people.get(f"/workloads/{run.id}", ANN_UID).text
    assert re.search(r"<span>\+(<0\.1|0\.\d)s</span>", html.unescape(shown))


def test_list_shows_why_workloads_wait(people: Site) -> None:
    submit(people, actor=ANN, name="holds", command=["sleep"], gpus={"count": 2})
    submit(people, actor=ANN, name="waits", command=["sleep"], gpus={"count": 2})
    assert "Needs 2 GPUs" in words(people.get("/workloads?name=waits").text)
    assert "Needs" not in words(people.get("/workloads?name=holds").text)


def test_priority_of_waiting_workload_is_set_on_its_page(people: Site) -> None:
    submit(people, name="hog", gpus={"count": 2})
    submit(people, name="one")
    last = submit(people, name="last")
    url = f"/workloads/{last.id}"
    assert f'action="{url}/priority"' in people.get(url).text
    assert people.post(f"{url}/priority", page=url, priority="9").status_code == 303
    found = people.world.do(people.world.get("last"))
    assert found.priority == 9
    for wrong in ("", "much", "1001", "-1001", "1e3"):
        people.post(f"{url}/priority", page=url, priority=wrong)
    assert people.world.do(people.world.get("last")).priority == 9
    hog = people.world.do(people.world.get("hog"))
    assert f"/workloads/{hog.id}/priority" not in people.get(f"/workloads/{hog.id}").text


# Lists


def test_workloads_are_filtered_by_url(people: Site) -> None:
    submit(people, name="hers", labels={"team": "vision"})
    done = submit(people, name="his", actor=BOB)
    people.world.do(people.world.end(done))
    shown = {
        "/workloads": {"hers", "his"},
        "/workloads?state=live": {"hers"},
        "/workloads?state=succeeded": {"his"},
        "/workloads?user=ann": {"hers"},
        "/workloads?label=team%3Dvision": {"hers"},
        "/workloads?name=his": {"his"},
        "/workloads?project=other": set(),
        "/workloads?find=his": {"his"},
        "/workloads?find=HI": {"his"},
        "/workloads?find=team%3Dvis": {"hers"},
        "/workloads?find=user%3Abob": {"his"},
        "/workloads?name=er": {"hers"},
    }
    for address, names in shown.items():
        found = set(re.findall(r'href="/workloads/w[0-9a-z]+">(\w+)</a>', people.get(address).text))
        assert found == names, address
    assert people.get("/workloads?state=odd").status_code == 400
    assert people.get("/workloads?find=" + "+".join("abcdefghi")).status_code == 400


def names_of(html: str) -> list[str]:
    return re.findall(r'href="/workloads/w[0-9a-z]+">([\w-]+)</a>', html)


def test_workloads_are_searched_sorted_counted_and_downloaded(people: Site) -> None:
    """The first of 121 runs, the others wait: it is on the third page, and found by a part of its name."""
    submit(people, name="resnet-base", gpus={"count": 2})
    people.world.do(people.world.pass_time(1))
    for number in range(120):
        submit(people, name=f"trial-{number:03}", gpus={"count": 2})
        people.world.do(people.world.pass_time(1))
    newest = people.get("/workloads").text
    assert "121 rows" in words(newest)
    assert names_of(newest)[0] == "trial-119"
    assert names_of(people.get("/workloads?page=3").text)[-1] == "resnet-base"
    assert names_of(people.get("/workloads?page=99").text)[-1] == "resnet-base"
    found = people.get("/workloads?find=NET+state:running").text
    assert names_of(found) == ["resnet-base"]
    assert "1 of 121 rows" in words(found)
    assert names_of(people.get("/workloads?sort=name").text)[:2] == ["resnet-base", "trial-000"]
    assert names_of(people.get("/workloads?sort=-ran").text)[0] == "resnet-base"
    rows = list(csv.DictReader(io.StringIO(people.get("/workloads?format=csv&sort=name").text)))
    assert [row["name"] for row in rows] == ["resnet-base", *(f"trial-{n:03}" for n in range(120))]
    assert len(people.get("/workloads?format=csv&find=trial-0").text.splitlines()) == 1 + 100


def test_csv_of_many_rows_is_read_in_parts(people: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupool.web.pages.workloads.CSV_ROWS_PER_READ", 2)
    for number in range(5):
        submit(people, name=f"n{number}")
        people.world.do(people.world.pass_time(1))
    for sort, expected in (("-created", "43210"), ("name", "01234"), ("-name", "43210")):
        rows = list(csv.DictReader(io.StringIO(people.get(f"/workloads?format=csv&sort={sort}").text)))
        assert "".join(row["name"][1:] for row in rows) == expected


def test_search_in_commands_respects_permissions(people: Site) -> None:
    private(people)
    assert names_of(people.get(f"/workloads?find=command:{SECRET}", ANN_UID).text) == ["hers"]
    for uid in (BOB_UID, EVE_UID):
        assert names_of(people.get(f"/workloads?find=command:{SECRET}", uid).text) == []


def test_leases_show_idle_time_and_owner_actions(people: Site) -> None:
    lease = submit(people, actor=ANN, name="held", kind="lease", lifetime="2h", idle_timeout="1h")
    people.world.do(people.world.pass_time(90))
    page = people.get("/leases", ANN_UID)
    assert "limit 1h00m" in words(page.text)
    assert f"/workloads/{lease.id}/extend" in page.text
    assert f"/workloads/{lease.id}/extend" not in people.get("/leases", BOB_UID).text
    until = lease.expires_at or 0.0
    sent = people.post(f"/workloads/{lease.id}/extend", ANN_UID, by="1h", back="leases")
    assert (sent.status_code, sent.headers["location"]) == (303, "/leases")
    now = people.world.do(people.world.get(lease.id))
    assert now.expires_at == until + 3600
    people.post(f"/workloads/{lease.id}/stop", ANN_UID, back="leases")
    assert people.world.do(people.world.state(lease.id)).final
    assert "No leases" in words(people.get("/leases").text)


# One workload


@pytest.mark.parametrize("uid", [BOB_UID, EVE_UID])
def test_other_users_see_no_private_details(people: Site, uid: int) -> None:
    hers = private(people)
    addresses = [f"/workloads/{hers.id}", "/workloads", "/queue", "/leases", "/workloads?format=csv&table=workloads"]
    for address in addresses:
        answer = people.get(address, uid)
        assert answer.status_code == 200
        assert SECRET not in answer.text, address
        assert "/terminal?" not in answer.text
    assert SECRET in people.get(f"/workloads/{hers.id}", ANN_UID).text


@pytest.mark.parametrize("uid", [BOB_UID, EVE_UID])
def test_other_users_reach_no_output_controls_or_form(people: Site, uid: int) -> None:
    hers = private(people)
    for path in ("output", "output.txt"):
        answer = people.get(f"/ui/workloads/{hers.id}/{path}", uid)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN")
    for act in ("stop", "suspend", "shell", "delete"):
        assert people.post(f"/workloads/{hers.id}/{act}", uid).status_code in {403, 409}
    assert people.get(f"/submit?from={hers.id}", uid).status_code == 403
    assert people.world.do(people.world.state(hers.id)) is WorkloadState.RUNNING


def test_form_without_token_does_nothing(people: Site) -> None:
    hers = private(people)
    for token in ("", "0" * 32, people.token(BOB_UID)):
        for path in (f"/workloads/{hers.id}/stop", "/submit", "/submit/file", "/submit/preview"):
            assert people.post(path, ANN_UID, token=token, command="x").status_code == 403
    assert people.world.do(people.world.state(hers.id)) is WorkloadState.RUNNING


def test_owner_stops_suspends_and_resumes(people: Site) -> None:
    hers = private(people)
    assert people.post(f"/workloads/{hers.id}/suspend", ANN_UID).status_code == 303
    assert people.world.do(people.world.state(hers.id)) is WorkloadState.SUSPENDED
    assert "/resume" in people.get(f"/workloads/{hers.id}", ANN_UID).text
    people.post(f"/workloads/{hers.id}/resume", ANN_UID)
    assert people.world.do(people.world.state(hers.id)) is WorkloadState.RUNNING
    people.post(f"/workloads/{hers.id}/stop", ANN_UID)
    assert people.world.do(people.world.state(hers.id)) is WorkloadState.STOPPED
    assert people.post(f"/workloads/{hers.id}/delete", ANN_UID).headers["location"] == "/workloads"
    assert people.get(f"/workloads/{hers.id}").status_code == 404


def test_pages_show_the_reason_of_an_end(people: Site) -> None:
    hers = private(people)
    assert 'id="ending"' not in people.get(f"/workloads/{hers.id}", ANN_UID).text
    people.world.do(people.world.services.workloads.stop(ADMIN, hers.id))
    people.world.do(people.world.settle())
    reason = f"stopped by {ADMIN.user}"
    said = words(people.get(f"/workloads/{hers.id}", ANN_UID).text)
    assert f"Reason of the end {reason} STOPPED_BY_USER by {ADMIN.user}" in said
    assert f"{reason} [STOPPED_BY_USER]" in words(people.get("/workloads?state=ended", ANN_UID).text)


def test_pages_show_the_next_attempt(people: Site) -> None:
    world = people.world
    train = submit(people, actor=ANN, name="tries")
    world.do(world.end(train, 4))
    said = words(people.get(f"/workloads/{train.id}", ANN_UID).text)
    assert "Attempt 2 of 7, next at" in said
    assert "exited with status 4" in said
    assert "attempt 2 of 7 follows: exited with status 4" in words(people.get("/workloads?name=tries").text)


def test_list_says_that_a_running_program_has_no_gpu(people: Site) -> None:
    world = people.world
    body = {"kind": "interactive", "lazy": True, "on_preempt": "suspend", "gpus": {"count": 1}}
    made = submit(people, name="lends", **body)
    assert "holds no GPU until it uses CUDA" in words(people.get("/workloads?name=lends").text)
    key = world.program(made)
    world.agent.use_cuda(key)
    world.do(world.settle())
    assert "holds no GPU" not in words(people.get("/workloads?name=lends").text)
    world.agent.suspend_now(key)
    world.do(world.settle())
    assert "suspended: holds no GPU until it uses CUDA again" in words(people.get("/workloads?name=lends").text)


def test_page_shows_number_of_evictions(people: Site) -> None:
    world = people.world
    train = submit(people, actor=ANN, gpus={"count": 2})
    assert "Evictions" not in people.get(f"/workloads/{train.id}", ANN_UID).text
    world.do(world.pass_time(70))
    submit(people, actor=ANN, gpus={"count": 2}, priority="high")
    world.do(world.pass_time(30))
    assert "Evictions 1" in words(people.get(f"/workloads/{train.id}", ANN_UID).text)


def test_single_replica_is_stopped(people: Site) -> None:
    sweep = submit(people, actor=ANN, completions=2)
    people.post(f"/workloads/{sweep.id}/stop", ANN_UID, index="1")
    states = [row.state.value for row in people.world.do(people.world.replicas(sweep.id))]
    assert states == ["running", "stopped"]
    assert "INVALID_COUNT" not in states
    assert people.post(f"/workloads/{sweep.id}/stop", ANN_UID, index="-1", page="").status_code in {303, 400}


def test_shell_is_opened_on_held_gpus(people: Site) -> None:
    hers = submit(people, actor=ANN, name="hers")
    sent = people.post(f"/workloads/{hers.id}/shell", ANN_UID)
    made = people.world.do(people.world.get(sent.headers["location"].split("/")[2].split("#")[0]))
    assert (made.kind.value, made.on, made.user, made.program.stdio.value) == ("exec", hers.id, "ann", "tty")
    page = people.get(f"/workloads/{made.id}", ANN_UID).text
    assert f'data-socket="/ui/workloads/{made.id}/terminal?index=0"' in page


# Submitting


def test_repeated_form_submits_once(people: Site) -> None:
    fields = {"kind": "training", "command": "train --lr 1", "gpus": "0.5", "request_id": "r1", "do": "submit"}
    sent = [people.post("/submit", ANN_UID, **fields) for _ in range(2)]
    assert [answer.status_code for answer in sent] == [303, 303]
    assert len({answer.headers["location"] for answer in sent}) == 1
    made = people.world.do(people.world.get(sent[0].headers["location"].split("/")[2]))
    assert (made.user, made.program.argv, made.gpus.permille) == ("ann", ("train", "--lr", "1"), 500)


def test_errors_are_shown_next_to_fields_and_input_is_kept(people: Site) -> None:
    fields = {"kind": "training", "command": "train <b>", "gpus": "1.5", "max_time": "soon", "name": "a b"}
    answer = people.post("/submit", ANN_UID, **fields, do="submit")
    assert answer.status_code == 422
    for name in ("gpus", "max_time", "name"):
        assert f'id="f-{name}-error"' in answer.text
    assert "train &lt;b&gt;" in answer.text
    assert 'value="soon"' in answer.text
    taken = submit(people, actor=ANN, name="taken")
    answer = people.post("/submit", ANN_UID, kind="training", command="x", gpus="1", name=taken.name, do="submit")
    assert (answer.status_code, 'id="f-name-error"' in answer.text) == (409, True)
    answer = people.post("/submit", ANN_UID, kind="training", command="x", gpus="64", do="plan")
    assert (answer.status_code, 'id="f-gpus-error"' in answer.text) == (422, True)


def test_plan_shows_place_and_time_and_submits_nothing(people: Site) -> None:
    fields = {"kind": "training", "command": "train", "gpus": "1", "do": "plan"}
    assert "starts now" in words(people.post("/submit", ANN_UID, **fields).text)
    submit(people, gpus={"count": 2})
    said = words(people.post("/submit", ANN_UID, **fields).text)
    assert "waits Needs 1" in said
    assert len(people.world.do(people.world.services.workloads.counts())) == 1


def test_job_file_is_submitted_or_refused_with_line_number(people: Site) -> None:
    good = "name: a\ncommand: [work]\n---\nname: b\ncommand: [work]\n"
    assert people.post("/submit/file", ANN_UID, file=good, do="submit").headers["location"] == "/workloads"
    assert {people.world.do(people.world.get(name)).user for name in ("a", "b")} == {"ann"}
    bad = people.post("/submit/file", ANN_UID, file="name: c\ncommand: [work]\nfraction: 2\n", do="submit")
    assert bad.status_code == 400
    assert "job.yml:3:1" in words(bad.text)
    assert "There is no field" in words(bad.text)


def test_run_again_fills_form_and_applies_edits(people: Site) -> None:
    first = submit(people, actor=ANN, name="mine", command=["train", "a b"], gpus={"fraction": 0.25}, max_time="4h")
    page = people.get("/submit?from=mine", ANN_UID)
    assert "train &#39;a b&#39;" in page.text
    assert 'value="0.25"' in page.text
    assert 'value="4h"' in page.text
    people.world.do(people.world.end(first))
    sent = people.post(
        "/submit",
        ANN_UID,
        **{"from": first.id},
        kind="training",
        command="train c",
        gpus="0.5",
        name="mine",
        do="submit",
    )
    made = people.world.do(people.world.get(sent.headers["location"].split("/")[2]))
    assert (made.name, made.program.argv, made.gpus.permille) == ("mine", ("train", "c"), 500)


def test_workload_beyond_the_form_is_resubmitted_as_file(people: Site) -> None:
    first = submit(people, actor=ANN, command=["train", "{lr}"], sweep={"list": [{"lr": 1}, {"lr": 3}, {"lr": 1}]})
    page = people.get(f"/submit?from={first.id}", ANN_UID)
    assert "sweep:" in page.text
    assert 'name="file"' in page.text


def test_viewer_cannot_submit(people: Site) -> None:
    assert people.get("/submit", EVE_UID).status_code == 403
    assert people.post("/submit", EVE_UID, command="x").status_code == 403
    assert 'href="/submit"' not in people.get("/queue", EVE_UID).text


# Several workloads at once


def test_selected_workloads_are_changed_together(people: Site) -> None:
    mine = [submit(people, actor=ANN, name=f"mine-{i}", gpus={"fraction": 0.1}) for i in range(3)]
    other = submit(people, actor=BOB, name="bobs", gpus={"fraction": 0.1})
    html = people.get("/workloads", ANN_UID).text
    assert html.count("data-pick ") == 3, "Bob's cannot be selected"
    both = {"action": "suspend", "id": [mine[0].id, mine[1].id, other.id], "back": "/workloads?state=live"}
    answer = people.post("/workloads/bulk", ANN_UID, **both)
    assert (answer.status_code, answer.headers["location"]) == (303, "/workloads?state=live")
    states = [people.world.do(people.world.state(work.id)).value for work in (*mine, other)]
    assert states == ["suspended", "suspended", "running", "running"]
    people.post("/workloads/bulk", ANN_UID, action="priority", priority="-5", id=[mine[0].id])
    assert people.world.do(people.world.services.workloads.get(ANN, mine[0].id)).priority == -5
    people.post("/workloads/bulk", ANN_UID, action="stop", id=[work.id for work in mine])
    people.world.do(people.world.settle())
    people.post("/workloads/bulk", ANN_UID, action="delete", id=[work.id for work in mine])
    assert people.get(f"/workloads/{mine[2].id}", ANN_UID).status_code == 404


def test_bulk_form_is_checked(people: Site) -> None:
    work = submit(people, actor=ANN, name="kept")
    for form in ({"action": "stop"}, {"action": "explode", "id": work.id}, {"action": "priority", "priority": "x"}):
        assert people.post("/workloads/bulk", ANN_UID, page="", **form).status_code in {303, 400}
        assert people.world.do(people.world.state(work.id)).value == "running"
    away = people.post("/workloads/bulk", ANN_UID, action="stop", id=work.id, back="https://elsewhere.example")
    assert away.headers["location"] == "/workloads"
    assert people.world.do(people.world.state(work.id)).value == "stopped"


# Saved views


def test_views_are_saved_for_their_user(people: Site) -> None:
    submit(people, name="seen-job", actor=ANN)
    query = "state=live&user=ann&page=2&find="
    saved = people.post("/views", ANN_UID, list="workloads", name="  my   live ", query=query)
    assert saved.status_code == 303
    assert saved.headers["location"] == "/workloads?state=live&user=ann"
    page = people.get("/workloads?state=live&user=ann", ANN_UID).text
    assert 'href="/workloads?state=live&amp;user=ann" aria-current="true">my live</a>' in page
    assert "Delete view" in page
    assert "my live" not in people.get("/workloads", BOB_UID).text
    people.post("/views", ANN_UID, list="workloads", name="my live", query="state=ended")  # replaces it
    assert [view.query for view in people.world.do(people.world.services.saved_views.of(ANN, "workloads"))] == [
        "state=ended"
    ]
    people.post("/views/delete", ANN_UID, name="my live")
    assert "my live" not in people.get("/workloads", ANN_UID).text


@pytest.mark.parametrize(
    ("page", "query"),
    [("queue", "find=ann"), ("leases", "sort=-held"), ("nodes", "find=a100"), ("audit", "actor=ann&reason=STARTED")],
)
def test_views_of_each_list_are_saved_and_shown_there(people: Site, page: str, query: str) -> None:
    submit(people, actor=ANN, name=f"on-{page}")
    assert f'name="list" value="{page}"' in people.get(f"/{page}?{query}", ANN_UID).text
    saved = people.post("/views", ANN_UID, list=page, name=f"my {page}", query=query)
    assert saved.headers["location"] == f"/{page}?{query}"
    shown = people.get(f"/{page}", ANN_UID).text
    assert f"/{page}?{query}".replace("&", "&amp;") in shown
    assert "Delete view" not in shown
    assert "Delete view" in people.get(f"/{page}?{query}", ANN_UID).text
    assert f"my {page}" not in people.get("/workloads", ANN_UID).text
    deleted = people.post("/views/delete", ANN_UID, name=f"my {page}")
    assert deleted.headers["location"] == f"/{page}"
    away = people.post("/views", ANN_UID, page="", list="//evil.example", name="x", query="")
    assert "evil" not in away.headers.get("location", "")


def test_views_of_older_pools_are_those_of_workloads(people: Site) -> None:
    views = SavedViews(people.world.now.engine)
    views._views = {ANN.user: {"old": "state=live"}}
    assert [view.address for view in people.world.do(views.of(ANN, "workloads"))] == ["/workloads?state=live"]


def test_views_survive_a_restart_and_have_limits(people: Site) -> None:
    world = people.world
    views = world.services.saved_views
    for number in range(MAX_VIEWS):
        world.do(views.save(ANN, "workloads", f"view {number:02d}", f"name=n{number}"))
    for name, query in (("one more", "state=live"), ("", ""), ("x" * 41, ""), ("a\u202eb", ""), ("view 01", "x" * 501)):
        with pytest.raises(GpupoolError):
            world.do(views.save(ANN, "workloads", name, query))
    with pytest.raises(GpupoolError):
        world.do(views.delete(BOB, "view 00"))
    again = SavedViews(world.now.engine)
    assert [view.name for view in world.do(again.of(ANN, "workloads"))] == [
        f"view {number:02d}" for number in range(MAX_VIEWS)
    ]
    assert "<script>" not in people.post("/views", BOB_UID, list="workloads", name="<script>", query="a=<script>").text
    assert "<script>alert" not in people.get("/workloads", BOB_UID).text
