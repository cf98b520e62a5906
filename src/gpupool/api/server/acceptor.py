"""Accept connections within limits, which are checked before a TLS handshake and before any byte is read."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
import traceback
from collections import deque
from collections.abc import Callable

import structlog

from gpupool.api.problems import raw_problem
from gpupool.api.server.connections import ConnectionPeer, Slot, Slots
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.log_rate_limit import LogLimit

HEAD_TIMEOUT_S = 10.0  # for the TLS handshake, and for the head of the first request
TLS_SHUTDOWN_TIMEOUT_S = 5.0
RETRY_AFTER_S = 5
_BATCH = 32  # connections accepted in one go, so that current requests are not delayed
_PAUSE_S = 0.2  # pause when the process has no free descriptor
_REFUSED_KEPT = 64  # refused clients that may still read their answer
_REFUSED_TIMEOUT_S = 2.0
_NO_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

log = structlog.get_logger("gpupool.api")


def overloaded(sentence: str = "The pool is overloaded: too many connections are open.") -> GpupoolError:
    """Return the error for a connection or request above a limit."""
    return GpupoolError(
        ErrorCode.OVERLOADED,
        sentence,
        f"Close connections that you do not use, or try again in {RETRY_AFTER_S} seconds.",
    )


class Acceptor:
    """Accepts connections of one listening socket; uvicorn uses it in place of an ``asyncio.Server``."""

    def __init__(
        self,
        sock: socket.socket,
        slots: Slots,
        make_protocol: Callable[[Slot], asyncio.Protocol],
        peer_of: Callable[[socket.socket], ConnectionPeer],
        context: ssl.SSLContext | None,
        refused: Callable[[str], None],
    ) -> None:
        self._sock = sock
        self._slots = slots
        self._make_protocol = make_protocol
        self._peer_of = peer_of
        self._context = context
        self._note_refused = refused
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._refused: deque[tuple[float, socket.socket]] = deque()
        self._log_limit = LogLimit(time.monotonic)
        self._closed = False

    def start(self) -> None:
        """Start to accept connections."""
        self._sock.settimeout(0)
        self._loop.add_reader(self._sock, self._accept)

    def close(self) -> None:
        """Stop accepting, and cancel connections that are still being opened."""
        self._closed = True
        self._loop.remove_reader(self._sock)
        for task in self._opening:
            task.cancel()
        self.drop_refused(0)

    async def wait_closed(self) -> None:
        """Wait until no connection is being opened."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def drop_refused(self, kept: int = _REFUSED_KEPT) -> None:
        """Close refused connections whose client had time to read the answer, and those above ``kept``."""
        now = self._loop.time()
        while self._refused and (len(self._refused) > kept or self._refused[0][0] <= now):
            self._refused.popleft()[1].close()

    def _accept(self) -> None:
        for _ in range(_BATCH):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._admit(sock)

    def _pause(self, error: OSError) -> None:
        if error.errno not in _NO_RESOURCES:
            raise error
        self._loop.remove_reader(self._sock)
        if self._log_limit.allows("accept"):
            log.error("cannot accept connections", error=error.strerror, hint="Raise the limit of open files.")
        self._loop.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._sock, self._accept)

    def _admit(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        try:
            peer = self._peer_of(sock)
        except OSError:  # the client has already disconnected
            sock.close()
            return
        slot = self._slots.admit(peer, lambda: _shut(sock), HEAD_TIMEOUT_S)
        if slot is None:
            self._note_refused(peer.name)
            if self._log_limit.allows("refused"):
                log.warning("connection refused: too many are open", peer=peer.name, open=len(self._slots))
            self._refuse(sock)
            return
        task = self._loop.create_task(self._open(sock, slot))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, sock: socket.socket, slot: Slot) -> None:
        tls = self._context is not None
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(slot),
                sock,
                ssl=self._context,
                ssl_handshake_timeout=HEAD_TIMEOUT_S if tls else None,
                ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT_S if tls else None,
            )
        except OSError as error:  # the handshake failed or the client disconnected; not our error
            traceback.clear_frames(error.__traceback__)  # the frames would keep the connection's buffers alive
            slot.release()
            sock.close()
        except BaseException:
            slot.release()
            sock.close()
            raise

    def _refuse(self, sock: socket.socket) -> None:
        """Answer without reading, and keep the socket open for a moment, so that the client can still send its request.

        Over TLS close it at once.
        """
        if self._context is not None:
            sock.close()
            return
        try:
            sock.send(_REFUSAL)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            sock.close()
            return
        self._refused.append((self._loop.time() + _REFUSED_TIMEOUT_S, sock))
        self.drop_refused()


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        sock.close()


_REFUSAL = raw_problem(overloaded(), {"retry-after": str(RETRY_AFTER_S)})
