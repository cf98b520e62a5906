"""What a user has chosen once for all commands: ``~/.config/gpupool/config.json`` (0600)."""

# pathlib takes longer to import than everything here takes to run:
# ruff: noqa: PTH100, PTH103, PTH105, PTH111, PTH117, PTH120, PTH123

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONFIG_LIMIT_BYTES = 1 << 20


def config_dir() -> str:
    """The folder of this user's choices and lease files."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    return f"{base}/gpupool"


def config_file() -> str:
    """The file of this user's choices."""
    return f"{config_dir()}/config.json"


def load() -> dict[str, Any]:
    """The choices; empty when there are none. Raises ``GpupoolError(INVALID_FILE)`` for a file that is not JSON."""
    from gpupool.cli.fast import lightjson

    try:
        with open(config_file(), "rb") as file:
            data = lightjson.loads(file.read(CONFIG_LIMIT_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _broken(str(error)) from error
    if not isinstance(data, dict):
        raise _broken("it is not an object")
    return data


def save(changes: dict[str, Any]) -> None:
    """Add to the choices; a value of None takes one away."""
    import json

    data = {name: value for name, value in {**load(), **changes}.items() if value is not None}
    write_private(config_file(), json.dumps(data, indent=2) + "\n")


def write_private(path: str, text: str) -> None:
    """Replace a file in one step; nobody else may read it. Raises ``GpupoolError(INVALID_FILE)``."""
    temporary = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        from gpupool.domain.errors import ErrorCode, GpupoolError

        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"{path} cannot be written: {error.strerror}.", "Check the folder's permissions."
        ) from error


def default_project() -> str | None:
    """``GPUPOOL_PROJECT``, else the project chosen with ``gpupool config project``, else None."""
    chosen = os.environ.get("GPUPOOL_PROJECT") or load().get("project")
    return chosen if isinstance(chosen, str) else None


def _broken(what: str) -> Exception:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    return GpupoolError(ErrorCode.INVALID_FILE, f"{config_file()} cannot be read: {what}.", "Correct it or remove it.")
