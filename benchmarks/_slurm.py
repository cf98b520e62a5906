"""A Slurm of one node in a temporary folder, with its own keys and ports, for comparisons on this machine."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from _common import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "squeue")
SEARCH_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
START_TIMEOUT_S = 20.0
CONF = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmctldPort={port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=500 Gres=gpu:4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES OverSubscribe=FORCE:20 State=UP
"""


def installed() -> bool:
    """Return whether Slurm and munge are installed and this process may start them."""
    return os.geteuid() == 0 and all(shutil.which(name, path=SEARCH_PATH) for name in PROGRAMS)


class Slurm:
    """One node with four GPUs that are ordinary files. Commands need ``env``."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpb-slurm-"))
        self.env = os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": SEARCH_PATH}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._configure()
            self._start("munged", "--foreground", "--force", *self._munge_options())
            if not until((self.folder / "munge.sock").exists, START_TIMEOUT_S):
                raise RuntimeError("munged did not start")  # noqa: TRY301
            self._start("slurmctld", "-D")
            self._start("slurmd", "-D")
            if not until(lambda: self.output("sinfo", "-h", "-o", "%t").strip() == "idle", START_TIMEOUT_S):
                raise RuntimeError("slurm did not start: " + self.output("scontrol", "show", "node"))  # noqa: TRY301
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def output(self, *command: str) -> str:
        """Return what a command prints."""
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False
        ).stdout

    def _configure(self) -> None:
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        for index in range(4):
            (self.folder / f"gpu{index}").touch()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        values = {"host": socket.gethostname().partition(".")[0], "folder": self.folder, "cpus": os.cpu_count()}
        text = CONF.format(**values, port=_free_port(), node_port=_free_port())
        (self.folder / "slurm.conf").write_text(text, encoding="utf-8")
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-3]\n", encoding="utf-8")

    def _munge_options(self) -> list[str]:
        names = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
        names["seed-file"] = "munge.seed"
        return [f"--{option}={self.folder / name}" for option, name in names.items()]

    def _start(self, *command: str) -> None:
        log = (self.folder / f"{command[0]}.out").open("wb")
        with log:
            self._daemons.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log))

    def _stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
