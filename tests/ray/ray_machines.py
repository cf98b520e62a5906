"""Machines of a cluster on this one: each in a network namespace with an address, folders and a Ray of its own.

``e2e_pool`` has to be importable.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from e2e_pool import COMMAND, PATIENCE_S, RealPool, alive, eventually

import fork_server

if TYPE_CHECKING:
    from databases import PostgresServer

LAN = "10.213.{net}.{host}"
PORT = 8443
COUNT = "echo $$ >> starts; n=0; while [ ! -e stop ]; do n=$((n+1)); echo line $n; sleep 0.1; done; exit 7"


def ip(*words: str, ok: bool = True) -> None:
    subprocess.run(["ip", *words], check=ok, capture_output=not ok)


def cable(space: str) -> str:
    """Return the name of a machine's cable at the switch."""
    return space.replace("gpn", "gpc")


class Wire:
    """A switch; every machine has a cable to it that can be pulled.

    It is in a namespace too: browsers abort what they load when an interface of their own machine comes or goes.
    """

    def __init__(self) -> None:
        self.id = os.getpid() % 10_000
        self.net = self.id % 250 + 1
        self.switch = f"gps{self.id}"
        self.names: list[str] = []
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "switch", "type", "bridge")
        ip("-n", self.switch, "link", "set", "switch", "up")

    def connect(self) -> tuple[str, str]:
        """Create a namespace; return its name and its address."""
        number = len(self.names) + 1
        name = f"gpn{self.id}x{number}"
        address = LAN.format(net=self.net, host=number)
        self.names.append(name)
        ip("netns", "add", name)
        ip("-n", self.switch, "link", "add", cable(name), "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", self.switch, "link", "set", cable(name), "master", "switch", "up")
        for words in (("addr", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
            ip("-n", name, *words)
        ip("-n", name, "link", "set", "lo", "up")
        return name, address

    def pull(self, name: str) -> None:
        ip("-n", self.switch, "link", "set", cable(name), "down")

    def plug(self, name: str) -> None:
        ip("-n", self.switch, "link", "set", cable(name), "up")

    def close(self) -> None:
        for name in self.names:
            ip("netns", "del", name, ok=False)
        ip("netns", "del", self.switch, ok=False)


class Machine(RealPool):
    """One machine; commands are run in its namespace."""

    def __init__(self, folder: Path, emulate: str, name: str, wire: Wire) -> None:
        folder.mkdir()
        super().__init__(folder, emulate)
        self.name = name
        self.wire = wire
        self.space, self.address = wire.connect()

    def __call__(self, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        ok, stdin = options.pop("ok", True), options.pop("stdin", b"")
        timeout_s = options.pop("timeout", PATIENCE_S * 2)
        options = {"cwd": self.work, "env": self.env, "space": self.space, **options}
        done = fork_server.run([str(COMMAND), *words], stdin, timeout_s, **options)
        assert not ok or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout!r}\n{done.stderr.decode()}"
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    def head(self, *words: str) -> None:
        own = ("--emulate", self.emulate, "--cluster", "--address", self.address, "--dashboard", "off")
        self("up", "-b", *own, *words)

    def token(self, *words: str) -> str:
        return self.text("join-token", "create", *words).strip()

    def join_words(self, head: Machine, token: str) -> tuple[str, ...]:
        return ("join", head.address, "--token", token, "--name", self.name, "--emulate", self.emulate)

    def begin_join(self, head: Machine, token: str, *words: str) -> subprocess.Popen[bytes]:
        """Join, in the background."""
        command = [str(COMMAND), *self.join_words(head, token), *words]
        return fork_server.popen(command, env=self.env, cwd=self.work, space=self.space)

    def heads(self) -> dict[str, Any]:
        """Return the heads that this machine knows, by name."""
        path = self.state / "cluster" / "heads.json"
        return {head["name"]: head for head in json.loads(path.read_text())["heads"]} if path.exists() else {}

    def die(self) -> None:
        """Lose power: the cable is silent, and every process gone."""
        self.wire.pull(self.space)
        done = subprocess.run(["ip", "netns", "pids", self.space], capture_output=True, check=True, text=True)
        for pid in map(int, done.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> dict[int, str]:
        """Return every process that Ray's process here started, with their names."""
        return dict(_descendants(self.pids()["ray"]))

    def pid_of(self, part: str) -> int:
        return next(pid for pid, name in self.processes().items() if part in name)

    def kill_ray(self, part: str, signum: signal.Signals = signal.SIGKILL) -> int:
        pid = self.pid_of(part)
        os.kill(pid, signum)
        return pid

    def trees(self) -> set[str]:
        """Return the folders (their lists of files) that this head stores."""
        return {path.name for path in (self.state / "files").glob("u-*/trees/*")}

    def cut_off_from(self, other: Machine) -> None:
        """Cut the connection to the other machine."""
        ip("-n", self.space, "route", "add", "blackhole", other.address)

    def reach(self, other: Machine) -> None:
        """Restore the connection to the other machine."""
        ip("-n", self.space, "route", "del", "blackhole", other.address)

    def log(self, name: str) -> str:
        path = self.state / "log" / f"{name}.log"
        return path.read_text() if path.exists() else ""


class Cluster:
    """A head and nodes."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.wire = Wire()
        self.head = Machine(folder / "h", "1xA100", "head", self.wire)
        self.nodes = [Machine(folder / f"n{i}", "1xT4", f"n{i}", self.wire) for i in range(1, nodes + 1)]

    def start(self) -> None:
        self.head.head()
        token = self.head.token("--uses", str(len(self.nodes)))
        joins = [node.begin_join(self.head, token) for node in self.nodes]
        for join in joins:
            join.wait(PATIENCE_S * 4)
        assert all(self.becomes(node.name, "up") for node in self.nodes)

    def state_of(self, node: str) -> str:
        found = {view["name"]: view["state"] for view in self.head.json("nodes")["nodes"]}
        return str(found.get(node, "gone"))

    def becomes(self, node: str, state: str) -> bool:
        return eventually(lambda: self.state_of(node) == state, PATIENCE_S * 4, pause_s=0.3)

    def close(self) -> None:
        for machine in [*self.nodes, self.head]:
            self.wire.plug(machine.space)
        self.head("down", "--stop-jobs", ok=False)
        for node in self.nodes:
            node("down", ok=False)
        self.wire.close()


class TwoHeads(Cluster):
    """Two heads and nodes on one database; ``head`` is the one that is asked, ``other`` the other."""

    def __init__(self, folder: Path, nodes: int) -> None:
        super().__init__(folder, nodes)
        self.other = Machine(folder / "h2", "1xA100", "h2", self.wire)
        self.database, self.database_address = self.wire.connect()

    def lead(self, url: str, *words: str) -> None:
        """Start the first head, with more options if any, then let all others join at once."""
        self.head.state.mkdir(mode=0o711)
        (self.head.state / "config.json").write_text(json.dumps({"node_name": "head"}))
        self.head.head("--database", url, *words)
        token, for_head = self.head.token("--uses", str(len(self.nodes))), self.head.token("--head")
        joins = [self.other.begin_join(self.head, for_head, "--as-head")]
        joins += [node.begin_join(self.head, token) for node in self.nodes]
        assert [join.wait(PATIENCE_S * 4) for join in joins] == [0] * len(joins)
        assert eventually(lambda: all(set(machine.heads()) == {"head", "h2"} for machine in self.machines))

    @property
    def machines(self) -> list[Machine]:
        return [self.head, self.other, *self.nodes]

    def swap(self) -> None:
        self.head, self.other = self.other, self.head

    def close(self) -> None:
        for machine in self.machines:
            self.wire.plug(machine.space)
        self.head("down", "--stop-jobs", ok=False)
        ends = [machine.begin("down", "--state-dir", str(machine.state)) for machine in self.machines]
        for end in ends:
            end.communicate()
        self.wire.close()


Heads = TypeVar("Heads", bound=TwoHeads)


class Outsider:
    """A machine outside the cluster, on the same wire: a home, folders, and nothing of the pool's but a login."""

    def __init__(self, folder: Path, wire: Wire) -> None:
        self.home, self.folder = folder / "home", folder
        self.home.mkdir(parents=True)
        self.space, _ = wire.connect()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUPOOL_", "XDG_"))}
        self.env = kept | {"HOME": str(self.home), "NO_COLOR": "1"}

    def begin(self, *words: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a command of ours, with pipes."""
        pipe = subprocess.PIPE
        options = {"cwd": cwd or self.home, "env": self.env, "space": self.space}
        return fork_server.popen([str(COMMAND), *words], stdin=pipe, stdout=pipe, stderr=pipe, **options)

    def begin_program(self, *command: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        """Start any program, with pipes."""
        pipe = subprocess.PIPE
        full = ["ip", "netns", "exec", self.space, *command]
        return subprocess.Popen(full, cwd=cwd or self.home, env=self.env, stdin=pipe, stdout=pipe, stderr=pipe)

    def __call__(self, *words: str, stdin: bytes = b"", cwd: Path | None = None) -> str:
        """Return the output of a gpupool command that must succeed."""
        began = self.begin(*words, cwd=cwd)
        out, err = began.communicate(stdin, timeout=PATIENCE_S * 2)
        assert began.returncode == 0, f"{words}: {began.returncode}\n{out!r}\n{err.decode()}"
        return out.decode()

    def login(self, head: Machine) -> None:
        """Log in once, at one head."""
        from gpupool.api.server.tls import fingerprint

        token = head.json("token", "create", "--expires", "1h")["secret"]
        seen = fingerprint(head.state / "tls" / "cert.pem")
        self("login", head.address, "--name", "lab", "--fingerprint", seen, stdin=token.encode())

    def submit_folder(self, name: str, node: str, gpus: str) -> None:
        """Work that says what is in the folder that is sent with it, which is that of its name."""
        project = self.folder / name
        (project / "below").mkdir(parents=True)
        (project / "below" / "said.txt").write_text(f"in the folder of {name}\n")
        words = ("-g", gpus, "--filter", f"node={node}", "--", "cat", "below/said.txt")
        self("submit", name, *words, cwd=project)


class Job:
    """A program on a node that prints when it starts, counts, and ends on request."""

    def __init__(self, machines: Cluster, name: str, node: Machine, *options: str) -> None:
        self.machines, self.name, self.node = machines, name, node
        self.folder = machines.head.work / name
        self.folder.mkdir(mode=0o777)
        words = ("--filter", f"node={node.name}", "-w", str(self.folder), "--", "sh", "-c", COUNT)
        machines.head("submit", name, "-g", "0.5", "--restart", "never", *options, *words)
        assert eventually(lambda: self.starts)

    @property
    def starts(self) -> list[int]:
        path = self.folder / "starts"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def runs(self) -> bool:
        return len(self.starts) == 1 and alive(self.starts[0])

    def end(self) -> tuple[int | None, list[str]]:
        """Let it end: its exit status and its output."""
        (self.folder / "stop").touch()
        assert eventually(lambda: self.machines.head.state_of(self.name) == "failed", PATIENCE_S * 4)
        view = self.machines.head.json("describe", self.name)
        return view["replicas"][0]["exit_status"], self.output()

    def output(self) -> list[str]:
        """Return its log, as soon as its node answers."""
        done: list[subprocess.CompletedProcess[bytes]] = []

        def read() -> bool:
            done[:] = [self.machines.head("logs", self.name, ok=False)]
            return done[0].returncode == 0

        assert eventually(read, PATIENCE_S * 4)
        return done[0].stdout.decode().splitlines()

    def ends_well(self) -> None:
        """Check that its exit status and all of its output arrive, and that it was started once."""
        status, lines = self.end()
        assert status == 7
        assert lines == [f"line {n}" for n in range(1, len(lines) + 1)]
        assert lines
        assert len(self.starts) == 1


def show_logs(machines: Iterable[Machine]) -> None:
    """Print the ends of all logs, for a test that failed."""
    for machine in machines:
        for name in ("supervisor", "ray", "bridge", "control-plane", "gateway"):
            sys.stderr.write(f"--- {machine.name} {name}\n{machine.log(name)[-2000:]}\n")


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="gpr"))
    folder.chmod(0o755)
    made = Cluster(folder, nodes)
    try:
        made.start()
        yield made
    except BaseException:
        show_logs((made.head, *made.nodes))
        raise
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def two_heads(
    kind: Callable[[Path, int], Heads],
    nodes: int,
    lead: Callable[[Heads, PostgresServer], None] = lambda made, server: made.lead(server.empty()),
) -> Iterator[Heads]:
    """Yield two heads and nodes, each in a network namespace, and a database that all of them reach."""
    from databases import postgres_server

    folder = Path(tempfile.mkdtemp(prefix="gpr"))
    folder.chmod(0o755)
    made = kind(folder, nodes)
    try:
        with postgres_server(made.database, made.database_address) as server:
            try:
                lead(made, server)
                yield made
            except BaseException:
                show_logs(made.machines)
                raise
            finally:
                made.close()
    finally:
        made.wire.close()
        shutil.rmtree(folder, ignore_errors=True)


def _descendants(pid: int) -> Iterator[tuple[int, str]]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in map(int, children):
        with contextlib.suppress(OSError):
            yield child, Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        yield from _descendants(child)


def environment_of(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(pair.decode().split("=", 1) for pair in pairs if b"=" in pair)


def ancestors_of(pid: int) -> list[str]:
    found = []
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text()
        found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        pid = int(stat.rpartition(")")[2].split()[1])
    return found


def gpus_leased(machine: Machine) -> list[int]:
    """Return the leased thousandths of every GPU."""
    return [gpu["allocated_permille"] for gpu in machine.json("list_gpus")["gpus"]]


def loads(text: str) -> Any:
    return json.loads(text)
