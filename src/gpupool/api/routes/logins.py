"""Codes that are good for one token, once."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api import mapping_access
from gpupool.api.deps import Caller, Services, answer, peer_name
from gpupool.api.schemas import NewTokenView
from gpupool.api.schemas.bodies import TokenBody
from gpupool.api.schemas.files import LoginBody, LoginCodeView
from gpupool.domain.errors import ErrorCode, GpupoolError

router = APIRouter(prefix="/v1", tags=["access"])
open_router = APIRouter(prefix="/v1", tags=["access"])


@router.post("/login-codes", status_code=201, response_model=LoginCodeView)
async def create(services: Services, caller: Caller, body: TokenBody) -> Response:
    """A code that is good for such a token, once and within ten minutes."""
    code, until = await services.login_codes.create(
        caller, user=body.user or caller.user, role=body.role, expires_in_s=body.expires_in_s, note=body.note
    )
    return _unkept(answer(LoginCodeView(code=code, expires_at=until), 201))


@open_router.post("/logins", status_code=201, response_model=NewTokenView)
async def redeem(services: Services, request: Request, body: LoginBody) -> Response:
    """The token that a code is good for. Asks for no credentials: the code is one."""
    attempts, peer = request.app.state.attempts, peer_name(request)
    attempts.check(peer)
    try:
        token, secret = await services.login_codes.redeem(body.code)
    except GpupoolError as error:
        if error.code is ErrorCode.UNAUTHENTICATED:
            attempts.failed(peer)
        raise
    return _unkept(answer(mapping_access.new_token_view(token, secret), 201))


def _unkept(response: Response) -> Response:
    response.headers["cache-control"] = "no-store"
    return response
