"""Settings: policy, costs and warnings, read by everybody or by administrators, and changed by these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from pool_world import ADMIN, world_in
from web_harness import Site, words

from gpupool.domain.nodes.gpu import Placement, SpreadRule
from gpupool.domain.people.warning import WarningKind, WarningSettings
from gpupool.domain.usage import CostRates
from gpupool.scheduling.policy import Policy
from gpupool.scheduling.state.user_order import Order
from gpupool.services.ports.storage import StoredFiles
from gpupool.web.pages.settings.view import RULES

MEMBER_UID = 4711
POLICY = {
    "min_runtime_s": "10m",
    "unsaved_after_s": "2h",
    "reserve_after_s": "0",
    "consolidate_after_s": "never",
    "stale_gang_s": "90s",
    "node_lost_after_s": "10m",
    "half_life_s": "12h",
    "usage_weight": "2.5",
    "max_queued_per_user": "500",
    "max_requests_per_second": "70",
    "verify_idle_s": "24h",
    "verify_level": "2",
    "order": "shortest",
    "turn_s": "2h",
    "placement": "spread",
    "topology": "block, rack",
    "spread": "refuse",
}
WARNINGS: dict[str, Any] = {
    "smtp_host": "mail.example.org",
    "smtp_port": "587",
    "smtp_security": "starttls",
    "sender": "pool@example.org",
    "smtp_user": "pool",
    "smtp_password": "pass-word-1",
    "webhook_url": "https://chat.example.org/hooks/secret-path",
    "webhook_kind": "slack",
    "webhook_secret": "sign-it-2",
    "before": "20m",
    "kinds": ["idle", "lease"],
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path_factory.mktemp("settings")) as world:
        yield Site(world)


def policy(site: Site) -> Policy:
    return site.world.services.policy.policy


def warnings(site: Site) -> WarningSettings:
    return site.world.services.warnings.settings(ADMIN)


def test_every_policy_field_has_an_explanation() -> None:
    assert {rule.name for rule in RULES} == set(Policy().to_dict())
    assert all(rule.about.endswith(".") for rule in RULES)


def test_policy_is_changed_and_shown_as_entered(site: Site) -> None:
    before = policy(site)
    assert site.post("/settings/policy", **POLICY).status_code == 303
    assert policy(site) == Policy(
        600.0,
        0.0,
        None,
        90.0,
        43200.0,
        2.5,
        Order.SHORTEST,
        7200.0,
        Placement.SPREAD,
        600.0,
        500,
        7200.0,
        70,
        86400.0,
        2,
        ("block", "rack"),
        SpreadRule.REFUSE,
    )
    page = site.get("/settings").text
    fields = (
        'value="10m"',
        'value="never"',
        'value="1m30s"',
        'value="2.5"',
        'value="500"',
        'value="shortest" selected',
        'value="block, rack"',
    )
    for shown in fields:
        assert shown in page
    assert "12h00m" in words(site.get("/settings", MEMBER_UID).text)
    site.world.do(site.world.services.policy.change(ADMIN, before.to_dict()))


@pytest.mark.parametrize(
    ("field", "typed"),
    [
        ("min_runtime_s", "soon"),
        ("half_life_s", "1s"),
        ("turn_s", "5s"),
        ("usage_weight", "-1"),
        ("max_queued_per_user", "0"),
        ("max_queued_per_user", "2.5"),
        ("max_queued_per_user", "200001"),
        ("order", "random"),
    ],
)
def test_invalid_policy_is_refused_and_input_is_kept(site: Site, field: str, typed: str) -> None:
    before = policy(site)
    answer = site.post("/settings/policy", **{**POLICY, field: typed})
    assert answer.status_code == 422
    assert typed in answer.text or field == "order"
    assert "pass-word" not in answer.text
    assert policy(site) == before


def test_rates_are_set_and_removed(site: Site) -> None:
    accounting = site.world.services.accounting
    assert (
        site.post("/settings/rates", currency="EUR", default_rate="1.2", rates="a100=2.5\nt4 = 0.4").status_code == 303
    )
    assert accounting.rates == CostRates("EUR", 1.2, (("a100", 2.5), ("t4", 0.4)))
    assert "a100=2.5\nt4=0.4" in site.get("/settings").text
    assert "a100: 2.50 EUR" in words(site.get("/settings", MEMBER_UID).text)
    for wrong in ({"default_rate": "free"}, {"rates": "a100"}, {"rates": "a100=much"}, {"currency": "x" * 9}):
        assert site.post("/settings/rates", **{"currency": "EUR", "rates": "", **wrong}).status_code == 422, wrong
    assert site.post("/settings/rates", currency="", default_rate="", rates="").status_code == 303
    assert not accounting.rates


def test_warning_secrets_are_kept_changed_and_never_shown(site: Site) -> None:
    assert site.post("/settings/warnings", **WARNINGS).status_code == 303
    now = warnings(site)
    assert (now.smtp_password, now.webhook_secret, now.before_s) == ("pass-word-1", "sign-it-2", 1200.0)
    assert now.kinds == (WarningKind.IDLE, WarningKind.LEASE)
    page = site.get("/settings").text
    assert "https://chat.example.org/..." in page
    for secret in ("pass-word-1", "sign-it-2", "secret-path"):
        assert secret not in page
        assert secret not in site.get("/audit").text

    kept = {**WARNINGS, "smtp_password": "", "webhook_url": "", "webhook_secret": "", "before": "30m"}
    assert site.post("/settings/warnings", **kept).status_code == 303
    assert warnings(site).webhook_url.endswith("secret-path")
    wrong = site.post("/settings/warnings", **{**WARNINGS, "webhook_url": "ftp://x/mistyped-secret"})
    assert (wrong.status_code, "mistyped-secret" in wrong.text) == (422, False)

    forget = {**kept, "delete_smtp_password": "on", "delete_webhook_url": "on", "smtp_host": ""}
    assert site.post("/settings/warnings", **forget).status_code == 303
    assert (warnings(site).smtp_password, warnings(site).webhook_url, warnings(site).mails) == ("", "", False)
    nowhere = site.post("/settings/warnings/test", page="/settings")
    assert nowhere.headers["location"] == "/settings"


def test_member_reads_policy_without_warnings_and_changes_nothing(site: Site) -> None:
    page = site.get("/settings", MEMBER_UID).text
    main = page.partition("<main")[2]
    assert 'method="post"' not in main
    assert "Mail server" not in main
    before = (policy(site), warnings(site), site.world.services.accounting.rates)
    sent: dict[str, dict[str, Any]] = {
        "policy": POLICY,
        "rates": {"currency": "EUR", "default_rate": "1"},
        "warnings": {**WARNINGS, "webhook_url": "https://elsewhere.example.org"},
        "warnings/test": {"to": "me@example.org"},
    }
    for path, fields in sent.items():
        assert site.post(f"/settings/{path}", MEMBER_UID, **fields).status_code == 403, path
    assert (policy(site), warnings(site), site.world.services.accounting.rates) == before


# Disk use


def test_administrators_see_disk_use_by_kind_and_user(site: Site) -> None:
    work = site.world.do(site.world.submit())
    site.world.storage.files = [
        StoredFiles("database", "/state/pool.db", "events 90 days", 5 << 20),
        StoredFiles("folders of jobs", "/state/work", "7 days", 3 << 30, by_id=((work.id, 2 << 30), ("gone", 1 << 30))),
        StoredFiles("logs of the pool", "/state/log", "16 MiB each", None),
    ]
    assert site.get("/settings/storage", MEMBER_UID).status_code == 403
    page = words(site.get("/settings/storage").text)
    assert "Free on the disk 30.0 GiB of 100 GiB" in page
    assert "database 5.0 MiB events 90 days /state/pool.db" in page
    assert f"{work.user} 2.0 GiB folders of jobs 2.0 GiB" in page
    assert "(deleted work) 1.0 GiB folders of jobs 1.0 GiB" in page
    assert "Disk use" in words(site.get("/settings").text)
    assert "Disk use" not in words(site.get("/settings", MEMBER_UID).text)
    site.world.storage.files = []
    assert "5.0 MiB" in words(site.get("/settings/storage").text)  # it is not read again at once
    answer = site.get("/v1/storage").json()
    assert [one["bytes"] for one in answer["files"]] == [5 << 20, 3 << 30, None]
    assert [(row["user"], row["files"]) for row in answer["users"]] == [
        (work.user, {"folders of jobs": 2 << 30}),
        ("", {"folders of jobs": 1 << 30}),
    ]
