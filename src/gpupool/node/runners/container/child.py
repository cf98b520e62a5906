"""The steps between the fork and the engine's command: volumes with the user's rights, then the exec."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpupool.domain.errors import EXIT_NOT_EXECUTABLE
from gpupool.domain.work.program.container import ContainerSpec, VolumeKind
from gpupool.node.host.child import ProgramChild, StartError
from gpupool.node.runners.container import command, volumes
from gpupool.node.runners.container.command import ContainerUser
from gpupool.node.runners.container.engine import clean_environment
from gpupool.node.runners.container.spec import ContainerSetup, Mount

STAGING = "volumes"


@dataclass(frozen=True, slots=True)
class ContainerChild(ProgramChild):
    """The child that becomes the engine's command, which runs as root if the engine does."""

    setup: ContainerSetup | None = None
    folder: Path = Path()

    def program(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the engine's command line, and its own clean environment."""
        setup, spec = self._setup(), self.spec
        container = spec.container or ContainerSpec(setup.image)
        who = _identity(spec.uid, spec.gid)
        _check_user(setup, container, who)
        env = self._env_file({**self.environment, **(setup.env or {})})
        if setup.home:
            return tuple(command.exec_command(setup, spec, env, who)), _own_environment(spec.env)
        self._make_empty(container, who)
        mounts = self._host_mounts(setup, container)
        argv = command.run_command(setup, spec, self.folder, env, mounts, who)
        return tuple(argv), _own_environment(spec.env)

    def _setup(self) -> ContainerSetup:
        if self.setup is None:
            raise StartError(EXIT_NOT_EXECUTABLE, "The record of the container is missing on the node")
        return self.setup

    def bind_files(self) -> None:
        """Do nothing: the engine mounts the files."""

    def change_user(self) -> None:
        """Do nothing: the engine gives the program its user."""

    def enter_folder(self) -> None:
        """Change to the root folder; the working directory is inside the container."""
        os.chdir("/")

    def _env_file(self, environment: Mapping[str, str]) -> int:
        """Return a descriptor of the variables, in memory, readable by the engine alone."""
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

    def _make_empty(self, container: ContainerSpec, who: ContainerUser) -> None:
        for number, volume in enumerate(container.volumes):
            if volume.kind is VolumeKind.EMPTY:
                place = command.empty_folder(self.folder, number)
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
                if os.geteuid() == 0:
                    os.chown(place, who.uid, who.gid)

    def _host_mounts(self, setup: ContainerSetup, container: ContainerSpec) -> list[Mount]:
        """Return mounts by descriptor if the engine runs as root; else by path, with the user's rights."""
        wanted = [volume for volume in container.volumes if volume.kind is VolumeKind.HOST]
        try:
            staging = volumes.Staging(self.folder / STAGING) if wanted and os.geteuid() == 0 else None
            with volumes.user_rights(self.spec.uid, self.spec.gid):
                opened = [volumes.open_source(volume, container.roots, setup.forbidden) for volume in wanted]
            places = [v.source for v in wanted] if staging is None else [staging.bind(fd) for fd in opened]
        except OSError as error:
            raise StartError(EXIT_NOT_EXECUTABLE, f"Cannot mount a volume: {error.strerror}") from error
        return [Mount(place, v.target, v.read_only) for place, v in zip(places, wanted, strict=True)]


def _own_environment(asked: Mapping[str, str]) -> dict[str, str]:
    """Return the engine's environment with the user's TERM, if it is a plain word."""
    term = asked.get("TERM", "xterm")
    return {**clean_environment(), "TERM": term if term.replace("-", "").isalnum() and len(term) < 64 else "xterm"}


def _identity(uid: int | None, gid: int | None) -> ContainerUser:
    uid = os.getuid() if uid is None else uid
    main = volumes.main_group(uid) if gid is None else gid
    return ContainerUser(uid, main, tuple(volumes.groups_of(uid, main)))


def _check_user(setup: ContainerSetup, container: ContainerSpec, who: ContainerUser) -> None:
    """Raise ``StartError`` if a container run by root would have another user than the job's."""
    if setup.engine.rootless or not container.user:
        return
    uid, _, gid = container.user.partition(":")
    if uid != str(who.uid) or (gid and gid not in map(str, (who.gid, *who.groups))):
        raise StartError(
            EXIT_NOT_EXECUTABLE,
            f"Containers of this pool run as their owner ({who.uid}:{who.gid}), not as {container.user}",
        )
