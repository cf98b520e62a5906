"""Two accounts of a machine with one root pool: neither reaches the kernels of the other."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jupyter_client
import pytest
from e2e_pool import PATIENCE_S, RealPool, fresh_pool
from servers import JupyterServer, jupyter_server
from websockets.exceptions import ConnectionClosed

import gpupool
from accounts import ANN, BOB, as_user
from gpupool.client import Client
from gpupool.client.transport.endpoint import UnixEndpoint
from gpupool.client.transport.websocket_dialer import WebSocketDialer

# "netns" stands for the right to mount.
pytestmark = [pytest.mark.root, pytest.mark.needs("root", "netns")]


class Account:
    """An account with a home that others can enter, as on Debian, and a Python that it can execute."""

    def __init__(self, pool: RealPool, uid: int, python: str, path: str) -> None:
        self.uid, self.pool, self.python = uid, pool, python
        self.home = pool.folder / f"home-{uid}"
        self.home.mkdir()
        os.chown(self.home, uid, uid)
        kept = {name: value for name, value in pool.env.items() if not name.startswith(("JUPYTER", "XDG", "PYTHON"))}
        own = {"HOME": str(self.home), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        self.env = {**kept, **own, "LD_LIBRARY_PATH": str(Path(python).parents[1] / "lib")}
        self.identity = {"user": uid, "group": uid, "extra_groups": (), "umask": 0o022}

    def command(self, *words: str) -> str:
        """Run ``gpupool`` as this account and return what it printed."""
        words = (self.python, "-m", "gpupool", *words)
        done = subprocess.run(
            words, env=self.env, cwd=self.home, capture_output=True, timeout=PATIENCE_S, check=False, **self.identity
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()


@contextlib.contextmanager
def mounted(source: Path, target: Path) -> Iterator[Path]:
    """Mount a folder where all accounts can reach it."""
    target.mkdir()
    subprocess.run(["mount", "--bind", source, target], check=True)
    try:
        yield target
    finally:
        subprocess.run(["umount", "--lazy", target], check=True)


@pytest.fixture(scope="module")
def system_pool() -> Iterator[RealPool]:
    with fresh_pool("1xT4") as made:
        yield made


@pytest.fixture(scope="module")
def ann(system_pool: RealPool) -> Iterator[Account]:
    folder = system_pool.folder
    installed = Path(str(importlib.metadata.distribution("gpupool").locate_file("")))
    with contextlib.ExitStack() as stack:
        python = stack.enter_context(mounted(Path(sys.base_prefix), folder / "python"))
        sources = (Path(gpupool.__file__).parents[1], Path(jupyter_client.__file__).parents[1], installed)
        path = [str(stack.enter_context(mounted(source, folder / f"path{n}"))) for n, source in enumerate(sources)]
        executable = python / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
        made = Account(system_pool, ANN, str(executable), ":".join(path))
        made.command("jupyter", "kernel", "add", "0.1", "--name", "tenth", "--python", made.python)
        yield made


@pytest.fixture(scope="module")
def server(ann: Account) -> Iterator[JupyterServer]:
    folder = ann.home / "notebooks"
    folder.mkdir()
    os.chown(folder, ann.uid, ann.uid)
    with jupyter_server(ann.env, folder, ann.python, **ann.identity) as made:
        yield made
        made.end(15)


@pytest.fixture(scope="module")
def kernel(server: JupyterServer) -> str:
    """Return the kernel of a notebook of the first account, which runs as that account."""
    kernel_id = str(server.ask("kernels", {"name": "tenth"})["id"])
    assert server.run(kernel_id, "import os; print(os.getuid())") == f"{ANN}\n", server.said()
    return kernel_id


@pytest.fixture
def connection(kernel: str, ann: Account) -> Path:
    (path,) = ann.home.glob(f".local/share/jupyter/gpupool/kernels/{kernel}/connection.json")
    return path


def sockets_below(folder: Path) -> list[str]:
    """Return the paths of all Unix sockets on which processes listen below a folder."""
    words = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return sorted({line[-1] for line in words if line[-1].startswith(f"{folder}/") and line[3] == "00010000"})


def connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except PermissionError:
            return False
    return True


def present_name(path: str) -> str:
    """Return the present path of a socket that was bound as ``PATH.PID`` and renamed."""
    return path if Path(path).exists() else path.rpartition(".")[0]


def readable(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except PermissionError:
        return False
    return True


def test_channels_are_out_of_reach(system_pool: RealPool, connection: Path) -> None:
    record = json.loads((connection.parent / "kernel.json").read_text())
    channels = sockets_below(Path(record["sockets"] or connection.parent))
    assert len(channels) == 5, "shell, iopub, stdin, control and heartbeat"
    assert as_user(ANN, lambda: [connects(path) for path in channels]) == [True] * 5
    found = sorted({*channels, *map(present_name, sockets_below(system_pool.folder))})
    reached = [path for path in found if as_user(BOB, lambda path=path: connects(path)) is not False]
    assert str(system_pool.run / "agent.sock") in found
    assert reached == [str(system_pool.run / "api.sock")]


def test_key_is_in_no_readable_file_and_no_command_line(
    system_pool: RealPool, connection: Path, kernel: str, ann: Account
) -> None:
    key = json.loads(connection.read_text())["key"].encode()
    assert len(key) >= 32
    found = []
    for folder in (ann.home, system_pool.state, system_pool.run):
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):  # a socket, or deleted meanwhile
                if path.is_file() and key in path.read_bytes():
                    found.append(str(path))
    assert found == [str(connection)]
    private = [str(path) for path in (connection.parent, *connection.parent.iterdir()) if not path.is_socket()]
    assert as_user(ANN, lambda: [path for path in private if readable(path)]) == private
    assert as_user(BOB, lambda: [path for path in private if readable(path)]) == []
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert key not in arguments.read_bytes()


def test_processes_of_the_kernel_are_out_of_reach(ann: Account, server: JupyterServer, kernel: str) -> None:
    pid = int(server.run(kernel, "import os; print(os.getpid())"))
    for name in ("environ", "mem", "cwd/", "fd"):
        path = f"/proc/{pid}/{name}"
        assert as_user(BOB, lambda path=path: readable(path)) is False, name


def test_workload_is_out_of_reach(system_pool: RealPool, ann: Account, server: JupyterServer, kernel: str) -> None:
    api = str(system_pool.run / "api.sock")

    def find() -> str:
        with Client(api) as client:
            (job,) = client.list()
            return job.id

    workload = as_user(ANN, find)

    def attack(what: str) -> str:
        with Client(api) as client:
            if what == "interrupt":
                client.signal(workload, 2)
            elif what == "restart":
                client.restart(workload)
            elif what == "stop":
                client.stop(workload, force=True)
            else:
                list(client.logs(workload))
        return "done"

    for what in ("interrupt", "restart", "stop", "logs"):
        assert "[FORBIDDEN]" in as_user(BOB, lambda what=what: attack(what)), what

    def environment() -> str:
        with Client(api) as client:
            return repr(client.detail(workload))

    assert "PYTHONPATH" in as_user(ANN, environment)
    assert "PYTHONPATH" not in as_user(BOB, environment)
    assert server.run(kernel, "print(6 * 7)") == "42\n"


def test_tunnelled_channels_are_out_of_reach(system_pool: RealPool, ann: Account, server: JupyterServer) -> None:
    ann.command("jupyter", "kernel", "add", "0.1", "--name", "tunnelled", "--python", ann.python)
    (spec,) = ann.home.glob(".local/share/jupyter/kernels/tunnelled/kernel.json")
    content = json.loads(spec.read_text())
    content["metadata"]["kernel_provisioner"]["config"]["transport"] = "tunnel"
    spec.write_text(json.dumps(content))
    kernel = str(server.ask("kernels", {"name": "tunnelled"})["id"])
    assert server.run(kernel, "import os; print(os.getuid())") == f"{ANN}\n", server.said()

    (path,) = ann.home.glob(f".local/share/jupyter/gpupool/kernels/{kernel}/kernel.json")
    record = json.loads(path.read_text())
    far = sockets_below(Path(record["node_folder"]))
    near = sockets_below(Path(record["sockets"] or path.parent))
    assert (len(near), len(far)) == (5, 5)
    assert [path for path in near + far if as_user(BOB, lambda path=path: connects(path))] == []

    async def dial(path: str) -> str:
        dialer = WebSocketDialer(UnixEndpoint(str(system_pool.run / "api.sock")))
        async with await dialer.connect(f"/v1/workloads/{record['workload']}/sockets?path={path}") as stream:
            try:
                return bytes(await stream.recv()).hex()[:2]
            except ConnectionClosed:
                return str(stream.close_reason)

    assert as_user(ANN, lambda: asyncio.run(dial(far[0]))) == "ff", "ZeroMQ's greeting"
    assert as_user(BOB, lambda: asyncio.run(dial(far[0]))).startswith("FORBIDDEN")
    api = str(system_pool.run / "api.sock")
    refused = as_user(ANN, lambda: asyncio.run(dial(api)))
    assert refused.startswith("WRONG_STATE: No process of the job listens"), "the socket of another program"
    server.ask(f"kernels/{kernel}", method="DELETE")
