"""SSH programs of a machine outside of the cluster reach the nodes: over TLS to the head, and from there by the bridge.

Each machine is in a network namespace of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "ssh"))

from e2e_pool import PATIENCE_S, eventually
from ray_machines import Cluster, Outsider
from ssh_pool import HALF_CLOSER, random_bytes, written

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.needs("ssh", "asyncssh")]

LOCAL = 4022  # in the laptop's own namespace
# Ends its sending side first, then the other way round; prints what it has received.
BOTH_WAYS = """
import socket, sys, time

def dial():
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)

def everything(near):
    return b"".join(iter(lambda: near.recv(65536), b""))

data = sys.stdin.buffer.read()
with dial() as near:
    near.sendall(b"c" + data)
    near.shutdown(socket.SHUT_WR)
    assert everything(near) == data[::-1]
with dial() as near:
    near.sendall(b"s")
    print(everything(near).decode())
    near.sendall(data)
    near.shutdown(socket.SHUT_WR)
    everything(near)
"""


class Laptop(Outsider):
    """A machine with a login at the cluster, and the settings of ``gpupool ssh --configure``."""

    def run(self, program: str, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        began = self.begin_program(*self.ssh(program, *words))
        out, err = began.communicate(stdin, timeout=PATIENCE_S * 2)
        return subprocess.CompletedProcess(words, began.returncode, out, err)

    def ssh(self, program: str, *words: str) -> list[str]:
        return [program, "-F", str(self.home / ".ssh/config"), "-o", "LogLevel=ERROR", *words]


@pytest.fixture(scope="module")
def laptop(machines: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    made = Laptop(tmp_path_factory.mktemp("laptop"), machines.wire)
    made.login(machines.head)
    made("ssh", "--configure")
    return made


@pytest.fixture(scope="module")
def far(machines: Cluster) -> Iterator[Path]:
    """Run a server on a node as the workload ``far``; yield the folder where it writes."""
    folder = machines.head.work
    program = (sys.executable, "-c", HALF_CLOSER, str(folder / "port"), str(folder / "received"))
    where = ("--filter", f"node={machines.nodes[0].name}", "-w", str(folder))
    machines.head("submit", "far", "-g", "0.5", "--interactive", *where, "--", *program)
    assert machines.head.becomes("far", "running")
    yield folder
    machines.head("stop", "far", "--force")


def test_command_has_its_streams_status_and_node(machines: Cluster, laptop: Laptop, far: Path) -> None:
    done = laptop.run("ssh", "gpupool.far", "cat; echo error >&2; echo $GPUPOOL_GPU_SHARE; exit 7", stdin=b"input\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"input\n0.50\n", b"error\n")
    session = laptop.run("ssh", "gpupool.far", "echo $GPUPOOL_WORKLOAD_ID").stdout.decode().strip()
    assert machines.head.json("describe", session)["replicas"][0]["node"] == machines.nodes[0].name


def test_files_arrive_in_both_directions(laptop: Laptop, far: Path, tmp_path: Path) -> None:
    data = random_bytes(5 << 20)
    (tmp_path / "sent").write_bytes(data)
    sent = laptop.run("scp", str(tmp_path / "sent"), f"gpupool.far:{far}/there")
    assert sent.returncode == 0, sent.stderr
    got = laptop.run("scp", f"gpupool.far:{far}/there", str(tmp_path / "got"))
    assert got.returncode == 0, got.stderr
    assert (tmp_path / "got").read_bytes() == data


def test_each_direction_of_a_port_ends_on_its_own(laptop: Laptop, far: Path) -> None:
    data = random_bytes(1_000_000)
    forward = ("-N", "-L", f"{LOCAL}:localhost:{written(far / 'port')}", "gpupool.far")
    tunnel = laptop.begin_program(*laptop.ssh("ssh", *forward))
    try:
        client = laptop.begin_program(sys.executable, "-c", BOTH_WAYS, str(LOCAL))
        out, err = client.communicate(data, timeout=PATIENCE_S * 2)
        assert (client.returncode, out) == (0, b"the end\n"), err.decode()
        assert eventually((far / "received").exists)
        assert (far / "received").read_bytes() == data
    finally:
        tunnel.kill()
        tunnel.communicate()
