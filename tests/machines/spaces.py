"""Machines in network namespaces: two heads and nodes on one PostgreSQL, over TCP, with faults of every kind.

Each machine has an agent; a head has a control plane as well. It reaches its own agent directly, as a real one does,
and those of others through a relay over TCP. The database is on a machine of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from databases import PostgresServer, postgres_server
from e2e_pool import PATIENCE_S, eventually, folder_for_pool
from machines_harness import PYTHON, ControlPlane
from ray_machines import Wire, ip
from ticks import TICK, attempts, overlap_s

from gpupool.daemon.config import OFF, PoolConfig, PoolKind, save_config
from gpupool.daemon.folders import prepare_folders

PORT = 7000
GPUS = "2xT4"
FENCE_S = 6
DISK_MIB = 48
DATABASE = "db"
HEADS = ("h1", "h2")
NODES = ("n1",)
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


class SpaceMachine(ControlPlane):
    """One machine with an agent, a relay and, as a head, a control plane. ``clock`` is one of libfaketime's."""

    def __init__(self, root: Path, name: str, wire: Wire, *, clock: str = "") -> None:
        self.name, self.wire, self.clock = name, wire, clock
        (root / name).mkdir(mode=0o755)
        super().__init__(root / name, GPUS, hasty=True)
        self.space, self.address = wire.connect()
        self.node = self.folder / "node"
        self.node.mkdir(mode=0o755)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0755", "tmpfs", self.node], check=True)
        self.agent: subprocess.Popen[bytes] | None = None
        self.relay: subprocess.Popen[bytes] | None = None

    def prepare_head(self, url: str) -> None:
        config = PoolConfig(
            str(self.state), str(self.run), PoolKind.SYSTEM, node_name=self.name, dashboard=OFF, database=url
        )
        prepare_folders(config)
        save_config(config)

    def know(self, machines: list[SpaceMachine]) -> None:
        """Say which machines there are, and start to pass bytes to them."""
        sockets = {m.name: self.folder / f"{m.name}.sock" for m in machines if m is not self}
        reach = {str(path): [m.address, PORT] for m in machines if (path := sockets.get(m.name))}
        options = {"serve": [self.address, PORT, str(self.own_agent)], "reach": reach}
        (self.folder / "relay.json").write_text(json.dumps(options))
        self.write_directory({**sockets, self.name: self.own_agent})
        script = str(Path(__file__).with_name("wire_relay.py"))
        self.relay = self._spawn([*PYTHON, script, str(self.folder / "relay.json")], "relay", skewed=False)

    @property
    def own_agent(self) -> Path:
        return self.node / "run" / "agent.sock"

    def _spawn(self, command: list[str], name: str, *, skewed: bool = True) -> subprocess.Popen[bytes]:
        env = os.environ | {"HASTY": "1"}
        if skewed and self.clock:
            env |= {"LD_PRELOAD": str(FAKETIME), "FAKETIME": self.clock, "FAKETIME_NO_CACHE": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            full = ["ip", "netns", "exec", self.space, *command]
            return subprocess.Popen(full, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env)

    def start_agent(self) -> None:
        places = ["--state", str(self.node / "state"), "--run", str(self.node / "run"), "--name", self.name]
        words = [*places, "--emulate", GPUS, "--address", self.address, "--shared"]
        self.agent = self._spawn([*PYTHON, "-m", "gpupool.node.agent_main", *words], "agent")

    def begin_control_plane(self) -> None:
        script = str(Path(__file__).with_name("machines_pool.py"))
        command = [*PYTHON, script, str(self.folder / "nodes.json"), "--state-dir", str(self.state)]
        self.control_plane = self._spawn(command, "control-plane")

    def supervise(self) -> None:
        """Start again what has ended, as the supervisor of a pool does."""
        if self.agent is not None and self.agent.poll() is not None:
            self.start_agent()
        if self.control_plane is not None and self.control_plane.poll() is not None:
            self.begin_control_plane()

    # -- faults --------------------------------------------------------------------------------------------------------

    def signal_pool(self, signum: int) -> None:
        """Send a signal to the control plane and the agent; shepherds and jobs hear nothing."""
        for process in (self.control_plane, self.agent):
            if process is not None and process.poll() is None:
                process.send_signal(signum)

    def cut(self, others: list[str]) -> None:
        """Let nothing reach these addresses from here."""
        for address in others:
            ip("-n", self.space, "route", "add", "blackhole", address, ok=False)

    def heal(self, others: list[str]) -> None:
        for address in others:
            ip("-n", self.space, "route", "del", "blackhole", address, ok=False)
        self.wire.plug(self.space)
        self.slow(on=False)
        self.signal_pool(signal.SIGCONT)
        (self.node / "full").unlink(missing_ok=True)

    def slow(self, *, on: bool) -> None:
        """Let only 32 kbit/s leave this machine."""
        if on:
            words = ["add", "dev", "eth0", "root", "tbf", "rate", "32kbit", "burst", "8kb", "latency", "900ms"]
        else:
            words = ["del", "dev", "eth0", "root"]
        subprocess.run(["ip", "netns", "exec", self.space, "tc", "qdisc", *words], check=on, capture_output=not on)

    def fill_disk(self) -> None:
        """Leave no room where the agent keeps what runs."""
        with contextlib.suppress(OSError), (self.node / "full").open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 65536)

    def close(self) -> None:
        for process in (self.control_plane, self.agent, self.relay):
            if process is not None:
                process.terminate()
        for process in (self.control_plane, self.agent, self.relay):
            if process is not None:
                process.wait(PATIENCE_S)
        done = subprocess.run(["ip", "netns", "pids", self.space], capture_output=True, check=False, text=True)
        for pid in map(int, done.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["umount", "-l", self.node], check=False)


class Spaces:
    """Heads ``h1`` and ``h2``, node ``n1`` and a database, each on a machine of its own."""

    def __init__(self, root: Path, wire: Wire, server: PostgresServer, clocks: dict[str, str]) -> None:
        self.root, self.wire, self.server = root, wire, server
        self.database_name = server.fresh().rpartition("/")[2]
        self.machines = {name: SpaceMachine(root, name, wire, clock=clocks.get(name, "")) for name in (*HEADS, *NODES)}
        self.addresses = {name: machine.address for name, machine in self.machines.items()}
        self.addresses[DATABASE] = server.address

    def start(self) -> None:
        machines = list(self.machines.values())
        for machine in machines:
            machine.start_agent()
            machine.know(machines)
        for name in HEADS:
            self.machines[name].prepare_head(self.server.url(self.database_name))
            self.machines[name].begin_control_plane()
        assert eventually(lambda: self._all_up() is not None, 120.0), self.logs()

    def leader(self) -> SpaceMachine | None:
        """Return the head that leads, as far as one can be found."""
        leading = self.sql("SELECT leader FROM leadership")
        for name in HEADS:
            head = self.machines[name]
            process = head.control_plane
            if process is not None and process.poll() is None and leading.endswith(f"(pid {process.pid})"):
                return head if head.health() == "ok" else None
        return None

    def _all_up(self) -> SpaceMachine | None:
        leader = self.leader()
        return leader if leader is not None and leader.all_up(len(self.machines)) else None

    def sql(self, statement: str) -> str:
        with contextlib.suppress(AssertionError):  # it is away
            return self.server.sql(statement, self.database_name)
        return ""

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{machine.log()}" for name, machine in self.machines.items() if name in HEADS)

    # -- ways ----------------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Let nothing from one machine reach another."""
        if source == DATABASE:
            ip("-n", self.server.space, "route", "add", "blackhole", self.addresses[target], ok=False)
        else:
            self.machines[source].cut([self.addresses[target]])

    def pull(self, name: str) -> None:
        """Pull the cable of a machine."""
        self.wire.pull(self.server.space if name == DATABASE else self.machines[name].space)

    def heal(self) -> None:
        self.wire.plug(self.server.space)
        for name, address in self.addresses.items():
            if name != DATABASE:
                ip("-n", self.server.space, "route", "del", "blackhole", address, ok=False)
        for machine in self.machines.values():
            machine.heal(list(self.addresses.values()))

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def begin_jobs(self, case: str) -> dict[str, Path]:
        """Start one batch job on each machine, with as much room for another; return where their attempts tick."""
        leader = self.leader()
        assert leader is not None, self.logs()
        leader.ask("PATCH", "policy", {"node_lost_after_s": FENCE_S, "min_runtime_s": 0})
        files = {f"{case}-{number}": self.root / f"{case}-{number}" for number in range(2 * len(self.machines))}
        for name, path in files.items():
            path.touch()
            path.chmod(0o666)
            leader.submit(name, TICK.format(path), grace="1s", restart="on-failure")
        kept: dict[str, str] = {}
        for name in files:
            assert leader.becomes(name, "running"), self.logs()
            if leader.node_of(name) in kept:
                leader.ask("POST", f"workloads/{name}/stop", {"force": True})
            else:
                kept[leader.node_of(name)] = name
        assert kept.keys() == self.machines.keys()
        assert all(eventually(lambda n=name: attempts(files[n])) for name in kept.values())
        return {name: files[name] for name in kept.values()}

    def wait_for_recovery(self, files: dict[str, Path], timeout_s: float) -> bool:
        """Wait until a leader has all machines and every job runs and ticks; start again what has ended."""

        def recovered() -> bool:
            for machine in self.machines.values():
                machine.supervise()
            now, leader = time.time(), self._all_up()
            if leader is None or any(
                now - max(last for _, last in attempts(path).values()) >= 3.0 for path in files.values()
            ):
                return False
            with contextlib.suppress(OSError, AssertionError):  # it has just lost its lead
                return all(leader.state_of(name) == "running" for name in files)
            return False

        return eventually(recovered, timeout_s)

    def end_jobs(self, files: dict[str, Path]) -> list[str]:
        """Stop the jobs; return the names of those that never run again.

        On a busy machine the leader can change once more after the recovery, so a job may be between two attempts.
        """

        def runs(name: str) -> bool:
            with contextlib.suppress(OSError, AssertionError):  # it has just lost its lead
                leader = self.leader()
                return leader is not None and leader.state_of(name) == "running"
            return False

        lost = [name for name in files if not eventually(lambda name=name: runs(name))]
        leader = self.leader()
        assert leader is not None, self.logs()
        leader.clear()
        return lost

    def count_attempts(self, files: dict[str, Path]) -> int:
        """Return how many attempts of these jobs have run."""
        return sum(len(attempts(path)) for path in files.values())

    def double_leases(self) -> str:
        """Return the GPUs of which more than all was leased at a time; empty when there is none."""
        held = (
            "SELECT s.gpu_uuid AS gpu, s.permille, l.epoch, l.granted_at AS since,"
            " coalesce(l.released_at, 1e18) AS until FROM lease_shares s JOIN leases l ON l.epoch = s.epoch"
        )
        return self.server.sql(
            f"WITH held AS ({held}) SELECT a.gpu, a.epoch, sum(b.permille) FROM held a JOIN held b ON a.gpu = b.gpu"
            " AND b.since <= a.since AND b.until > a.since GROUP BY 1, 2 HAVING sum(b.permille) > 1000",
            self.database_name,
        )

    def close(self) -> None:
        self.heal()
        for machine in self.machines.values():
            machine.close()


def worst_overlap_s(files: dict[str, Path]) -> float:
    """Return for how long two attempts of one job ran at the same time; negative when none did."""
    return max(overlap_s(path) for path in files.values())


def longest_silence_s(files: dict[str, Path]) -> float:
    """Return the longest time in which a job did not tick."""
    found = [0.0]
    for path in files.values():
        times = sorted(float(line.split()[1]) for line in path.read_text().splitlines())
        found += [after - before for before, after in itertools.pairwise(times)]
    return max(found)


@contextmanager
def spaces(clocks: dict[str, str] | None = None) -> Iterator[Spaces]:
    """Yield all machines, up, with the first or the second head as the leader; needs root and PostgreSQL."""
    wire = Wire()
    try:
        with folder_for_pool() as root, postgres_server(*wire.connect()) as server:
            made = Spaces(root, wire, server, clocks or {})
            try:
                made.start()
                yield made
            finally:
                made.close()
    finally:
        wire.close()


def can_make_spaces() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None and sys.platform == "linux"
