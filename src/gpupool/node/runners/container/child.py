"""The steps between the fork and the engine's command: volumes with the user's rights, then the exec."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpupool.domain.errors import EXIT_NOT_EXECUTABLE
from gpupool.domain.work.program.container import GIT_FOLDER, ContainerSpec, VolumeKind
from gpupool.domain.work.program.git_source import GitSource, parse_git_source
from gpupool.node.files import git_clone
from gpupool.node.host.child import ProgramChild, StartError
from gpupool.node.runners.container import cleanup, command, volumes
from gpupool.node.runners.container.command import ContainerUser
from gpupool.node.runners.container.engine import clean_environment
from gpupool.node.runners.container.spec import ContainerSetup, Mount

STAGING = "volumes"
CLONE_FAILED = 128  # as git
MAX_GIT_MESSAGE, MAX_SHOWN = 64 * 1024, 600


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
        secrets = git_clone.SECRETS if container.git else ()
        given = {name: value for name, value in self.environment.items() if name not in secrets}
        env = self._env_file({**given, **(setup.env or {})})
        if setup.home:
            return tuple(command.exec_command(setup, spec, env, who)), _own_environment(spec.env)
        self._make_empty(container, who)
        cloned = []
        if container.git:
            spec = replace(spec, cwd=spec.cwd or GIT_FOLDER)
            cloned = self._clone(setup, parse_git_source(container.git), spec.cwd, who)
        mounts = self._host_mounts(setup, container) + cloned
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

    def _clone(self, setup: ContainerSetup, source: GitSource, cwd: str, who: ContainerUser) -> list[Mount]:
        """Clone a repository on the node with the user's rights and return its mount. Raises ``StartError``.

        A clone in a folder of the machine that the container shows anyway (the job's files) needs no mount.
        """
        env = _git_environment(self.environment, who.uid)
        if any(f"{cwd}/".startswith(f"{own.target}/") and not own.read_only for own in setup.mounts):
            _clone_as(who, source, Path(cwd), source.path, env)
            return []
        place = Path(setup.clones, f".{self.folder.name}.git")
        place.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        try:
            if os.geteuid() == 0:
                os.chown(place, who.uid, who.gid)
            _clone_as(who, source, place, cleanup.REPOSITORY, env)
            kept = self.folder / cleanup.REPOSITORY
            shutil.rmtree(kept, ignore_errors=True)
            (place / cleanup.REPOSITORY).rename(kept)  # its folder is the agent's: the user cannot replace it any more
            if not stat.S_ISDIR(kept.lstat().st_mode):
                raise StartError(CLONE_FAILED, f"{source.url} was not cloned: its folder was replaced")
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return [Mount(str(kept), f"{cwd}/{source.path}", read_only=False)]

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


def _git_environment(env: Mapping[str, str], uid: int) -> dict[str, str]:
    """Return the environment of git on the node: the user's account, and what the job sets for git and proxies."""
    given = {n: v for n, v in env.items() if n.startswith(("GIT_", "GITSYNC_")) or n.lower().endswith("_proxy")}
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return {"PATH": os.defpath, "HOME": "/", **given}
    return {"PATH": os.defpath, "HOME": entry.pw_dir, "USER": entry.pw_name, **given}


def _clone_as(who: ContainerUser, source: GitSource, folder: Path, name: str, env: dict[str, str]) -> None:
    """Clone into ``folder/name`` in a process of the user. Raises ``StartError`` with the last message of git."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(write, 2)
            if os.geteuid() == 0:
                os.setgroups(list(who.groups))
                os.setresgid(who.gid, who.gid, who.gid)
                os.setresuid(who.uid, who.uid, who.uid)
            os.chdir(folder)
            git_clone.clone(source.url, source.revision, folder / name, git_clone.git_environment(env, source.url))
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - nothing may escape from a forked child
            os.write(2, f"\n{error}".encode("utf-8", "replace"))
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read(MAX_GIT_MESSAGE).decode("utf-8", "replace")
    if os.waitpid(pid, 0)[1] != 0:
        why = " ".join(line.strip() for line in said.splitlines() if line.strip() and "above" not in line)
        raise StartError(CLONE_FAILED, f"{source.url} was not cloned into {source.path}: {why[-MAX_SHOWN:]}")


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
