"""SSH programs of this machine in a workload that runs in a container."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_pools import container_pool
from e2e_pool import alive, eventually
from ssh_pool import ECHO, SshPool, connects, random_bytes, written

from free_ports import free_port

pytestmark = pytest.mark.needs("ssh", "asyncssh")

# Programs of this machine for the image, which has a shell and a few tools only.
TOOLS = tuple(word for folder in ("/usr/bin", "/usr/lib") for word in ("-v", f"{folder}:{folder}:ro"))


@pytest.fixture(scope="module")
def boxed(container_store: Path) -> Iterator[SshPool]:
    """Yield a pool with a workload called box, in a container."""
    with container_pool(container_store) as pool:
        made = SshPool(pool)
        program = ("-v", f"{pool.work}:/work", *TOOLS, "-i", "tiny:1", "--", "sleep", "100000")
        made.begin_workload("box", *program)
        yield made


def test_session_runs_in_the_container(boxed: SshPool) -> None:
    done = boxed.run("ssh", "gpupool.box", "cat; cat /etc/passwd; exit 7", stdin=b"input\n")
    assert done.returncode == 7, done.stderr
    assert done.stdout == b"input\nroot:x:0:0:root:/:/bin/sh\n"
    shown = boxed.run("ssh", "-tt", "gpupool.box", "tty")
    assert b"/dev/pts/" in shown.stdout, shown.stderr


@pytest.mark.parametrize("program", ["sftp", "scp", "rsync"])
def test_files_are_copied(boxed: SshPool, tmp_path: Path, program: str) -> None:
    data = random_bytes(1 << 20)
    sent, got = tmp_path / "sent", tmp_path / "got"
    sent.write_bytes(data)
    there = f"gpupool.box:/work/copied-{program}"
    for source, target in ((str(sent), there), (there, str(got))):
        if program == "rsync":
            words = ["-e", f"ssh -F {boxed.config}", source, target]
            done = boxed.run_plain("rsync", *words)
        else:
            done = boxed.run("scp", *(["-O"] if program == "scp" else []), source, target)
        assert done.returncode == 0, done.stderr
    assert got.read_bytes() == data
    assert (boxed.pool.work / f"copied-{program}").read_bytes() == data


def test_port_is_forwarded(boxed: SshPool) -> None:
    local, port_file = free_port(), boxed.pool.work / "port"
    with (
        boxed.connected("gpupool.box", f"exec /usr/bin/python3 -c '{ECHO}' /work/port"),
        boxed.connected("-N", "-L", f"{local}:localhost:{written(port_file)}", "gpupool.box"),
        connects(local) as near,
    ):
        near.sendall(b"word")
        assert near.recv(4, socket.MSG_WAITALL) == b"word"


def test_session_ends_with_a_killed_client(boxed: SshPool) -> None:
    with boxed.connected("gpupool.box", "exec sleep 4242") as ssh:
        assert eventually(lambda: _programs(b"sleep\x004242\x00"))
        [pid] = _programs(b"sleep\x004242\x00")
        ssh.kill()
        assert eventually(lambda: not alive(pid))
        assert eventually(lambda: not boxed.sessions())


def _programs(command: bytes) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == command:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_process_that_left_its_session_ends_with_the_container(boxed: SshPool) -> None:
    name = "short-box"
    boxed.begin_workload(name, "-i", "tiny:1", "--", "sleep", "100000")
    words = "busybox setsid sleep 4343 > /dev/null 2>&1 & while ! kill -0 $!; do :; done"
    assert boxed.run("ssh", f"gpupool.{name}", words).returncode == 0
    assert eventually(lambda: not boxed.sessions())
    assert _programs(b"sleep\x004343\x00")
    boxed.pool("stop", name)
    assert eventually(lambda: not _programs(b"sleep\x004343\x00"))
