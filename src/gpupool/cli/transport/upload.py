"""Upload the folder of a program that starts on a remote pool, and filter its environment."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from gpupool.blobs.ignore import IGNORE_FILE
from gpupool.cli.terminal import say

if TYPE_CHECKING:
    from gpupool.cli.transport.local import PoolTransport

Values = dict[str, Any]

# Variables that apply to this machine only. The user can pass them with --env.
LOCAL_VARIABLES = frozenset(
    (
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "PWD",
        "OLDPWD",
        "TMPDIR",
        "TMP",
        "TEMP",
        "HOSTNAME",
        "HOSTTYPE",
        "MACHTYPE",
        "MAIL",
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "VIRTUAL_ENV",
        "VIRTUAL_ENV_PROMPT",
        "PYTHONHOME",
        "PYTHONPATH",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "_",
    )
)
LOCAL_PREFIXES = ("SSH_", "XDG_", "DBUS_", "CONDA_", "GPUPOOL_", "SYSTEMD_", "SUDO_")
PROGRESS_DELAY_S = 1.0
MAX_WARNINGS = 3


def prepare_request(transport: PoolTransport, body: Values, values: Values) -> Values:
    """Return the request with its folder uploaded and its environment filtered. Raises ``GpupoolError``.

    For a pool on this machine a folder is copied only on request.
    """
    wanted = values.get("files", True if values.get("lock") else not transport.direct)
    if "command" not in body or (transport.direct and not wanted):
        return body
    if not transport.direct:
        body = body | {"env": _environment(body.get("env") or {}, values.get("env") or [])}
    root = _root(body) if wanted else None
    if root is None:
        return _without_folder(body)
    if values.get("lock"):
        body = body | {"lock": os.path.relpath(values["lock"], root)}
    tree = _upload(transport, root, values)
    inside = os.path.relpath(body["workdir"], root)
    return body | {"tree": tree, "workdir": "" if inside == "." else inside}


def _environment(env: dict[str, str], given: list[str]) -> dict[str, str]:
    """Remove variables that apply to this machine only; those that the user gave with ``--env`` stay."""
    named = {text.partition("=")[0] for text in given}
    return {
        name: value
        for name, value in env.items()
        if name in named or not _is_local(name) or os.environ.get(name) != value
    }


def _is_local(name: str) -> bool:
    return name in LOCAL_VARIABLES or name.startswith(LOCAL_PREFIXES)


def _root(body: Values) -> str | None:
    """Return the folder to upload: the current one, or the start folder if it is outside. None: no folder."""
    from gpupool.client.files.upload import is_home_or_root

    start = body.get("workdir") or ""
    here = os.getcwd()  # noqa: PTH109 - the callees take text
    root = here if start == here or start.startswith(f"{here}/") else start
    if not root or not os.path.isdir(start):  # noqa: PTH112 - likewise
        return None
    if is_home_or_root(root):
        if root != "/":
            say(f"the home folder is not uploaded; create {IGNORE_FILE} in it to upload it")
        return None
    return root


def _without_folder(body: Values) -> Values:
    """Remove a start folder that exists on this machine; one that does not exist here is on the node."""
    start = body.get("workdir") or ""
    if start != "/" and os.path.isdir(start):  # noqa: PTH112 - as above
        return {name: value for name, value in body.items() if name != "workdir"}
    return body


def _upload(transport: PoolTransport, root: str, values: Values) -> str:
    from gpupool.client.files.upload import send_folder

    line = _ProgressLine(quiet=bool(values.get("quiet")))
    try:
        sent = send_folder(transport, root, gitignore=bool(values.get("gitignore")), tell=line.show)
    finally:
        line.clear()
    for paths, what in (
        (sent.outside, "points outside the folder: its target is not uploaded"),
        (sent.special, "is not uploaded: it is neither a file nor a folder"),
    ):
        for path in paths[:MAX_WARNINGS] if not values.get("quiet") else ():
            say(f"{path} {what}")
    return sent.tree


class _ProgressLine:
    """One line on a terminal that shows the progress of a long upload."""

    def __init__(self, *, quiet: bool) -> None:
        self._on = not quiet and sys.stderr.isatty()
        self._started = time.monotonic()
        self._shown_at = 0.0
        self._shown = False

    def show(self, text: str) -> None:
        """Show the progress, at most ten times a second."""
        now = time.monotonic()
        if self._on and now - self._started > PROGRESS_DELAY_S and now - self._shown_at > 0.1:
            self._shown_at, self._shown = now, True
            sys.stderr.write(f"\r\x1b[Kgpupool: uploading {text}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
