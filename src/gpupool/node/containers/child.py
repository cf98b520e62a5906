"""Between the fork and the engine's command: volumes with the user's rights, then the exec with the pool's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpupool.domain.container import ContainerSpec, VolumeKind
from gpupool.domain.errors import EXIT_NOT_EXECUTABLE
from gpupool.node.child import Child, StartError
from gpupool.node.containers import command, volumes
from gpupool.node.containers.box import Box, Mount
from gpupool.node.containers.command import Identity
from gpupool.node.containers.engine import clean_environment

STAGING = "volumes"


@dataclass(frozen=True, slots=True)
class ContainerChild(Child):
    """As its base, but it becomes the engine's command, by root where the engine is root's."""

    box: Box | None = None
    folder: Path = Path()

    def program(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """The engine's command line, and its own clean environment."""
        box, spec = self._box(), self.spec
        container = spec.container or ContainerSpec(box.image)
        who = _identity(spec.uid, spec.gid)
        _check_user(box, container, who)
        env = self._env_file({**self.environment, **(box.env or {})})
        if box.home:
            return tuple(command.exec_command(box, spec, env, who)), _own_environment(spec.env)
        self._make_empty(container, who)
        mounts = self._host_mounts(box, container)
        argv = command.run_command(box, spec, self.folder, env, mounts, who)
        return tuple(argv), _own_environment(spec.env)

    def _box(self) -> Box:
        if self.box is None:
            raise StartError(EXIT_NOT_EXECUTABLE, "The node has lost what it knew of the container")
        return self.box

    def change_user(self) -> None:
        """The engine stays who it is: it gives the program its user."""

    def enter_folder(self) -> None:
        """The working directory is one inside."""
        os.chdir("/")

    def _env_file(self, environment: Mapping[str, str]) -> int:
        """A descriptor of the variables, in memory, for the engine alone."""
        try:
            data = command.environment_file(environment)
        except command.UnfitError as error:
            raise StartError(EXIT_NOT_EXECUTABLE, str(error)) from error
        fd = os.memfd_create("environment")
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
        os.set_inheritable(fd, True)  # noqa: FBT003 - the call takes no names
        return fd

    def _make_empty(self, container: ContainerSpec, who: Identity) -> None:
        for number, volume in enumerate(container.volumes):
            if volume.kind is VolumeKind.EMPTY:
                place = command.empty_folder(self.folder, number)
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
                if os.geteuid() == 0:
                    os.chown(place, who.uid, who.gid)

    def _host_mounts(self, box: Box, container: ContainerSpec) -> list[Mount]:
        """By descriptor where the engine is root's; by path where it has the user's rights anyway."""
        wanted = [volume for volume in container.volumes if volume.kind is VolumeKind.HOST]
        try:
            staging = volumes.Staging(self.folder / STAGING) if wanted and os.geteuid() == 0 else None
            with volumes.user_rights(self.spec.uid, self.spec.gid):
                opened = [volumes.open_source(volume, container.roots, box.forbidden) for volume in wanted]
            places = [v.source for v in wanted] if staging is None else [staging.bind(fd) for fd in opened]
        except OSError as error:
            raise StartError(EXIT_NOT_EXECUTABLE, f"Cannot mount a volume: {error.strerror}") from error
        return [Mount(place, v.target, v.read_only) for place, v in zip(places, wanted, strict=True)]


def _own_environment(asked: Mapping[str, str]) -> dict[str, str]:
    """The engine's; only what a terminal is comes from the user, as a word that names nothing else."""
    term = asked.get("TERM", "xterm")
    return {**clean_environment(), "TERM": term if term.replace("-", "").isalnum() and len(term) < 64 else "xterm"}


def _identity(uid: int | None, gid: int | None) -> Identity:
    uid = os.getuid() if uid is None else uid
    main = volumes.main_group(uid) if gid is None else gid
    return Identity(uid, main, tuple(volumes.groups_of(uid, main)))


def _check_user(box: Box, container: ContainerSpec, who: Identity) -> None:
    """A container by root has no other user than the job's own."""
    if box.engine.rootless or not container.user:
        return
    uid, _, gid = container.user.partition(":")
    if uid != str(who.uid) or (gid and gid not in map(str, (who.gid, *who.groups))):
        raise StartError(
            EXIT_NOT_EXECUTABLE,
            f"Containers of this pool run as their owner ({who.uid}:{who.gid}), not as {container.user}",
        )
