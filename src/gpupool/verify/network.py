"""Measure the network between nodes: one copy of this program runs on each of them as a member of a gang.

Rank 0 waits for the others at MASTER_ADDR:MASTER_PORT and lets one member after another measure its way to the members
behind it: latency, throughput in both directions, MTU and the difference of clocks. Pairs that seem slow are measured
again, because a node may have been busy for a moment. Then all members run an all-reduce together. Rank 0 prints the
report as JSON. Only members know the key in GPUPOOL_VERIFY_KEY, with which each connection begins. GPUPOOL_VERIFY_NODE
names the node.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import struct
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from queue import Empty, Queue
from statistics import median
from typing import Any

if __name__ == "__main__":  # the pool runs this file with a Python that need not know the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpupool.verify.all_reduce import METHOD, ReduceRing, measure_ring
from gpupool.verify.results import Check, CheckOutcome, bus_bandwidth, worst

KEY_VARIABLE, NODE_VARIABLE = "GPUPOOL_VERIFY_KEY", "GPUPOOL_VERIFY_NODE"
MEET_S = 180.0
CALL_S = 60.0  # for one answer
PINGS = 100
SEND_S = 1.0
PIECE = bytes(1 << 20)
MAX_OFFSET_MS = 500.0
SLOW_PART = 0.5  # of the median of all pairs
MIN_PAIRS_TO_COMPARE = 3
MORE_MEASUREMENTS = 2  # of pairs that seem slow
RATES = ("send_mib_s", "receive_mib_s")
RING_MIB, RING_ROUNDS = 16, 5
RING_S = 120.0  # for the all-reduce
IP_MTU, IPV6_MTU = 14, 24  # socket options of Linux
TIMESTAMPS = 1  # a bit of tcpi_options, the sixth byte of struct tcp_info
STAMP = struct.Struct("!d")
COUNT = struct.Struct("!Q")
PING, CLOCK, TAKE, GIVE, RING = b"p", b"c", b"t", b"g", b"r"
Json = dict[str, Any]
Rings = Queue[socket.socket]  # connections from the previous member of the ring


class Line:
    """A connection that carries JSON lines."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._file = connection.makefile("rwb")

    def tell(self, value: Json) -> None:
        """Send a line."""
        self._file.write(json.dumps(value).encode() + b"\n")
        self._file.flush()

    def hear(self) -> Json:
        """Return the next line. Raises OSError or ValueError if there is none."""
        found = json.loads(self._file.readline(1 << 20))
        if not isinstance(found, dict):
            raise ConnectionError("the other member sent no object")
        return found


def connect(address: str, port: int, key: str, deadline: float) -> socket.socket:
    """Return a connection to another member, which need not listen yet."""
    while True:
        try:
            made = socket.create_connection((address, port), timeout=CALL_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
            continue
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.sendall(key.encode().ljust(64))
        return made


def accept(server: socket.socket, key: str) -> tuple[socket.socket, str]:
    """Return the next connection of a member and its address; others are closed."""
    while True:
        connection, address = server.accept()
        connection.settimeout(CALL_S)
        try:
            if hmac.compare_digest(exactly(connection, 64), key.encode().ljust(64)):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection, str(address[0]).removeprefix("::ffff:")
        except OSError:
            pass
        connection.close()


def exactly(connection: socket.socket, size: int) -> bytes:
    """Return this number of bytes. Raises OSError if the connection ends before."""
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise ConnectionError("the connection ended")
        found += piece
    return found


def listen(port: int) -> socket.socket:
    """Return a listening socket on all addresses of this node."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
    return socket.create_server(("", port), backlog=64)


def serve(server: socket.socket, key: str, rings: Rings) -> None:
    """Answer the measurements of other members, until this program ends."""
    while True:
        connection, _ = accept(server, key)
        threading.Thread(target=_answer, args=(connection, rings), daemon=True).start()


def _answer(connection: socket.socket, rings: Rings) -> None:
    with connection:
        try:
            while what := connection.recv(1):
                if what == PING:
                    connection.sendall(PING)
                elif what == CLOCK:
                    connection.sendall(STAMP.pack(time.time()))
                elif what == TAKE:
                    connection.sendall(COUNT.pack(_take(connection)))
                elif what == GIVE:
                    _give(connection)
                    return
                elif what == RING:
                    rings.put(connection.dup())
                    return
        except OSError:
            return


def _take(connection: socket.socket) -> int:
    """Read pieces until an empty one; return the number of bytes."""
    total, buffer = 0, bytearray(len(PIECE))
    while size := COUNT.unpack(exactly(connection, COUNT.size))[0]:
        left = size
        while left:
            got = connection.recv_into(buffer, min(left, len(buffer)))
            if not got:
                raise ConnectionError("the connection ended")
            left -= got
        total += size
    return total


def _give(connection: socket.socket) -> None:
    """Write pieces for a time, then an empty one."""
    until = time.monotonic() + SEND_S
    while time.monotonic() < until:
        connection.sendall(COUNT.pack(len(PIECE)) + PIECE)
    connection.sendall(COUNT.pack(0))


def mtu_of(connection: socket.socket) -> float:
    """Return the smaller MTU of both sides: of the way from here, and by the largest segment that both agreed on."""
    six = connection.family == socket.AF_INET6
    level, option = (socket.IPPROTO_IPV6, IPV6_MTU) if six else (socket.IPPROTO_IP, IP_MTU)
    timestamps = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[5] & TIMESTAMPS
    headers = (60 if six else 40) + (12 if timestamps else 0)
    segment = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    return float(min(connection.getsockopt(level, option), segment + headers))


def measure(address: str, port: int, key: str) -> dict[str, float]:
    """Return what this member measures to another one."""
    with connect(address, port, key, time.monotonic() + CALL_S) as connection:
        trips, offsets = [], []
        for _ in range(PINGS):
            begun = time.monotonic()
            connection.sendall(PING)
            exactly(connection, 1)
            trips.append(time.monotonic() - begun)
        for _ in range(PINGS):
            sent = time.time()
            connection.sendall(CLOCK)
            there = STAMP.unpack(exactly(connection, STAMP.size))[0]
            back = time.time()
            offsets.append((back - sent, there - (sent + back) / 2))
        begun = time.monotonic()
        connection.sendall(TAKE)
        _give(connection)
        sent_bytes = COUNT.unpack(exactly(connection, COUNT.size))[0]
        sent_s = time.monotonic() - begun
        begun = time.monotonic()
        connection.sendall(GIVE)
        received_bytes = _take(connection)
        received_s = time.monotonic() - begun
        mtu = mtu_of(connection)
    return {
        "round_trip_ms": 1000 * median(trips),
        "send_mib_s": sent_bytes / 2**20 / sent_s,
        "receive_mib_s": received_bytes / 2**20 / received_s,
        "mtu_bytes": mtu,
        "clock_offset_ms": 1000 * min(offsets)[1],  # of the fastest question
    }


def take_part(asked: Json, key: str, rings: Rings) -> Json:
    """Run the all-reduce as the member that is asked for; return its times, or the error."""
    try:
        with connect(asked["address"], asked["port"], key, time.monotonic() + CALL_S) as to_next:
            to_next.sendall(RING)
            with rings.get(timeout=CALL_S) as from_previous:
                from_previous.settimeout(CALL_S)
                with closing(ReduceRing(asked["rank"], asked["count"], to_next, from_previous)) as ring:
                    return measure_ring(ring, asked["size_mib"], asked["rounds"])
    except Empty:
        return {"error": "the previous member of the ring did not connect"}
    except OSError as error:
        return {"error": str(error)}


def join(address: str, port: int, key: str, me: Json, rings: Rings) -> None:
    """Measure what rank 0 asks for, until it closes the connection."""
    line = Line(connect(address, port, key, time.monotonic() + MEET_S))  # rank 0 may start later
    line.connection.settimeout(None)
    line.tell(me)
    while True:
        try:
            asked = line.hear()
        except (OSError, ValueError):
            return
        if "rank" in asked:
            line.tell(take_part(asked, key, rings))
            continue
        try:
            line.tell({"values": measure(asked["address"], asked["port"], key)})
        except OSError as error:
            line.tell({"error": str(error)})


def lead(server: socket.socket, count: int, key: str, me: Json, rings: Rings) -> Json:
    """Wait for all members, let them measure one after another, and return the report."""
    members: list[tuple[Json, Line | None]] = [(me, None)]
    server.settimeout(MEET_S)
    while len(members) < count:
        connection, seen = accept(server, key)
        joined = Line(connection)
        members.append((joined.hear() | {"address": seen}, joined))
    members.sort(key=lambda member: str(member[0]["node"]))
    pairs = []
    for number, first in enumerate(members):
        for second, _ in members[number + 1 :]:
            pairs.append({"from": first[0]["node"], "to": second["node"], **_measured_by(first, second, key)})
    by_node = {str(member[0]["node"]): member for member in members}
    for _ in range(MORE_MEASUREMENTS):
        for pair in [pair for pair in pairs if slow_rates(pair, pairs)]:
            keep_best(pair, _measured_by(by_node[pair["from"]], by_node[pair["to"]][0], key))
    nodes = [str(member["node"]) for member, _ in members]
    return report(nodes, pairs, judge_ring(nodes, _reduce(members, key, rings)))


def _measured_by(first: tuple[Json, Line | None], second: Json, key: str) -> Json:
    """Let the first member measure its way to the second one; return the values, or the error."""
    _, line = first
    if line is None:
        return _own(second, key)
    line.tell({"address": second["address"], "port": second["port"]})
    line.connection.settimeout(CALL_S + 10 * SEND_S)
    return line.hear()


def slow_rates(pair: Json, pairs: list[Json]) -> dict[str, float]:
    """Return the rates of this pair that are far below the median of all pairs, with that median."""
    others = [one["values"] for one in pairs if "values" in one]
    if "values" not in pair or len(others) < MIN_PAIRS_TO_COMPARE:
        return {}
    usual = {name: median(other[name] for other in others) for name in RATES}
    return {name: usual[name] for name in RATES if pair["values"][name] < SLOW_PART * usual[name]}


def keep_best(pair: Json, again: Json) -> None:
    """Improve a pair by what a further measurement found; a failed measurement is the result of the pair."""
    if "values" not in again:
        del pair["values"]
        pair.update(again)
        return
    values = pair["values"]
    values.update({name: max(values[name], again["values"][name]) for name in RATES})
    values["round_trip_ms"] = min(values["round_trip_ms"], again["values"]["round_trip_ms"])


def _reduce(members: list[tuple[Json, Line | None]], key: str, rings: Rings) -> list[Json]:
    """Let all members run the all-reduce together; return what each of them measured."""
    asked = [
        {
            "address": following["address"],
            "port": following["port"],
            "rank": rank,
            "count": len(members),
            "size_mib": RING_MIB,
            "rounds": RING_ROUNDS,
        }
        for rank, (following, _) in enumerate([*members[1:], members[0]])
    ]
    for (_, line), each in zip(members, asked, strict=True):
        if line is not None:
            line.connection.settimeout(RING_S)
            line.tell(each)
    own = {
        rank: take_part(each, key, rings)
        for rank, ((_, line), each) in enumerate(zip(members, asked, strict=True))
        if line is None
    }
    return [own[rank] if line is None else line.hear() for rank, (_, line) in enumerate(members)]


def judge_ring(nodes: list[str], found: list[Json]) -> Json:
    """Return the check of the all-reduce, with its method. It is not compared: there is only one."""
    errors = [f"{node}: {each['error']}" for node, each in zip(nodes, found, strict=True) if "error" in each]
    wrong = [node for node, each in zip(nodes, found, strict=True) if not each.get("correct", True)]
    if errors:
        check = Check("all-reduce", CheckOutcome.FAIL, "; ".join(errors))
    elif wrong:
        check = Check("all-reduce", CheckOutcome.FAIL, f"wrong results on {', '.join(wrong)}")
    else:
        round_s = median(max(together) for together in zip(*(each["seconds"] for each in found), strict=True))
        rate = bus_bandwidth(RING_MIB, round_s, len(nodes))
        values = {"bus_mib_s": rate, "round_ms": 1000 * round_s, "size_mib": float(RING_MIB)}
        check = Check("all-reduce", values=values)
    return {**check.to_dict(), "method": METHOD}


def _own(other: Json, key: str) -> Json:
    try:
        return {"values": measure(other["address"], other["port"], key)}
    except OSError as error:
        return {"error": str(error)}


def report(nodes: list[str], pairs: list[Json], reduced: Json) -> Json:
    """Return the report: each pair of nodes with its check, the all-reduce, and the worst outcome."""
    judged = [{"from": pair["from"], "to": pair["to"], **judge(pair, pairs).to_dict()} for pair in pairs]
    outcome = worst(CheckOutcome(check["outcome"]) for check in (*judged, reduced))
    return {"version": 1, "nodes": nodes, "outcome": str(outcome), "pairs": judged, "all_reduce": reduced}


def judge(pair: Json, pairs: list[Json]) -> Check:
    """Return the check of a pair, compared with the median of all."""
    if "values" not in pair:
        return Check("network", CheckOutcome.FAIL, f"no connection: {pair['error']}")
    values, notes = pair["values"], []
    others = [one["values"] for one in pairs if "values" in one]
    for name, usual in slow_rates(pair, pairs).items():
        part = 100 * values[name] / usual
        notes.append(f"{name} is {values[name]:.4g}: {part:.0f} % of the median of all pairs ({usual:.4g})")
    if values["mtu_bytes"] < (most := max(other["mtu_bytes"] for other in others)):
        notes.append(f"the MTU is {values['mtu_bytes']:g}, that of other pairs {most:g}")
    if abs(values["clock_offset_ms"]) > MAX_OFFSET_MS:
        notes.append(f"the clocks differ by {values['clock_offset_ms'] / 1000:.3g} s: use time synchronisation")
    return Check("network", CheckOutcome.SUSPECT if notes else CheckOutcome.OK, "; ".join(notes), values)


def main() -> int:
    """Take part as the rank that the environment names."""
    rank, count, key = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ[KEY_VARIABLE]
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    server, rings = listen(0), Rings()
    threading.Thread(target=serve, args=(server, key, rings), daemon=True).start()
    me = {"node": os.environ[NODE_VARIABLE], "port": server.getsockname()[1]}
    if rank:
        join(address, port, key, me, rings)
        return 0
    sys.stdout.write(json.dumps(lead(listen(port), count, key, me | {"address": address}, rings)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
