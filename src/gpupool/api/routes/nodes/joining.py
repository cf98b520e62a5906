"""Nodes that join or leave a cluster, and what its heads ask each other."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from dataclasses import asdict
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gpupool.api.deps import Administrator, NameInPath, NodeName, Services, answer
from gpupool.api.login_limit import FailedAttempts
from gpupool.api.schemas.nodes.joining import (
    AdmissionView,
    ContentsBody,
    FolderView,
    HeadDatabaseBody,
    HeadDatabaseView,
    HeadFilesBody,
    HeadsView,
    HeadView,
    JoinBody,
    JoinTokenBody,
    JoinTokenList,
    JoinTokenView,
    MemberBody,
    NeededView,
    NewJoinTokenView,
    StandingView,
)
from gpupool.api.server.peer import peer_name
from gpupool.domain.nodes.heads import Head
from gpupool.domain.nodes.joining import Versions
from gpupool.services.cluster.heads import HeadOffer
from gpupool.services.cluster.joining import JoinRequest, Standing
from gpupool.services.files.serve import HeadFiles, sent

router = APIRouter(prefix="/v1", tags=["joining"])
open_router = APIRouter(prefix="/v1", tags=["joining"])
heads_router = APIRouter(prefix="/v1/members", tags=["joining"])  # served by heads that wait, too
T = TypeVar("T")


@router.get("/join-tokens", response_model=JoinTokenList)
async def list_tokens(services: Services, caller: Administrator) -> Response:
    """Join tokens, newest first. For administrators."""
    found = await services.joining.tokens(caller)
    return answer(JoinTokenList(join_tokens=[JoinTokenView.of(token) for token in found]))


@router.post("/join-tokens", status_code=201, response_model=NewJoinTokenView)
async def create_token(services: Services, caller: Administrator, body: JoinTokenBody) -> Response:
    """Make a join token; its secret is shown in this answer and never again. For administrators."""
    made = await services.joining.create_token(
        caller, expires_in_s=body.expires_in_s, uses=body.uses, note=body.note, for_head=body.for_head
    )
    fields = asdict(made.token) | {"secret": made.text, "head": made.head}
    fields |= {"database_password_file": made.password_file, "database_passfile": made.passfile}
    return _secret(NewJoinTokenView.model_validate(fields), 201)


@router.delete("/join-tokens/{token_id}", status_code=204)
async def revoke_token(services: Services, caller: Administrator, token_id: NameInPath) -> Response:
    """Make a join token useless; machines that joined with it stay. For administrators."""
    await services.joining.revoke_token(caller, token_id)
    return Response(status_code=204)


@open_router.post("/join", response_model=AdmissionView)
async def join(request: Request, services: Services, body: JoinBody) -> Response:
    """Let a machine in that shows a join token."""
    head = HeadOffer(**body.head.model_dump()) if body.head else None
    versions = Versions(**body.versions.model_dump())
    wanted = JoinRequest(body.token, body.node, body.address, versions, body.certificate_request, head)
    found = await counted(request, body.token, services.joining.join(wanted))
    view = AdmissionView(
        node=found.member.node,
        secret=found.secret,
        **asdict(found.papers),
        ray_host=found.head[0],
        ray_port=found.head[1],
        pool_id=found.pool_id,
        heads=_heads(found.heads),
        **(asdict(found.charge) if found.charge else {}),
    )
    return _secret(view)


@open_router.post("/join/database", response_model=HeadDatabaseView)
async def database(request: Request, services: Services, body: HeadDatabaseBody) -> Response:
    """Tell a machine that shows a join token for heads where the database is, so that it can try it before it joins."""
    url = await counted(request, body.token, services.joining.database_for(body.token))
    return _secret(HeadDatabaseView(database=url))


@open_router.post("/members/{name}/standing", response_model=StandingView)
async def standing(request: Request, services: Services, name: NodeName, body: MemberBody) -> Response:
    """Return what the pool records about the requesting machine."""
    return answer(_view(await counted(request, name, services.joining.standing(name, body.secret))))


@open_router.post("/members/{name}/leave", response_model=StandingView)
async def leave(request: Request, services: Services, name: NodeName, body: MemberBody) -> Response:
    """Place nothing on the machine that asks any more; refused while work runs there, unless by force."""
    return answer(_view(await counted(request, name, services.joining.leave(name, body.secret, force=body.force))))


@open_router.post("/members/{name}/gone", response_model=StandingView)
async def gone(request: Request, services: Services, name: NodeName, body: MemberBody) -> Response:
    """Forget the machine that asks, once its processes have stopped and it holds nothing."""
    return answer(_view(await counted(request, name, services.joining.gone(name, body.secret))))


@heads_router.post("/{name}/heads", response_model=HeadsView)
async def known_heads(request: Request, name: NodeName, body: MemberBody) -> Response:
    """Tell a machine of the cluster which heads there are. Raises NODE_REMOVED, UNAUTHENTICATED."""
    state = request.app.state
    heads_for = state.heads_for if hasattr(state, "heads_for") else state.services.joining.heads_for
    return answer(HeadsView(heads=_heads(await counted(request, name, heads_for(name, body.secret)))))


# Files between heads: not in the description of the API, because only heads can use them


@heads_router.post("/{name}/files/needed", response_model=NeededView, include_in_schema=False)
async def needed(request: Request, name: NodeName, body: HeadFilesBody) -> Response:
    """Return the folders of live workloads, for another head. Raise FORBIDDEN or NOT_LEADING."""
    files = _files(request)
    await counted(request, name, files.check(name, body.secret))
    return answer(NeededView(folders=[FolderView.of(folder) for folder in files.needed()]))


@heads_router.post("/{name}/files/contents", response_class=Response, include_in_schema=False)
async def contents(request: Request, name: NodeName, body: ContentsBody) -> Response:
    """Contents of one owner's files, for a head. Raises FORBIDDEN."""
    blobs = await counted(request, name, _files(request).check(name, body.secret))
    return StreamingResponse(sent(blobs, body.space, body.wanted), media_type="application/octet-stream")


def _files(request: Request) -> HeadFiles:
    """Of the pool, or of a head that waits, which has no pool."""
    state = request.app.state
    files: HeadFiles = state.head_files if hasattr(state, "head_files") else state.services.head_files
    return files


def _view(found: Standing) -> StandingView:
    return StandingView.of(found, heads=_heads(found.heads))


def _heads(found: Iterable[Head]) -> list[HeadView]:
    return [HeadView.of(head) for head in found]


def _secret(view: AdmissionView | NewJoinTokenView | HeadDatabaseView, status: int = 200) -> Response:
    made = answer(view, status)
    made.headers["cache-control"] = "no-store"
    return made


async def counted(request: Request, shown: str, work: Coroutine[Any, Any, T]) -> T:
    """Count wrong secrets, as with tokens; ``shown``: the join token, or the name of the machine."""
    attempts: FailedAttempts = request.app.state.attempts
    with attempts.counted(peer_name(request), shown):
        return await work
