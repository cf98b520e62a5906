"""The typed client of a pool, without an event loop, for scripts, threads and notebooks."""

from __future__ import annotations

import base64
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

from pydantic import BaseModel

from gpupool.api.schemas.nodes.nodes import GpuList, GpuView, NodeList, NodeView, PoolView
from gpupool.api.schemas.people import WhoamiView
from gpupool.api.schemas.usage import UsageView
from gpupool.api.schemas.work.files import PortList, PortView
from gpupool.api.schemas.work.manifests import AppliedList
from gpupool.api.schemas.work.plans import PlanView
from gpupool.api.schemas.work.workloads import (
    EventList,
    EventView,
    LogChunkView,
    WhyView,
    WorkloadDetail,
    WorkloadList,
    WorkloadView,
)
from gpupool.client.administration import Administration, quote_segment, without_none
from gpupool.client.files.download import FetchResult, WorkFolder, fetch
from gpupool.client.files.upload import UploadResult, send_folder
from gpupool.client.job import Job, JobFailed, Lease
from gpupool.client.options import ApplyOptions, Command, SubmitOptions, build_request
from gpupool.client.services import Services
from gpupool.client.transport.attach import Attachment, attach
from gpupool.client.transport.connection import ApiCall, PoolConnection
from gpupool.client.transport.endpoint import UnixEndpoint, resolve_endpoint
from gpupool.client.transport.retries import RETRY_TIMEOUT_S
from gpupool.client.workspaces import Workspaces
from gpupool.domain.protocol.log_records import LogChunk
from gpupool.domain.work.workload import ReplicaState, WorkloadKind, WorkloadState
from gpupool.specs.request import WorkloadRequest

_POLL_S = 25.0
_PAUSE_S = 0.05
_PAGE = 500

M = TypeVar("M", bound=BaseModel)


class Client(Administration, Services, Workspaces):
    """A pool. Without arguments: the pool of this process's environment or machine.

    ``socket_path`` is the API socket of a pool on this machine; ``url`` (https) with ``token`` is a pool over the
    network, whose certificate is checked by ``ca_file``, ``fingerprint`` (SHA-256) or the system's authorities.
    ``retry_s`` is how long to retry while the control plane restarts. Every method raises ``GpupoolError``.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str] | None = None,
        *,
        url: str | None = None,
        token: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        fingerprint: str | None = None,
        retry_s: float = RETRY_TIMEOUT_S,
    ) -> None:
        endpoint = resolve_endpoint(socket_path, url=url, token=token, ca_file=ca_file, fingerprint=fingerprint)
        self._connection = PoolConnection(endpoint, retry_s)

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Workloads

    def plan(self, command: Command | WorkloadRequest = ("true",), **options: Unpack[SubmitOptions]) -> PlanView:
        """Return where and when a submission with these options would start. Nothing is stored."""
        options.pop("folder", None)  # the folder does not affect the placement
        options.pop("gitignore", None)
        call = ApiCall("POST", "/v1/plan", json=self._request(command, options).to_body(), repeatable=True)
        return self._connection.ask(call, PlanView)

    def apply(self, text: str, *, name: str = "manifest", **how: Unpack[ApplyOptions]) -> AppliedList:
        """Create workloads from Kubernetes manifests (YAML or JSON). ``name`` is the prefix of messages about them.

        Existing objects stay unchanged, or are created again with ``force``; see docs/kubernetes.md.
        """
        return self._connection.ask(ApiCall("POST", "/v1/apply", json={"text": text, "name": name, **how}), AppliedList)

    def submit(self, command: Command | WorkloadRequest, **options: Unpack[SubmitOptions]) -> Job:
        """Submit a program and return at once.

        The submission has an identifier, so that it is created once even if the control plane restarts meanwhile.
        """
        call = ApiCall("POST", "/v1/workloads", json=self._request(command, options).to_body(), repeatable=True)
        return self._job(self._connection.ask(call, WorkloadView))

    def _request(self, command: Command | WorkloadRequest, options: SubmitOptions) -> WorkloadRequest:
        if isinstance(command, WorkloadRequest):
            return _with_request_id(command)
        if "folder" in options:
            sent = self.send_folder(options.pop("folder"), gitignore=options.pop("gitignore", False))
            options["tree"] = sent.tree
        return build_request(command, options, local=isinstance(self._connection.endpoint, UnixEndpoint))

    def run(
        self, command: Command | WorkloadRequest, *, timeout: float | None = None, **options: Unpack[SubmitOptions]
    ) -> Job:
        """Run a program until it ends. Raises ``JobFailed`` if it did not succeed, ``TimeoutError``."""
        job = self.submit(command, **options)
        job.result(timeout)
        return job

    def send_folder(self, folder: str | os.PathLike[str], *, gitignore: bool = False) -> UploadResult:
        """Upload the files of a folder that the pool lacks. ``tree`` names the folder in later submissions.

        Files that .gpupoolignore excludes are not uploaded, and with ``gitignore`` those that .gitignore excludes.
        """
        return send_folder(self._connection, os.fspath(folder), gitignore=gitignore)

    def fetch(
        self, ref: str, *paths: str, into: str | os.PathLike[str] = ".", index: int = 0, force: bool = False
    ) -> FetchResult:
        """Download files and folders (all, or ``paths``) of a workload's folder, each to the same relative path.

        Local files that differ stay, unless ``force``. The result lists downloaded and skipped files, with reasons.
        """
        return fetch(WorkFolder(self._connection, ref or "-", index), paths, os.fspath(into), force=force)

    def get(self, ref: str) -> Job:
        """Return a workload by id or name."""
        return self._job(self.detail(ref))

    def detail(self, ref: str, replicas_from: int = 0) -> WorkloadDetail:
        """Return all data of a workload, with at most 1000 replicas from an index on."""
        return self._get(f"/v1/workloads/{quote_segment(ref)}", WorkloadDetail, replicas_from=replicas_from)

    def list(  # noqa: PLR0913 - one parameter per filter
        self,
        *,
        states: Sequence[WorkloadState | str] = (),
        project: str | None = None,
        user: str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        all: bool = False,  # noqa: A002 - same name as on the command line
        limit: int | None = None,
    ) -> list[Job]:
        """Return workloads, newest first: those that have not ended, unless ``states`` or ``all`` say otherwise."""
        query = {
            "state": [str(state) for state in states],
            "project": project,
            "user": user,
            "name": name,
            "label": [f"{key}={value}" for key, value in (labels or {}).items()],
            "all": all,
        }
        return [self._job(view) for view in self._pages(query, limit)]

    def _pages(self, query: Mapping[str, Any], limit: int | None) -> Iterator[WorkloadView]:
        cursor: str | None = None
        left = limit if limit is not None else -1
        while left != 0:
            size = _PAGE if left < 0 else min(left, _PAGE)
            page = self._get("/v1/workloads", WorkloadList, **query, limit=size, cursor=cursor)
            yield from page.workloads
            left -= len(page.workloads) if left > 0 else 0
            cursor = page.next_cursor
            if cursor is None:
                return

    def wait(self, ref: str, timeout: float | None = None) -> Job:
        """Wait until a workload has ended. Raises ``TimeoutError`` after ``timeout`` seconds."""
        return self._job(self.wait_until("finished", ref, timeout))

    def wait_until(
        self, what: Literal["started", "finished"], ref: str, timeout: float | None = None
    ) -> WorkloadDetail:
        """Wait until a workload has started (or ended), or has ended. Raises ``TimeoutError``."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _POLL_S if deadline is None else max(0.0, min(_POLL_S, deadline - time.monotonic()))
            query = {"for": what, "timeout_s": left}
            view = self._get(f"/v1/workloads/{quote_segment(ref)}/wait", WorkloadDetail, **query)
            if view.state.final or (what == "started" and _has_started(view)):
                return view
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{view.name} is still {view.state}")
            time.sleep(_PAUSE_S)  # a control plane that is about to restart answers at once

    def stop(self, ref: str, *, grace_s: float | None = None, force: bool = False, index: int | None = None) -> Job:
        """Stop a workload, or one replica: TERM, the grace period, KILL; with ``force`` KILL at once."""
        how = {"grace_s": grace_s, "force": force, "index": index}
        return self._change(
            ref, "stop", {key: value for key, value in how.items() if value is not None}, repeatable=True
        )

    cancel = stop

    def suspend(self, ref: str) -> Job:
        """Stop a workload and keep it out of the queue until it is resumed."""
        return self._change(ref, "suspend", repeatable=True)

    def restart(
        self,
        ref: str,
        *,
        grace_s: float | None = None,
        force: bool = False,
        index: int | None = None,
        attempt: int | None = None,
    ) -> Job:
        """Stop the program and start it again on the same GPUs, without a new wait in the queue.

        With ``attempt`` it is restarted only if that is its present attempt; such a request is repeated after a lost
        connection. Raises ``GpupoolError`` (WRONG_STATE) for gangs, leases and workloads that do not run.
        """
        how = {"grace_s": grace_s, "force": force, "index": index, "attempt": attempt}
        given = {key: value for key, value in how.items() if value is not None}
        return self._change(ref, "restart", given, repeatable=attempt is not None)

    def resume(self, ref: str) -> Job:
        """Queue a suspended workload again."""
        return self._change(ref, "resume")

    def set_priority(self, ref: str, priority: int | str) -> Job:
        """Set the priority of a queued workload: ``low``, ``normal``, ``high``, or a number."""
        return self._change(ref, "priority", {"priority": priority}, repeatable=True)

    def signal(self, ref: str, signal: str | int, index: int = 0) -> Job:
        """Send a signal (``INT``, 2) to a replica's foreground processes."""
        return self._change(ref, "signal", {"signal": signal, "index": index})

    def extend(self, ref: str, seconds: float) -> Job:
        """Extend the lifetime of a lease."""
        return self._change(ref, "extend", {"seconds": seconds})

    def delete(self, ref: str) -> None:
        """Delete a workload that has ended."""
        self._connection.send(ApiCall("DELETE", f"/v1/workloads/{quote_segment(ref)}"))

    def why(self, ref: str, index: int | None = None) -> WhyView:
        """Return why a workload is in its state, with numbers and an estimate."""
        return self._get(f"/v1/workloads/{quote_segment(ref)}/why", WhyView, index=index)

    def logs(
        self,
        ref: str,
        *,
        follow: bool = False,
        index: int = 0,
        attempt: int | None = None,
        tail: int | None = None,
        since: float | None = None,
    ) -> Iterator[LogChunk]:
        """Yield the output of a replica, chunk by chunk; with ``follow`` until its attempt ends, each chunk once."""
        path = f"/v1/workloads/{quote_segment(ref)}/logs"
        query = without_none({"index": index, "attempt": attempt, "tail": tail, "since": since})
        if follow:
            return self._followed(path, query)
        return self._written(path, query)

    def _written(self, path: str, query: dict[str, Any]) -> Iterator[LogChunk]:
        for batch in self._connection.read_log_with_retry(path, query):
            yield from batch.chunks()

    def _followed(self, path: str, query: dict[str, Any]) -> Iterator[LogChunk]:
        for message in self._connection.stream_with_retry(path, {**query, "follow": True}):
            if message.event == "chunk":
                yield _chunk(LogChunkView.model_validate(message.data))

    def ports(self, ref: str, index: int = 0) -> Sequence[PortView]:
        """Return the TCP ports on which a replica's processes listen; those of the first process are first."""
        return self._get(f"/v1/workloads/{quote_segment(ref)}/ports", PortList, index=index).ports

    def attach(self, ref: str, index: int = 0) -> Attachment:
        """Return a stream of frames to a running program's terminal or pipes."""
        return self._connection.with_failover(lambda endpoint: attach(endpoint, ref, index))

    def request_gpus(self, count: int = 1, *, timeout: float | None = None, **options: Unpack[SubmitOptions]) -> Lease:
        """Request a lease of GPUs (``fraction``, ``memory_mib``, ``models``, ``lifetime``) and wait for its grant.

        Raises ``JobFailed`` if it was not granted, ``TimeoutError`` after ``timeout`` seconds (the request is then
        cancelled).
        """
        options["kind"] = WorkloadKind.LEASE.value
        options.setdefault("gpus", count)
        lease = Lease(self, self.submit([], **options).view)
        try:
            lease.wait_started(timeout)
        except BaseException:
            lease.release()
            raise
        if lease.view.state.final:
            raise JobFailed(lease.view)
        return lease

    # The pool

    def pool(self) -> PoolView:
        """Return the contents and the load of the pool."""
        return self._get("/v1/pool", PoolView)

    def whoami(self) -> WhoamiView:
        """Return the authenticated user."""
        return self._get("/v1/whoami", WhoamiView)

    def nodes(self) -> Sequence[NodeView]:
        """Return all nodes."""
        return self._get("/v1/nodes", NodeList).nodes

    def node(self, name: str) -> NodeView:
        """Return one node with fresh GPU data."""
        return self._get(f"/v1/nodes/{quote_segment(name)}", NodeView)

    def gpus(self) -> Sequence[GpuView]:
        """Return all GPUs and their holders."""
        return self._get("/v1/gpus", GpuList).gpus

    def usage(self, since: float | None = None, until: float | None = None) -> UsageView:
        """Return GPU seconds by project and user; without times, for the last 30 days."""
        return self._get("/v1/usage", UsageView, since=since, until=until)

    def events(
        self, *, follow: bool = False, after_id: int = 0, workload: str | None = None, newest: int | None = None
    ) -> Iterator[EventView]:
        """Yield events, oldest first; with ``follow`` without end, each event once."""
        query = without_none({"after_id": after_id, "workload": workload})
        if follow:
            return self._live_events(query)
        if newest is not None:
            return iter(self._get("/v1/events", EventList, **query, newest=True, limit=newest).events)
        return self._past_events(query)

    def _past_events(self, query: dict[str, Any]) -> Iterator[EventView]:
        while events := self._get("/v1/events", EventList, **query, limit=_PAGE).events:
            yield from events
            query = {**query, "after_id": events[-1].id}

    def _live_events(self, query: dict[str, Any]) -> Iterator[EventView]:
        for message in self._connection.stream_with_retry("/v1/events/stream", query):
            if message.event == "event":
                yield EventView.model_validate(message.data)

    # Internal

    def _job(self, view: WorkloadView) -> Job:
        return (Lease if view.kind is WorkloadKind.LEASE else Job)(self, view)

    def _change(self, ref: str, verb: str, body: Mapping[str, Any] | None = None, *, repeatable: bool = False) -> Job:
        call = ApiCall("POST", f"/v1/workloads/{quote_segment(ref)}/{verb}", json=body, repeatable=repeatable)
        return self._job(self._connection.ask(call, WorkloadView))


def _with_request_id(request: WorkloadRequest) -> WorkloadRequest:
    return request if request.request_id else request.model_copy(update={"request_id": uuid.uuid4().hex})


def _has_started(view: WorkloadDetail) -> bool:
    return any(replica.state is not ReplicaState.PENDING for replica in view.replicas)


def _chunk(view: LogChunkView) -> LogChunk:
    return LogChunk(view.at, view.stream, base64.b64decode(view.data), view.cursor)
