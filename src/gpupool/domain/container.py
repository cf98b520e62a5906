"""What a program that runs in a container is given: an image, folders of the node, a user and a network."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class PullPolicy(StrEnum):
    """When the image is fetched from its registry."""

    MISSING = "missing"  # only where the node does not have it
    ALWAYS = "always"
    NEVER = "never"


class ContainerNetwork(StrEnum):
    """What the program sees of the network."""

    HOST = "host"  # the node's own, as a plain process does
    NONE = "none"


class VolumeKind(StrEnum):
    """What a volume is of."""

    HOST = "host"  # a folder or file of the node
    EMPTY = "empty"  # a folder on the node's disk that comes and goes with the attempt
    MEMORY = "memory"  # the same in memory


@dataclass(frozen=True, slots=True)
class Volume:
    """What is seen at ``target`` inside. ``source`` is a path on the node, of kind HOST only; both are absolute.

    ``size_mib`` bounds a MEMORY volume.
    """

    target: str
    source: str = ""
    kind: VolumeKind = VolumeKind.HOST
    read_only: bool = False
    size_mib: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The container of one program. The program's ``argv`` are the arguments of the image's entry point, or none.

    ``entrypoint`` replaces that of the image; then the image's own arguments do not count either. ``cwd`` of the
    program is a folder inside (empty: the image's). ``user`` is ``uid[:gid]`` or a name inside, where the runner can
    give one (empty: the job's own user). ``shm_mib`` is the size of ``/dev/shm``. ``roots``: volumes of the node must
    lie in one of these folders; none: anywhere but the machine's own places. ``inside`` (``workload.index``) is the
    replica in whose container this program runs (``exec``).
    """

    image: str
    pull: PullPolicy = PullPolicy.MISSING
    volumes: tuple[Volume, ...] = ()
    entrypoint: tuple[str, ...] | None = None
    user: str = ""
    network: ContainerNetwork = ContainerNetwork.HOST
    read_only: bool = False
    shm_mib: int | None = None
    roots: tuple[str, ...] = ()
    inside: str = ""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ContainerSpec:
        """The inverse of ``dataclasses.asdict``; unknown keys are dropped."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        known["pull"] = PullPolicy(known.get("pull", PullPolicy.MISSING))
        known["network"] = ContainerNetwork(known.get("network", ContainerNetwork.HOST))
        known["volumes"] = tuple(_volume(v) for v in known.get("volumes") or ())
        known["roots"] = tuple(known.get("roots") or ())
        if known.get("entrypoint") is not None:
            known["entrypoint"] = tuple(known["entrypoint"])
        return cls(**known)


# Variables that say where things are on the machine that they come from.
_OF_THE_MACHINE = frozenset(
    {"PATH", "HOME", "PWD", "OLDPWD", "SHELL", "TMPDIR", "TMP", "TEMP", "USER", "LOGNAME", "MAIL", "HOSTNAME", "EDITOR"}
    | {"LD_LIBRARY_PATH", "LD_PRELOAD", "MANPATH", "VIRTUAL_ENV", "BASH_ENV", "ENV", "LS_COLORS", "SHLVL", "_"}
)
_OF_THE_MACHINE_BEGINNINGS = tuple(
    "XDG_ PYTHON CONDA PIP_ UV_ SSH_ DBUS_ PYENV NVM_ SUDO_ BASH_FUNC".split()  # noqa: SIM905 - shorter
)


def inner_environment(env: dict[str, str]) -> dict[str, str]:
    """Of a shell's variables those that mean something in a container too, and that its environment can carry."""
    return {
        name: value
        for name, value in env.items()
        if name not in _OF_THE_MACHINE and not name.startswith(_OF_THE_MACHINE_BEGINNINGS) and "\n" not in value
    }


def _volume(data: dict[str, Any]) -> Volume:
    known = {k: v for k, v in data.items() if k in Volume.__dataclass_fields__}
    return Volume(**{**known, "kind": VolumeKind(known.get("kind", VolumeKind.HOST))})
