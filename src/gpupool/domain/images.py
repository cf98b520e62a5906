"""Names of container images: what is one, its full form, and which of them a rule allows."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from gpupool.domain.errors import ErrorCode, GpupoolError

MOST_IMAGE = 512
DEFAULT_REGISTRY = "docker.io"
LOCAL_REGISTRY = "localhost"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
_NAME = re.compile(
    rf"(?:(?P<host>{_HOST}(?::[0-9]{{1,5}})?)/)?(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
# What engines take for ways to files of the machine and not for registries, wherever a colon follows.
_TRANSPORTS = frozenset(
    {"dir", "docker", "docker-archive", "docker-daemon", "oci", "oci-archive", "containers-storage", "sif", "tarball"}
    | {"ostree", "atomic"}
)


def check_image(name: str) -> None:
    """Raise ``GpupoolError(INVALID_NAME)`` for what is no name of an image.

    Ways to files (``docker-archive:/...``) are none: an engine would open them with its own rights.
    """
    found = _NAME.fullmatch(name) if len(name) <= MOST_IMAGE else None
    transport, colon, _ = name.partition("/")[0].partition(":")
    if found is None or (colon and transport in _TRANSPORTS):
        raise GpupoolError(
            ErrorCode.INVALID_NAME,
            f"'{name[:80]}' is not the name of an image.",
            "Write pytorch/pytorch:2.4.0, nvcr.io/nvidia/tensorflow:24.05-tf2-py3 or localhost/mine:1.",
        )


def full_name(name: str) -> str:
    """The name with registry and tag, as ``docker`` reads a short one: ``busybox`` is docker.io/library/busybox:latest.

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


def allowed(name: str, patterns: Iterable[str]) -> bool:
    """Whether a rule allows an image: one of its patterns fits the full name, or there is none.

    In a pattern ``*`` stands for anything: ``nvcr.io/nvidia/*``, ``localhost/*``, ``docker.io/pytorch/pytorch:*``.
    """
    wanted = tuple(patterns)
    return not wanted or any(fnmatch.fnmatchcase(full_name(name), pattern) for pattern in wanted)
