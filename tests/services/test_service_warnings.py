"""Warnings: time, recipients, contents, and behaviour when a mail server or webhook fails."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

import pytest
from pool_world import ADMIN, ANN, BEGIN, BOB, World, refused

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.warning import HolderWarning, WarningKind, WarningSettings, WebhookKind
from gpupool.domain.protocol.gateway_table import Load
from gpupool.domain.work.workspace import UNUSED_AFTER_S
from gpupool.services.ports.courier import Letter, UndeliveredError
from gpupool.services.warnings.delivery import MAX_ENTRIES, TOGETHER_S, Outbox, letter, posted
from gpupool.services.workspaces.service import NewWorkspace
from gpupool.specs.request import parse_request

MAIL = {"smtp_host": "mail.example", "sender": "pool@example.org"}
HOOK = {"webhook_url": "https://chat.example/hook/secret"}


class Kept:
    """A courier that stores messages after a given number of failures."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.posts: list[Any] = []
        self.failures: list[UndeliveredError] = []

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    async def mail(self, settings: WarningSettings, letter: Letter) -> None:
        self._fail()
        self.letters.append(letter)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        self._fail()
        self.posts.append(json.loads(body))


@pytest.fixture
def courier(world: World) -> Kept:
    """Return the world's courier, with ann's address known and mail and webhook enabled."""
    kept = Kept()
    world.now.engine.ports.courier = kept
    world.do(world.services.access.put_user(ADMIN, "ann", {"email": "ann@example.org"}))
    world.do(world.services.warnings.change(ADMIN, MAIL | HOOK))
    return kept


def later(world: World, *seconds: float) -> None:
    for span in seconds:
        world.do(world.pass_time(span))


def test_time_limit_is_warned_of_once_before_the_end(world: World, courier: Kept) -> None:
    made = world.do(world.submit(ANN, name="train", max_time=10_000))
    later(world, 9_000)
    assert "TIME_WARNING" not in world.do(world.reasons(made.id))
    later(world, 400, 5, 5, 5)
    assert world.do(world.reasons(made.id)).count("TIME_WARNING") == 1
    (mail,) = courier.letters
    assert (mail.to, mail.subject) == ("ann@example.org", "gpupool: train reaches its time limit")
    assert "time limit of 2h46m ends it in" in mail.text
    (post,) = courier.posts
    assert post["warnings"][0]["kind"] == "time"
    assert post["warnings"][0]["deadline"] == BEGIN + 10_000


def test_time_limit_warning_is_sent_after_full_disk(world: World, courier: Kept) -> None:
    made = world.do(world.submit(ANN, name="train", max_time=10_000))
    assert world.store is not None
    watch = world.services.warnings._watch
    world.clock.at += 9_400
    world.store.refuse = 1
    world.do(refused(watch.look, ErrorCode.DATABASE_UNWRITABLE))
    world.do(watch.look())
    world.do(watch.look())
    assert world.do(world.reasons(made.id)).count("TIME_WARNING") == 1


def test_short_time_limit_is_warned_of_in_its_last_fifth(world: World, courier: Kept) -> None:
    world.do(world.submit(ANN, max_time=100))
    later(world, 75, 3)
    assert courier.letters == []
    later(world, 6, 3)
    assert len(courier.letters) == 1


def test_extended_lease_is_warned_of_again(world: World, courier: Kept) -> None:
    made = world.do(world.submit(ANN, kind="lease", name="mine", max_time=1_000, idle_timeout=90_000))
    later(world, 850, 5)
    world.do(world.services.workloads.extend(ANN, made.id, 1_000))
    later(world, 500, 5)
    assert len(courier.letters) == 1
    later(world, 300, 5)
    assert [mail.subject for mail in courier.letters] == ["gpupool: the lease mine ends"] * 2
    assert "gpupool extend mine" in courier.letters[0].text


def test_idle_lease_is_warned_before_its_idle_limit(world: World, courier: Kept) -> None:
    made = world.do(world.submit(ANN, idle_timeout=100))
    later(world, 85, 3)
    assert [post["warnings"][0]["kind"] for post in courier.posts] == ["idle"]
    assert courier.posts[0]["warnings"][0]["deadline"] == pytest.approx(BEGIN + 105, abs=2)
    assert world.is_running(made)


def test_victim_is_warned_once_while_it_runs(world: World, courier: Kept) -> None:
    world.agent.polite = False
    world.do(world.submit(ANN, name="low", gpus={"count": 2}, preemptible=True, grace=30))
    later(world, 700)
    world.do(world.submit(BOB, name="high", gpus={"count": 2}, priority=100, preemptible=False))
    later(world, 3)
    assert [post["warnings"][0]["kind"] for post in courier.posts] == ["preempted"]
    later(world, 40, 5, 70)
    kinds = [w["kind"] for post in courier.posts for w in post["warnings"]]
    assert kinds == ["preempted"]


def test_warning_is_not_repeated_by_next_control_plane(world: World, courier: Kept) -> None:
    world.do(world.submit(ANN, max_time=1_000))
    later(world, 850, 5)
    world.do(world.reboot())
    world.now.engine.ports.courier = courier
    later(world, 20, 5)
    assert len(courier.letters) == 1
    assert world.services.warnings.settings(ADMIN).webhook_url == HOOK["webhook_url"]


def test_no_mail_without_address_and_kinds_can_be_disabled(world: World, courier: Kept) -> None:
    world.do(world.submit(BOB, max_time=1_000))
    later(world, 850, 5)
    assert (len(courier.letters), len(courier.posts)) == (0, 1)
    world.do(world.services.warnings.change(ADMIN, {"kinds": ["idle"]}))
    world.do(world.submit(ANN, max_time=1_000))
    later(world, 850, 5)
    assert (len(courier.letters), len(courier.posts)) == (0, 1)


@pytest.mark.parametrize(
    ("types", "status", "subjects"),
    [
        ("end", 0, ["train has ended"]),
        ("END,FAIL", 1, ["train has ended"]),
        ("fail", 0, []),
        ("fail", 1, ["train has ended"]),
        ("all", 0, ["train has started", "train has ended"]),
        ("none", 1, []),
        (None, 0, []),
        (None, 1, ["train has ended"]),
        ("time_limit_80", 0, []),
    ],
)
def test_requested_mail(world: World, courier: Kept, types: str | None, status: int, subjects: list[str]) -> None:
    workload = world.do(world.submit(ANN, name="train", mail=types, restart="never"))
    later(world, 5, 70)
    world.do(world.end(workload, status))
    later(world, 5, 70)
    assert [letter.subject for letter in courier.letters] == [f"gpupool: {subject}" for subject in subjects]
    failed = status and types != "none"
    assert len(courier.posts) == bool(failed)


def test_simultaneous_warnings_are_one_mail(world: World, courier: Kept) -> None:
    world.do(world.submit(ANN, name="sweep", gpus={"fraction": 0.01}, completions=60, parallelism=60, max_time=1_000))
    later(world, 850, 5)
    (mail,) = courier.letters
    assert mail.subject.endswith("and 59 more")
    assert "... and 10 more" in mail.text


def test_failed_delivery_is_retried_and_scheduling_continues(world: World, courier: Kept) -> None:
    courier.failures = [UndeliveredError("down", again=True)] * 4
    world.do(world.submit(ANN, max_time=1_000))
    later(world, 850, 3)
    assert courier.letters == []
    later(world, 6, 26, 5)
    assert (len(courier.letters), len(courier.posts)) == (1, 1)
    assert world.services.metrics.counts.warnings == {("mail", "sent"): 1, ("webhook", "sent"): 1}


def test_permanent_refusal_is_not_retried(world: World, courier: Kept) -> None:
    courier.failures = [UndeliveredError("no such address", again=False)] * 2
    world.do(world.submit(ANN, max_time=1_000))
    later(world, 850, 5, 60, 60)
    assert courier.letters == []
    assert world.services.metrics.counts.warnings == {("mail", "failed"): 1, ("webhook", "failed"): 1}


def test_oldest_warnings_are_dropped_if_server_stays_down() -> None:
    results: Counter[tuple[str, str]] = Counter()
    sent: list[Sequence[HolderWarning]] = []

    async def main() -> None:
        go = asyncio.Event()

        async def send(_place: str, warnings: Sequence[HolderWarning]) -> None:
            sent.append(warnings)

        async def sleep(_seconds: float) -> None:
            await go.wait()

        box = Outbox("mail", send, sleep, results)
        for at in range(MAX_ENTRIES + 7):
            box.put("ann", warned(at=float(at)))
        go.set()
        await asyncio.sleep(0.01)
        await box.close()

    asyncio.run(main())
    assert [len(warnings) for warnings in sent] == [MAX_ENTRIES]
    assert sent[0][0].at == 7
    assert results == {("mail", "dropped"): 7, ("mail", "sent"): 1}


def warned(**changes: Any) -> HolderWarning:
    kind = changes.pop("kind", WarningKind.LEASE)
    at = changes.pop("at", BEGIN)
    values = {"index": 0, "message": "it ends & so", "deadline": BEGIN + 60} | changes
    return HolderWarning(kind, at, "ann", "vision", "w0000000001", "train", **values)


def test_webhook_is_signed_and_chat_text_is_escaped() -> None:
    settings = WarningSettings(**HOOK, webhook_secret="key")
    body, headers = posted(settings, "pool-1", [warned()], UTC)
    assert headers["x-gpupool-signature"] == "sha256=" + hmac.new(b"key", body, hashlib.sha256).hexdigest()
    assert json.loads(body)["pool"] == "pool-1"
    chat, headers = posted(WarningSettings(**HOOK, webhook_kind=WebhookKind.SLACK), "pool-1", [warned()], UTC)
    assert json.loads(chat)["text"].startswith("ann: train (vision): it ends &amp; so (at 2027-")
    assert "x-gpupool-signature" not in headers


def test_mail_names_time_and_advice() -> None:
    text = letter("ann@example.org", [warned()], UTC).text
    assert "(at 2027-01-15 08:01:00 UTC)" in text
    assert "gpupool extend train" in text
    text = letter("ann@example.org", [warned(kind=WarningKind.TIME, index=3)], UTC).text
    assert "gpupool logs train/3\n" in text


def test_only_administrators_change_settings_and_secrets_are_kept(world: World) -> None:
    service = world.services.warnings
    world.do(refused(lambda: service.change(ANN, HOOK), ErrorCode.FORBIDDEN))
    world.do(refused(lambda: service.test(ADMIN), ErrorCode.WRONG_STATE))
    settings = world.do(service.change(ADMIN, {**MAIL, **HOOK, "smtp_password": "hush", "webhook_secret": "key"}))
    shown = json.dumps(settings.shown())
    assert "hush" not in shown
    assert "hook/secret" not in shown
    assert "https://chat.example/..." in shown
    assert "hush" not in str(world.rows("select message from events"))
    assert world.do(service.change(ADMIN, {"before_s": 60})).smtp_password == "hush"


@pytest.mark.parametrize(
    "wrong",
    [
        {"smtp_host": "mail.example"},
        {"smtp_port": 0},
        {"webhook_url": "ftp://x/"},
        {"webhook_url": "https://"},
        {"webhook_url": "http://[x"},
        {"sender": "a@b\r\nBcc: all@example.org"},
        {"smtp_security": "rot13"},
        {"kinds": ["soon"]},
        {"before_s": -1},
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(GpupoolError) as caught:
        WarningSettings.from_dict(wrong)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_owner_of_an_unused_workspace_gets_mail(world: World, courier: Kept) -> None:
    async def story() -> None:
        row = await world.services.workspaces.create(ANN, NewWorkspace("lab"))
        await world.services.workspaces.settled(row, 30)
        world.clock.at += UNUSED_AFTER_S + 60
        await world.services.workspaces.meter.warn()
        await world.pass_time(TOGETHER_S + 1)

    world.do(story())
    [letter] = courier.letters
    assert (letter.to, letter.subject) == ("ann@example.org", "gpupool: the workspace lab is unused")
    assert "has not been used for 90 days and keeps 0 B of disk." in letter.text
    assert "gpupool workspace delete lab" in letter.text
    [post] = courier.posts
    assert post["warnings"][0]["kind"] == "workspace"


def test_owner_of_a_service_that_refuses_requests_gets_mail(world: World, courier: Kept) -> None:
    async def story() -> None:
        body = {"name": "chat", "kind": "service", "command": ["serve"], "gpus": {"fraction": 0.25}}
        row = await world.services.serving.create(ANN, parse_request(body))
        for _ in range(4):
            world.agent.listening = set(world.now.engine.mirror.workloads)
            await world.pass_time(1.1)
        world.services.serving.controller.take(Load(row.key, 0, 0, 2, 2, refused=2))
        await world.pass_time(1.1)
        await world.pass_time(TOGETHER_S + 1)

    world.do(story())
    [letter] = courier.letters
    assert (letter.to, letter.subject) == ("ann@example.org", "gpupool: the service chat has a problem")
    assert "requests refused: 2 were answered with 503" in letter.text
    assert "gpupool service describe chat" in letter.text
    [post] = courier.posts
    assert (post["warnings"][0]["kind"], post["warnings"][0]["name"]) == ("service", "chat")
