"""The browsers of a Jupyter Server: messages for pages of JupyterLab, and the end of a page that waits for a kernel.

Messages are events of the server, so open pages need no requests. ``lab/remoteEntry.js`` shows them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine, Mapping
from typing import Any

SCHEMA_ID = "https://gpupool/kernel-messages/v1"
SCHEMA = {
    "$id": SCHEMA_ID,
    "version": "1",
    "title": "Messages about kernels on slices",
    "description": "Why a kernel waits for a GPU, and why the pool ended it.",
    "type": "object",
    "required": ["kernel_id", "notebook", "phase", "text"],
    "properties": {
        "kernel_id": {"type": "string"},
        "notebook": {"type": "string"},
        "phase": {"enum": ["waiting", "started", "cancelled", "dead"]},
        "text": {"type": "string"},
    },
}


def tell(manager: Any, message: Mapping[str, str]) -> None:
    """Send a message to the pages of the server of a kernel manager, if there is one. Failures have no effect."""
    server = getattr(getattr(manager, "parent", None), "parent", None)
    logger = getattr(server, "event_logger", None)
    if logger is not None:
        with contextlib.suppress(Exception):  # a kernel must not depend on it
            logger.emit(schema_id=SCHEMA_ID, data=dict(message))


async def complete_unless_closed(work: Coroutine[Any, Any, None]) -> bool:
    """Await work for the present request of the server; cancel it and return False if the client disconnects.

    Without a request, such as in a script, there is nothing that could end early.
    """
    closed = _closed_event()
    if closed is None:
        await work
        return True
    working, closing = asyncio.ensure_future(work), asyncio.ensure_future(closed.wait())
    try:
        await asyncio.wait({working, closing}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        working.cancel()
        closing.cancel()


def _closed_event() -> asyncio.Event | None:
    """Return an event that is set when the client of the present request disconnects; None without a request."""
    contexts = sys.modules.get("jupyter_server.base.call_context")  # a process without it is no server
    if contexts is None:
        return None
    handler = contexts.CallContext.get(contexts.CallContext.JUPYTER_HANDLER)
    if handler is None:
        return None
    closed, original, connection = asyncio.Event(), handler.on_connection_close, handler.request.connection

    def on_connection_close() -> None:
        closed.set()
        original()

    connection.set_close_callback(on_connection_close)
    stream = getattr(connection, "stream", None)
    if stream is not None and stream.closed():  # before the callback was set
        closed.set()
    return closed
