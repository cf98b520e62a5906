"""The Jupyter Server extension: a new server takes over the kernels of a server that ended without stopping them.

A kernel is adopted under its old id, by a server with the same root folder, so browsers find their kernels again. The
lock of the kernel's folder decides which server gets it.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from pathlib import Path
from typing import Any

from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_server._tz import utcnow
from jupyter_server.prometheus.metrics import KERNEL_CURRENTLY_RUNNING_TOTAL

from gpupool.domain.errors import GpupoolError
from gpupool.jupyter import browser
from gpupool.jupyter.kernel_request import NOTEBOOK
from gpupool.jupyter.provisioner import GpupoolProvisioner
from gpupool.jupyter.records import KernelFolder, KernelRecord, abandoned_kernels
from gpupool.jupyter.watch import KernelPhase, PoolWatcher, watcher_of_pool

MAX_CONNECTION_BYTES = 16 * 1024


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "gpupool.jupyter.extension"}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Adopt kernels before the first browser asks for them."""
    server.event_logger.register_event_schema(browser.SCHEMA)
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        server.io_loop.run_sync(lambda: adopt_kernels(server))
    else:
        server.gpupool_adoption = running.create_task(adopt_kernels(server))


async def adopt_kernels(server: Any) -> None:
    """Adopt the kernels of ended servers with the same root folder, and stop those that nobody can adopt."""
    found = await asyncio.to_thread(lambda: list(abandoned_kernels()))
    if not found:
        return
    try:
        watcher = watcher_of_pool()
    except GpupoolError as error:
        server.log.warning("Kernels of an earlier server are not adopted: %s", error)
        for folder, _ in found:
            folder.close()
        return
    for folder, record in found:
        try:
            await _take(server, watcher, folder, record)
        except Exception:  # one kernel must not keep the server from starting
            folder.close()
            server.log.exception("Kernel %s of an earlier server is not adopted", record.kernel_id)


async def _take(server: Any, watcher: PoolWatcher, folder: KernelFolder, record: KernelRecord) -> None:
    ours = record.server == str(server.kernel_manager.root_dir)
    if record.pool != watcher.pool or (record.server and not ours):
        folder.close()  # for the server that it belongs to
        return
    if record.workload and ours and await _adopt(server, folder, record):
        return
    if record.workload:
        server.log.info("Stopping workload %s of kernel %s: nobody uses it", record.workload, record.kernel_id)
        await _stop(watcher, record.workload)
    folder.remove(record)


async def _stop(watcher: PoolWatcher, workload: str) -> None:
    try:
        await watcher.call(lambda: watcher.client.stop(workload, force=True))
    except GpupoolError:  # it has ended
        return


async def _adopt(server: Any, folder: KernelFolder, record: KernelRecord) -> bool:
    """Take over one kernel; return False if it does not run any more."""
    kernels = server.kernel_manager
    manager, _, kernel_id = kernels.pre_start_kernel(record.kernel_name, {"kernel_id": record.kernel_id})
    _check_connection_file(folder.connection_file)
    manager.kernel_id = kernel_id
    provisioner = KernelProvisionerFactory.instance(parent=kernels).create_provisioner_instance(
        kernel_id, manager.kernel_spec, parent=manager
    )
    if not isinstance(provisioner, GpupoolProvisioner):
        raise TypeError(f"the kernel {record.kernel_name} does not use gpupool any more")
    state = await provisioner.adopt(folder, record)
    if state.phase is not KernelPhase.RUNNING:
        return False
    manager.provisioner = provisioner
    env = {**os.environ, **record.sizes} | ({NOTEBOOK: record.notebook} if record.notebook else {})
    manager._launch_args = {"kernel_id": kernel_id, "env": env, "cwd": record.workdir}  # noqa: SLF001 - for restarts
    manager._attempted_start = True  # noqa: SLF001 - it has been started, by the earlier server
    manager.ready.set_result(None)
    manager.execution_state, manager.last_activity = "starting", utcnow()
    await manager._async_post_start_kernel()  # noqa: SLF001 - starts the restarter
    kernels._kernels[kernel_id] = manager  # noqa: SLF001 - there is no public way to add a kernel
    kernels._kernel_connections[kernel_id] = 0  # noqa: SLF001 - likewise
    await kernels._finish_kernel_start(kernel_id)  # noqa: SLF001 - watches its activity
    KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=manager.kernel_name).inc()  # as the server does for its own
    kernels.initialize_culler()
    await _restore_session(server, record)
    server.log.info("Adopted kernel %s (workload %s, attempt %d)", kernel_id, state.name, state.attempt)
    return True


def _check_connection_file(path: Path) -> None:
    """Raise ``ValueError`` or ``OSError`` for a connection file that cannot be used."""
    with path.open("rb") as file:
        info = json.loads(file.read(MAX_CONNECTION_BYTES))
    if not isinstance(info, dict) or "key" not in info:
        raise ValueError(f"{path} is not a connection file")


async def _restore_session(server: Any, record: KernelRecord) -> None:
    """Connect the notebook with its kernel again: the server's own list of sessions ended with it."""
    sessions = server.session_manager
    if not record.notebook or any(
        session["kernel"] and session["kernel"]["id"] == record.kernel_id for session in await sessions.list_sessions()
    ):
        return
    path = Path(record.notebook)
    if path.is_relative_to(record.server):
        relative = path.relative_to(record.server).as_posix()
        await sessions.save_session(
            session_id=str(uuid.uuid4()), path=relative, name=path.name, type="notebook", kernel_id=record.kernel_id
        )
