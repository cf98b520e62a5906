"""The share libraries in place of the driver's files, for programs that do not use the loader's variables.

A program that opens the driver by its path, a child with an empty environment, and programs of sudo, su and setuid do
not see ``LD_PRELOAD``. The program therefore gets a mount namespace in which the share libraries lie over the driver's
files. What the libraries need without variables is in ``SLICE_FOLDER``: the driver's own files and the lease.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.node.host import mounts
from gpupool.node.host.mounts import SLICE_FOLDER, Bind
from gpupool.node.sharing.drivers import CUDA, FOLDERS, IMAGES_FOLDER, NVML, DriverPaths, find_drivers

LEASE = f"{SLICE_FOLDER}/lease"
GPUS = f"{SLICE_FOLDER}/gpus"  # the configuration of the fake driver
_COMPAT = "/usr/local/cuda*/compat"
_ELF_HEADER_BYTES = 20
_ELF_CLASS_END, _ELF_MACHINE_BYTES = 5, 2  # 32 or 64 bits at the begin; the machine at the end
_MAX_REASON_CHARS = 200
_REHEARSAL_TIMEOUT_S = 20.0
UNCOVERED = (
    "programs that open the driver by its path or clear their environment bypass the limits of this slice: "
    "the agent cannot bind files over the driver ({why})"
)


@dataclass(frozen=True, slots=True)
class DriverBinds:
    """The files to bind for every program; ``covers`` are those of the driver that they hide.

    ``in_containers`` is where images for NVIDIA's runtime search the driver. ``why_not`` says why processes of the node
    do not get the binds. Containers do: the engine mounts them.
    """

    added: tuple[Bind, ...]
    covers: tuple[Bind, ...]
    in_containers: tuple[Bind, ...]
    why_not: str

    def of(self, lease: Path, *, container: bool) -> tuple[Bind, ...]:
        """Return all binds of a program on this lease; empty if there is nothing to cover, or it is not possible."""
        if not container and (self.why_not or not self.covers):
            return ()
        return (*self.added, Bind(str(lease), LEASE), *self.covers, *(self.in_containers if container else ()))


def plan_binds(cuda: str, nvml: str, drivers: DriverPaths, gpus: str) -> DriverBinds:
    """Return the binds for the share libraries ``cuda`` and ``nvml``; ``gpus`` configures the fake driver."""
    pairs = ((cuda, CUDA, drivers.cuda), (nvml, NVML, drivers.nvml))
    added = [Bind(driver, f"{SLICE_FOLDER}/{name}") for _own, name, driver in pairs if driver]
    added += [Bind(gpus, GPUS)] if gpus else []
    covers = [Bind(own, path) for own, name, _driver in pairs for path in _system_files(own, name)]
    why_not = _rehearse([*added, *covers]) if covers else ""
    in_containers = tuple(Bind(own, f"{IMAGES_FOLDER}/{name}") for own, name, _driver in pairs)
    return DriverBinds(tuple(added), tuple(covers), in_containers, why_not)


def _system_files(own: str, name: str) -> Iterator[str]:
    """Yield the driver's files of this name, without links, that the programs of our library can load."""
    system = find_drivers()
    folders = [str(Path(path).parent) for path in (system.cuda, system.nvml) if path]
    folders += [*FOLDERS, *sorted(glob.glob(_COMPAT))]  # noqa: PTH207 - strings
    links = (f"{folder}/{each}" for folder in folders for each in (name, name.removesuffix(".1")))
    for path in dict.fromkeys(os.path.realpath(link) for link in links):
        if Path(path).is_file() and not Path(path).samefile(own) and _header(path) == _header(own):
            yield path


def _header(path: str) -> bytes:
    """Return a key for the machine type of a library; empty if the file cannot be read."""
    try:
        with Path(path).open("rb") as file:
            found = file.read(_ELF_HEADER_BYTES)
    except OSError:
        return b""
    return found[:_ELF_CLASS_END] + found[-_ELF_MACHINE_BYTES:]


def _rehearse(binds: Sequence[Bind]) -> str:
    """Return why binding fails on this machine; empty if it works. Needs a process of its own."""
    if os.geteuid() != 0:
        return "it does not run as root"
    try:
        Path(SLICE_FOLDER).mkdir(exist_ok=True)
        Path(SLICE_FOLDER).chmod(0o755)  # the agent's umask may be stricter, and programs of all users read it
        pairs = json.dumps([(each.source, each.target) for each in binds])
        command = [sys.executable, "-I", mounts.__file__, pairs]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_REHEARSAL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip()[-_MAX_REASON_CHARS:] if done.returncode else ""
