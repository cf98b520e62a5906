"""Unix sockets with paths of any length, and sockets that accept connections from the moment they appear.

On the path of every ``gpupool run``: imports only ``os`` at module level.
"""

# ruff: noqa: PTH101, PTH104, PTH108 - importing pathlib takes longer than this module

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing takes milliseconds
if TYPE_CHECKING:
    import socket

PATH_LIMIT = 107  # bytes of sun_path on Linux, less its final NUL; see unix(7)
BACKLOG = 1024  # connections that wait to be accepted


class ShortPath:
    """A name for a unix socket that fits ``PATH_LIMIT``, valid inside a ``with`` statement.

    A long path is shortened through a descriptor of its folder: ``/proc/self/fd/N/NAME``. Entering raises ``OSError``
    if the folder of a long path cannot be opened.
    """

    __slots__ = ("_folder", "_path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._folder: int | None = None

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= PATH_LIMIT:
            return self._path
        folder, name = os.path.split(self._path)
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._folder}/{name}"

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None


def connect(sock: socket.socket, path: str | os.PathLike[str]) -> None:
    """Connect a socket to ``path``. Raises ``OSError`` as ``socket.connect`` does."""
    with ShortPath(path) as name:
        sock.connect(name)


def listen(
    path: str | os.PathLike[str], *, mode: int = 0o600, uid: int | None = None, backlog: int = BACKLOG
) -> socket.socket:
    """Return a stream socket that listens at ``path``, owned by user ``uid`` (by default the caller).

    It replaces an existing file at once: a peer that finds the new socket can connect to it, and ``mode`` and the owner
    apply already. The caller must be the only process that serves this path. Raises ``OSError``.
    """
    import socket

    path = os.fspath(path)
    temporary = f"{path}.{os.getpid()}"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        with ShortPath(temporary) as name:
            sock.bind(name)
        os.chmod(temporary, mode)
        if uid is not None and uid != os.geteuid():
            os.chown(temporary, uid, -1)
        sock.listen(backlog)
        os.rename(temporary, path)
    except OSError:
        sock.close()
        raise
    return sock
