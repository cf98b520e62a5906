"""The application around its routes: description, waiting, and imports."""

from __future__ import annotations

import asyncio
import pkgutil
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.types import Message

from gpupool import __version__
from gpupool.api import schemas
from gpupool.api.app import create_app, create_waiting_app
from gpupool.api.deps import decode_page, encode_page
from gpupool.api.server.peer import PEER_UID
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.people.access import Actor, Role
from gpupool.domain.work.workload import Program, Replica, Workload, WorkloadKind
from gpupool.services.pool import PoolServices

QUEUED = Workload(
    WorkloadId("w0123456789"), "n", WorkloadKind.RUN, "default", "me", Program(("true",)), GpuRequest(), 1.0
)


class Patient:
    """Services with one workload that never starts."""

    def __init__(self) -> None:
        self.workloads = self.access = self.nodes = self
        self.info = SimpleNamespace(own_node="")
        self.waiting = asyncio.Event()
        self.let_go = asyncio.Event()

    async def actor_for_uid(self, uid: int) -> Actor:
        return Actor("me", Role.MEMBER, f"uid {uid}", uid)

    async def get(self, actor: Actor, ref: str) -> Workload:
        return QUEUED

    async def dependency_names(self, actor: Actor, workload: Workload) -> dict[str, str]:
        return {}

    def now(self) -> float:
        return 0.0

    async def wait(self, actor: Actor, ref: str, **_options: Any) -> Workload:
        self.waiting.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.let_go.set()
        return QUEUED

    async def replicas_of(self, workload: Workload) -> list[Replica]:
        return [Replica(workload.id, 0)]

    async def leases_of(self, workload: Workload) -> list[Any]:
        return []

    def can_see(self, actor: Actor, workload: Workload) -> bool:
        return True

    def with_silence(self, replica: Replica) -> Replica:
        return replica

    can_manage = can_see


def scope(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"for=started&timeout_s=60&bound=true",
        "headers": [],
        "http_version": "1.1",
        "scheme": "http",
        "server": None,
        "client": None,
        "root_path": "",
        "extensions": {PEER_UID: 1000},
    }


def wait_until(end: str) -> list[Message]:
    """Ask for a wait, then hang up or let the server stop; what was answered."""

    async def run() -> list[Message]:
        services = Patient()
        app = create_app(cast("PoolServices", services))
        over = asyncio.Event()
        sent: list[Message] = []
        first = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Message:
            if first:
                return first.pop()
            await over.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        asking = asyncio.create_task(app(scope("/v1/workloads/n/wait"), receive, send))
        await services.waiting.wait()
        (over if end == "hang up" else app.state.closing).set()
        async with asyncio.timeout(30):
            await asking
            await services.let_go.wait()
        return sent

    return asyncio.run(run())


def test_long_poll_ends_when_its_client_disconnects() -> None:
    wait_until("hang up")


def test_stopping_server_answers_waits_with_current_state() -> None:
    start, body = wait_until("stop")
    assert start["status"] == 200
    assert b'"queued"' in body["body"]


def test_openapi_description_is_complete() -> None:
    document = create_app(cast("PoolServices", SimpleNamespace())).openapi()
    assert document["info"]["version"] == __version__
    assert document["security"] == [{"token": []}, {}]
    assert document["paths"]["/v1/health"]["get"]["security"] == []
    tags = {tag["name"] for tag in document["tags"]}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert set(operation["tags"]) <= tags, path
            assert operation["description"], path
            documented = set(operation["responses"])
            assert {"400", "401", "403", "404", "409", "412", "413", "422", "429", "500", "503"} <= documented, (
                path,
                method,
            )
            refused = operation["responses"]["422"]["content"]["application/problem+json"]["schema"]
            assert refused == {"$ref": "#/components/schemas/ErrorBody"}
    submission = document["paths"]["/v1/workloads"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert submission == {"$ref": "#/components/schemas/WorkloadRequest"}
    assert "command" in document["components"]["schemas"]["WorkloadRequest"]["properties"]


SCHEMAS = [module.name for module in pkgutil.walk_packages(schemas.__path__, "gpupool.api.schemas.")]


@pytest.mark.parametrize("modules", [", ".join(SCHEMAS), "gpupool.client.client"])
def test_client_needs_no_web_framework(modules: str) -> None:
    script = f"import sys, {modules}; assert not {{'fastapi', 'starlette', 'uvicorn', 'sqlalchemy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_client_package_imports_lazily() -> None:
    script = "import sys, gpupool.client.discovery; assert not {'pydantic', 'httpx2', 'websockets'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("created_at", [0.0, 1_700_000_000.123456, 0.1 + 0.2])
def test_page_cursors_are_decoded_exactly(created_at: float) -> None:
    assert decode_page(encode_page(created_at, QUEUED.id)) == (created_at, QUEUED.id)


@pytest.mark.parametrize("cursor", ["", "!", "AAAA", "bm8gc3VjaA", "MS4wIHcx", "é" * 10, "aW5mIHcwMTIzNDU2Nzg5"])
def test_invalid_cursors_are_refused(cursor: str) -> None:
    with pytest.raises(GpupoolError):
        decode_page(cursor)


def test_refusal_after_a_wait_is_marked_as_nothing_done() -> None:
    """Check by the header: a former leader refuses with the same code, and may have executed a part."""

    async def run(path: str) -> Message:
        app = create_waiting_app(lambda: GpupoolError(ErrorCode.NOT_LEADING, "Another leads.", "There."))
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await app(scope(path), receive, send)
        return sent[0]

    refused = asyncio.run(run("/v1/whoami"))
    assert (refused["status"], b"retry-after" in dict(refused["headers"])) == (503, True)
    assert asyncio.run(run("/v1/health"))["status"] == 200
