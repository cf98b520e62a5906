"""What goes along when a program is started on a pool over the network: its folder, and less of the environment."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from gpupool.blobs.ignore import IGNORE_FILE
from gpupool.cli.fast import notice

if TYPE_CHECKING:
    from gpupool.cli.fast.gate import Gate

Values = dict[str, Any]

# What is true of this machine alone, unless the user says so (--env).
OF_THIS_MACHINE = frozenset(
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
BEGINNINGS = ("SSH_", "XDG_", "DBUS_", "CONDA_", "GPUPOOL_", "SYSTEMD_", "SUDO_")
SHOWN_AFTER_S = 1.0
SAID_AT_MOST = 3


def prepared(gate: Gate, body: Values, values: Values) -> Values:
    """The request as it is for that pool. Raises ``GpupoolError``.

    On this machine's own pool a folder goes along only where the user says so: a copy as it is now.
    """
    wanted = values.get("files", True if values.get("lock") else not gate.direct)
    if "command" not in body or (gate.direct and not wanted):
        return body
    if not gate.direct:
        body = body | {"env": _environment(body.get("env") or {}, values.get("env") or [])}
    root = _root(body) if wanted else None
    if root is None:
        return _without_folder(body)
    if values.get("lock"):
        body = body | {"lock": os.path.relpath(values["lock"], root)}
    tree = _send(gate, root, values)
    inside = os.path.relpath(body["workdir"], root)
    return body | {"tree": tree, "workdir": "" if inside == "." else inside}


def _environment(env: dict[str, str], given: list[str]) -> dict[str, str]:
    """Without what is true of this machine alone; what the user named stays."""
    named = {text.partition("=")[0] for text in given}
    return {
        name: value
        for name, value in env.items()
        if name in named or not _is_ours(name) or os.environ.get(name) != value
    }


def _is_ours(name: str) -> bool:
    return name in OF_THIS_MACHINE or name.startswith(BEGINNINGS)


def _root(body: Values) -> str | None:
    """The folder that travels: the present one, or the one to start in where that lies elsewhere; None: none does."""
    start = body.get("workdir") or ""
    here = os.getcwd()  # noqa: PTH109 - text is what the rest wants
    root = here if start == here or start.startswith(f"{here}/") else start
    if not root or not os.path.isdir(start):  # noqa: PTH112 - likewise
        return None
    if _is_no_project(root):
        if root != "/":
            notice.say(f"your home folder stays here ({IGNORE_FILE} in it would let it travel)")
        return None
    return root


def _is_no_project(root: str) -> bool:
    """Whether a folder is the whole machine, or all that somebody has, and nobody said what of it to leave out."""
    homes = {"/", os.path.realpath(os.path.expanduser("~"))}  # noqa: PTH111 - as above
    return os.path.realpath(root) in homes and not os.path.exists(f"{root}/{IGNORE_FILE}")  # noqa: PTH110 - likewise


def _without_folder(body: Values) -> Values:
    """A folder of this machine means nothing there; one that is only there was meant."""
    start = body.get("workdir") or ""
    if start != "/" and os.path.isdir(start):  # noqa: PTH112 - as above
        return {name: value for name, value in body.items() if name != "workdir"}
    return body


def _send(gate: Gate, root: str, values: Values) -> str:
    from gpupool.client.sending import send_folder

    line = _Line(quiet=bool(values.get("quiet")))
    try:
        sent = send_folder(gate, root, gitignore=bool(values.get("gitignore")), tell=line.show)
    finally:
        line.clear()
    for paths, what in (
        (sent.outside, "leads out of the folder: what is there does not travel"),
        (sent.special, "is neither file nor folder and stays here"),
    ):
        for path in paths[:SAID_AT_MOST] if not values.get("quiet") else ():
            notice.say(f"{path} {what}")
    return sent.tree


class _Line:
    """One line on a terminal that says how far it is, if it takes a while."""

    def __init__(self, *, quiet: bool) -> None:
        self._on = not quiet and sys.stderr.isatty()
        self._began = time.monotonic()
        self._said_at = 0.0
        self._shown = False

    def show(self, text: str) -> None:
        """Say it, not too often."""
        now = time.monotonic()
        if self._on and now - self._began > SHOWN_AFTER_S and now - self._said_at > 0.1:
            self._said_at, self._shown = now, True
            sys.stderr.write(f"\r\x1b[Kgpupool: sending {text}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
