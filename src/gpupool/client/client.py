"""The typed client: one object per pool, without an event loop, usable from scripts, threads and notebooks."""

from __future__ import annotations

import base64
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

from pydantic import BaseModel

from gpupool.api.schemas import (
    EventList,
    EventView,
    GpuList,
    GpuView,
    LogChunkView,
    NodeList,
    NodeView,
    PlanView,
    PoolView,
    UsageView,
    WhoamiView,
    WhyView,
    WorkloadDetail,
    WorkloadList,
    WorkloadView,
)
from gpupool.api.schemas.manifests import AppliedList
from gpupool.client.administering import Administration, given, in_path
from gpupool.client.attach import Attachment, attach
from gpupool.client.connection import RETRY_S, Call, Connection
from gpupool.client.endpoint import UnixEndpoint, resolve
from gpupool.client.fetching import Fetched, Work, fetch
from gpupool.client.job import Job, JobFailed, Lease
from gpupool.client.options import ApplyOptions, Command, SubmitOptions, build_request
from gpupool.client.sending import Sent, send_folder
from gpupool.domain.supervision import LogChunk
from gpupool.domain.workload import ReplicaState, WorkloadKind, WorkloadState
from gpupool.specs.request import WorkloadRequest

_POLL_S = 25.0
_PAUSE_S = 0.05
_PAGE = 500

M = TypeVar("M", bound=BaseModel)


class Client(Administration):
    """A pool. Without arguments: the one that this process's environment or machine has.

    ``socket_path`` names the API socket of a pool on this machine; ``url`` (https) with ``token`` a pool over the
    network, whose certificate is checked by ``ca_file``, ``fingerprint`` (SHA-256) or the system's authorities.
    ``retry_s`` is how long to go on while the control plane restarts. Every method raises ``GpupoolError``.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str] | None = None,
        *,
        url: str | None = None,
        token: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        fingerprint: str | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        endpoint = resolve(socket_path, url=url, token=token, ca_file=ca_file, fingerprint=fingerprint)
        self._connection = Connection(endpoint, retry_s)

    def close(self) -> None:
        """Let go of all connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Work

    def plan(self, command: Command | WorkloadRequest = ("true",), **options: Unpack[SubmitOptions]) -> PlanView:
        """Where and when a submission with these options would start if it were made now. Nothing is stored."""
        options.pop("folder", None)  # where it starts does not depend on it
        options.pop("gitignore", None)
        call = Call("POST", "/v1/plan", json=self._request(command, options).to_body(), again=True)
        return self._connection.ask(call, PlanView)

    def apply(self, text: str, *, name: str = "manifest", **how: Unpack[ApplyOptions]) -> AppliedList:
        """Make what Kubernetes' manifests describe (YAML or JSON). ``name`` begins messages about them.

        Objects that are there already are unchanged, or made again with ``force``; see docs/kubernetes.md.
        """
        return self._connection.ask(Call("POST", "/v1/apply", json={"text": text, "name": name, **how}), AppliedList)

    def submit(self, command: Command | WorkloadRequest, **options: Unpack[SubmitOptions]) -> Job:
        """Ask for a program to be run and return at once.

        The submission carries an identifier, so that it is made once even when the control plane restarts meanwhile.
        """
        call = Call("POST", "/v1/workloads", json=self._request(command, options).to_body(), again=True)
        return self._job(self._connection.ask(call, WorkloadView))

    def _request(self, command: Command | WorkloadRequest, options: SubmitOptions) -> WorkloadRequest:
        if isinstance(command, WorkloadRequest):
            return _identified(command)
        if "folder" in options:
            sent = self.send_folder(options.pop("folder"), gitignore=options.pop("gitignore", False))
            options["tree"] = sent.tree
        return build_request(command, options, local=isinstance(self._connection.endpoint, UnixEndpoint))

    def run(
        self, command: Command | WorkloadRequest, *, timeout: float | None = None, **options: Unpack[SubmitOptions]
    ) -> Job:
        """Run a program to its end. Raises ``JobFailed`` when it did not succeed, ``TimeoutError``."""
        job = self.submit(command, **options)
        job.result(timeout)
        return job

    def send_folder(self, folder: str | os.PathLike[str], *, gitignore: bool = False) -> Sent:
        """Send what is in a folder, as far as the pool lacks it; ``tree`` names it in as many submissions as you like.

        What .gpupoolignore leaves out stays here, and with ``gitignore`` what .gitignore does.
        """
        return send_folder(self._connection, os.fspath(folder), gitignore=gitignore)

    def fetch(
        self, ref: str, *paths: str, into: str | os.PathLike[str] = ".", index: int = 0, force: bool = False
    ) -> Fetched:
        """Bring files and folders (all, or ``paths``) of a workload's folder here, each at the path that it has there.

        What is here and different stays unless ``force``. The result says what came, and what was left, with why.
        """
        return fetch(Work(self._connection, ref or "-", index), paths, os.fspath(into), force=force)

    def get(self, ref: str) -> Job:
        """A workload by id or name."""
        return self._job(self.detail(ref))

    def detail(self, ref: str, replicas_from: int = 0) -> WorkloadDetail:
        """Everything about a workload, with at most 1000 replicas from an index on."""
        return self._get(f"/v1/workloads/{in_path(ref)}", WorkloadDetail, replicas_from=replicas_from)

    def list(  # noqa: PLR0913 - each narrows the list
        self,
        *,
        states: Sequence[WorkloadState | str] = (),
        project: str | None = None,
        user: str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        all: bool = False,  # noqa: A002 - as the command line has it
        limit: int | None = None,
    ) -> list[Job]:
        """Workloads, newest first: those that have not ended, unless ``states`` or ``all`` say otherwise."""
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
            view = self._get(f"/v1/workloads/{in_path(ref)}/wait", WorkloadDetail, **query)
            if view.state.final or (what == "started" and _has_started(view)):
                return view
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{view.name} is still {view.state}")
            time.sleep(_PAUSE_S)  # a control plane about to restart answers at once

    def stop(self, ref: str, *, grace_s: float | None = None, force: bool = False, index: int | None = None) -> Job:
        """End a workload, or one replica: TERM, the grace, KILL; at once with ``force``."""
        how = {"grace_s": grace_s, "force": force, "index": index}
        return self._change(ref, "stop", {key: value for key, value in how.items() if value is not None}, again=True)

    cancel = stop

    def suspend(self, ref: str) -> Job:
        """Stop a workload and keep it out of the queue until it is resumed."""
        return self._change(ref, "suspend", again=True)

    def resume(self, ref: str) -> Job:
        """Put a suspended workload back into the queue."""
        return self._change(ref, "resume")

    def set_priority(self, ref: str, priority: int | str) -> Job:
        """Let a workload that waits come earlier or later in its project: ``low``, ``normal``, ``high``, a number."""
        return self._change(ref, "priority", {"priority": priority}, again=True)

    def signal(self, ref: str, signal: str | int, index: int = 0) -> Job:
        """Send a signal (``INT``, 2) to a replica's foreground processes."""
        return self._change(ref, "signal", {"signal": signal, "index": index})

    def extend(self, ref: str, seconds: float) -> Job:
        """Let a lease live longer."""
        return self._change(ref, "extend", {"seconds": seconds})

    def delete(self, ref: str) -> None:
        """Take a workload that has ended off the lists."""
        self._connection.send(Call("DELETE", f"/v1/workloads/{in_path(ref)}"))

    def why(self, ref: str, index: int | None = None) -> WhyView:
        """Why a workload stands where it stands, with numbers and an estimate."""
        return self._get(f"/v1/workloads/{in_path(ref)}/why", WhyView, index=index)

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
        """What a replica wrote, piece by piece; with ``follow`` until its attempt ends, each piece once."""
        path = f"/v1/workloads/{in_path(ref)}/logs"
        query = given({"index": index, "attempt": attempt, "tail": tail, "since": since})
        if follow:
            return self._followed(path, query)
        return self._written(path, query)

    def _written(self, path: str, query: dict[str, Any]) -> Iterator[LogChunk]:
        for stretch in self._connection.whole_log(path, query):
            yield from stretch.chunks()

    def _followed(self, path: str, query: dict[str, Any]) -> Iterator[LogChunk]:
        for message in self._connection.resumed(path, {**query, "follow": True}):
            if message.event == "chunk":
                yield _chunk(LogChunkView.model_validate_json(message.data))

    def attach(self, ref: str, index: int = 0) -> Attachment:
        """A stream of frames to a running program's terminal or pipes."""
        return self._connection.dialled(lambda endpoint: attach(endpoint, ref, index))

    def request_gpus(self, count: int = 1, *, timeout: float | None = None, **options: Unpack[SubmitOptions]) -> Lease:
        """Hold GPUs (``fraction``, ``memory_mib``, ``models``, ``lifetime``); waits until they are granted.

        Raises ``JobFailed`` when they were not, ``TimeoutError`` after ``timeout`` seconds (nothing is held then).
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
        """What the pool consists of and how busy it is."""
        return self._get("/v1/pool", PoolView)

    def whoami(self) -> WhoamiView:
        """Who the pool takes this process for."""
        return self._get("/v1/whoami", WhoamiView)

    def nodes(self) -> Sequence[NodeView]:
        """All machines."""
        return self._get("/v1/nodes", NodeList).nodes

    def node(self, name: str) -> NodeView:
        """One machine, its GPUs looked at anew."""
        return self._get(f"/v1/nodes/{in_path(name)}", NodeView)

    def gpus(self) -> Sequence[GpuView]:
        """All GPUs and who holds them."""
        return self._get("/v1/gpus", GpuList).gpus

    def usage(self, since: float | None = None, until: float | None = None) -> UsageView:
        """GPU seconds held by project and user; the last 30 days when no time is given."""
        return self._get("/v1/usage", UsageView, since=since, until=until)

    def events(
        self, *, follow: bool = False, after_id: int = 0, workload: str | None = None, newest: int | None = None
    ) -> Iterator[EventView]:
        """What has happened, oldest first; with ``follow`` without end, each event once."""
        query = given({"after_id": after_id, "workload": workload})
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
        for message in self._connection.resumed("/v1/events/stream", query):
            if message.event == "event":
                yield EventView.model_validate_json(message.data)

    # Inside

    def _job(self, view: WorkloadView) -> Job:
        return (Lease if view.kind is WorkloadKind.LEASE else Job)(self, view)

    def _change(self, ref: str, verb: str, body: Mapping[str, Any] | None = None, *, again: bool = False) -> Job:
        call = Call("POST", f"/v1/workloads/{in_path(ref)}/{verb}", json=body, again=again)
        return self._job(self._connection.ask(call, WorkloadView))


def _identified(request: WorkloadRequest) -> WorkloadRequest:
    return request if request.request_id else request.model_copy(update={"request_id": uuid.uuid4().hex})


def _has_started(view: WorkloadDetail) -> bool:
    return any(replica.state is not ReplicaState.PENDING for replica in view.replicas)


def _chunk(view: LogChunkView) -> LogChunk:
    return LogChunk(view.at, view.stream, base64.b64decode(view.data), view.cursor)
