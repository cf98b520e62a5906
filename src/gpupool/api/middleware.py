"""What stands around every request: a bound on the body, and no traceback to anybody. Plain ASGI, for speed."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpupool.api.errors import error_response, unexpected
from gpupool.domain.errors import ErrorCode, GpupoolError

MAX_BODY_BYTES = 8 * 1024 * 1024
_DRAIN_BYTES = 64 * 1024 * 1024  # read and dropped so that a client in the middle of sending hears the answer


class BodyLimit:
    """Refuses request bodies above ``limit`` bytes, announced or not, while they come in."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _announced(scope) > self.limit:
            await _drain(receive)
            await error_response(self._error(), headers={"connection": "close"})(scope, receive, send)
            return
        await self.app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.limit:
                if message.get("more_body", False):
                    await _drain(receive)
                raise HTTPException(413, self._error().message, {"connection": "close"})
            return message

        return counted

    def _error(self) -> GpupoolError:
        return GpupoolError(
            ErrorCode.TOO_LARGE,
            f"The request is larger than {self.limit // (1024 * 1024)} MiB.",
            "Put large data in files that the program reads.",
        )


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and len(value) < 20:
            return int(value)
    return 0


async def _drain(receive: Receive) -> None:
    dropped = 0
    while dropped < _DRAIN_BYTES:
        message = await receive()
        dropped += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return


class InternalErrors:
    """Turns an error nobody foresaw into INTERNAL with an id, and writes the whole of it to the log under that id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            said = unexpected(error, f"{scope['method']} {scope['path']}")
            if started:
                raise  # half an answer is out: the server has to cut the connection
            await error_response(said)(scope, receive, send)
