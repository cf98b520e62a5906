"""MPI's remote start without ssh: access, and processes that end together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_pool import PATIENCE_S, alive, eventually

from free_ports import free_port
from gpupool.distributed import rank_frames as f
from gpupool.distributed import rank_host

SECRET = "5ec7e7"
PACKAGE = Path(f.__file__).parent


class Host:
    """A rank host on a free port."""

    def __init__(self) -> None:
        self.port = free_port()
        given = {"GPUPOOL_GANG_SECRET": SECRET, "GPUPOOL_RANK_HOST": f"127.0.0.1 {self.port}", "OF_HOST": "yes"}
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(PACKAGE / "rank_host.py")], env={**os.environ, **given}
        )
        assert eventually(self._listens)

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def start(self, command: str, secret: str = SECRET, host: str = "worker-0") -> subprocess.Popen[bytes]:
        """Start a command like mpirun."""
        hosts = {
            "GPUPOOL_GANG_HOSTS": json.dumps({"worker-0": ["127.0.0.1", self.port]}),
            "GPUPOOL_GANG_SECRET": secret,
        }
        words = [sys.executable, "-I", str(PACKAGE / "remote_start.py"), host, *command.split(" ")]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env={**os.environ, **hosts}, stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.process.terminate()
    assert made.process.wait(PATIENCE_S) == 0


def test_remote_command_has_environment_and_streams_of_host(host: Host) -> None:
    started = host.start("echo $OF_HOST$GPUPOOL_GANG_SECRET; cat; echo bad >&2; exit 3")
    out, errors = started.communicate(b"given\n", timeout=PATIENCE_S)
    assert (out, errors, started.returncode) == (b"yes\ngiven\n", b"bad\n", 3), "the secret is not handed on"


def test_remote_start_needs_the_secret(host: Host, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    _, errors = (stranger := host.start(f"touch {mark}", secret="guessed")).communicate(timeout=PATIENCE_S)
    assert stranger.returncode == 255
    assert b"cannot be reached" in errors
    assert not mark.exists()
    assert host.start("true", host="elsewhere").wait(PATIENCE_S) == 255


def test_recorded_request_cannot_be_replayed(host: Host, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with socket.create_connection(("127.0.0.1", host.port), timeout=PATIENCE_S) as sock:
        nonces = sock.recv(f.NONCE_BYTES, socket.MSG_WAITALL) + b"n" * f.NONCE_BYTES
        sock.sendall(b"n" * f.NONCE_BYTES + f.proof(SECRET, "starter", nonces))
        assert f.proves(sock.recv(f.PROOF_BYTES, socket.MSG_WAITALL), SECRET, "host", nonces)
        command = f"touch {mark}".encode()
        of_another = f.proof(SECRET, "command", b"o" * 2 * f.NONCE_BYTES, command)
        sock.sendall(f.frame(f.COMMAND, of_another + command))
        assert sock.recv(1) == b"", "hung up"
    assert not mark.exists()


def test_remote_command_is_killed_with_its_starter(host: Host, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    started = host.start(f"sleep 1000 & echo $! > {told}; wait")
    assert eventually(lambda: told.exists() and told.read_text().strip())
    pid = int(told.read_text())
    started.send_signal(signal.SIGKILL)
    started.wait(PATIENCE_S)
    assert eventually(lambda: not alive(pid))


def test_folders_are_removed_at_end_or_at_next_start() -> None:
    own = Host()
    told = own.start("echo $OMPI_MCA_btl_vader_backing_directory $OMPI_MCA_orte_tmpdir_base").communicate(
        timeout=PATIENCE_S
    )[0]
    folders = [Path(word) for word in told.decode().split()]
    assert len(folders) == 2
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
    own.process.kill()
    own.process.wait(PATIENCE_S)
    after = Host()
    after.process.terminate()
    assert after.process.wait(PATIENCE_S) == 0
    assert eventually(lambda: not any(folder.exists() for folder in folders)), "by it, or by a host of another test"


def test_folder_deleted_by_another_starting_member_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    make, made = tempfile.mkdtemp, list[str]()

    def make_and_lose_the_first(**where: str) -> str:
        made.append(make(**where))
        if len(made) == 1:
            shutil.rmtree(made[0])
        return made[-1]

    monkeypatch.setattr(rank_host.tempfile, "mkdtemp", make_and_lose_the_first)
    folder = rank_host._folder(None, "orte_tmpdir_base", environment := {})
    try:
        assert environment == {"OMPI_MCA_orte_tmpdir_base": folder}
        assert folder == made[1]
        assert rank_host._lock(Path(folder)) is None, "it is locked"
    finally:
        shutil.rmtree(folder)
