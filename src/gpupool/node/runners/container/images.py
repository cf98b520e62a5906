"""The container images of a node: list, import, pull, remove, and uploads of archives. All functions block."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.container import LOCAL_REGISTRY, check_image, full_image_name
from gpupool.node.runners.container.engine import ContainerEngine, last_line

NAMESPACE = "localhost/gpupool-workspace"  # images of workspaces, which only their sessions use
TRANSFER_TIMEOUT_S = 3600.0
_LOADED = re.compile(r"Loaded image(?:\(s\))?: (.+)")
_MACHINE = os.uname().machine
_MUSL = f"/lib/ld-musl-{_MACHINE}.so.1"
_GLIBC = "/lib64/ld-linux-x86-64.so.2" if _MACHINE == "x86_64" else f"/lib/ld-linux-{_MACHINE}.so.1"
MAX_ARCHIVE_BYTES = 64 << 30
MAX_AGE_S = 86400.0
_NAME = re.compile(r"[a-z0-9]{8,64}")


def resolve(engine: ContainerEngine, name: str) -> str:
    """Return the name by which the engine finds the image here, else its full name.

    Raises ``GpupoolError``: INVALID_NAME, FORBIDDEN for images of workspaces.
    """
    check_image(name)
    if own_name(name).startswith(NAMESPACE):
        raise GpupoolError(
            ErrorCode.FORBIDDEN, f"{name} is kept for workspaces.", "Use another image, or start the workspace."
        )
    for candidate in dict.fromkeys((own_name(name), full_image_name(name))):
        if engine.call("image", "inspect", "--format", "{{.Id}}", candidate).returncode == 0:
            return candidate
    return full_image_name(name)


def identity(engine: ContainerEngine, image: str) -> str:
    """Return the ID of an image; empty if the node does not have it."""
    done = engine.call("image", "inspect", "--format", "{{.Id}}", image)
    return "" if done.returncode else done.stdout.decode("utf-8", "replace").strip()


def uses_musl(engine: ContainerEngine, image: str) -> bool:
    """Return True if an image of this node has the loader of the C library musl and not that of glibc.

    The loaders are looked for in a container that never starts, because an image need not have any tool.
    """
    done = engine.call("create", "--pull=never", "--network=none", image, "none")
    if done.returncode:
        return False
    container = done.stdout.decode("utf-8", "replace").strip()
    try:
        found = [engine.call("cp", f"{container}:{loader}", "-").returncode == 0 for loader in (_MUSL, _GLIBC)]
        return found == [True, False]
    finally:
        engine.call("rm", container)


def list_images(engine: ContainerEngine) -> list[dict[str, Any]]:
    """Return images with ``name``, ``id``, ``size_bytes`` and ``created_at`` (text), sorted by name."""
    form = "json" if engine.podman else "{{json .}}"
    done = engine.call("images", "--no-trunc", "--format", form)
    if done.returncode:
        raise _failed("list its images", done.stderr)
    text = done.stdout.decode("utf-8", "replace")
    images = _podman_images(text) if engine.podman else _docker_images(text)
    found = [image for image in images if not image["name"].startswith(NAMESPACE)]
    return sorted(found, key=lambda image: (image["name"], image["id"]))


def _podman_images(text: str) -> Iterator[dict[str, Any]]:
    for image in json.loads(text or "[]") or []:
        for name in image.get("Names") or [""]:
            yield {
                "name": name,
                "id": image["Id"].removeprefix("sha256:")[:12],
                "size_bytes": image.get("Size", 0),
                "created_at": str(image.get("CreatedAt", "")),
            }


def _docker_images(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        image = json.loads(line)
        name = "" if image["Repository"] == "<none>" else f"{image['Repository']}:{image['Tag']}"
        yield {"name": name, "id": image["ID"][7:19], "size_bytes": 0, "created_at": image["CreatedAt"]}


def import_archive(engine: ContainerEngine, fd: int, name: str = "") -> list[str]:
    """Import an archive (``podman save``, ``docker save``, OCI) and return the image names.

    With ``name`` the archive may be a file system alone (``tar`` of a folder); an image in it gets that name too.
    """
    os.lseek(fd, 0, os.SEEK_SET)
    done = engine.call("load", timeout_s=TRANSFER_TIMEOUT_S, input_file=fd)
    if done.returncode == 0:
        names = _loaded(done.stdout + done.stderr)
        if not name:
            return names
        return [_tag(engine, names[-1], name)] if names else names
    if not name:
        raise _failed("read the archive", done.stderr, "Make it with `podman save` or `docker save`.")
    os.lseek(fd, 0, os.SEEK_SET)
    full = own_name(name)
    done = engine.call("import", "-", full, timeout_s=TRANSFER_TIMEOUT_S, input_file=fd)
    if done.returncode:
        raise _failed("read the archive", done.stderr, "Make it with `podman save`, or as a tar of a file system.")
    return [full]


def _loaded(output: bytes) -> list[str]:
    found = _LOADED.findall(output.decode("utf-8", "replace"))
    return [name.strip() for line in found for name in line.split(",")]


def own_name(name: str) -> str:
    """Return the full name of an image made here: a short name belongs to no registry."""
    return full_image_name(name if "/" in name else f"{LOCAL_REGISTRY}/{name}")


def _tag(engine: ContainerEngine, image: str, name: str) -> str:
    full = own_name(name)
    done = engine.call("tag", image, full)
    if done.returncode:
        raise _failed(f"name the image {full}", done.stderr)
    return full


def pull(engine: ContainerEngine, name: str) -> str:
    """Pull an image from its registry and return its full name."""
    full = full_image_name(name)
    done = engine.call("pull", "--quiet", full, timeout_s=TRANSFER_TIMEOUT_S)
    if done.returncode:
        raise _failed(f"fetch {full}", done.stderr, "Check the name, and whether the node reaches the registry.")
    return full


def remove(engine: ContainerEngine, name: str) -> None:
    """Remove a name, and the image with its last name. Raises NOT_FOUND, or WRONG_STATE while it is used."""
    found = resolve(engine, name)
    done = engine.call("rmi", found)
    if done.returncode == 0:
        return
    said = done.stderr.decode("utf-8", "replace").lower()
    if "in use" in said or "being used" in said:
        raise GpupoolError(ErrorCode.WRONG_STATE, f"{found} is used by a container.", "Stop its workload first.")
    if "no such image" in said or "not known" in said or "unable to find" in said:
        raise GpupoolError(ErrorCode.NOT_FOUND, f"The node has no image {name}.", "See `gpupool image list`.")
    raise _failed(f"remove {found}", done.stderr)


def _failed(what: str, said: bytes, hint: str = "See the node's log.") -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, f"The node cannot {what}: {last_line(said)}.", hint)


class Uploads:
    """Files by name in a folder of the agent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise GpupoolError(ErrorCode.INVALID_NAME, f"'{name[:80]}' does not name an upload.")
        return self._folder / name

    def put(self, name: str, offset: int, data: bytes) -> int:
        """Write a piece and return the total size. A repeated piece is accepted, a gap is refused.

        Raises ``GpupoolError``: TOO_LARGE, WRONG_STATE, INTERNAL when the disk is full.
        """
        path = self._path(name)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if offset == 0:
                self._forget_old()
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "r+b") as file:
                return _add(file.fileno(), offset, data)
        except OSError as error:
            path.unlink(missing_ok=True)
            sentence = f"The node cannot store the archive: {error.strerror}."
            raise GpupoolError(ErrorCode.INTERNAL, sentence, f"Free space in {self._folder} on the node.") from error

    @contextlib.contextmanager
    def take(self, name: str) -> Iterator[int]:
        """Yield a descriptor of the complete file, then delete the file. Raises NOT_FOUND."""
        path = self._path(name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise GpupoolError(ErrorCode.NOT_FOUND, "The archive did not reach the node.", "Send it again.") from error
        try:
            yield fd
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)

    def _forget_old(self) -> None:
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < time.time() - MAX_AGE_S:
                    path.unlink()


def _add(fd: int, offset: int, data: bytes) -> int:
    if offset + len(data) > MAX_ARCHIVE_BYTES:
        raise GpupoolError(ErrorCode.TOO_LARGE, f"An archive has at most {MAX_ARCHIVE_BYTES >> 30} GiB.")
    if offset > os.fstat(fd).st_size:
        raise GpupoolError(ErrorCode.WRONG_STATE, "A piece of the archive is missing.", "Send it again from the start.")
    left, at = memoryview(data), offset
    while left:
        written = os.pwrite(fd, left, at)
        left, at = left[written:], at + written
    return at
