"""The layers of workspaces: what a container wrote outside of the home, kept as an image from session to session.

The container of a session is not deleted at its end but committed to the image ``NAMESPACE/<workspace>-<secret>:home``,
from which the next session starts. Snapshots are further tags of that repository. A container is deleted once it has
been committed, so a kill or a full disk loses nothing: the commit is repeated before the next use. The secret is in a
file of the agent, so that no imported archive can contain the name of such an image; users cannot start them by name.

``commit`` writes the variables of the container into the image. They may be secret, and those of the pool belong to one
session. So the values of the original image are written again, all others are deleted, and the next session unsets
them. Podman only.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.node.host.log import log_event
from gpupool.node.runners.container.engine import PREFIX, WORKSPACE_LABEL, ContainerEngine, last_line
from gpupool.node.runners.container.images import NAMESPACE, identity
from gpupool.node.runners.container.spec import container_name

MAX_LAYERS = 64  # overlay file systems have a maximum; an image with more is merged into one layer
COMMIT_TIMEOUT_S = 3600.0
HOME = "home"  # tag of the present files
IMAGE_LABEL = "gpupool.image"  # the image of the workspace, as its user named it
SIZE_LABEL = "gpupool.image-bytes"  # its size
VARIABLES_LABEL = "gpupool.image-variables"  # its variables: a JSON object
_ENGINES_OWN = frozenset({"PATH", "TERM", "container"})  # set by the engine if the image does not


@dataclass(frozen=True, slots=True)
class LayeredStart:
    """The start of a container from the layers of a workspace: its image, labels and variables to unset."""

    image: str
    labels: tuple[tuple[str, str], ...]
    unset: tuple[str, ...] = ()


class ContainerLayers:
    """The layers of the workspaces of this node. ``folder`` has the name of each repository; see ``ImageLayers``."""

    def __init__(self, engine: Callable[[], ContainerEngine], folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def start(self, workspace: str, image: str, base: str, running: Collection[str]) -> LayeredStart:
        """Return the image from which a session starts: its layers if it has any, else ``base``, which ``image`` names.

        Raises ``GpupoolError`` if the changes of the last session cannot be saved.
        """
        with self._locks[workspace]:
            self._repository(workspace, create=True)
            self.save(workspace, running)
            engine = self._engine()
            kept = self._name(workspace)
            if (found := _inspect_image(engine, kept)) and found["Labels"].get(IMAGE_LABEL) == image:
                own = _original_variables(found)
                foreign = _variables(found).keys() - own.keys() - _ENGINES_OWN
                return LayeredStart(kept, (), tuple(sorted(foreign)))
            return LayeredStart(base, ((IMAGE_LABEL, image),))

    def save(self, workspace: str, running: Collection[str]) -> None:
        """Commit and delete the containers of ended sessions; ``running`` are the keys of programs that have not.

        Raises ``GpupoolError`` if that is not possible; the container is kept then.
        """
        if self._repository(workspace) is None:
            return
        with self._locks[workspace]:
            engine = self._engine()
            for container in self._containers(engine, workspace):
                if container.removeprefix(PREFIX) not in running:
                    self._commit(engine, workspace, container)

    def save_ended(self, workspace: str, key: str) -> None:
        """Commit and delete the container of one ended program. Raises as ``save``."""
        with self._locks[workspace]:
            self._commit(self._engine(), workspace, container_name(key))

    def _commit(self, engine: ContainerEngine, workspace: str, container: str) -> None:
        form = '[{{json .Config}},"{{.Image}}","{{.ImageName}}"]'
        done = engine.call("container", "inspect", "--format", form, container)
        if done.returncode:
            return  # it was deleted
        config, image, image_name = json.loads(done.stdout)
        before = _inspect_image(engine, image)
        if before is None:
            log_event("layers not saved: the image of the container is missing", workspace=workspace)
            return
        first = not str(image_name).startswith(NAMESPACE)
        own = _variables(before) if first else _original_variables(before)
        size = before["Size"] if first else _original_bytes(before)
        changes = [f"LABEL {VARIABLES_LABEL}={json.dumps(own)}", f"LABEL {SIZE_LABEL}={size}"]
        kept = [name for name in _variables(config) if name in own or name not in _ENGINES_OWN]
        changes += [f"ENV {name}={own.get(name, '')}" for name in kept]
        words = [word for change in changes for word in ("--change", change)]
        merge = ["--squash"] if before["Layers"] >= MAX_LAYERS else []
        name = self._name(workspace)
        done = engine.call("commit", "--quiet", *merge, *words, container, name, timeout_s=COMMIT_TIMEOUT_S)
        if done.returncode:
            said = last_line(done.stderr)
            raise GpupoolError(
                ErrorCode.DISK_FULL if "no space left" in said.lower() else ErrorCode.INTERNAL,
                f"The node cannot save what the last session changed in its container: {said}.",
                "It is kept: free disk space on the node and start again.",
            )
        self._remove(engine, container)
        if merge:
            engine.call("image", "prune", "--force", "--filter", f"label={WORKSPACE_LABEL}={workspace}")

    def _containers(self, engine: ContainerEngine, workspace: str) -> list[str]:
        done = engine.call("ps", "--all", "--filter", f"label={WORKSPACE_LABEL}={workspace}", "--format", "{{.Names}}")
        return [name for name in done.stdout.decode().split() if name.startswith(PREFIX)]

    def _discard_containers(self, engine: ContainerEngine, workspace: str) -> None:
        """Delete the containers of ended sessions without saving them."""
        for container in self._containers(engine, workspace):
            self._remove(engine, container)

    @staticmethod
    def _remove(engine: ContainerEngine, container: str) -> None:
        done = engine.call("rm", "--force", "--volumes", "--time", "0", container)
        if done.returncode:
            log_event("container not removed", container=container, error=last_line(done.stderr))

    # -- copies ------------------------------------------------------------------------------------------------------

    def snapshot(self, workspace: str, snapshot: str) -> None:
        """Keep the present layers under the name of a snapshot."""
        with self._locks[workspace]:
            self.save(workspace, ())
            self._copy(workspace, HOME, workspace, snapshot)

    def restore(self, workspace: str, snapshot: str) -> None:
        """Replace the present layers by those of a snapshot; without any, by the image of the workspace."""
        if self._repository(workspace) is None:
            return
        with self._locks[workspace]:
            engine = self._engine()
            self._discard_containers(engine, workspace)
            if not self._copy(workspace, snapshot, workspace, HOME):
                self._delete_image(engine, self._name(workspace))

    def clone(self, source: str, snapshot: str, workspace: str) -> None:
        """Give a new workspace the layers of another one, or of its snapshot."""
        if self._repository(source) is None:
            return
        with self._locks[source]:
            if not snapshot:
                self.save(source, ())
            self._repository(workspace, create=True)
            self._copy(source, snapshot or HOME, workspace, HOME)

    def drop(self, workspace: str, snapshot: str) -> None:
        """Delete the layers of a snapshot."""
        if self._repository(workspace) is not None:
            with self._locks[workspace]:
                self._delete_image(self._engine(), self._name(workspace, snapshot))

    def delete(self, workspace: str) -> None:
        """Delete all layers of a workspace."""
        if self._repository(workspace) is None:
            return
        with self._locks[workspace]:
            engine = self._engine()
            self._discard_containers(engine, workspace)
            for image in self._images(workspace):
                for name in image.get("Names") or ():
                    self._delete_image(engine, name)
            (self._folder / workspace).unlink(missing_ok=True)
        self._locks.pop(workspace, None)

    def used_bytes(self, workspace: str) -> int:
        """Return the bytes of all layers that are kept, without those of the original image."""
        if self._repository(workspace) is None:
            return 0
        sizes = {image["Id"]: image["Size"] - _original_bytes(image) for image in self._images(workspace)}
        return sum(max(0, size) for size in sizes.values())

    def _images(self, workspace: str) -> list[dict[str, Any]]:
        reference = f"reference={self._repository(workspace)}"
        done = self._engine().call("images", "--filter", reference, "--format", "json")
        return json.loads(done.stdout or b"[]") or []

    def _copy(self, source: str, tag: str, target: str, as_tag: str) -> bool:
        """Give an image another name; return False if there is none."""
        if self._repository(source) is None:
            return False
        engine, name = self._engine(), self._name(source, tag)
        if not identity(engine, name):
            return False
        done = engine.call("tag", name, self._name(target, as_tag))
        if done.returncode:
            raise GpupoolError(
                ErrorCode.INTERNAL, f"The node cannot copy the container's files: {last_line(done.stderr)}.", ""
            )
        return True

    @staticmethod
    def _delete_image(engine: ContainerEngine, name: str) -> None:
        done = engine.call("rmi", name)
        if done.returncode and identity(engine, name):
            log_event("layer not deleted", image=name, error=last_line(done.stderr))

    # -- names -------------------------------------------------------------------------------------------------------

    def _name(self, workspace: str, tag: str = HOME) -> str:
        return f"{self._repository(workspace)}:{tag}"

    def _repository(self, workspace: str, *, create: bool = False) -> str | None:
        """Return the name of its images without a tag; None if it never had a container."""
        path = self._folder / workspace
        try:
            secret = path.read_text("ascii")
        except FileNotFoundError:
            if not create:
                return None
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            secret = secrets.token_hex(16)
            new = path.with_name(f".{workspace}.{secret}")
            new.write_text(secret, "ascii")
            new.replace(path)
        return f"{NAMESPACE}/{workspace}-{secret}"


def _inspect_image(engine: ContainerEngine, name: str) -> dict[str, Any] | None:
    """Return ``Env``, ``Labels``, ``Size`` and the number of ``Layers`` of an image; None if there is none."""
    form = '{"Env":{{json .Config.Env}},"Labels":{{json .Labels}},"Size":{{.Size}},"Layers":{{len .RootFS.Layers}}}'
    done = engine.call("image", "inspect", "--format", form, name)
    if done.returncode:
        return None
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"Labels": found["Labels"] or {}}


def _original_variables(image: dict[str, Any]) -> dict[str, str]:
    """Return the variables of the image of a workspace, from a label of its layers; none if the label is damaged."""
    try:
        return dict(json.loads(image["Labels"][VARIABLES_LABEL]))
    except (KeyError, ValueError, TypeError):
        return {}


def _original_bytes(image: dict[str, Any]) -> int:
    """Return the size of the image of a workspace, from a label of its layers; 0 if the label is damaged."""
    text = (image.get("Labels") or {}).get(SIZE_LABEL, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _variables(config: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a configuration."""
    return {text.partition("=")[0]: text.partition("=")[2] for text in config.get("Env") or ()}
