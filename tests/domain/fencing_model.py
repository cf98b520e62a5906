"""A model of heads, a database, nodes and the links between them, in steps of simulated time.

The rules under test are the real ones: ``LeadProof``, ``HeartbeatCounter``, ``is_deposed`` and ``certain_after_s`` of
``gpupool.domain.protocol.fencing``, ``Pings`` and ``Fence`` of ``gpupool.node.host.heartbeat``, ``Epochs`` of the
agent. The model adds what lies between them: the lock of PostgreSQL with its idle timeout, connections that delay or
hold what is sent, processes that are frozen, killed and started again, and a clock for each machine. A node kills as
late as it may.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from gpupool.domain import ids
from gpupool.domain.errors import GpupoolError
from gpupool.domain.protocol import fencing
from gpupool.domain.work.program.supervision import FENCE_GRACE_S
from gpupool.node.agent.attempt import Epochs
from gpupool.node.host.heartbeat import Contact, Fence, Pings

STEP_S = 0.5
SESSION_IDLE_S = 10.0  # ``gpupool.store.backends.leadership.SILENCE_S``
ASK_EVERY_S, SILENT_AFTER_S = 1.0, 4.0  # ``gpupool.daemon.cluster.leader``
PING_EVERY_S, SILENT_PINGS = 2.0, 5  # ``gpupool.fabric.local.link``
COMPARE_EVERY_S = 5.0
DATABASE = "db"
HEADS, NODES = ("h0", "h1"), ("n0", "n1")
WORKLOADS = (ids.workload_id(1), ids.workload_id(2))
Message = dict[str, Any]


class Clock:
    """The clock of one machine: ``rate`` seconds for each real one."""

    def __init__(self, world: World, rate: float) -> None:
        self._world, self.rate = world, rate

    def __call__(self) -> float:
        return self._world.now * self.rate


class Pipe:
    """One direction of a connection: messages arrive in order, late, or only when the link is whole again."""

    def __init__(self, world: World, source: str, target: str) -> None:
        self._world, self._way = world, (source, target)
        self._queue: deque[tuple[float, Message]] = deque()
        self._held = False

    def send(self, message: Message) -> None:
        late_s = self._world.starts_late_s if message.get("method") == "start" else 0.0
        at = self._world.now + late_s + self._world.delay_s()
        self._queue.append((max(at, self._queue[-1][0]) if self._queue else at, message))

    def take(self) -> Iterator[Message]:
        """Give out what has arrived. What a cut has held may come a while after the link is whole again."""
        if not self._world.open(*self._way):
            self._held = bool(self._queue)
            return
        if self._held:
            self._held = False
            late_at = self._world.now + self._world.delay_s()
            self._queue = deque((max(at, late_at), message) for at, message in self._queue)
        while self._queue and self._queue[0][0] <= self._world.now:
            yield self._queue.popleft()[1]


class Connection:
    """A connection that was made by a head. It is closed by one side; the other notices, or does not."""

    def __init__(self, world: World, head: str, other: str) -> None:
        self.to, self.back = Pipe(world, head, other), Pipe(world, other, head)
        self.closed = False
        self.number = next(world.numbers)


@dataclass
class Row:
    """A replica as the database has it. ``node`` None: it waits."""

    node: str | None = None
    attempt: int = 0
    epoch: int = 0


class Database:
    """One server: sessions, one lock, a term that guards writes."""

    def __init__(self, world: World, rate: float) -> None:
        self.clock = Clock(world, rate)
        self.sessions: dict[Connection, float] = {}
        self.holder: Connection | None = None
        self.term = 0
        self.rows = {workload: Row() for workload in WORKLOADS}
        self.epoch = 0
        self.down = False

    def restart(self) -> None:
        for session in self.sessions:
            session.closed = True
        self.sessions.clear()
        self.holder = None

    def step(self) -> None:
        for session, said_at in list(self.sessions.items()):
            if session.closed or self.clock() - said_at > SESSION_IDLE_S:
                session.closed = True
                self._drop(session)
                continue
            for question in session.to.take():
                self.sessions[session] = self.clock()
                session.back.send(self._answer(session, question))

    def _drop(self, session: Connection) -> None:
        del self.sessions[session]
        if self.holder is session:
            self.holder = None

    def _answer(self, session: Connection, question: Message) -> Message:
        if question["ask"] == "ping":
            return {"leads": True, "term": self.term}
        if self.holder not in {None, session}:
            return {"leads": False, "term": self.term}
        self.holder = session
        if question["term"] is None:
            self.term += 1
        return {"leads": self.term == question["term"] or question["term"] is None, "term": self.term}

    def write(self, term: int, change: Callable[[], None]) -> bool:
        if self.down or term != self.term:
            return False
        change()
        return True


class Heard(Contact):
    """Contact without a file."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._at = clock, None

    def last(self) -> float | None:
        return self._at

    def confirm(self, at: float) -> None:
        self._at = max(at, self._at or 0.0)  # type: ignore[assignment]

    def silent_for_s(self) -> float:
        return self._clock() - (self._at or 0.0)


@dataclass
class Program:
    """One attempt on a node. It lives until its node has killed it."""

    fence: Fence
    kill_at: float | None = None


@dataclass
class Node:
    """An agent that may be frozen or started again, and shepherds that may not."""

    world: World
    name: str
    clock: Clock
    contact: Heard
    term: int = 0
    frozen: bool = False
    programs: dict[str, Program] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    epochs: Epochs = field(default_factory=lambda: Epochs(Path("unused")))
    connections: dict[Connection, Pings] = field(default_factory=dict)

    def restart(self) -> None:
        for connection in self.connections:
            connection.closed = True
        self.connections.clear()

    def end_programs(self) -> None:
        for key in list(self.programs):
            self._kill(key)

    def step(self) -> None:
        for key, program in list(self.programs.items()):
            if program.fence.expired(self.clock()):
                program.kill_at = self.clock() + FENCE_GRACE_S
            if program.kill_at is not None and self.clock() >= program.kill_at:
                self._kill(key)
        if self.frozen:
            return
        connections = list(self.connections)
        self.world.dice.shuffle(connections)  # what waited in several buffers is read in any order
        for connection in connections:
            for request in connection.to.take():
                if connection in self.connections:
                    connection.back.send({"id": request["id"], **self._answer(connection, request)})

    def _kill(self, key: str) -> None:
        del self.programs[key]
        self.ended.add(key)

    def _answer(self, connection: Connection, request: Message) -> Message:
        method, term = request["method"], request["term"]
        if fencing.is_deposed(term, self.term) and method in {"start", "stop", "ping"}:
            return {"refused": True}
        self.term = max(self.term, term)
        if method == "watch" and self.world.supersedes:
            for older in [other for other in self.connections if other.number < connection.number]:
                older.closed = True
                del self.connections[older]
        if method == "ping":
            self.connections[connection].take(request["number"], request["answered"])
            return {}
        if method == "start":
            return self._start(request["key"], request["epoch"])
        if method == "stop" and request["key"] in self.programs:
            self._kill(request["key"])
        return {"alive": sorted(self.programs), "ended": sorted(self.ended)}

    def _start(self, key: str, epoch: int) -> Message:
        if key in self.programs or key in self.ended:
            return {}
        try:
            self.epochs.check_new(key, epoch)
        except GpupoolError:
            return {"refused": True}
        if self.contact.silent_for_s() >= self.world.fence_s:
            return {"refused": True}
        self.epochs.see(key, epoch)
        self.programs[key] = Program(Fence(self.contact, self.world.fence_s))
        return {}


class Line:
    """One node as a head sees it."""

    def __init__(self, head: Head, node: Node) -> None:
        self.head, self.node = head, node
        self.connection: Connection | None = None
        self.pulse = fencing.HeartbeatCounter()
        self.misses = self.ping_at = self.compare_at = 0.0
        self.up = self.compared = self.heard = False
        self.silent_since: float | None = head.clock()

    def step(self) -> None:
        world, head = self.head.world, self.head
        if self.connection is None or self.connection.closed:
            self._lost()
            if world.open(head.name, self.node.name) and world.open(self.node.name, head.name):
                self.connection = Connection(world, head.name, self.node.name)
                self.node.connections[self.connection] = Pings(self.node.contact, self.node.clock)
                self.pulse, self.misses, self.ping_at = fencing.HeartbeatCounter(), 0, head.clock()
                self._send("watch")
            return
        for answer in self.connection.back.take():
            self._heard(answer)
        if head.clock() >= self.ping_at:
            self._ping()
        if self.up and head.clock() >= self.compare_at:
            self.compare_at = head.clock() + COMPARE_EVERY_S
            self._send("list")

    def _lost(self) -> None:
        self.connection = None
        if self.silent_since is None:
            self.silent_since = self.head.clock()
        self.up = self.compared = False

    def _ping(self) -> None:
        self.misses = 0 if self.heard else self.misses + 1
        self.heard = False
        if self.misses > SILENT_PINGS:
            self._lost()  # what was sent on the old connection may still arrive
            return
        self.ping_at = self.head.clock() + PING_EVERY_S
        number, answered = self.pulse.ping(leads=self.head.held())
        self._send("ping", number=number, answered=answered)

    def _send(self, method: str, **params: Any) -> None:
        assert self.connection is not None
        what = {"id": (method, params), "method": method, "term": self.head.term, **params}
        self.connection.to.send(what)

    def command(self, method: str, **params: Any) -> None:
        if self.connection is not None and self.head.held():
            self._send(method, **params)

    def _heard(self, answer: Message) -> None:
        self.heard = True
        if not self.up:
            self.up, self.silent_since, self.compare_at = True, None, self.head.clock()
        method, params = answer["id"]
        if method == "ping" and "refused" not in answer:
            self.pulse.pong(params["number"])
        if "alive" in answer:
            self.head.compare(self, answer)


class Head:
    """One control plane. After it has ended it is started again, with nothing in memory."""

    def __init__(self, world: World, name: str, rate: float) -> None:
        self.world, self.name, self.clock = world, name, Clock(world, rate)
        self.frozen = False
        self.session: Connection | None = None
        self.restart()

    def restart(self) -> None:
        self._hang_up()
        self.term: int | None = None
        self.leading = False
        self.proof = fencing.LeadProof()
        self.outstanding = False
        self.ask_at = self.heard_at = self.clock()
        self.lines: dict[str, Line] = {}

    def held(self) -> bool:
        return self.leading and self.proof.holds(self.clock())

    def _hang_up(self) -> None:
        """Close the session; the server learns of it only if it can be reached."""
        if self.session is not None and self.world.open(self.name, DATABASE):
            self.session.closed = True
        self.session = None

    def step(self) -> None:
        if self.frozen:
            return
        if self.world.dice.random() < 0.5:  # two threads: after a stall either may continue first
            self._talk_to_database()
            self._talk_to_nodes()
        else:
            self._talk_to_nodes()
            self._talk_to_database()
        if self.leading:
            self._give_up()
            self._place()

    def _talk_to_nodes(self) -> None:
        for line in list(self.lines.values()):
            line.step()

    # -- the lead ------------------------------------------------------------------------------------------------------

    def _talk_to_database(self) -> None:
        if self.session is not None:
            for answer in self.session.back.take():
                self._answered(answer)
        silent = self.outstanding and self.clock() - self.heard_at > SILENT_AFTER_S
        if self.session is not None and (silent or self.session.closed):
            self._hang_up()
            self.leading, self.outstanding = False, False
            self.proof.lost()
        if self.outstanding or self.clock() < self.ask_at or self.world.database.down:
            return
        if self.session is None:
            if not (self.world.open(self.name, DATABASE) and self.world.open(DATABASE, self.name)):
                return
            self.session = Connection(self.world, self.name, DATABASE)
            self.world.database.sessions[self.session] = self.world.database.clock()
            self.heard_at = self.clock()
        self.proof.ask(self.clock())
        self.session.to.send({"ask": "ping" if self.leading else "lock", "term": self.term})
        self.outstanding, self.ask_at = True, self.clock() + ASK_EVERY_S

    def _answered(self, answer: Message) -> None:
        self.outstanding, self.heard_at = False, self.clock()
        if answer["leads"]:
            if self.term is None:
                self.term = answer["term"]
                self.lines = {node.name: Line(self, node) for node in self.world.nodes.values()}
            self.leading = True
            self.proof.answered()
        elif self.term is not None and answer["term"] != self.term:
            self.restart()

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _write(self, change: Callable[[], None]) -> bool:
        world = self.world
        reached = world.open(self.name, DATABASE) and world.open(DATABASE, self.name)
        return self.leading and reached and world.database.write(self.term or 0, change)

    def compare(self, line: Line, answer: Message) -> None:
        """Take in ends, stop what does not belong there, start what the node does not know."""
        if not self.leading:
            return
        expected = {key(w, row.attempt): w for w, row in self._rows() if row.node == line.node.name}
        for known in answer["alive"]:
            if known not in expected:
                line.command("stop", key=known)
        for known, workload in expected.items():
            if known in answer["ended"]:
                self._write(lambda w=workload: self._end(w))  # type: ignore[misc]
            elif known not in answer["alive"]:
                line.command("start", key=known, epoch=self.world.database.rows[workload].epoch)
        line.compared = not set(answer["alive"]) - expected.keys()

    def _rows(self) -> list[tuple[ids.WorkloadId, Row]]:
        return list(self.world.database.rows.items())

    def _end(self, workload: ids.WorkloadId) -> None:
        self.world.database.rows[workload].node = None

    def _give_up(self) -> None:
        for workload, row in self._rows():
            since = None if row.node is None else self.lines[row.node].silent_since
            if since is not None and self.clock() - since > fencing.certain_after_s(self.world.fence_s):
                self._write(lambda w=workload: self._end(w))  # type: ignore[misc]

    def _place(self) -> None:
        usable = [line for line in self.lines.values() if line.up and line.compared]
        for workload, row in self._rows():
            if row.node is None and usable:
                line = self.world.dice.choice(usable)
                if self._write(lambda w=workload, n=line.node.name: self._grant(w, n)):  # type: ignore[misc]
                    line.command("start", key=key(workload, row.attempt), epoch=row.epoch)

    def _grant(self, workload: ids.WorkloadId, node: str) -> None:
        database = self.world.database
        database.epoch += 1
        row = database.rows[workload]
        row.node, row.attempt, row.epoch = node, row.attempt + 1, database.epoch


def key(workload: ids.WorkloadId, attempt: int) -> str:
    return ids.attempt_key(workload, 0, attempt)


class World:
    """All of it. ``cut`` has the ways (from, to) on which nothing arrives, and until when."""

    supersedes = True  # a new connection ends those before it

    def __init__(self, rates: dict[str, float], seed: int, slow_s: float, fence_s: float) -> None:
        self.now = 0.0
        self.numbers = itertools.count(1)
        self.fence_s = fence_s
        self.starts_late_s = 0.0
        self.dice = random.Random(seed)
        self.slow_s = slow_s
        self.cut: dict[tuple[str, str], float] = {}
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.database = Database(self, rates[DATABASE])
        clocks = {name: Clock(self, rates[name]) for name in NODES}
        self.nodes = {name: Node(self, name, clock, Heard(clock)) for name, clock in clocks.items()}
        self.heads = {name: Head(self, name, rates[name]) for name in HEADS}

    def open(self, source: str, target: str) -> bool:
        return self.cut.get((source, target), 0.0) <= self.now

    def delay_s(self) -> float:
        return self.dice.choice((0.0, 0.0, 0.0, self.slow_s * self.dice.random()))

    def at(self, when: float, act: Callable[[], None]) -> None:
        self.later.append((when, act))

    def run(self, until: float) -> None:
        """Advance; raise AssertionError when two attempts of one replica live."""
        while self.now < until:
            self.now += STEP_S
            due = [act for when, act in self.later if when <= self.now]
            self.later = [(when, act) for when, act in self.later if when > self.now]
            for act in due:
                act()
            if not self.database.down:
                self.database.step()
            for head in self.heads.values():
                head.step()
            for node in self.nodes.values():
                node.step()
            self.check()

    def run_while(self, condition: Callable[[], bool]) -> None:
        """Advance while this holds; raise AssertionError when that takes too long."""
        until = self.now + 300.0
        while condition():
            assert self.now < until, f"never happened: {self.describe()}"
            self.run(self.now + STEP_S)

    def cut_off(self, *side: str) -> None:
        """Cut these from all others, until they are joined."""
        others = {DATABASE, *HEADS, *NODES} - set(side)
        self.cut |= {way: inf for here in side for there in others for way in ((here, there), (there, here))}

    def join(self, *together: str) -> None:
        """Heal the connections between these."""
        for here in together:
            for there in together:
                self.cut.pop((here, there), None)

    def check(self) -> None:
        alive = [program.rpartition(".")[0] for node in self.nodes.values() for program in node.programs]
        assert len(alive) == len(set(alive)), f"two attempts live at {self.now} s: {self.describe()}"

    def describe(self) -> str:
        return str({name: sorted(node.programs) for name, node in self.nodes.items()})
