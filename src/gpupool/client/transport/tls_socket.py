"""A TLS socket that one thread may read while another thread writes."""

from __future__ import annotations

import errno
import os
import select
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_EVENTS: dict[type[OSError], int] = {ssl.SSLWantReadError: select.POLLIN, ssl.SSLWantWriteError: select.POLLOUT}


class DuplexTlsSocket(ssl.SSLSocket):
    """A socket of the standard library whose reads and writes never run in OpenSSL at the same time.

    OpenSSL does not allow two simultaneous calls for one connection, and the standard library does not prevent them: a
    read blocks inside OpenSSL until data arrives. If it handles a session ticket of TLS 1.3 while another thread
    writes, data is lost, and both ends wait for ever. Here the connection is non-blocking after its handshake. Each
    call holds a lock, and a call that must wait does so outside of it. Timeouts are those of an ordinary socket.

    A context creates such sockets if its ``sslsocket_class`` is this class.
    """

    _calling: threading.Lock | None = None  # set when the handshake is complete
    _timeout_s: float | None = None

    def do_handshake(self, block: bool = False) -> None:
        """Perform the handshake, and make the connection non-blocking from then on."""
        super().do_handshake(block)
        self._timeout_s = self.gettimeout()
        self._calling = threading.Lock()
        super().settimeout(0.0)

    def settimeout(self, value: float | None, /) -> None:
        """Set how long a read or a write may wait: None for ever, 0 not at all."""
        if self._calling is None:
            super().settimeout(value)
        else:
            self._timeout_s = value

    def gettimeout(self) -> float | None:
        """Return how long a read or a write may wait, in seconds."""
        return super().gettimeout() if self._calling is None else self._timeout_s

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return received data, empty at the end. Raises ``TimeoutError``, ``OSError``."""
        return self._call(lambda: super(DuplexTlsSocket, self).recv(buflen, flags), select.POLLIN)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Store received data and return its size, also for files. Raises ``TimeoutError``, ``OSError``."""
        return self._call(lambda: super(DuplexTlsSocket, self).recv_into(buffer, nbytes, flags), select.POLLIN)

    def send(self, data: Any, flags: int = 0) -> int:
        """Send a part of ``data`` and return its size, also for ``sendall``. Raises ``TimeoutError``, ``OSError``."""
        return self._call(lambda: super(DuplexTlsSocket, self).send(data, flags), select.POLLOUT)

    def _call(self, call: Callable[[], T], event: int) -> T:
        """Return the result of ``call``, which is repeated after ``event`` or the event that TLS must wait for."""
        if self._calling is None:
            return call()
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        while True:
            try:
                with self._calling:
                    return call()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError) as error:
                if self._timeout_s == 0:
                    raise
                self._wait_for(_EVENTS.get(type(error), event), deadline)

    def _wait_for(self, event: int, deadline: float | None) -> None:
        poller = select.poll()
        try:
            poller.register(self.fileno(), event)
        except ValueError as error:  # another thread has closed the socket
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from error
        if not poller.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError("the connection timed out")
