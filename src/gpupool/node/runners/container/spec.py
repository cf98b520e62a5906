"""The agent's record of a container for a shepherd: ``container.json`` in the replica's folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpupool.domain.decode import decode
from gpupool.node.host.paths import ReplicaFolder, read_json, write_json
from gpupool.node.runners.container.engine import PREFIX, ContainerEngine

FILE = "container.json"
CID = "container.id"


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of the machine, mounted at the same or another path in the container."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class ContainerSetup:
    """The engine and the pool's additions: ``mounts``, ``devices`` (options of ``run``), ``env``.

    ``forbidden`` are folders of the pool that no volume may show. ``home`` is the key of the program in whose container
    this one runs; empty if it has its own. ``layers`` is the workspace that keeps the container's files, with
    ``labels`` of the container and variables of the image to ``unset``. A repository is cloned in
    the folder ``clones``, which users can reach.
    """

    engine: ContainerEngine
    image: str
    pool: str
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()
    env: dict[str, str] | None = None
    home: str = ""
    forbidden: tuple[str, ...] = ()
    layers: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    unset: tuple[str, ...] = ()
    clones: str = ""

    def write(self, folder: ReplicaFolder) -> None:
        """Write the file before the shepherd starts. Raises OSError."""
        write_json(folder.path / FILE, asdict(self), durable=False)

    @classmethod
    def read(cls, folder: ReplicaFolder) -> ContainerSetup | None:
        """Read the file; return None for a plain process."""
        data = read_json(folder.path / FILE)
        if data is None:
            return None
        read: dict[str, Any] = {
            "engine": decode(ContainerEngine, data["engine"]),
            "mounts": tuple(Mount(**mount) for mount in data["mounts"]),
            "devices": tuple(data["devices"]),
            "forbidden": tuple(data["forbidden"]),
            "labels": tuple((name, value) for name, value in data.get("labels", ())),
            "unset": tuple(data.get("unset", ())),
        }
        return cls(**{**data, **read})


def container_name(key: str) -> str:
    """Return the engine's name for the container of a program."""
    return f"{PREFIX}{key}"


def cid_file(folder: Path) -> Path:
    """Return the file that the engine writes once the container exists."""
    return folder / CID
