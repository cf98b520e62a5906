"""Heads that could not take over: the time of the event, and the administrators that are warned."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pool_world import ADMIN, BEGIN, World
from test_service_warnings import HOOK, MAIL, Kept

from gpupool.domain.nodes.heads import MAX_REPORT_AGE_S, Head, HeadReport, takeover_faults
from gpupool.domain.people.access import Role
from gpupool.domain.people.warning import WarningKind, WarningSettings
from gpupool.services.cluster.heads import JOIN_TIMEOUT_S, NOTICE_AFTER_S, Heads
from gpupool.services.ports.store import EventFilter

H1 = Head("h1", "https://10.0.0.1:8443", "pem", "10.0.0.1", 8650, BEGIN - 9999)
H2 = replace(H1, name="h2", url="https://10.0.0.2:8443", gcs_host="10.0.0.2", added_at=BEGIN)


@pytest.fixture
def heads(world: World) -> Heads:
    """Return the heads of a pool that h1 leads and h2 has just joined; reports exist in PostgreSQL only."""
    made = Heads(world.now.engine, H1, "postgresql://db.example.org/pool")
    world.do(made.announce())
    world.do(world.now.engine.ports.store.joins.save_head(H2))
    return made


def events(world: World) -> list[str]:
    found = world.do(world.now.engine.ports.store.list_events(EventFilter(limit=100)))
    return [event.message for event in found if event.reason.startswith("HEAD_")]


def after(world: World, heads: Heads, *spans: float) -> list[str]:
    """Return the events after some time, with a check at the end of each span."""
    for span in spans:
        world.do(world.pass_time(span))
        world.do(heads.check())
    return events(world)


def test_silent_head_is_not_ready_and_administrators_are_warned_once(world: World, heads: Heads) -> None:
    courier = Kept()
    world.now.engine.ports.courier = courier
    for name, role in (("chief", Role.ADMIN), ("ann", Role.MEMBER)):
        world.do(world.services.access.put_user(ADMIN, name, {"role": role, "email": f"{name}@example.org"}))
    world.do(world.services.warnings.change(ADMIN, MAIL | HOOK))
    assert after(world, heads, 1) == []
    assert list(heads.warnings()) == ["h2"]
    assert "It has never reported" in heads.warnings()["h2"]
    assert heads.faults("h1") == ()
    assert after(world, heads, JOIN_TIMEOUT_S - 10, NOTICE_AFTER_S - 1) == []  # it has just joined
    said = after(world, heads, 20, NOTICE_AFTER_S, 100)
    assert len(said) == 1
    assert said[0].startswith("h2 cannot take over: It has never reported")
    world.do(world.pass_time(10))
    assert [mail.to for mail in courier.letters] == ["chief@example.org"]
    assert courier.letters[0].subject == "gpupool: the head h2 cannot take over"
    assert said[0] in courier.letters[0].text
    (posted,) = courier.posts
    assert (posted["warnings"][0]["kind"], posted["warnings"][0]["name"]) == ("head", "h2")


def test_removed_head_causes_no_more_events(world: World, heads: Heads) -> None:
    before = after(world, heads, JOIN_TIMEOUT_S + 1, NOTICE_AFTER_S, 1)
    assert len(before) == 1
    joins = world.now.engine.ports.store.joins
    (event,) = world.do(world.now.engine.ports.store.list_events(EventFilter(limit=1)))
    world.do(joins.drop_member("h2", event))
    assert after(world, heads, 1, 60) == before
    assert heads.warnings() == {}


def test_report_of_head_expires() -> None:
    assert takeover_faults(HeadReport("h2", MAX_REPORT_AGE_S, ())) == ()
    assert takeover_faults(HeadReport("h2", 1.0, ("Its clock is wrong.",))) == ("Its clock is wrong.",)
    (fault,) = takeover_faults(HeadReport("h2", MAX_REPORT_AGE_S + 5, ()))
    assert "has not reported for 40s" in fault


def test_new_warning_kinds_are_sent_with_settings_of_earlier_release() -> None:
    stored = {"kinds": ["idle", "time"]}
    assert WarningSettings.from_dict(stored).kinds == (
        WarningKind.IDLE,
        WarningKind.TIME,
        WarningKind.ENDED,
        WarningKind.STARTED,
        WarningKind.HEAD,
        WarningKind.BACKUP,
        WarningKind.SERVICE,
        WarningKind.WORKSPACE,
    )
    chosen = WarningSettings.from_dict(WarningSettings(kinds=(WarningKind.IDLE,)).to_dict())
    assert chosen.kinds == (WarningKind.IDLE,)
