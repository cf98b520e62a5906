"""Nodes with networks of their own: each agent, and all that it starts, in a network namespace with its own address."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import machines_harness
from e2e_pool import folder_for_pool
from machines_harness import Machine, Machines

from requires import there

NETWORK = "10.213.77"


def ip(*words: str, check: bool = True) -> bool:
    done = subprocess.run(["ip", *words], capture_output=True, check=False, text=True)
    assert not check or done.returncode == 0, done.stderr
    return done.returncode == 0


class Networks:
    """A bridge, and namespaces that hang on it.

    The bridge is in a namespace too: browsers abort what they load when an interface of their machine comes or goes.
    """

    def __init__(self) -> None:
        self.bridge = f"gpd{os.getpid() % 100_000}"
        self.names: list[str] = []
        ip("netns", "add", self.bridge)
        ip("-n", self.bridge, "link", "add", "switch", "type", "bridge")
        ip("-n", self.bridge, "link", "set", "switch", "up")

    def add(self, number: int) -> str:
        """Create one more namespace and return its name."""
        name = f"{self.bridge}n{number}"
        ip("netns", "add", name)
        self.names.append(name)
        ip("-n", self.bridge, "link", "add", f"cable{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", self.bridge, "link", "set", f"cable{number}", "master", "switch", "up")
        ip("-n", name, "addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", name, "link", "set", device, "up")
        return name

    def close(self) -> None:
        for name in self.names:
            ip("netns", "del", name, check=False)
        ip("netns", "del", self.bridge, check=False)


class MachineApart(Machine):
    """Its agent runs in a namespace; the control plane reaches it by its socket, which is a file."""

    namespace = ""

    def start(self, *options: str) -> None:
        usual = machines_harness.PYTHON
        machines_harness.PYTHON = ("ip", "netns", "exec", self.namespace, *usual)
        try:
            super().start(*options)
        finally:
            machines_harness.PYTHON = usual


class MachinesApart(Machines):
    """Machines like ``Machines``, at 10.213.77.1, 10.213.77.2, ..."""

    def __init__(self, folder: Path, count: int, emulate: str) -> None:
        self.networks = Networks()
        super().__init__(folder, count, emulate)

    def add(self, name: str, emulate: str, address: str = "") -> Machine:
        del address
        number = len(self.nodes) + 1
        machine = MachineApart(self.folder, name, emulate, f"{NETWORK}.{number}", self.network)
        machine.namespace = self.networks.add(number)
        self.nodes[name] = machine
        machine.start()
        self._write_directory()
        return machine

    def down(self, *words: str) -> None:
        try:
            super().down(*words)
        finally:
            self.networks.close()


@contextlib.contextmanager
def machines_apart(count: int, emulate: str) -> Iterator[Machines]:
    """Yield nodes with addresses of their own; where that is not possible, on loopback addresses."""
    kind = MachinesApart if there("netns") else Machines
    with folder_for_pool() as folder:
        pool = kind(folder, count, emulate)
        try:
            pool.up()
            yield pool
        finally:
            pool.down()
