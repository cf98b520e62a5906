"""What the agent tells a shepherd of the container: ``container.json`` in the replica's folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpupool.node.containers.engine import PREFIX, Engine
from gpupool.node.paths import ReplicaFolder, read_json, write_json

FILE = "container.json"
CID = "container.id"


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of the machine, seen at the same or another one inside."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Box:
    """The engine and what the pool itself puts inside: ``mounts``, ``devices`` (options of ``run``), ``env``.

    ``forbidden`` are places of the pool that no volume may show. ``home``: the key of the program in whose container
    this one runs; empty: it has its own.
    """

    engine: Engine
    image: str
    pool: str
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()
    env: dict[str, str] | None = None
    home: str = ""
    forbidden: tuple[str, ...] = ()

    def write(self, folder: ReplicaFolder) -> None:
        """Before the shepherd starts. Raises OSError."""
        write_json(folder.path / FILE, asdict(self), durable=False)

    @classmethod
    def read(cls, folder: ReplicaFolder) -> Box | None:
        """None for a plain process."""
        data = read_json(folder.path / FILE)
        if data is None:
            return None
        read: dict[str, Any] = {
            "engine": Engine.from_dict(data["engine"]),
            "mounts": tuple(Mount(**mount) for mount in data["mounts"]),
            "devices": tuple(data["devices"]),
            "forbidden": tuple(data["forbidden"]),
        }
        return cls(**{**data, **read})


def container_name(key: str) -> str:
    """What the engine calls the container of a program."""
    return f"{PREFIX}{key}"


def cid_file(folder: Path) -> Path:
    """Written by the engine once the container exists."""
    return folder / CID
