"""Codes that are good for one token, once and for a few minutes: what one can say aloud or paste, and nothing lasts."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from gpupool.domain.access import Actor, Role, Token
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.access import AccessService
from gpupool.services.ports import Clock

LIFE_S = 600.0
MOST = 512


@dataclass(frozen=True, slots=True)
class _Waiting:
    token: Token
    secret: str
    actor: Actor
    until: float


class LoginCodes:
    """Kept in memory only: a control plane that starts anew knows none, and nobody the tokens behind them."""

    def __init__(self, access: AccessService, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()

    async def create(
        self, actor: Actor, *, user: str, role: Role | None, expires_in_s: float, note: str = ""
    ) -> tuple[str, float]:
        """A code for a token as ``AccessService.create_token`` makes it, and until when it is good. Raises as that."""
        await self._drop_old()
        token, secret = await self._access.create_token(
            actor, user=user, role=role, expires_in_s=expires_in_s, note=note or "by a login code"
        )
        code, until = secrets.token_urlsafe(18), self._clock.now() + LIFE_S
        self._waiting[_digest(code)] = _Waiting(token, secret, actor, until)
        return code, until

    async def redeem(self, code: str) -> tuple[Token, str]:
        """The token and its secret; the code is good for nothing after that. Raises UNAUTHENTICATED."""
        found = self._waiting.pop(_digest(code), None)
        if found is None or self._clock.now() >= found.until:
            raise GpupoolError(
                ErrorCode.UNAUTHENTICATED,
                "This code is no longer good: it works once, within ten minutes.",
                "Make another on the pool's machine with 'gpupool login-code'.",
            )
        return found.token, found.secret

    async def _drop_old(self) -> None:
        """Tokens that nobody came for are revoked."""
        now = self._clock.now()
        for digest, waiting in list(self._waiting.items()):
            if now >= waiting.until or len(self._waiting) >= MOST:
                del self._waiting[digest]
                await self._access.revoke_token(waiting.actor, waiting.token.id)


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
