"""From the values of command-line options to the body of a submission.

Quantities stay text here ("30m", "4G", "0.1"): the pool reads them, in one place, for every way in. On the fast path.
"""

# pathlib takes longer to import than everything here takes to run:
# ruff: noqa: PTH109, PTH110, PTH111, PTH118

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Values = dict[str, Any]

# Never handed to a program: what opens the pool itself.
SECRETS = frozenset({"GPUPOOL_TOKEN", "GPUPOOL_URL", "GPUPOOL_CA"})
CONTAINER = ("image", "pull", "container_user", "network", "read_only", "shm")
PASSED_ON = (
    "name",
    "project",
    "priority",
    "max_time",
    "idle_timeout",
    "cpus",
    "memory",
    "grace",
    "notice_signal",
    "preemptible",
    "wait",
)


def workload(values: Values, command: list[str]) -> Values:
    """What every kind of request has in common."""
    body: Values = {name: values[name] for name in PASSED_ON if values.get(name) is not None}
    if "priority" in body:
        body["priority"] = _number_or_text(body["priority"])
    if values.get("no_wait"):
        body["wait"] = 0
    if "project" not in body and (project := _default_project()):
        body["project"] = project
    if gpus := gpu_request(values):
        body["gpus"] = gpus
    if values.get("label"):
        body["labels"] = pairs(values["label"], "--label")
    return body | container(values) | program(values, command) | {"request_id": os.urandom(16).hex()}


def container(values: Values) -> Values:
    """The image, and what is seen and allowed inside; relative folders are those of this shell."""
    body: Values = {name: values[name] for name in CONTAINER if values.get(name)}
    if values.get("entrypoint"):
        import shlex

        body["entrypoint"] = shlex.split(values["entrypoint"])
    if values.get("volume"):
        body["volumes"] = [_volume(text) for text in values["volume"]]
    return body


def _volume(text: str) -> str:
    source, colon, rest = text.partition(":")
    if not colon or not source.startswith((".", "~")):
        return text
    return f"{_workdir(source)}:{rest}"


def program(values: Values, command: list[str]) -> Values:
    """The command, its folder, environment and umask."""
    inside = bool(values.get("image"))
    if not command and not inside:
        return {}
    umask = os.umask(0o077)
    os.umask(umask)
    if inside:
        chosen = {"workdir": values["workdir"]} if values.get("workdir") else {}
        words = {"command": command} if command else {}
        return words | chosen | {"env": added(values.get("env") or []), "umask": f"{umask:03o}"}
    return {
        "command": split_single(command),
        "workdir": _workdir(values.get("workdir")),
        "env": environment(values.get("env") or []),
        "umask": f"{umask:03o}",
    }


def gpu_request(values: Values) -> Values:
    """The field ``gpus``; raises ``GpupoolError`` when ``-g``, ``-p`` and ``-m`` contradict each other."""
    gpus = _amount(values)
    models, labels = _filters(values.get("filter") or [])
    if models := [*(values.get("model") or []), *models]:
        gpus["models"] = models
    if values.get("pool"):
        labels["pool"] = values["pool"]
    if labels:
        gpus["labels"] = labels
    return gpus | {name: values[name] for name in ("compute", "sharing", "placement") if values.get(name)}


def _amount(values: Values) -> Values:
    asked = {"gpu": "gpus", "num_gpus": "count", "partial": "partial", "gpu_memory": "memory"}
    given = {field: values[name] for name, field in asked.items() if values.get(name) is not None}
    if "gpus" in given or {"partial", "memory"} <= given.keys():
        from gpupool.specs.options import GpuOptions  # knows what excludes what; too slow to import for every run

        return GpuOptions(**given).to_spec()
    plain = {"count": "count", "partial": "fraction", "memory": "memory_mib"}
    return {plain[field]: value for field, value in given.items()}


def _filters(texts: list[str]) -> tuple[list[str], Values]:
    found = pairs(texts, "--filter")
    models = [found.pop(key) for key in ("device.name", "model") if key in found]
    return models, found


def pairs(texts: list[str], option: str) -> Values:
    """``KEY=VALUE`` texts as a mapping; raises ``GpupoolError(INVALID_REQUEST)``."""
    found: Values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise _refused(f"'{text[:80]}' after {option} is not KEY=VALUE.", f"For example: {option} team=vision")
        found[key] = value
    return found


def environment(extra: list[str]) -> dict[str, str]:
    """This process's environment without the pool's secrets, and what ``--env`` adds (``KEY`` alone passes it on).

    Variables that are not UTF-8 are left out: JSON cannot carry them.
    """
    env = {name: value for name, value in os.environ.items() if name not in SECRETS and _is_text(name + value)}
    return env | added(extra)


def added(extra: list[str]) -> dict[str, str]:
    """What ``--env`` alone says: all that a container is given of this shell."""
    env: dict[str, str] = {}
    for text in extra:
        key, equals, value = text.partition("=")
        if not key or not (equals or key in os.environ):
            raise _refused(
                f"'{text[:80]}' after --env is neither KEY=VALUE nor a variable that is set.", "Set it first."
            )
        env[key] = value if equals else os.environ[key]
    return env


def split_single(command: list[str]) -> list[str]:
    """A single word with spaces is a whole command, as ``bitfusion run "python3 train.py"`` has it.

    Unless there is a program of that very name. No shell is involved.
    """
    if len(command) != 1 or " " not in command[0] or os.path.exists(command[0]):
        return command
    import shlex

    try:
        return shlex.split(command[0])
    except ValueError as error:
        raise _refused(f"The command cannot be read: {error}.", "Close the quotes, or give the words apart.") from error


def _workdir(chosen: str | None) -> str:
    try:
        here = os.getcwd()
    except OSError as error:
        raise _refused("The folder you are in is gone.", "Change to another one, or give --workdir.") from error
    return os.path.normpath(os.path.join(here, os.path.expanduser(chosen))) if chosen else here


def _default_project() -> str | None:
    from gpupool.cli.settings import default_project

    return default_project()


def _number_or_text(value: str) -> int | str:
    return int(value) if value.lstrip("+-").isdecimal() else value


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refused(sentence: str, hint: str) -> Exception:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)
