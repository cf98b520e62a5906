"""Nodes that join or leave a cluster, and requests between its heads."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from dataclasses import asdict
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gpupool.api.deps import Administrator, NameInPath, NodeName, Services, answer
from gpupool.api.login_limit import FailedAttempts
from gpupool.api.paging import Paged, matches
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
from gpupool.services.cluster.joining import JoinRequest, MemberState
from gpupool.services.files.serve import HeadFiles, sent

router = APIRouter(prefix="/v1", tags=["joining"])
open_router = APIRouter(prefix="/v1", tags=["joining"])
heads_router = APIRouter(prefix="/v1/members", tags=["joining"])  # also served by standbys
T = TypeVar("T")


@router.get("/join-tokens", response_model=JoinTokenList)
async def list_join_tokens(
    services: Services, caller: Administrator, page: Paged, for_head: bool | None = None
) -> Response:
    """List the join tokens that match the filter, newest first. For administrators."""
    found = [token for token in await services.joining.tokens(caller) if matches(for_head, token.for_head)]
    rows, following = page.cut(found)
    return answer(JoinTokenList(join_tokens=[JoinTokenView.of(token) for token in rows], next_cursor=following))


@router.post("/join-tokens", status_code=201, response_model=NewJoinTokenView)
async def create_join_token(services: Services, caller: Administrator, body: JoinTokenBody) -> Response:
    """Create a join token; its secret is shown only in this answer. For administrators."""
    made = await services.joining.create_token(
        caller, expires_in_s=body.expires_in_s, uses=body.uses, note=body.note, for_head=body.for_head
    )
    fields = asdict(made.token) | {"secret": made.text, "head": made.head}
    fields |= {"database_password_file": made.password_file, "database_passfile": made.passfile}
    return _secret(NewJoinTokenView.model_validate(fields), 201)


@router.delete("/join-tokens/{token_id}", status_code=204)
async def revoke_join_token(services: Services, caller: Administrator, token_id: NameInPath) -> Response:
    """Revoke a join token; nodes that joined with it stay. For administrators."""
    await services.joining.revoke_token(caller, token_id)
    return Response(status_code=204)


@open_router.post("/join", response_model=AdmissionView)
async def join_cluster(request: Request, services: Services, body: JoinBody) -> Response:
    """Admit a node that shows a join token."""
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
async def get_database_for_head(request: Request, services: Services, body: HeadDatabaseBody) -> Response:
    """Return the database's URL to a machine with a join token for heads, so that it can test it before joining."""
    url = await counted(request, body.token, services.joining.database_for(body.token))
    return _secret(HeadDatabaseView(database=url))


@open_router.post("/members/{name}/standing", response_model=StandingView)
async def get_member_standing(request: Request, services: Services, name: NodeName, body: MemberBody) -> Response:
    """Return the pool's record of the requesting node."""
    return answer(_view(await counted(request, name, services.joining.standing(name, body.secret))))


@open_router.post("/members/{name}/leave", response_model=StandingView)
async def leave_cluster(request: Request, services: Services, name: NodeName, body: MemberBody) -> Response:
    """Cordon the requesting node; refused while work runs there, unless forced."""
    return answer(_view(await counted(request, name, services.joining.leave(name, body.secret, force=body.force))))


@open_router.post("/members/{name}/gone", response_model=StandingView)
async def confirm_member_left(request: Request, services: Services, name: NodeName, body: MemberBody) -> Response:
    """Remove the requesting node, once its processes have stopped and it holds nothing."""
    return answer(_view(await counted(request, name, services.joining.gone(name, body.secret))))


@heads_router.post("/{name}/heads", response_model=HeadsView)
async def list_heads_for_member(request: Request, name: NodeName, body: MemberBody) -> Response:
    """Return the heads to a node of the cluster. Raises NODE_REMOVED, UNAUTHENTICATED."""
    state = request.app.state
    heads_for = state.heads_for if hasattr(state, "heads_for") else state.services.joining.heads_for
    return answer(HeadsView(heads=_heads(await counted(request, name, heads_for(name, body.secret)))))


# Files between heads: not in the description of the API, because only heads can use them


@heads_router.post("/{name}/files/needed", response_model=NeededView, include_in_schema=False)
async def list_needed_folders(request: Request, name: NodeName, body: HeadFilesBody) -> Response:
    """Return the folders of live workloads, for another head. Raise FORBIDDEN or NOT_LEADING."""
    files = _files(request)
    await counted(request, name, files.check(name, body.secret))
    return answer(NeededView(folders=[FolderView.of(folder) for folder in files.needed()]))


@heads_router.post("/{name}/files/contents", response_class=Response, include_in_schema=False)
async def read_needed_contents(request: Request, name: NodeName, body: ContentsBody) -> Response:
    """Return contents of one owner's files to a head. Raises FORBIDDEN."""
    blobs = await counted(request, name, _files(request).check(name, body.secret))
    return StreamingResponse(sent(blobs, body.space, body.wanted), media_type="application/octet-stream")


def _files(request: Request) -> HeadFiles:
    """Return the file service of the pool, or of a standby, which has no pool."""
    state = request.app.state
    files: HeadFiles = state.head_files if hasattr(state, "head_files") else state.services.head_files
    return files


def _view(found: MemberState) -> StandingView:
    return StandingView.of(found, heads=_heads(found.heads))


def _heads(found: Iterable[Head]) -> list[HeadView]:
    return [HeadView.of(head) for head in found]


def _secret(view: AdmissionView | NewJoinTokenView | HeadDatabaseView, status: int = 200) -> Response:
    made = answer(view, status)
    made.headers["cache-control"] = "no-store"
    return made


async def counted(request: Request, shown: str, work: Coroutine[Any, Any, T]) -> T:
    """Count wrong secrets, as for tokens; ``shown`` is the join token, or the name of the node."""
    attempts: FailedAttempts = request.app.state.attempts
    with attempts.counted(peer_name(request), shown):
        return await work
