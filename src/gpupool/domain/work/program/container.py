"""The container of a program: image, folders of the node, user and network; the syntax of image names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.errors import ErrorCode, GpupoolError


class PullPolicy(StrEnum):
    """The policy for pulling an image from its registry."""

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
    whose container this program runs (``exec``). ``layers`` (a workspace) keep what the program changes in the image.
    ``git`` is a repository (``git_source``) that the node clones and mounts into the working folder; without ``cwd``,
    that is ``GIT_FOLDER``.
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
    layers: str = ""
    git: str = ""


GIT_FOLDER = "/workspace"

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


MAX_IMAGE_NAME_LENGTH = 512
DEFAULT_REGISTRY = "docker.io"
LOCAL_REGISTRY = "localhost"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
_NAME = re.compile(
    rf"(?:(?P<host>{_HOST}(?::[0-9]{{1,5}})?)/)?(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
# Engines read these as paths to files of the machine and not as registries when a colon follows.
_TRANSPORTS = frozenset(
    {"dir", "docker", "docker-archive", "docker-daemon", "oci", "oci-archive", "containers-storage", "sif", "tarball"}
    | {"ostree", "atomic"}
)


def check_image(name: str) -> None:
    """Raise ``GpupoolError(INVALID_NAME)`` if this is not the name of an image.

    Paths to files (``docker-archive:/...``) are refused: an engine would open them with its own permissions.
    """
    found = _NAME.fullmatch(name) if len(name) <= MAX_IMAGE_NAME_LENGTH else None
    transport, colon, _ = name.partition("/")[0].partition(":")
    if found is None or (colon and transport in _TRANSPORTS):
        raise GpupoolError(
            ErrorCode.INVALID_NAME,
            f"'{name[:80]}' is not the name of an image.",
            "Write pytorch/pytorch:2.4.0, nvcr.io/nvidia/tensorflow:24.05-tf2-py3 or localhost/mine:1.",
        )


def full_image_name(name: str) -> str:
    """Return the name with registry and tag, as ``docker`` expands it: ``busybox`` is docker.io/library/busybox:latest.

    Raises INVALID_NAME.
    """
    check_image(name)
    found = _NAME.fullmatch(name)
    host, path = (found["host"], found["path"]) if found is not None else (None, name)
    tag, digest = (found["tag"], found["digest"]) if found is not None else (None, None)
    if host is not None and not ("." in host or ":" in host or host == LOCAL_REGISTRY):
        host, path = None, f"{host}/{path}"
    if host is None:
        path = path if "/" in path else f"library/{path}"
    ending = f"@{digest}" if digest else f":{tag or 'latest'}"
    return f"{host or DEFAULT_REGISTRY}/{path}{ending}"


def is_image_allowed(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a rule allows an image: one of its patterns matches the full name, or there are no patterns.

    In a pattern ``*`` matches anything: ``nvcr.io/nvidia/*``, ``localhost/*``, ``docker.io/pytorch/pytorch:*``.
    """
    wanted = tuple(patterns)
    return not wanted or any(fnmatch.fnmatchcase(full_image_name(name), pattern) for pattern in wanted)
