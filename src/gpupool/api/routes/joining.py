"""Machines that join a cluster and leave it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from dataclasses import asdict
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api.attempts import FailedAttempts
from gpupool.api.deps import Caller, NameInPath, NodeName, Services, answer, peer_name
from gpupool.api.schemas.joining import (
    AdmissionView,
    HeadView,
    JoinBody,
    JoinTokenBody,
    JoinTokenList,
    JoinTokenView,
    MemberBody,
    NewJoinTokenView,
    StandingView,
)
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.heads import Head
from gpupool.domain.joining import Versions
from gpupool.services.heads import HeadOffer
from gpupool.services.joining import JoinRequest, Standing

router = APIRouter(prefix="/v1", tags=["joining"])
open_router = APIRouter(prefix="/v1", tags=["joining"])
T = TypeVar("T")


@router.get("/join-tokens", response_model=JoinTokenList)
async def list_tokens(services: Services, caller: Caller) -> Response:
    """Join tokens, newest first. For administrators."""
    found = await services.joining.tokens(caller)
    return answer(JoinTokenList(join_tokens=[JoinTokenView.model_validate(asdict(token)) for token in found]))


@router.post("/join-tokens", status_code=201, response_model=NewJoinTokenView)
async def create_token(services: Services, caller: Caller, body: JoinTokenBody) -> Response:
    """Make a join token; its secret is shown in this answer and never again. For administrators."""
    made = await services.joining.create_token(
        caller, expires_in_s=body.expires_in_s, uses=body.uses, note=body.note, for_head=body.for_head
    )
    fields = asdict(made.token) | {"secret": made.text, "head": made.head}
    return _secret(NewJoinTokenView.model_validate(fields), 201)


@router.delete("/join-tokens/{token_id}", status_code=204)
async def revoke_token(services: Services, caller: Caller, token_id: NameInPath) -> Response:
    """Make a join token useless; machines that joined with it stay. For administrators."""
    await services.joining.revoke_token(caller, token_id)
    return Response(status_code=204)


@open_router.post("/join", response_model=AdmissionView)
async def join(request: Request, services: Services, body: JoinBody) -> Response:
    """Let a machine in that shows a join token."""
    head = HeadOffer(**body.head.model_dump()) if body.head else None
    versions = Versions(**body.versions.model_dump())
    wanted = JoinRequest(body.token, body.node, body.address, versions, body.certificate_request, head)
    found = await counted(request, services.joining.join(wanted))
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


@open_router.post("/members/{name}/standing", response_model=StandingView)
async def standing(request: Request, services: Services, name: NodeName, body: MemberBody) -> Response:
    """How the pool sees the machine that asks."""
    return answer(_view(await counted(request, services.joining.standing(name, body.secret))))


@open_router.post("/members/{name}/leave", response_model=StandingView)
async def leave(request: Request, services: Services, name: NodeName, body: MemberBody) -> Response:
    """Place nothing on the machine that asks any more; refused while work runs there, unless by force."""
    return answer(_view(await counted(request, services.joining.leave(name, body.secret, force=body.force))))


@open_router.post("/members/{name}/gone", response_model=StandingView)
async def gone(request: Request, services: Services, name: NodeName, body: MemberBody) -> Response:
    """Forget the machine that asks, once its processes have stopped and it holds nothing."""
    return answer(_view(await counted(request, services.joining.gone(name, body.secret))))


def _view(found: Standing) -> StandingView:
    return StandingView(state=found.state, gpus=list(found.gpus), held=found.held, heads=_heads(found.heads))


def _heads(found: Iterable[Head]) -> list[HeadView]:
    return [HeadView(**asdict(head)) for head in found]


def _secret(view: AdmissionView | NewJoinTokenView, status: int = 200) -> Response:
    made = answer(view, status)
    made.headers["cache-control"] = "no-store"
    return made


async def counted(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Whoever shows wrong secrets again and again is refused for a while, as with tokens."""
    attempts: FailedAttempts = request.app.state.attempts
    peer = peer_name(request)
    try:
        attempts.check(peer)
    except GpupoolError:
        work.close()
        raise
    try:
        return await work
    except GpupoolError as error:
        if error.code is ErrorCode.UNAUTHENTICATED:
            attempts.failed(peer)
        raise
