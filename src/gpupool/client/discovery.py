"""Find the pool of a command.

On the path of every ``gpupool run``: imports only ``os`` at module level; other modules are imported where they are
used.

The order: ``GPUPOOL_URL`` (a pool over the network), ``GPUPOOL_STATE_DIR`` (a pool in that folder), the user's current
login (``client.logins``), the machine's system pool if there is one (users of a shared machine must share one queue),
the user's own pool.
"""

# ruff: noqa: PTH100, PTH111, PTH116, PTH117 - importing pathlib takes longer than this module

from __future__ import annotations

import os

USER = "user"
SYSTEM = "system"

SYSTEM_STATE_DIR = "/var/lib/gpupool"
SYSTEM_RUN_DIR = "/run/gpupool"

API_SOCKET = "api.sock"
STATE_FILE = "state.json"
POOL_LOCK = "pool.lock"


class Location:
    """A pool on this machine: its folders, its API socket and its kind (``USER`` or ``SYSTEM``).

    A plain class with slots: importing ``dataclasses`` takes a third of the time of ``gpupool run``.
    """

    __slots__ = ("api_socket", "kind", "run_dir", "state_dir")

    def __init__(self, state_dir: str, run_dir: str, kind: str) -> None:
        self.state_dir = state_dir
        self.run_dir = run_dir
        self.kind = kind
        self.api_socket = f"{run_dir}/{API_SOCKET}"

    @property
    def present(self) -> bool:
        """Return whether a pool was started here and not stopped (it may have crashed)."""
        return os.path.lexists(self.api_socket) or os.path.lexists(f"{self.run_dir}/{STATE_FILE}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Location) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"Location({self.state_dir!r}, {self.run_dir!r}, {self.kind!r})"


class Remote:
    """A pool over the network: its URL, the caller's token and the file of the trusted authority (or certificate).

    ``certificate`` (PEM) is the only trusted certificate, if a login has stored one. ``login``: it is one of the user's
    logins, so the pool's other heads are learned.
    """

    __slots__ = ("ca_file", "certificate", "login", "token", "url")

    def __init__(
        self, url: str, token: str, ca_file: str | None, certificate: str | None = None, *, login: bool = False
    ) -> None:
        self.url = url
        self.token = token
        self.ca_file = ca_file
        self.certificate = certificate
        self.login = login

    def __repr__(self) -> str:
        return f"Remote({self.url!r})"  # never the token


def find_pool() -> Location | Remote | None:
    """Return the pool of this command, or None when none has been started.

    Raises ``GpupoolError`` (INVALID_REQUEST, UNAUTHENTICATED) when ``GPUPOOL_URL`` cannot be used.
    """
    if os.environ.get("GPUPOOL_URL"):
        return _remote_from_environment(os.environ["GPUPOOL_URL"])
    if not os.environ.get("GPUPOOL_STATE_DIR"):
        from gpupool.client.logins import current_login

        if (login := current_login()) is not None:
            return Remote(login["url"], login["token"], None, login.get("certificate"), login=True)
        system = Location(SYSTEM_STATE_DIR, SYSTEM_RUN_DIR, SYSTEM)
        if system.present:
            return system
    here = place_for_new_pool()
    return here if here.present else None


def place_for_new_pool(state_dir: str | None = None, run_dir: str | None = None) -> Location:
    """Return the location of a pool that this user starts; arguments win over the environment.

    The run folder of a user pool is inside its state folder and not in ``XDG_RUNTIME_DIR``: that one is emptied when
    the user logs out, while jobs continue.
    """
    state_dir = state_dir or os.environ.get("GPUPOOL_STATE_DIR")
    run_dir = run_dir or os.environ.get("GPUPOOL_RUN_DIR")
    is_root = os.geteuid() == 0
    if not state_dir:
        state_dir = SYSTEM_STATE_DIR if is_root else _user_state_dir()
        run_dir = run_dir or (SYSTEM_RUN_DIR if is_root else None)
    state_dir = os.path.abspath(os.path.expanduser(state_dir))
    run_dir = os.path.abspath(os.path.expanduser(run_dir)) if run_dir else f"{state_dir}/run"
    return Location(state_dir, run_dir, SYSTEM if is_root or _owner(run_dir) == 0 else USER)


def _owner(path: str) -> int | None:
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


def _user_state_dir() -> str:
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.local/state")
    return f"{base}/gpupool"


def _remote_from_environment(url: str) -> Remote:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    if not url.startswith("https://"):
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "GPUPOOL_URL must start with https://.", "For example https://gpu1:8443."
        )
    token = os.environ.get("GPUPOOL_TOKEN", "")
    if not token:
        raise GpupoolError(
            ErrorCode.UNAUTHENTICATED,
            "GPUPOOL_URL is set but GPUPOOL_TOKEN is not.",
            "Create a token on the pool's machine with 'gpupool token create' and set GPUPOOL_TOKEN to it.",
        )
    return Remote(url.rstrip("/"), token, os.environ.get("GPUPOOL_CA") or None)
