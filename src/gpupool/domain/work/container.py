"""The container of a program: an image, folders of the node, a user and a network."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PullPolicy(StrEnum):
    """When the image is pulled from its registry."""

    MISSING = "missing"  # only if the node does not have it
    ALWAYS = "always"
    NEVER = "never"


class ContainerNetwork(StrEnum):
    """The network that the program can use."""

    HOST = "host"  # the node's own, as for a plain process
    NONE = "none"


class VolumeKind(StrEnum):
    """The source of a volume."""

    HOST = "host"  # a folder or file of the node
    EMPTY = "empty"  # a folder on the node's disk that lives as long as the attempt
    MEMORY = "memory"  # the same in memory


@dataclass(frozen=True, slots=True)
class Volume:
    """A folder or file at ``target`` in the container. ``source`` is a path on the node (HOST only); both are absolute.

    ``size_mib`` limits a MEMORY volume.
    """

    target: str
    source: str = ""
    kind: VolumeKind = VolumeKind.HOST
    read_only: bool = False
    size_mib: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The container of one program. The program's ``argv`` are the arguments of the image's entry point.

    ``entrypoint`` replaces that of the image; the image's default arguments are then ignored. ``cwd`` of the program is
    a folder in the container (empty: the image's). ``user`` is ``uid[:gid]`` or a name in the image, if the runner
    supports it (empty: the job's own user). ``shm_mib`` is the size of ``/dev/shm``. ``roots``: host volumes must be in
    one of these folders; empty: any folder except the machine's own. ``inside`` (``workload.index``) is the replica in
    whose container this program runs (``exec``).
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


# Variables that describe places on the machine they come from.
_HOST_VARIABLES = frozenset(
    {"PATH", "HOME", "PWD", "OLDPWD", "SHELL", "TMPDIR", "TMP", "TEMP", "USER", "LOGNAME", "MAIL", "HOSTNAME", "EDITOR"}
    | {"LD_LIBRARY_PATH", "LD_PRELOAD", "MANPATH", "VIRTUAL_ENV", "BASH_ENV", "ENV", "LS_COLORS", "SHLVL", "_"}
)
_HOST_PREFIXES = tuple(
    "XDG_ PYTHON CONDA PIP_ UV_ SSH_ DBUS_ PYENV NVM_ SUDO_ BASH_FUNC".split()  # noqa: SIM905 - shorter
)


def container_environment(env: dict[str, str]) -> dict[str, str]:
    """Return a shell's variables that are meaningful and possible in a container's environment."""
    return {
        name: value
        for name, value in env.items()
        if name not in _HOST_VARIABLES and not name.startswith(_HOST_PREFIXES) and "\n" not in value
    }
