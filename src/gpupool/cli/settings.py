"""User defaults for all commands: ``~/.config/gpupool/config.json`` (0600)."""

# pathlib takes longer to import than this module takes to run:
# ruff: noqa: PTH100, PTH103, PTH105, PTH111, PTH117, PTH120, PTH123

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_CONFIG_BYTES = 1 << 20


def config_dir() -> str:
    """Return the folder of this user's defaults and lease files."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    return f"{base}/gpupool"


def config_file() -> str:
    """Return the file of this user's defaults."""
    return f"{config_dir()}/config.json"


def load() -> dict[str, Any]:
    """Return the defaults; empty when there are none. Raises ``GpupoolError(INVALID_FILE)`` if the file is not JSON."""
    from gpupool.client.transport import light_json

    try:
        with open(config_file(), "rb") as file:
            data = light_json.loads(file.read(MAX_CONFIG_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _invalid_file(str(error)) from error
    if not isinstance(data, dict):
        raise _invalid_file("it is not a JSON object")
    return data


def save(changes: dict[str, Any]) -> None:
    """Change defaults; a value of None removes one."""
    import json

    data = {name: value for name, value in {**load(), **changes}.items() if value is not None}
    write_private(config_file(), json.dumps(data, indent=2) + "\n")


def write_private(path: str, text: str) -> None:
    """Replace a file atomically, with mode 0600. Raises ``GpupoolError(INVALID_FILE)``."""
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
    """Return ``GPUPOOL_PROJECT``, else the project of ``gpupool config project``, else None."""
    chosen = os.environ.get("GPUPOOL_PROJECT") or load().get("project")
    return chosen if isinstance(chosen, str) else None


def _invalid_file(what: str) -> Exception:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    return GpupoolError(ErrorCode.INVALID_FILE, f"{config_file()} cannot be read: {what}.", "Correct it or remove it.")
