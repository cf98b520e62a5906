"""The kernel provisioner: runs each Jupyter kernel as an interactive workload on its own slice.

Jupyter finds it by its entry point and by the ``kernel_provisioner`` of a kernel specification. The kernel and Jupyter
talk over unix sockets in a folder of this user, so other users of the machine cannot read or send messages. In a pool
over the network or of several nodes, these are tunnelled to the kernel's node. With ``transport="tcp"`` messages are
encrypted where Jupyter and the kernel support it.

A restart uses the pool's restart, which keeps the GPUs. A kernel that the pool ended stays dead, with the reason, until
the user restarts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from tornado.web import HTTPError
from traitlets import Dict, Enum

from gpupool.client import Job
from gpupool.client.files.upload import is_home_or_root
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.work.lifecycle import START_FAILURES
from gpupool.jupyter import browser, kernel_request, records, tunnel
from gpupool.jupyter.watch import (
    LOGIN_REFUSALS,
    KernelPhase,
    KernelState,
    PoolWatcher,
    WatchedKernel,
    read_state,
    watcher_of_pool,
)

FIRST_REPORT_S = 2.0  # a wait in the queue is reported after this time
REPORT_INTERVAL_S = 15.0
LAST_LINES = 10  # of its output that are logged when a kernel ends by itself
MAX_LINE = 500
# Ends after which Jupyter may start the kernel again, as it does with local kernels.
_OWN_ENDS = frozenset({Reason.EXITED, Reason.BACKOFF_EXHAUSTED, Reason.REPEATED_FAILURE, Reason.SHEPHERD_LOST})
_ENDED_MEANWHILE = frozenset({ErrorCode.WRONG_STATE, ErrorCode.NOT_FOUND, ErrorCode.UNKNOWN_WORKLOAD})

T = TypeVar("T")


class KernelStartError(HTTPError):
    """A kernel did not start; Jupyter Server shows the text to the user, scripts get it as the error's text."""

    def __init__(self, text: str) -> None:
        super().__init__(503, text, reason="Kernel not started")
        self._text = text

    def __str__(self) -> str:
        return self._text


class GpupoolProvisioner(LocalProvisioner):
    """Runs a kernel on a slice. ``request`` has fields of its workload, as in a job file."""

    request = Dict(help="Fields of the kernel's workload: gpus, project, wait, idle_timeout, image and others.").tag(
        config=True
    )
    transport = Enum(
        ["auto", "ipc", "tunnel", "tcp"],
        "auto",
        help="How Jupyter and the kernel talk: unix sockets (ipc), tunnelled to the kernel's node (tunnel), or tcp.",
    ).tag(config=True)

    _watcher: PoolWatcher | None = None
    _kernel: WatchedKernel | None = None
    _folder: records.KernelFolder | None = None
    _record: records.KernelRecord | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _tunnel: tunnel.ChannelTunnel | None = None
    _attempt = 0  # the attempt that Jupyter knows
    _waited = False  # Jupyter has been told of the end
    _restarts_in_place = False
    _end_handled = False
    _login_refused = False

    # What Jupyter asks

    @property
    def has_process(self) -> bool:
        """Return whether there is a kernel whose end Jupyter has not yet waited for."""
        return self._kernel is not None and not self._waited

    async def poll(self) -> int | None:
        """Return None while the kernel lives, else its exit status; answered without a request."""
        if self._kernel is None:
            return 0
        state = self._kernel.state
        if state.phase is not KernelPhase.ENDED:
            return None
        if not self._end_handled:
            self._handle_end(state)
            if not _may_start_again(state):
                return None  # once: the restarter, which may be asking, has been stopped
        return state.exit_status or 0

    async def wait(self) -> int | None:
        """Wait until the kernel has ended and return its exit status."""
        kernel = self._kernel
        if kernel is None:
            return 0
        while kernel.state.phase is not KernelPhase.ENDED:
            await kernel.changed(kernel.state)
        self._handle_end(kernel.state)
        self._waited = True
        return kernel.state.exit_status or 0

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel; nothing happens if it has ended."""
        if signum == 0 or not self._is_alive() or self._restarts_in_place:
            return
        await self._change(lambda watcher, workload: watcher.client.signal(workload, signum))

    async def kill(self, restart: bool = False) -> None:  # noqa: ARG002 - of the interface
        """End the kernel at once."""
        if self._is_alive():
            await self._change(lambda watcher, workload: watcher.client.stop(workload, force=True))

    async def terminate(self, restart: bool = False) -> None:  # noqa: ARG002 - of the interface
        """Ask the kernel to end."""
        if self._is_alive():
            await self._change(lambda watcher, workload: watcher.client.stop(workload))

    async def cleanup(self, restart: bool = False) -> None:
        """Delete the kernel's folder, unless it starts again."""
        if not restart:
            self._forget()
        await super().cleanup(restart)

    # Start

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Create the kernel's folder and connection file, and filter its environment."""
        env = dict(kwargs.get("env") or os.environ)
        if self._folder is None:
            self._create_folder(env, os.fspath(kwargs.get("cwd") or Path.cwd()))
            await self._choose_transport()
        manager = self.parent
        if manager is not None:
            self._use_folder(manager)
        if self.transport == "tcp":
            kwargs.setdefault("transport_encryption", _encryption(manager))
        kwargs["env"] = env
        prepared: dict[str, Any] = await super().pre_launch(**kwargs)
        return prepared

    def _create_folder(self, env: dict[str, str], workdir: str) -> None:
        try:
            self._watcher = watcher_of_pool()
        except GpupoolError as error:
            raise KernelStartError(str(error)) from error
        kernel_id = str(self.kernel_id)
        folder = records.create_folder(kernel_id)
        if folder is None:
            raise KernelStartError(f"Kernel {kernel_id} is managed by another Jupyter Server of yours.")
        self._folder = folder
        self._record = records.KernelRecord(
            kernel_id=kernel_id,
            kernel_name=str(getattr(self.parent, "kernel_name", "")),
            pool=self._watcher.pool,
            server=_server_folder(self.parent),
            notebook=kernel_request.notebook_path(env),
            workdir=workdir,
            sizes=kernel_request.sizes_in(env),
        )
        self._folder.write(self._record)

    async def _choose_transport(self) -> None:
        """Choose a tunnel for a kernel that may start on another machine. Raises ``KernelStartError``."""
        watcher, record, folder = self._watcher, self._record, self._folder
        assert watcher is not None  # noqa: S101 - set by _create_folder
        assert record is not None  # noqa: S101 - likewise
        assert folder is not None  # noqa: S101 - likewise
        try:
            nodes = await watcher.count_nodes()
        except GpupoolError as error:
            self._forget()
            raise KernelStartError(str(error)) from error
        if self.transport == "tunnel" or (self.transport == "auto" and (watcher.remote or nodes > 1)):
            record.node_folder = tunnel.new_node_folder()
            folder.write(record)

    def _use_folder(self, manager: Any) -> None:
        """Let Jupyter write the connection file into the kernel's folder, and use sockets there."""
        assert self._folder is not None  # noqa: S101 - created by pre_launch
        assert self._record is not None  # noqa: S101 - likewise
        manager.connection_file = os.fspath(self._folder.connection_file)
        if self.transport != "tcp" and manager.transport != "ipc":
            manager.transport = "ipc"
            manager.cache_ports = False
            manager.ip, self._record.sockets = self._folder.socket_prefix()
        self._take_restarts(manager)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the kernel, after a wait in the queue if necessary. Raises ``KernelStartError`` with the reason."""
        self._loop = asyncio.get_running_loop()
        try:
            if not (self._restarts_in_place and await self._restart_in_place()):
                await self._start_new(cmd, kwargs)
        except GpupoolError as error:
            await self._give_up()
            raise KernelStartError(str(error)) from error
        except BaseException:
            await self._give_up()
            raise
        finally:
            self._restarts_in_place = False
        self._waited = self._end_handled = False
        self._show("starting", "")
        return self.connection_info

    async def _start_new(self, cmd: list[str], kwargs: dict[str, Any]) -> None:
        assert self._watcher is not None  # noqa: S101 - set by pre_launch
        assert self._record is not None  # noqa: S101 - likewise
        assert self._folder is not None  # noqa: S101 - likewise
        watcher, env = self._watcher, {**kwargs["env"], **self._record.sizes}
        fields = self._fields(env, os.fspath(kwargs.get("cwd") or self._record.workdir))
        if self._kernel is not None:
            watcher.forget(self._kernel)
            self._kernel = None
        if node_folder := self._record.node_folder:
            cmd = tunnel.node_command(cmd, os.fspath(self._folder.connection_file), node_folder)
            fields["env"] = {**fields["env"], **tunnel.node_environment(self.connection_info, node_folder)}
        submitted = asyncio.ensure_future(watcher.call(lambda: _submit(watcher, cmd, fields)))
        try:
            job = await asyncio.shield(submitted)
        except asyncio.CancelledError:
            job = await submitted
            await watcher.call(lambda: watcher.client.stop(job.id, force=True))
            raise
        self._record.workload = job.id
        self._folder.write(self._record)
        self._kernel = watcher.watch(KernelState(job.id, job.name, KernelPhase.WAITING), self._state_changed)
        self.log.info("Kernel %s is workload %s (%s)", self.kernel_id, job.name, job.id)
        await watcher.call(lambda: watcher.refresh(self._watched()))
        if not await browser.complete_unless_closed(self._wait_until_started(0)):
            raise KernelStartError(f"The kernel {job.name} was cancelled: its page was closed or loaded again.")
        self._open_tunnel()

    def _open_tunnel(self) -> None:
        """Tunnel the channels of a running kernel, unless it is reached directly."""
        record, manager = self._record, self.parent
        if record is None or manager is None or not record.node_folder:
            return
        self._close_tunnel()  # Jupyter has deleted the sockets of a kernel that restarts
        self._tunnel = tunnel.ChannelTunnel(record.workload, lambda text: self.log.debug("Channel: %s", text))
        self._tunnel.open(manager.ip, record.node_folder, manager.ports)

    def _close_tunnel(self) -> None:
        if self._tunnel is not None:
            self._tunnel.close()
            self._tunnel = None

    def _fields(self, env: dict[str, str], workdir: str) -> dict[str, Any]:
        """Return the fields of the workload."""
        assert self._record is not None  # noqa: S101 - set by pre_launch
        fields = kernel_request.build_fields(self.request, env)
        labels = {**fields.pop("labels", {}), kernel_request.KERNEL_LABEL: self._record.kernel_id[:63]}
        added = fields.pop("env", {})
        name = kernel_request.workload_name(
            self._record.notebook, str(self.kernel_spec.language), self._record.kernel_id
        )
        common = {"kind": "interactive", "restart": "never", "labels": labels, "name": name, **fields}
        if self._watcher is not None and self._watcher.remote:
            uploaded = {} if is_home_or_root(workdir) else {"folder": workdir}
            return {**common, **uploaded, "env": kernel_request.portable_environment(env) | added}
        if "image" not in fields:
            return {**common, "workdir": workdir, "env": kernel_request.kernel_environment(env) | added}
        assert self._folder is not None  # noqa: S101 - set by pre_launch
        own = [] if self._record.node_folder else [os.fspath(self._folder.path), self._record.sockets]
        folders = [*own, workdir]
        volumes = [f"{folder}:{folder}" for folder in dict.fromkeys(folders) if folder]
        return {**common, "workdir": workdir, "env": added, "volumes": [*fields.get("volumes", []), *volumes]}

    async def _restart_in_place(self) -> bool:
        """Restart the program on the same GPUs; return False if it has ended meanwhile."""
        kernel, watcher = self._watched(), self._watcher
        assert watcher is not None  # noqa: S101 - there is a kernel
        before = kernel.state.attempt
        try:
            await watcher.call(lambda: watcher.client.restart(kernel.state.workload, attempt=before))
        except GpupoolError as error:
            if error.code in _ENDED_MEANWHILE:
                return False
            raise
        await watcher.call(lambda: watcher.refresh(kernel))
        await self._wait_until_started(before)
        self._open_tunnel()
        return True

    async def _wait_until_started(self, after_attempt: int) -> None:
        """Wait until an attempt after ``after_attempt`` runs, and log why it waits.

        Raises ``KernelStartError`` if it ends before.
        """
        kernel = self._watched()
        reported, delay_s = "", FIRST_REPORT_S
        while True:
            state = kernel.state
            if state.phase is KernelPhase.ENDED:
                output = await self._last_output(state) if state.code in _OWN_ENDS else ""
                raise KernelStartError(_not_started(state, reported) + output)
            if state.phase is KernelPhase.RUNNING and state.attempt > after_attempt:
                if state.other_machine and self._record is not None and not self._record.node_folder:
                    raise KernelStartError(_OTHER_MACHINE.format(name=state.name))
                self._attempt = state.attempt
                return
            if await kernel.changed(state, delay_s):
                continue
            delay_s = REPORT_INTERVAL_S
            reported = await self._report_wait(state, reported)

    async def _report_wait(self, state: KernelState, reported: str) -> str:
        """Log why a kernel waits if that has changed, and return the sentence."""
        watcher = self._watcher
        assert watcher is not None  # noqa: S101 - there is a kernel
        try:
            why = await watcher.call(lambda: watcher.client.why(state.workload))
        except GpupoolError as error:
            self.log.warning("Kernel %s (%s) waits; the pool does not say why: %s", self.kernel_id, state.name, error)
            return reported
        if state.phase is not KernelPhase.WAITING or why.sentence == reported:
            return reported
        self.log.warning("Kernel %s (%s) waits: %s", self.kernel_id, state.name, why.sentence)
        self._show("starting", f"Waiting for a GPU: {why.sentence}")
        return why.sentence

    async def _give_up(self) -> None:
        """Stop the workload of a kernel that did not start, and forget it."""
        kernel, watcher = self._kernel, self._watcher
        if kernel is not None and watcher is not None and kernel.state.phase is not KernelPhase.ENDED:
            with contextlib.suppress(GpupoolError):
                await asyncio.shield(watcher.call(lambda: watcher.client.stop(kernel.state.workload, force=True)))
        browser.tell(self.parent, self._message("cancelled", ""))
        self._forget()

    def _forget(self) -> None:
        self._close_tunnel()
        if self._kernel is not None and self._watcher is not None:
            self._watcher.forget(self._kernel)
        self._kernel = None
        if self._folder is not None and self._record is not None:
            self._folder.remove(self._record)
        self._folder = self._record = None

    # End and restart

    def _take_restarts(self, manager: Any) -> None:
        """Replace the shutdown that begins each restart, once for each manager.

        Jupyter ends a kernel before it starts it again, and the end of its program would release the slice. Instead the
        program stays until ``launch_kernel`` restarts it in place. Provisioners are not told of a restart in time, so
        this wraps the method that only restarts call on the object.
        """
        original = getattr(manager, "_async_shutdown_kernel", None)
        if original is None or "_async_shutdown_kernel" in vars(manager):
            return

        async def shut_down(now: bool = False, restart: bool = False) -> None:
            if not restart or self._kernel is None or self._kernel.state.phase is not KernelPhase.RUNNING:
                await original(now=now, restart=restart)
                return
            manager.shutting_down = True
            manager.stop_restarter()
            self._restarts_in_place = True
            await manager._async_cleanup_resources(restart=True)  # noqa: SLF001 - what the original does last

        manager._async_shutdown_kernel = shut_down  # noqa: SLF001 - see above

    def _state_changed(self) -> None:
        """Handle a change of the state in Jupyter's loop; called in the watcher's thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._handle_change)

    def _handle_change(self) -> None:
        if self._kernel is None or self._restarts_in_place or not self._attempt:
            return
        state = self._kernel.state
        if state.phase is KernelPhase.ENDED:
            self._handle_end(state)
        elif state.phase is KernelPhase.RUNNING and state.attempt > self._attempt:  # `gpupool restart`
            self._attempt = state.attempt
            self._call_back("restart")
        elif state.phase is KernelPhase.RUNNING:
            self._show_login(state)

    def _show_login(self, state: KernelState) -> None:
        """Tell the user once that the pool refuses the login of this server, and when it accepts one again."""
        refused = state.code in LOGIN_REFUSALS
        if refused == self._login_refused:
            return
        self._login_refused = refused
        text = f"The kernel runs, but cannot be reached: {state.message}" if refused else ""
        if refused:
            self.log.warning("Kernel %s (%s): %s", self.kernel_id, state.name, text)
        browser.tell(self.parent, self._message("waiting" if refused else "started", text))

    def _handle_end(self, state: KernelState) -> None:
        """Show why the pool ended the kernel and keep it dead, or log the last output of a program that ended."""
        if self._end_handled:
            return
        self._end_handled = True
        self._close_tunnel()
        manager = self.parent
        if manager is None or manager.shutting_down:
            return
        if _may_start_again(state):
            self._log_last_output(state)
            return
        reason = f"The pool ended this kernel: {_because(state)}. Restart it to get a new slice."
        if state.code in START_FAILURES:  # the container counts as running while its image is pulled
            reason = f"The kernel has no program: {_because(state)}. Restart it to try again."
        self.log.warning("Kernel %s (%s): %s", self.kernel_id, state.name, reason)
        if state.queued_again:
            self._stop_queued(state)
        manager.stop_restarter()
        self._show("dead", reason)
        self._call_back("dead")

    def _stop_queued(self, state: KernelState) -> None:
        """Remove a workload from the queue: a new program would have lost all variables of the notebook."""
        watcher = self._watcher
        assert watcher is not None  # noqa: S101 - there is a kernel

        async def stop() -> None:
            await watcher.call(lambda: watcher.client.stop(state.workload, force=True))

        self._background(stop())

    def _log_last_output(self, state: KernelState) -> None:
        async def report() -> None:
            output = await self._last_output(state)
            self.log.warning("Kernel %s (%s) %s%s", self.kernel_id, state.name, _because(state), output)

        self._background(report())

    async def _last_output(self, state: KernelState) -> str:
        """Return the last lines of a kernel's output, indented, each after a line break. Raises ``GpupoolError``."""
        watcher = self._watcher
        assert watcher is not None  # noqa: S101 - there is a kernel
        chunks = await watcher.call(lambda: list(watcher.client.logs(state.workload, tail=LAST_LINES)))
        lines = b"".join(chunk.data for chunk in chunks).decode(errors="replace").splitlines()[-LAST_LINES:]
        return "".join(f"\n  {line[:MAX_LINE]}" for line in lines)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that may fail; its errors are logged only."""
        if self._loop is None or not self._loop.is_running():
            work.close()
            return

        async def run() -> None:
            try:
                await work
            except GpupoolError as error:
                self.log.warning("%s", error)

        task = self._loop.create_task(run())
        self._tasks = {task, *(other for other in getattr(self, "_tasks", ()) if not other.done())}

    def _call_back(self, event: str) -> None:
        """Tell the browsers of a restart or of the end, without removing the kernel from Jupyter's list.

        Then the kernel stays visible with its reason, and its restart button works.
        """
        restarter = getattr(self.parent, "_restarter", None)
        for callback in list(restarter.callbacks[event]) if restarter is not None else ():
            if getattr(callback, "__self__", None) is not None:  # of a browser's connection; not of the server's list
                with contextlib.suppress(Exception):
                    callback()

    def _show(self, execution_state: str, reason: str) -> None:
        """Set the state and the reason that Jupyter Server's REST API shows, and tell the pages of JupyterLab."""
        manager = self.parent
        if manager is not None and manager.has_trait("execution_state"):
            manager.execution_state, manager.reason = execution_state, reason
        phase = "dead" if execution_state == "dead" else "waiting" if reason else "started"
        browser.tell(manager, self._message(phase, reason))

    def _message(self, phase: str, text: str) -> dict[str, str]:
        notebook = Path(self._record.notebook).name if self._record is not None else ""
        return {"kernel_id": str(self.kernel_id), "notebook": notebook, "phase": phase, "text": text}

    # Adoption by another Jupyter Server

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return what ``load_provisioner_info`` takes, without keys."""
        return {"kernel_id": self.kernel_id, "workload": self._record.workload if self._record else ""}

    async def adopt(self, folder: records.KernelFolder, record: records.KernelRecord) -> KernelState:
        """Take over a running kernel whose server has ended. Raises ``GpupoolError``."""
        self._loop = asyncio.get_running_loop()
        self._folder, self._record = folder, record
        watcher = self._watcher = watcher_of_pool()
        state = await watcher.call(lambda: read_state(watcher.client, record.workload))
        if state.phase is KernelPhase.RUNNING and self.parent is not None:
            manager = self.parent
            manager.connection_file = os.fspath(folder.connection_file)
            manager.load_connection_file()
            manager._connection_file_written = True  # noqa: SLF001 - else it would never be deleted
            self.connection_info = manager.get_connection_info()
            self._take_restarts(manager)
            self._attempt = state.attempt
            kernel = self._kernel = watcher.watch(state, self._state_changed)
            self._open_tunnel()
            with contextlib.suppress(GpupoolError):  # the event stream reads the state again when it is connected
                await watcher.call(lambda: watcher.refresh(kernel))  # what changed before it was watched
        return state

    # Helpers

    def _watched(self) -> WatchedKernel:
        assert self._kernel is not None  # noqa: S101 - the callers have one
        return self._kernel

    def _is_alive(self) -> bool:
        return self._kernel is not None and self._kernel.state.phase is not KernelPhase.ENDED

    async def _change(self, act: Callable[[PoolWatcher, str], object]) -> None:
        """Send a request about the kernel. Errors are logged: Jupyter could not continue after them."""
        watcher, kernel = self._watcher, self._watched()
        assert watcher is not None  # noqa: S101 - there is a kernel
        try:
            await watcher.call(lambda: act(watcher, kernel.state.workload))
        except GpupoolError as error:
            if error.code not in _ENDED_MEANWHILE:
                self.log.warning("Kernel %s (%s): %s", self.kernel_id, kernel.state.name, error)


_OTHER_MACHINE = (
    "{name} was placed on another machine than Jupyter, where the transport 'ipc' or 'tcp' cannot reach it, and was "
    "stopped.\n  Remove the transport from its kernel specification."
)


def _submit(watcher: PoolWatcher, cmd: list[str], fields: dict[str, Any]) -> Job:
    """Submit a kernel; without its name if an earlier workload of this kernel has not ended yet."""
    try:
        return watcher.client.submit(cmd, **fields)
    except GpupoolError as error:
        if error.code is not ErrorCode.NAME_TAKEN or "name" not in fields:
            raise
    return _submit(watcher, cmd, {key: value for key, value in fields.items() if key != "name"})


def _may_start_again(state: KernelState) -> bool:
    """Return whether a kernel ended by itself, so that Jupyter may start it again."""
    return state.code in _OWN_ENDS and not state.queued_again


def _because(state: KernelState) -> str:
    return f"{state.message or state.code.lower().replace('_', ' ')} [{state.code}]"


def _not_started(state: KernelState, reported: str) -> str:
    waited = f"\n  It waited: {reported}" if reported else ""
    return f"The kernel {state.name} did not start: {_because(state)}{waited}\n  See 'gpupool why {state.name}'."


def _server_folder(manager: Any) -> str:
    """Return the root folder of the Jupyter Server of a kernel manager; empty if there is none."""
    return str(getattr(getattr(manager, "parent", None), "root_dir", "") or "")


def _encryption(manager: Any) -> str:
    """Return the encryption policy for tcp: at least where the kernel supports it."""
    chosen = str(getattr(manager, "transport_encryption", "disabled"))
    return "auto" if chosen == "disabled" else chosen
