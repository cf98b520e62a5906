"""The SSH programs of a machine without a pool, over TLS, and workloads on each node of a pool."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "remote"))
sys.path.insert(0, str(Path(__file__).parent.parent / "machines"))
sys.path.insert(0, str(Path(__file__).parent.parent / "node"))

from e2e_pool import PATIENCE_S, eventually, fresh_pool
from machines_harness import Machines, machines
from remote_world import Head, Laptop
from ssh_pool import ECHO, SshPool, connects, random_bytes, written

from free_ports import free_port

pytestmark = pytest.mark.needs("ssh", "asyncssh")

MIB_5 = 5 << 20


class FarSsh:
    """Calls SSH programs on a laptop, with the settings that ``gpupool ssh --configure`` has written there."""

    def __init__(self, laptop: Laptop) -> None:
        self.laptop = laptop
        laptop("ssh", "--configure")

    def words(self, program: str, *words: str) -> list[str]:
        return [program, "-F", str(self.laptop.home / ".ssh/config"), "-o", "LogLevel=ERROR", *words]

    def run(self, program: str, *words: str, stdin: bytes = b"", **more: Any) -> subprocess.CompletedProcess[bytes]:
        options = {"cwd": self.laptop.work, "env": self.laptop.env, "timeout": PATIENCE_S, **more}
        return subprocess.run(self.words(program, *words), input=stdin, capture_output=True, check=False, **options)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    port = free_port()
    with fresh_pool("1xT4", "--listen", f"127.0.0.1:{port}", "--tls-self-signed") as pool:
        pool("submit", "dev", "-p", "0.1", "--interactive", "--", "sleep", "100000")
        assert pool.becomes("dev", "running")
        yield Head(pool, f"127.0.0.1:{port}")


@pytest.fixture
def far(head: Head, tmp_path: Path) -> FarSsh:
    return FarSsh(head.laptop(tmp_path / "laptop", head.token()))


def test_commands_and_files_over_tls(far: FarSsh, tmp_path: Path) -> None:
    done = far.run("ssh", "gpupool.dev", "cat; echo error >&2; echo $GPUPOOL_GPU_SHARE; exit 7", stdin=b"input\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"input\n0.10\n", b"error\n")
    data = random_bytes(MIB_5)
    (tmp_path / "sent").write_bytes(data)
    there = f"gpupool.dev:{tmp_path}/there"
    for program, words in (("scp", ()), ("scp", ("-O",))):
        sent = far.run(program, *words, str(tmp_path / "sent"), there)
        assert sent.returncode == 0, sent.stderr
        got = far.run(program, *words, there, str(tmp_path / "got"))
        assert got.returncode == 0, got.stderr
        assert (tmp_path / "got").read_bytes() == data
        (tmp_path / "got").unlink()


@pytest.mark.needs("rsync")
def test_rsync_over_tls(far: FarSsh, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    (source / "inner").mkdir(parents=True)
    for number in range(20):
        (source / "inner" / f"{number}").write_bytes(random_bytes(10_000))
    shell = " ".join(far.words("ssh"))
    words = ["rsync", "-a", "-e", shell, f"{source}/", f"gpupool.dev:{tmp_path}/copy/"]
    done = subprocess.run(words, env=far.laptop.env, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    copies = {path.name: path.read_bytes() for path in (tmp_path / "copy/inner").iterdir()}
    assert copies == {path.name: path.read_bytes() for path in (source / "inner").iterdir()}


def test_forwarded_port_over_tls(head: Head, far: FarSsh, tmp_path: Path) -> None:
    head.pool("submit", "echo", "-p", "0.1", "--interactive", "--", sys.executable, "-c", ECHO, str(tmp_path / "port"))
    there, here = written(tmp_path / "port"), free_port()
    with subprocess.Popen(
        far.words("ssh", "-N", "-L", f"{here}:127.0.0.1:{there}", "gpupool.echo"), env=far.laptop.env
    ) as tunnel:
        try:
            with connects(here) as connection:
                connection.sendall(b"over and back")
                assert connection.recv(100) == b"over and back"
        finally:
            tunnel.kill()


def test_sessions_of_a_revoked_login_end_and_it_cannot_connect(head: Head, tmp_path: Path) -> None:
    far = FarSsh(head.laptop(tmp_path / "laptop", head.token()))
    with subprocess.Popen(
        far.words("ssh", "gpupool.dev", "echo here; cat"),
        env=far.laptop.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == b"here\n"
        for token in head.pool.json("token", "list")["tokens"]:
            head.pool("token", "revoke", token["id"])
        assert session.wait(PATIENCE_S) != 0, "its input is open: it ends because it is refused"
        assert session.stderr is not None
        assert b"The token has been revoked." in session.stderr.read()
    with head.pool.client as client:
        assert eventually(lambda: not client.list(labels={"session": "ssh"})), "its program was stopped"
    refused = far.run("ssh", "gpupool.dev", "true")
    assert refused.returncode == 255
    assert b"The token has been revoked. [UNAUTHENTICATED]" in refused.stderr
    assert b"Traceback" not in refused.stderr


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Machines]:
    with machines(2, "1xT4") as made:
        yield made


def test_workloads_of_each_node(two_nodes: Machines, tmp_path: Path) -> None:
    pool = SshPool(two_nodes)
    for name in ("one", "two"):
        two_nodes("submit", name, "-g", "1", "--interactive", "--", "sleep", "100000")
        assert two_nodes.becomes(name, "running")
    assert {two_nodes.node_of(name) for name in ("one", "two")} == {"n1", "n2"}
    (tmp_path / "sent").write_bytes(random_bytes(MIB_5))
    for name in ("one", "two"):
        asked = pool.run("ssh", f"gpupool.{name}", "echo $GPUPOOL_WORKLOAD_ID")
        session = asked.stdout.decode().strip()
        assert two_nodes.node_of(session) == two_nodes.node_of(name), asked.stderr
        copied = pool.run("scp", str(tmp_path / "sent"), f"gpupool.{name}:{tmp_path}/{name}")
        assert copied.returncode == 0, copied.stderr
        assert (tmp_path / name).read_bytes() == (tmp_path / "sent").read_bytes()
