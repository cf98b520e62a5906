"""The local fabric against a real agent, killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from node_harness import PATIENCE_S, PIPES, Node, new_key, spec

from gpupool.domain.errors import GpupoolError
from gpupool.domain.protocol import frames
from gpupool.domain.protocol.fencing import SoleLeadership
from gpupool.domain.work.program.supervision import ExitReport, ProcessPhase
from gpupool.fabric.local import link
from gpupool.fabric.local.node_clock import NodeClock
from gpupool.fabric.machines import CombinedDirectory, MachinesFabric, StaticDirectory
from gpupool.node.host.heartbeat import Contact
from gpupool.services.clock import Clock, SteadyClock
from gpupool.services.ports.fabric import AttachStream, Fabric, FabricEvent, NodeLink


class Hearing:
    """A fabric and what it has said so far."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._events = fabric.events()

    async def until(self, wanted: Callable[[FabricEvent], bool]) -> FabricEvent:
        async with asyncio.timeout(PATIENCE_S):
            async for event in self._events:
                if wanted(event):
                    return event
        raise AssertionError("the events ended")

    async def up(self) -> NodeLink:
        await self.until(lambda event: event.up is True)
        return self.fabric.link("n1")

    async def end_of(self, key: str) -> ExitReport:
        event = await self.until(lambda e: e.status is not None and e.status.key == key and e.status.exit is not None)
        assert event.status is not None
        assert event.status.exit is not None
        return event.status.exit


@contextlib.asynccontextmanager
async def hearing(node: Node, clock: Clock | None = None) -> AsyncIterator[Hearing]:
    directory = StaticDirectory({"n1": node.run / "agent.sock"})
    fabric = MachinesFabric(directory, SoleLeadership(), clock or SteadyClock())
    await fabric.start()
    try:
        yield Hearing(fabric)
    finally:
        await fabric.close()


def with_fabric(node: Node, story: Callable[[Hearing], Awaitable[None]]) -> None:
    async def run() -> None:
        async with hearing(node) as heard:
            await story(heard)

    asyncio.run(run())


def test_all_operations_of_a_link_work(own_node: Node) -> None:
    async def story(heard: Hearing) -> None:
        link = await heard.up()
        report = await link.report()
        assert (report.name, report.emulated, len(report.gpus)) == ("n1", True, 1)
        assert [gpu.uuid for gpu in await link.gpus()] == [gpu.uuid for gpu in report.gpus]
        wanted = spec("echo one; echo two; exit 3")
        assert (await link.start(wanted)).key == wanted.key
        assert (await heard.end_of(wanted.key)).exit_code == 3
        assert [s.key for s in await link.list()] == [wanted.key]
        found = await link.read_log(wanted.key, "", 1000)
        assert b"".join(part.output() for part in found) == b"one\ntwo\n"
        assert await link.read_log(wanted.key, found[-1].cursor, 1000) == []
        last = await link.read_log(wanted.key, await link.tail_log(wanted.key, 1), 1000)
        assert [part.output() for part in last] == [b"two\n"]
        await link.forget(wanted.key, delete_logs=True)
        assert await link.list() == []
        long = spec("trap 'exit 7' USR1; echo ready; while :; do sleep 0.05; done")
        await link.start(long)
        while not await link.read_log(long.key, "", 10):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
        await link.signal(long.key, signal.SIGUSR1)
        assert (await heard.end_of(long.key)).exit_code == 7
        longer = spec("sleep 1000")
        await link.start(longer)
        await link.stop(longer.key, 5.0)
        await heard.end_of(longer.key)

    with_fabric(own_node, story)


def test_errors_are_transferred(own_node: Node) -> None:
    async def story(heard: Hearing) -> None:
        with pytest.raises(GpupoolError, match="not known"):
            heard.fabric.link("n1")
        link = await heard.up()
        with pytest.raises(GpupoolError, match="not known"):
            heard.fabric.link("n2")
        for question in (link.attach(new_key()), link.signal(new_key(), 15)):
            with pytest.raises(GpupoolError) as caught:
                await question
            assert caught.value.code == "NOT_FOUND"

    with_fabric(own_node, story)


def test_link_reconnects_to_restarted_agent(own_node: Node, tmp_path: Path) -> None:
    async def story(heard: Hearing) -> None:
        link = await heard.up()
        wanted = spec(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 4")
        await link.start(wanted)
        own_node.down(signal.SIGKILL)
        await heard.until(lambda event: event.up is False)
        with pytest.raises(GpupoolError) as caught:
            await link.list()
        assert caught.value.code == "NODE_UNREACHABLE"
        await asyncio.to_thread(own_node.up)
        again = await heard.up()
        assert [s.key for s in await again.list()] == [wanted.key]
        (tmp_path / "go").touch()
        assert (await heard.end_of(wanted.key)).exit_code == 4

    with_fabric(own_node, story)


def test_pending_request_fails_when_agent_dies(own_node: Node) -> None:
    async def story(heard: Hearing) -> None:
        link = await heard.up()
        assert own_node.process is not None
        own_node.process.send_signal(signal.SIGSTOP)
        question = asyncio.create_task(link.list())  # type: ignore[arg-type,var-annotated]
        await asyncio.sleep(0)
        own_node.process.send_signal(signal.SIGKILL)
        with pytest.raises(GpupoolError) as caught:
            await question
        assert caught.value.code == "NODE_UNREACHABLE"
        own_node.process.wait(PATIENCE_S)
        await asyncio.to_thread(own_node.up)

    with_fabric(own_node, story)


def test_answer_does_not_hide_cancellation(own_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    expect = link.LocalLink._expect

    def expect_and_cancel(self: link.LocalLink, number: int) -> asyncio.Future[Any]:
        future, asking = expect(self, number), asyncio.current_task()
        if number > 0 and asking is not None and asking.get_name() == "asking":
            future.add_done_callback(lambda _answer: asking.cancel())
        return future

    async def ask(of: NodeLink) -> None:
        await of.report()

    async def story(heard: Hearing) -> None:
        node = await heard.up()
        monkeypatch.setattr(link.LocalLink, "_expect", expect_and_cancel)
        asking = asyncio.create_task(ask(node), name="asking")
        await asyncio.wait({asking}, timeout=PATIENCE_S)
        assert asking.cancelled()

    with_fabric(own_node, story)


def test_many_simultaneous_requests_work(own_node: Node) -> None:
    async def story(heard: Hearing) -> None:
        link = await heard.up()
        wanted = [spec(f"exit {number}") for number in range(60)]
        first = await asyncio.gather(*(link.start(one) for one in wanted))
        assert [status.key for status in first] == [one.key for one in wanted]
        missing = {one.key: number for number, one in enumerate(wanted)}
        while missing:
            event = await heard.until(lambda e: e.status is not None and e.status.exit is not None)
            assert event.status is not None
            assert event.status.exit is not None
            assert event.status.exit.exit_code == missing.pop(event.status.key)
        assert {s.phase for s in await link.list()} == {ProcessPhase.EXITED}

    with_fabric(own_node, story)


def test_attach_is_a_raw_stream(own_node: Node) -> None:
    async def story(heard: Hearing) -> None:
        link = await heard.up()
        wanted = spec("cat; exit 5", stdio=PIPES, client_bound=True)
        await link.start(wanted)
        stream = await link.attach(wanted.key)
        hello = json.dumps({"version": 1}).encode()
        await stream.write(frames.encode(frames.HELLO, hello) + frames.encode(frames.STDIN, b"hi"))
        await stream.write(frames.encode(frames.STDIN_EOF))
        buffer, got = bytearray(), []
        while data := await stream.read(1 << 16):
            buffer += data
            got += frames.decode(buffer)
        await stream.close()
        assert (frames.STDOUT, b"hi") in got
        kind, payload = got[-1]
        assert kind == frames.EXIT
        assert json.loads(payload)["status"] == 5

    with_fabric(own_node, story)


async def send_without_end(stream: AttachStream) -> None:
    while True:
        await stream.write(frames.encode(frames.STDIN, bytes(200_000)))


def test_end_of_a_program_that_reads_no_input_is_received(own_node: Node) -> None:
    async def story(heard: Hearing) -> None:
        link = await heard.up()
        for _ in range(10):
            wanted = spec("echo no input >&2; exit 3", stdio=PIPES, client_bound=True)
            await link.start(wanted)
            stream = await link.attach(wanted.key)
            await stream.write(frames.encode(frames.HELLO, json.dumps({"version": 1}).encode()))
            with pytest.raises(GpupoolError, match="closed the connection"):
                await send_without_end(stream)
            buffer = bytearray()
            while data := await stream.read(1 << 16):
                buffer += data
            await stream.close()
            got = list(frames.decode(buffer))
            assert (frames.STDERR, b"no input\n") in got
            assert got[-1][0] == frames.EXIT
            assert json.loads(got[-1][1])["status"] == 3

    with_fabric(own_node, story)


def test_missing_agent_is_not_awaited(tmp_path: Path) -> None:
    async def run() -> None:
        fabric = MachinesFabric(StaticDirectory({"n1": tmp_path / "agent.sock"}), SoleLeadership(), SteadyClock())
        await fabric.start()

        def is_known() -> bool:
            with pytest.raises(GpupoolError) as caught:
                fabric.link("n1")
            return caught.value.code == "NODE_UNREACHABLE"

        await wait_until(is_known)
        await fabric.close()

    asyncio.run(run())


@pytest.mark.parametrize("nonsense", [b"[]\n", b"{}x\n", b'{"event":"status","status":7}\n', b"x" * (17 << 20)])
def test_agent_with_invalid_answer_is_disconnected_and_retried(tmp_path: Path, nonsense: bytes) -> None:
    async def run() -> None:
        asked = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            asked += 1
            await reader.readline()
            with contextlib.suppress(OSError):
                writer.write(b'{"id":0,"result":null}\n' + nonsense)
                await writer.drain()

        server = await asyncio.start_unix_server(serve, str(tmp_path / "s"))
        fabric = MachinesFabric(StaticDirectory({"n1": tmp_path / "s"}), SoleLeadership(), SteadyClock())
        await fabric.start()
        events = fabric.events()
        async with asyncio.timeout(PATIENCE_S):
            assert [(await anext(events)).up for _ in range(4)] == [True, False, True, False]
        assert asked >= 2
        await fabric.close()
        server.close()

    asyncio.run(run())


def test_silent_agent_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(b'{"id":0,"result":null}\n')
            while await reader.readline():
                pass

        server = await asyncio.start_unix_server(serve, str(tmp_path / "s"))
        fabric = MachinesFabric(StaticDirectory({"n1": tmp_path / "s"}), SoleLeadership(), SteadyClock())
        await fabric.start()
        events = fabric.events()
        async with asyncio.timeout(PATIENCE_S):
            assert [(await anext(events)).up for _ in range(2)] == [True, False]
        await fabric.close()
        server.close()

    monkeypatch.setattr(link, "PING_EVERY_S", 0.05)
    monkeypatch.setattr(link, "SILENT_S", 0.2)
    asyncio.run(run())


class LeadUntil:
    """The lead of a control plane that can lose it."""

    term: int | None = 7

    def __init__(self) -> None:
        self.is_held = True

    def held(self) -> bool:
        return self.is_held


def test_unproven_leader_commands_nothing_and_is_no_contact(own_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    contact = Contact(own_node.run / "heard")

    async def run() -> None:
        lead = LeadUntil()
        fabric = MachinesFabric(StaticDirectory({"n1": own_node.run / "agent.sock"}), lead, SteadyClock())
        await fabric.start()
        try:
            node = await Hearing(fabric).up()
            await wait_until(lambda: contact.last() is not None)
            lead.is_held = False
            with pytest.raises(GpupoolError) as caught:
                await node.start(spec("sleep 1"))
            assert caught.value.code == "DATABASE_UNREACHABLE"
            files = await node.files()
            with pytest.raises(GpupoolError) as caught:
                await files.blob_put("u-1", [])
            await files.close()
            assert caught.value.code == "DATABASE_UNREACHABLE"
            await node.list()  # behind the last ping that counts
            before = contact.last()
            await asyncio.sleep(20 * link.PING_EVERY_S)
            assert contact.last() == before
            assert await node.list() == []
            lead.is_held = True
            await wait_until(lambda: (contact.last() or 0) > (before or 0))
            await node.start(spec("true"))
        finally:
            await fabric.close()

    monkeypatch.setattr(link, "PING_EVERY_S", 0.05)
    asyncio.run(run())


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - nothing tells of a file that changes
            await asyncio.sleep(0.01)


class MovedClock(SteadyClock):
    """A clock that differs from that of the nodes."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__()
        self._ahead_s = ahead_s

    def now(self) -> float:
        """Return the moved time."""
        return super().now() + self._ahead_s


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_times_of_a_node_are_those_of_the_clock_of_the_pool(own_node: Node, ahead_s: float) -> None:
    async def run() -> None:
        clock = MovedClock(ahead_s)
        begin = clock.now()
        async with hearing(own_node, clock) as heard:
            n1 = await heard.up()
            wanted = spec("sleep 0.2")
            started = await n1.start(wanted)
            end = await heard.end_of(wanted.key)
            (listed,) = [status for status in await n1.list() if status.key == wanted.key]
            samples = await n1.samples(0)
            now = clock.now()
        assert started.started_at is None or begin - 2 <= started.started_at <= now
        assert listed.started_at is not None
        assert begin - 2 <= listed.started_at < end.finished_at <= now + 2
        assert samples == [] or all(begin - 60 <= sample.at <= now + 2 for sample in samples)

    asyncio.run(run())


def test_slow_answer_does_not_change_the_estimate_of_a_clock() -> None:
    class ByHand(SteadyClock):
        time = 1000.0

        def now(self) -> float:
            """Return the time that was set."""
            return self.time

    clock = ByHand()
    node = NodeClock(clock)
    node.compare(1000.0, 1900.0)
    assert node.ahead_s == 900.0
    clock.time = 1100.0
    node.compare(1000.0, 1040.0)  # the answer was made at some time in these 100 seconds
    assert node.ahead_s == 900.0
    node.compare(1099.0, 1099.5)
    assert node.ahead_s == 0.0


def test_nodes_follow_their_directory(own_node: Node) -> None:
    async def run() -> None:
        directory = StaticDirectory({})
        fabric = MachinesFabric(
            CombinedDirectory(directory, StaticDirectory({"n2": own_node.root / "nowhere"})),
            SoleLeadership(),
            SteadyClock(),
        )
        await fabric.start()
        directory.put("n1", own_node.run / "agent.sock")
        heard = Hearing(fabric)
        assert (await heard.up()).name == "n1"
        directory.put("n1", own_node.run / "agent.sock")  # said twice
        directory.remove("n1")
        await heard.until(lambda event: event.up is False)
        with pytest.raises(GpupoolError, match="not known"):
            fabric.link("n1")
        directory.put("n1", own_node.run / "agent.sock")
        assert (await (await heard.up()).report()).name == "n1"
        await fabric.close()

    asyncio.run(run())
