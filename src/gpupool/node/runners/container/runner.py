"""Programs in containers, on top of another runner: the engine (found once), the setup of containers, and images."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.container import ContainerSpec
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.host.log import log_event
from gpupool.node.host.paths import ReplicaFolder, RunFolder, boot_id, read_json, write_json
from gpupool.node.host.preemption_notice import NOTICE_FILE_VARIABLE
from gpupool.node.host.progress_file import PROGRESS_FILE_VARIABLE
from gpupool.node.host.records import StartRequest
from gpupool.node.ports import LaunchRequest, PrepareRequest, ProcessTree, ProgramTraits, Runner
from gpupool.node.runners.container import cleanup, images
from gpupool.node.runners.container.engine import ContainerEngine, kill_commands
from gpupool.node.runners.container.execution import ContainerExecution
from gpupool.node.runners.container.gpus import gpu_parts
from gpupool.node.runners.container.layers import ContainerLayers, LayeredStart
from gpupool.node.runners.container.paths import RUN, ContainerPaths
from gpupool.node.runners.container.probe import ENGINE_VARIABLE, STORE_VARIABLE, find_engine
from gpupool.node.runners.container.spec import ContainerSetup, Mount, cid_file, container_name
from gpupool.node.sharing.preload import VARIABLE as PRELOAD

MUSL_VARIABLE = "GPUPOOL_MUSL_IMAGES"
MUSL_WARN = "warn"
MUSL_NOTE = "memory and compute of a slice cannot be enforced in it."
ENFORCED_MODE = "share"
CREATED_TIMEOUT_S = 30.0  # from the start of the engine's command to the start of the container, without a pull
CREATED_PAUSE_S = 0.05
MAX_JOBS = 64  # image jobs, including ended ones
ENGINE_FILE = "container-engine.json"
CLONES = "work"  # the folder of job folders, which users can reach
EXECUTION = f"{ContainerExecution.__module__}:{ContainerExecution.__qualname__}"
T = TypeVar("T")


class ContainerRunner:
    """Starts programs with an image in containers, all others as the given runner does.

    A container is started by a shepherd too, so the given runner launches all programs. Nothing is probed before the
    first request.
    """

    name: ClassVar[str] = "container"

    def __init__(self, plain: Runner, state: Path, run: RunFolder) -> None:
        self._plain = plain
        self._state = state
        self._run = run
        self._engine: ContainerEngine | None = None
        self._musl: dict[str, bool] = {}  # by the ID of an image
        self._turn = threading.Lock()
        self._images = asyncio.Lock()
        self._jobs: dict[str, asyncio.Task[list[str]]] = {}
        self.uploads = images.Uploads(state / "uploads")
        self.layers = ContainerLayers(self._ready_engine, state / "layers")

    # -- the engine --------------------------------------------------------------------------------------------------

    async def engine(self) -> ContainerEngine:
        """Return the engine and its options. Raises ``GpupoolError(UNSUPPORTED)`` if none works."""
        if self._engine is not None:
            return self._engine
        return await asyncio.to_thread(self._ready_engine)

    def _ready_engine(self) -> ContainerEngine:
        with self._turn:
            found = self._engine or self._read_stored_engine() or self._find()
            self._engine = found
            return found

    def _read_stored_engine(self) -> ContainerEngine | None:
        """Return the engine that an agent found since the machine started."""
        data = read_json(self._run.path / ENGINE_FILE)
        if data is None or data.get("found_by") != _found_by():
            return None
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found = decode(ContainerEngine, data["engine"])
            return found if Path(found.program).exists() else None
        return None

    def _find(self) -> ContainerEngine:
        found = find_engine(self._run.path)
        with contextlib.suppress(OSError):
            data = {"engine": found.to_dict(), "found_by": _found_by()}
            write_json(self._run.path / ENGINE_FILE, data, durable=False)
        return found

    # -- programs ----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the plain runner."""
        await self._plain.open()

    def traits(self, spec: ProcessSpec) -> ProgramTraits:
        """Return the traits of a container for a program with an image: images have a command and a login."""
        if spec.container is None:
            return self._plain.traits(spec)
        return ProgramTraits(has_command=True, has_login=True, path_inside=ContainerPaths(self._run.path).moved)

    async def prepare(self, program: PrepareRequest) -> StartRequest:
        """Write the setup for the shepherd of a program with an image.

        Raises ``GpupoolError``: UNSUPPORTED without an engine, WRONG_STATE if the container in which to run is gone.
        """
        request = await self._plain.prepare(program)
        container = request.spec.container
        if container is None:
            return request
        setup = await self._setup(request, container, program)
        if PRELOAD in request.added_env and await asyncio.to_thread(self._uses_musl, setup):
            setup, request = _without_libraries(setup, request)
        await asyncio.to_thread(setup.write, ReplicaFolder(program.folder))
        return replace(request, execution=EXECUTION)

    def _uses_musl(self, setup: ContainerSetup) -> bool:
        found = images.identity(setup.engine, setup.image)
        if found and found not in self._musl:
            self._musl[found] = images.uses_musl(setup.engine, setup.image)
        return self._musl.get(found, False)

    async def launch(self, launch: LaunchRequest, lock_fd: int) -> int:
        """Start a shepherd, which reads the setup; see ``Runner.launch``."""
        return await self._plain.launch(launch, lock_fd)

    async def check_command(self, folder: Path, argv: Sequence[str], timeout_s: float) -> str:
        """Execute a command where a program runs: its execution knows the container."""
        return await self._plain.check_command(folder, argv, timeout_s)

    def survey(self, folders: Sequence[Path]) -> dict[str, ProcessTree]:
        """Return the processes of programs: those of containers are also below their shepherds."""
        return self._plain.survey(folders)

    def end_remains(self, folder: Path) -> bool:
        """End the container of a lost shepherd and all other processes; return True if none were left."""
        setup = ContainerSetup.read(ReplicaFolder(folder))
        gone = setup is None or cleanup.end_foreign(setup, folder.name)
        return self._plain.end_remains(folder) and gone

    def drop(self, folder: Path) -> None:
        """Forget a program that has ended."""
        self._plain.drop(folder)

    async def _setup(self, request: StartRequest, container: ContainerSpec, program: PrepareRequest) -> ContainerSetup:
        engine = await self.engine()
        if container.inside:
            home = _container_key(container.inside, program.running)
            await wait_until_created(engine, program.folder.with_name(home))
            return ContainerSetup(engine, container.image, str(self._run.path), env=self._moved_env(request), home=home)
        return await asyncio.to_thread(self._own_setup, engine, request, container, program)

    def _own_setup(
        self, engine: ContainerEngine, request: StartRequest, container: ContainerSpec, program: PrepareRequest
    ) -> ContainerSetup:
        files = program.files
        parts = gpu_parts(request, self._run.path)
        notices = self._run.notice(request.spec.key).parent
        progress = self._run.progress(request.spec.key)
        own = [Mount(str(notices), str(RUN / notices.name))]
        if progress.exists():  # made by the agent; a missing file would refuse the whole container
            own.append(Mount(str(progress), str(RUN / progress.parent.name / progress.name), read_only=False))
        if files is not None:
            own.append(Mount(str(files), str(files), read_only=False))
        start = LayeredStart(images.resolve(engine, container.image), ())
        layers = container.layers if engine.podman else ""
        if layers:
            start = self.layers.start(layers, container.image, start.image, program.running)
        return ContainerSetup(
            engine=engine,
            image=start.image,
            layers=layers,
            labels=start.labels,
            unset=start.unset,
            pool=str(self._run.path),
            mounts=(*parts.mounts, *own),
            devices=parts.devices,
            env={**(parts.env or {}), **self._moved_env(request)},
            forbidden=self._forbidden(),
            clones=str(self._state.parent / CLONES) if container.git else "",
        )

    def _moved_env(self, request: StartRequest) -> dict[str, str]:
        """Return variables that name the pool's own files, with the paths inside the container."""
        paths = ContainerPaths(self._run.path)
        key = request.spec.key
        own = {NOTICE_FILE_VARIABLE: self._run.notice(key), PROGRESS_FILE_VARIABLE: self._run.progress(key)}
        named = {**request.added_env, **{name: str(path) for name, path in own.items()}}
        return {name: moved for name, value in named.items() if (moved := paths.moved(value)) != value}

    def _forbidden(self) -> tuple[str, ...]:
        """Return the pool's own folders: its state (which contains the agent's) and its sockets."""
        return str(self._state.parent), str(self._run.path)

    async def clean(self, folder: Path) -> None:
        """Remove the container of a program of which no process is left."""
        await self._plain.clean(folder)
        setup = ContainerSetup.read(ReplicaFolder(folder))
        if setup is None:
            return
        if setup.layers:
            await asyncio.to_thread(self._save_layers, setup.layers, folder.name)
        await asyncio.to_thread(cleanup.clean, None if setup.layers else self._engine, folder)

    def _save_layers(self, workspace: str, key: str) -> None:
        """Save what an ended session changed; if that fails, the next use of the workspace tries again."""
        try:
            self.layers.save_ended(workspace, key)
        except (GpupoolError, OSError) as error:
            log_event("layers not saved", workspace=workspace, error=str(error))

    async def adopt(self, keys: Collection[str]) -> None:
        """Remove containers of this pool without a program; do nothing if it never had containers."""
        await self._plain.adopt(keys)
        if self._engine is None:
            self._engine = self._read_stored_engine()
        if self._engine is None:
            return
        try:
            count = await asyncio.to_thread(cleanup.remove_strangers, self._engine, str(self._run.path), keys)
        except (GpupoolError, ValueError, KeyError) as error:
            log_event("left containers not looked for", error=str(error))
            return
        if count:
            log_event("left containers removed", count=count)

    # -- images ------------------------------------------------------------------------------------------------------

    async def answer(self, params: dict[str, Any]) -> Any:
        """Answer an image request; see ``ImageStore.answer``."""
        what = str(params.get("what"))
        if what == "list":
            return await self._with(images.list_images)
        if what == "put":
            data = base64.b64decode(params["data"], validate=True)
            return await asyncio.to_thread(self.uploads.put, params["upload"], int(params["offset"]), data)
        if what == "job":
            return self._job(str(params["job"]))
        name = str(params.get("name", ""))
        if what == "remove":
            return await self._with(lambda engine: images.remove(engine, name))
        if what == "pull":
            return await self._begin(self._with(lambda engine: [images.pull(engine, name)]))
        if what == "import":
            return await self._begin(self._import(str(params["upload"]), name))
        raise GpupoolError(ErrorCode.UNSUPPORTED, f"Unknown image request '{what[:40]}'.", "Update the node.")

    async def close(self) -> None:
        """Stop with the agent: downloads end, containers continue."""
        for job in self._jobs.values():
            job.cancel()
        kill_commands()
        await self._plain.close()

    async def _import(self, upload: str, name: str) -> list[str]:
        with self.uploads.take(upload) as fd:
            return await self._with(lambda engine: images.import_archive(engine, fd, name))

    async def _with(self, work: Callable[[ContainerEngine], T]) -> T:
        """Run one engine command at a time, because engines lock each other out anyway."""
        engine = await self.engine()
        async with self._images:
            return await asyncio.to_thread(work, engine)

    async def _begin(self, work: Coroutine[Any, Any, list[str]]) -> str:
        job = secrets.token_hex(8)
        while len(self._jobs) >= MAX_JOBS:  # forget the oldest ended job
            ended = next((name for name, task in self._jobs.items() if task.done()), None)
            if ended is None:
                work.close()
                raise GpupoolError(ErrorCode.WRONG_STATE, "The node is busy with other images.", "Retry later.")
            del self._jobs[ended]
        self._jobs[job] = asyncio.create_task(work, name=f"images {job}")
        return job

    def _job(self, job: str) -> dict[str, Any]:
        task = self._jobs.get(job)
        if task is None:
            raise GpupoolError(ErrorCode.NOT_FOUND, "The node does not know this image job.", "Start it again.")
        return {"done": task.done(), "names": task.result() if task.done() else []}


def _without_libraries(setup: ContainerSetup, request: StartRequest) -> tuple[ContainerSetup, StartRequest]:
    """Return a program that does not load the pool's libraries, which musl cannot load: it would not start.

    Raises ``GpupoolError`` for an enforced slice, unless the administrator permits that it is not enforced.
    """
    why = f"The image {setup.image} uses the C library musl (like Alpine): {MUSL_NOTE}"
    if request.mode == ENFORCED_MODE and os.environ.get(MUSL_VARIABLE) != MUSL_WARN:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED, why, "Use an image with glibc (Debian, Ubuntu, Red Hat); CUDA needs glibc as well."
        )
    env = {**(setup.env or {}), PRELOAD: ""}
    return replace(setup, env=env), replace(request, notes=(*request.notes, why))


def _found_by() -> list[str]:
    """Return the conditions of a probe result: this boot of the machine, and these settings."""
    return [boot_id(), *(os.environ.get(name, "") for name in (STORE_VARIABLE, ENGINE_VARIABLE))]


async def wait_until_created(engine: ContainerEngine, folder: Path) -> None:
    """Wait until the container of another program runs; the program counts as running when its engine starts.

    Raises ``GpupoolError`` (WRONG_STATE) if that takes too long: the image may be pulled.
    """
    deadline = time.monotonic() + CREATED_TIMEOUT_S
    while not await asyncio.to_thread(_runs, engine, folder):
        if ReplicaFolder(folder).exit.exists():
            return  # the engine says that it is gone
        if time.monotonic() > deadline:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, "The container has not started yet.", "Wait until its image is pulled."
            )
        await asyncio.sleep(CREATED_PAUSE_S)


def _runs(engine: ContainerEngine, folder: Path) -> bool:
    """Return True if a container runs; one that was created long ago has been started."""
    try:
        created_s = time.time() - cid_file(folder).stat().st_mtime
    except FileNotFoundError:
        return False
    if created_s > CREATED_TIMEOUT_S:
        return True
    done = engine.call("container", "inspect", "--format", "{{.State.Running}}", container_name(folder.name))
    return done.stdout.strip() == b"true"


def _container_key(replica: str, running: Collection[str]) -> str:
    """Return the key of a replica's running attempt."""
    found = [key for key in running if key.startswith(f"{replica}.")]
    if not found:
        raise GpupoolError(ErrorCode.WRONG_STATE, "The target container no longer exists.", "See `gpupool ps`.")
    return found[-1]
