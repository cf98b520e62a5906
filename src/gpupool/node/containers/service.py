"""The agent's side of containers: the engine (looked for once), what each program's container is given, images."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from gpupool.domain.container import ContainerSpec
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.node.containers import images, leftovers
from gpupool.node.containers.box import FILE, Box, Mount
from gpupool.node.containers.engine import Engine, call_off
from gpupool.node.containers.gpus import gpu_parts
from gpupool.node.containers.places import RUN, Places
from gpupool.node.containers.probe import ENGINE_VARIABLE, STORE_VARIABLE, find_engine
from gpupool.node.containers.uploads import Uploads
from gpupool.node.journal import say
from gpupool.node.notice import FILE_VARIABLE
from gpupool.node.paths import RunFolder, boot_id, read_json, write_json
from gpupool.node.record import Order

MOST_JOBS = 64  # of images, that ended ones included
ENGINE_FILE = "container-engine.json"
T = TypeVar("T")


class Containers:
    """Everything that the agent has to do with containers; nothing is looked at before the first one is asked for."""

    def __init__(self, state: Path, run: RunFolder) -> None:
        self._state = state
        self._run = run
        self._engine: Engine | None = None
        self._turn = asyncio.Lock()
        self._images = asyncio.Lock()
        self._jobs: dict[str, asyncio.Task[list[str]]] = {}
        self.uploads = Uploads(state / "uploads")

    # -- the engine --------------------------------------------------------------------------------------------------

    async def engine(self) -> Engine:
        """The engine and its options. Raises ``GpupoolError(UNSUPPORTED)`` where there is none that works."""
        async with self._turn:
            if self._engine is None:
                self._engine = self._remembered()
            if self._engine is None:
                self._engine = await asyncio.to_thread(self._find)
            return self._engine

    def _remembered(self) -> Engine | None:
        """What an agent found out since the machine started."""
        data = read_json(self._run.path / ENGINE_FILE)
        if data is None or data.get("found_by") != _found_by():
            return None
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found = Engine.from_dict(data["engine"])
            return found if Path(found.program).exists() else None
        return None

    def _find(self) -> Engine:
        found = find_engine(self._run.path)
        with contextlib.suppress(OSError):
            data = {"engine": found.to_dict(), "found_by": _found_by()}
            write_json(self._run.path / ENGINE_FILE, data, durable=False)
        return found

    # -- programs ----------------------------------------------------------------------------------------------------

    async def pack(self, order: Order, running: Collection[str], files: Path | None) -> Box | None:
        """What the program's shepherd has to know; None for a plain process. ``files``: its folder, if it has one.

        Raises ``GpupoolError``: UNSUPPORTED without an engine, WRONG_STATE when the container it is to run in is gone.
        """
        container = order.spec.container
        if container is None:
            return None
        engine = await self.engine()
        if container.inside:
            home = _home(container.inside, running)
            return Box(engine, container.image, str(self._run.path), env=self._moved_env(order), home=home)
        return await asyncio.to_thread(self._box, engine, order, container, files)

    def _box(self, engine: Engine, order: Order, container: ContainerSpec, files: Path | None) -> Box:
        parts = gpu_parts(order.spec, order.added_env, self._run.path)
        notices = self._run.notice(order.spec.key).parent
        own = [Mount(str(notices), str(RUN / notices.name))]
        if files is not None:
            own.append(Mount(str(files), str(files), read_only=False))
        return Box(
            engine=engine,
            image=images.resolve(engine, container.image),
            pool=str(self._run.path),
            mounts=(*parts.mounts, *own),
            devices=parts.devices,
            env={**(parts.env or {}), **self._moved_env(order)},
            forbidden=self._forbidden(),
        )

    def _moved_env(self, order: Order) -> dict[str, str]:
        """Variables that name the pool's own files, with the places that these have inside."""
        places = Places(self._run.path)
        named = {**order.added_env, FILE_VARIABLE: str(self._run.notice(order.spec.key))}
        return {name: moved for name, value in named.items() if (moved := places.moved(value)) != value}

    def _forbidden(self) -> tuple[str, ...]:
        """The pool's own: its state (the agent's is a folder in it) and its sockets."""
        return str(self._state.parent), str(self._run.path)

    async def clean(self, folder: Path) -> None:
        """No process of a program is left: nor is its container to be."""
        if (folder / FILE).exists():
            await asyncio.to_thread(leftovers.clean, self._engine, folder)

    async def remove_strangers(self, keep: Collection[str]) -> None:
        """Remove containers of this pool that belong to no program any more; where none was ever made, do nothing."""
        if self._engine is None:
            self._engine = self._remembered()
        if self._engine is None:
            return
        try:
            count = await asyncio.to_thread(leftovers.remove_strangers, self._engine, str(self._run.path), keep)
        except (GpupoolError, ValueError, KeyError) as error:
            say("left containers not looked for", error=str(error))
            return
        if count:
            say("left containers removed", count=count)

    # -- images ------------------------------------------------------------------------------------------------------

    async def answer(self, params: dict[str, Any]) -> Any:
        """``what`` is asked, by name: ``list``, ``put``, ``import``, ``pull``, ``job`` and ``remove``.

        ``import`` and ``pull`` may take long: they give the name of a job. Raises ``GpupoolError``.
        """
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
        raise GpupoolError(ErrorCode.UNSUPPORTED, f"Images cannot be asked for '{what[:40]}'.", "Update the node.")

    async def close(self) -> None:
        """The agent ends: downloads end with it, containers run on."""
        for job in self._jobs.values():
            job.cancel()
        call_off()

    async def _import(self, upload: str, name: str) -> list[str]:
        with self.uploads.take(upload) as fd:
            return await self._with(lambda engine: images.import_archive(engine, fd, name))

    async def _with(self, work: Callable[[Engine], T]) -> T:
        """One at a time: engines lock each other out anyway."""
        engine = await self.engine()
        async with self._images:
            return await asyncio.to_thread(work, engine)

    async def _begin(self, work: Coroutine[Any, Any, list[str]]) -> str:
        job = secrets.token_hex(8)
        while len(self._jobs) >= MOST_JOBS:  # the oldest that has ended
            ended = next((name for name, task in self._jobs.items() if task.done()), None)
            if ended is None:
                work.close()
                raise GpupoolError(ErrorCode.WRONG_STATE, "The node is busy with other images.", "Try again later.")
            del self._jobs[ended]
        self._jobs[job] = asyncio.create_task(work, name=f"images {job}")
        return job

    def _job(self, job: str) -> dict[str, Any]:
        task = self._jobs.get(job)
        if task is None:
            raise GpupoolError(ErrorCode.NOT_FOUND, "The node knows nothing of that (any more).", "Try it again.")
        return {"done": task.done(), "names": task.result() if task.done() else []}


def _found_by() -> list[str]:
    """What an answer is good for: this boot of the machine, and these settings."""
    return [boot_id(), *(os.environ.get(name, "") for name in (STORE_VARIABLE, ENGINE_VARIABLE))]


def _home(replica: str, running: Collection[str]) -> str:
    """The key of the attempt that a replica is at."""
    found = [key for key in running if key.startswith(f"{replica}.")]
    if not found:
        raise GpupoolError(ErrorCode.WRONG_STATE, "The container it is to run in is gone.", "See `gpupool ps`.")
    return found[-1]
