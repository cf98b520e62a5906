"""A pool of several machines on this one: a real control plane over real agents, each in folders of its own.

Between the control plane and each agent lies a byte proxy that a test can cut, freeze and heal (``Machine.weather``).
Everything is used through the real command and client, as in ``e2e_pool``, which has to be importable, as has
``node_harness``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from byte_proxy import Network, Weather
from e2e_pool import PATIENCE_S, RealPool, eventually, folder_for_pool
from node_harness import Caller

from gpupool.client.transport.http import call
from gpupool.daemon.config import OFF, PoolConfig, PoolKind, save_config
from gpupool.daemon.folders import prepare_folders
from gpupool.node.host import process_tree

AS_ROOT = os.geteuid() == 0
START_PATIENCE_S = 110.0  # a test may take 120
PYTHON = (sys.executable, "-I", "-X", "utf8")


class Machine:
    """One node: an agent that can be frozen, killed and started again, behind a link that has weather."""

    def __init__(self, root: Path, name: str, emulate: str, address: str, network: Network) -> None:
        self.name, self.emulate, self.address = name, emulate, address
        self.state, self.run = root / name / "state", root / name / "run"
        self.root = root / name
        self.root.mkdir(mode=0o755)
        self.link = root / f"{name}.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self._proxy = network.between(self.link, self.run / "agent.sock")

    def start(self, *options: str) -> None:
        """Start its agent; it need not answer yet."""
        places = ["--state", str(self.state), "--run", str(self.run), "--name", self.name]
        words = ["-m", "gpupool.node.agent_main", *places, "--emulate", self.emulate, "--address", self.address]
        with (self.root / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*PYTHON, *words, *(["--shared"] if AS_ROOT else []), *options], stderr=log, stdin=subprocess.DEVNULL
            )

    def kill(self) -> None:
        """Kill its agent with -9; programs run on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def freeze(self) -> None:
        """Stop its agent with SIGSTOP; programs run on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def weather(self, weather: Weather) -> None:
        """Set the weather of the network between the control plane and the agent."""
        self._proxy.set(weather)

    def caller(self) -> Caller:
        """Return a caller that asks the agent as a control plane does, not through the proxy."""
        return Caller(self.run / "agent.sock")

    def ask(self, method: str, **params: Any) -> Any:
        caller = self.caller()
        try:
            return caller.ask(method, **params)
        finally:
            caller.close()

    def programs(self) -> list[str]:
        """Return the keys of the programs with a process here, as the processes themselves carry them."""
        table = process_tree.scan()
        replicas = self.state / "replicas"
        keys = [path.name for path in replicas.iterdir()] if replicas.exists() else []
        return [key for key in keys if process_tree.alive(process_tree.marked(key, table), table)]

    def end(self) -> None:
        """End its programs and its agent in any state."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.thaw()
        else:
            self.start()
        assert eventually(lambda: (self.run / "agent.sock").exists() and self._answers())
        for status in self.ask("list"):
            if status["exit"] is None:
                self.ask("stop", key=status["key"], grace_s=0)
        assert eventually(lambda: all(status["exit"] for status in self.ask("list")))
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, ConnectionError):
            self.ask("list")
            return True
        return False


class ControlPlane(RealPool):
    """A control plane over nodes that a file names, and its API."""

    def __init__(self, folder: Path, emulate: str, *, hasty: bool = False) -> None:
        super().__init__(folder, emulate)
        self._hasty = hasty
        self.control_plane: subprocess.Popen[bytes] | None = None

    def write_directory(self, sockets: Mapping[str, Path]) -> None:
        """Tell it which nodes there are, and where each is reached."""
        path = self.folder / "nodes.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({name: str(socket) for name, socket in sockets.items()}))
        fresh.replace(path)

    def begin_control_plane(self) -> None:
        """Start it; it need not answer yet."""
        script = str(Path(__file__).with_name("machines_pool.py"))
        command = [*PYTHON, script, str(self.folder / "nodes.json"), "--state-dir", str(self.state)]
        with (self.folder / "control-plane.log").open("ab") as log:
            env = os.environ | {"HASTY": "1" if self._hasty else ""}
            self.control_plane = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL, env=env)

    def kill_control_plane(self) -> None:
        assert self.control_plane is not None
        self.control_plane.kill()
        self.control_plane.wait(PATIENCE_S)

    def log(self) -> str:
        """Return the end of what it has logged."""
        return (self.folder / "control-plane.log").read_text()[-5000:]

    def all_up(self, count: int) -> bool:
        assert self.control_plane is not None
        assert self.control_plane.poll() is None, self.log()
        if not (self.run / "api.sock").exists():
            return False
        with contextlib.suppress(Exception):
            return sum(state != "down" for state in self.node_states().values()) >= count
        return False

    def node_states(self) -> dict[str, str]:
        return {node["name"]: node["state"] for node in self.get("nodes")["nodes"]}

    def get(self, path: str) -> Any:
        """Ask the API."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send the same request with any method; a command would take a second on a busy machine."""
        answer = call(str(self.run / "api.sock"), method, f"/v1/{path}", body, PATIENCE_S)
        assert answer.ok, (method, path, answer.body)
        return answer.body

    def health(self) -> str:
        """Return ``ok`` from one that leads, ``waiting`` from one that does not, and nothing where none answers."""
        with contextlib.suppress(OSError):
            answer = call(str(self.run / "api.sock"), "GET", "/v1/health", None, PATIENCE_S)
            return str((answer.body or {}).get("status"))
        return ""

    def submit(self, name: str, line: str, **body: Any) -> None:
        """Submit batch work of one GPU that runs a shell line."""
        asked = {"name": name, "kind": "training", "command": ["sh", "-c", line], "workdir": str(self.work)}
        self.ask("POST", "workloads", asked | {"env": {"PATH": os.environ["PATH"]}, "gpus": {"count": 1}} | body)

    def output(self, name: str, attempt: int = 1) -> str:
        """Return the output so far of an attempt of its first replica."""
        chunks = self.get(f"workloads/{name}/logs?attempt={attempt}")["chunks"]
        return b"".join(base64.b64decode(chunk["data"]) for chunk in chunks).decode()

    def state_of(self, name: str) -> str:
        return str(self.get(f"workloads/{name}")["state"])

    def becomes(self, name: str, *states: str) -> bool:
        def reached() -> bool:
            found = self.get(f"workloads/{name}")
            return found["state"] in states and not found["counts"]["starting"]

        return eventually(reached)

    def replica(self, name: str, index: int = 0) -> Any:
        """Return a replica of a workload as the API shows it."""
        found = self.get(f"workloads/{name}")["replicas"]
        return next(row for row in found if row["index"] == index)

    def node_of(self, name: str, index: int = 0) -> str:
        return str(self.replica(name, index)["node"])

    def key_of(self, name: str, index: int = 0) -> str:
        """Return the key of the present attempt."""
        return f"{self.get(f'workloads/{name}')['id']}.{index}.{self.replica(name, index)['attempt']}"

    def node_becomes(self, name: str, *states: str, timeout_s: float = PATIENCE_S) -> bool:
        return eventually(lambda: self.node_states().get(name) in states, timeout_s)

    def clear(self) -> None:
        def live() -> list[Any]:
            found = self.get("workloads?limit=1000")["workloads"]
            return [each for each in found if each["state"] not in {"succeeded", "failed", "stopped"}]

        for each in live():
            self.ask("POST", f"workloads/{each['id']}/stop", {"force": True})
        assert eventually(lambda: not live()), "some hold no GPU"
        gpus = lambda: [gpu["allocated_permille"] for gpu in self.get("gpus")["gpus"]]  # noqa: E731
        assert eventually(lambda: not any(gpus()))


class Machines(ControlPlane):
    """Nodes ``n1``, ``n2``, ... with GPUs ``emulate`` each, reached at 127.0.0.11, 127.0.0.12, ..."""

    def __init__(self, folder: Path, count: int, emulate: str, *, hasty: bool = False) -> None:
        super().__init__(folder, emulate, hasty=hasty)
        self.network = Network()
        self.nodes: dict[str, Machine] = {}
        kind = PoolKind.SYSTEM if AS_ROOT else PoolKind.USER
        config = PoolConfig(str(self.state), str(self.run), kind, node_name="head", dashboard=OFF)
        prepare_folders(config)
        save_config(config)
        for number in range(1, count + 1):
            self.add(f"n{number}", emulate, f"127.0.0.{10 + number}")

    def add(self, name: str, emulate: str, address: str = "127.0.0.1") -> Machine:
        """Add a node and start its agent."""
        machine = self.nodes[name] = Machine(self.folder, name, emulate, address, self.network)
        machine.start()
        self._write_directory()
        return machine

    def remove(self, name: str) -> None:
        """Take a node out of the directory, after ending what is on it."""
        self.nodes.pop(name).end()
        self._write_directory()

    def _write_directory(self) -> None:
        self.write_directory({name: node.link for name, node in self.nodes.items()})

    def up(self, *words: str, ok: bool = True) -> subprocess.CompletedProcess[bytes]:  # type: ignore[override]
        """Start a control plane and wait until all nodes that live are up (no words are understood)."""
        del words
        self.begin_control_plane()
        if ok:
            assert eventually(self._all_up, START_PATIENCE_S), self.log()
        return subprocess.CompletedProcess([], 0)

    def _all_up(self) -> bool:
        return self.all_up(len(self.nodes))

    def heal(self) -> None:
        """Heal all networks, start all agents, and wait until all nodes are up."""
        for node in self.nodes.values():
            node.weather(Weather.FINE)
            assert node.process is not None
            if node.process.poll() is None:
                node.thaw()
            else:
                node.start()
        assert eventually(self._all_up)

    def down(self, *words: str) -> None:
        """End everything, jobs too."""
        del words
        for node in self.nodes.values():
            node.weather(Weather.FINE)
        if self.control_plane is not None and self.control_plane.poll() is None:
            self.control_plane.terminate()
            self.control_plane.wait(PATIENCE_S)
        for node in self.nodes.values():
            node.end()
        self.network.close()


@contextlib.contextmanager
def machines(count: int = 4, emulate: str = "2xT4", *, hasty: bool = False) -> Iterator[Machines]:
    """Yield a pool with this number of nodes, all up; everything is removed at the end.

    ``hasty``: silence is noticed after three seconds, and a fence is certain about six seconds after its time.
    """
    with folder_for_pool() as folder:
        pool = Machines(folder, count, emulate, hasty=hasty)
        try:
            pool.up()
            yield pool
        finally:
            pool.down()


__all__ = ["AS_ROOT", "Machine", "Machines", "Weather", "eventually", "machines"]
