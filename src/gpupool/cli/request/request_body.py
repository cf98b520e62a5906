"""Convert option values to the body of a submission. On the fast path.

Quantities stay text here ("30m", "4G", "0.1"): the pool parses them, in one place for all clients.
"""

# pathlib takes longer to import than this module takes to run:
# ruff: noqa: PTH109, PTH110, PTH111, PTH118

from __future__ import annotations

import os

from gpupool.specs.job_options import CONTAINER_OPTIONS, SHARED_OPTIONS, JobField

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from gpupool.specs.job_options import Option

    Values = dict[str, Any]

# Access to the pool itself: never passed to a program.
# The filter keys of VMware Bitfusion, by the label of a node that they select.
FILTERS = {
    "server.hostname": "node",
    "server.addr": "address",
    "server.driver-version": "driver",
    "server.dirver-version": "driver",  # as its documentation spells it
    "server.cuda-version": "cuda",
    "server.has-rdma": "rdma",
}
REFUSED_FILTERS = {
    "device.id": "Choose a model with --gpu-model and a node with --filter node=NAME; the pool chooses the GPU.",
    "device.phy-memory": "Choose the model that has this memory: --gpu-model a100.",
}
IPV4_DOTS = 3
SECRET_VARIABLES = frozenset({"GPUPOOL_TOKEN", "GPUPOOL_URL", "GPUPOOL_CA"})


def workload_body(values: Values, command: list[str]) -> Values:
    """Return the fields that all kinds of requests have in common."""
    body = copy_fields(values, SHARED_OPTIONS)
    if "priority" in body:
        body["priority"] = _number_or_text(body["priority"])
    if values.get("no_wait"):
        body["wait"] = 0
    if "project" not in body and (project := _default_project()):
        body["project"] = project
    if gpus := gpu_request(values):
        body["gpus"] = gpus
    if found := [text for text in values.get("label") or [] if not is_server_list(text)]:
        body["labels"] = parse_pairs(found, "--label")
    return body | container_fields(values) | program_fields(values, command) | {"request_id": os.urandom(16).hex()}


def copy_fields(values: Values, options: Iterable[Option]) -> Values:
    """Return the given values of those options that are fields of the request."""
    names = (option.name for option in options if isinstance(option, JobField))
    return {name: values[name] for name in names if values.get(name) is not None}


def container_fields(values: Values) -> Values:
    """Return the fields of the container. Relative volume folders refer to this shell's folder."""
    body = {name: value for name, value in copy_fields(values, CONTAINER_OPTIONS).items() if value}
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


def program_fields(values: Values, command: list[str]) -> Values:
    """Return the command, its folder, environment and umask."""
    inside = bool(values.get("image"))
    if not command and not inside:
        return {}
    umask = os.umask(0o077)
    os.umask(umask)
    if inside:
        chosen = {"workdir": values["workdir"]} if values.get("workdir") else {}
        words = {"command": command} if command else {}
        return words | chosen | {"env": added_environment(values.get("env") or []), "umask": f"{umask:03o}"}
    return {
        "command": split_single(command),
        "workdir": values.get("workdir") or "" if values.get("workspace") else _workdir(values.get("workdir")),
        "env": environment(values.get("env") or []),
        "umask": f"{umask:03o}",
    }


def gpu_request(values: Values) -> Values:
    """Return the field ``gpus``. Raises ``GpupoolError`` when ``-g``, ``-p`` and ``-m`` contradict each other."""
    gpus = _amount(values)
    models, labels = _filters(values.get("filter") or [])
    servers = [values["server_list"]] if values.get("server_list") else []
    for text in servers + [text for text in values.get("label") or [] if is_server_list(text)]:
        labels |= parse_servers(text)
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
    if given.keys() == {"gpus"} and (plain := plain_amount(given["gpus"])):
        return plain
    if "gpus" in given or {"partial", "memory"} <= given.keys():
        from gpupool.specs.options import GpuOptions  # checks for conflicts; too slow to import for every run

        return GpuOptions(**given).to_spec()
    names = {"count": "count", "partial": "fraction", "memory": "memory_mib"}
    return {names[field]: value for field, value in given.items()}


def plain_amount(text: str) -> Values:
    """Return what ``-g`` means for ``2`` and ``0.25``; empty for other text, which ``specs.options`` parses."""
    whole, _, part = text.partition(".")
    if not f"{whole}{part}".isascii() or len(text) > len("0.125"):
        return {}
    if text.isdigit() and len(text) <= len("999"):
        return {"count": int(text)}
    if whole == "0" and part.isdigit() and int(part):
        return {"count": 1, "fraction": int(part.ljust(3, "0")) / 1000}
    return {}


def _filters(texts: list[str]) -> tuple[list[str], Values]:
    models: list[str] = []
    labels: Values = {}
    for text in texts:
        ((key, value),) = parse_pairs([text], "--filter").items()
        if key in {"device.name", "model"}:
            models.append(value)
        elif key in REFUSED_FILTERS:
            raise _invalid(f"'{key}' is not a key of --filter.", REFUSED_FILTERS[key])
        else:
            key = FILTERS.get(key, key)
            labels[key] = f"{labels[key]}|{value}" if key in labels else value
    return models, labels


def is_server_list(text: str) -> bool:
    """Return whether the value of ``-l`` is a list of servers, as Bitfusion's, and not a label."""
    return "=" not in text and (";" in text or ":" in text or text.count(".") == IPV4_DOTS)


def parse_servers(text: str) -> Values:
    """Return the required label for a list of servers: ``gpu1;gpu2`` or ``10.0.0.1:56001;10.0.0.2``.

    Ports have no meaning here. Raises ``GpupoolError(INVALID_REQUEST)``.
    """
    servers = [server.strip().partition(":")[0] for server in text.split(";") if server.strip()]
    addresses = [server for server in servers if server.replace(".", "").isdigit() and server.count(".") == IPV4_DOTS]
    if not servers or (addresses and len(addresses) < len(servers)):
        raise _invalid(f"'{text[:80]}' is not a list of nodes.", "Write names or addresses: 'gpu1;gpu2'.")
    return {"address" if addresses else "node": "|".join(servers)}


def parse_pairs(texts: list[str], option: str) -> Values:
    """Return ``KEY=VALUE`` texts as a mapping. Raises ``GpupoolError(INVALID_REQUEST)``."""
    found: Values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise _invalid(f"'{text[:80]}' after {option} is not KEY=VALUE.", f"For example: {option} team=vision")
        found[key] = value
    return found


def environment(extra: list[str]) -> dict[str, str]:
    """Return this process's environment without the pool's secrets, plus the variables of ``--env``.

    Variables that are not UTF-8 are left out: JSON cannot carry them.
    """
    env = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES and _is_text(name + value)}
    return env | added_environment(extra)


def added_environment(extra: list[str]) -> dict[str, str]:
    """Return the variables of ``--env``; ``KEY`` alone copies this shell's value. A container gets no others."""
    env: dict[str, str] = {}
    for text in extra:
        key, equals, value = text.partition("=")
        if not key or not (equals or key in os.environ):
            raise _invalid(
                f"'{text[:80]}' after --env is neither KEY=VALUE nor a variable that is set.", "Set it first."
            )
        env[key] = value if equals else os.environ[key]
    return env


def split_single(command: list[str]) -> list[str]:
    """Split a single word with spaces into a command, as in ``bitfusion run "python3 train.py"``.

    A program with exactly this name is not split. No shell is involved.
    """
    if len(command) != 1 or " " not in command[0] or os.path.exists(command[0]):
        return command
    import shlex

    try:
        return shlex.split(command[0])
    except ValueError as error:
        raise _invalid(
            f"The command cannot be read: {error}.", "Close the quotes, or write the words without quotes."
        ) from error


def _workdir(chosen: str | None) -> str:
    try:
        here = os.getcwd()
    except OSError as error:
        raise _invalid("The current folder was deleted.", "Change to another folder, or give --workdir.") from error
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


def _invalid(sentence: str, hint: str) -> Exception:
    from gpupool.domain.errors import ErrorCode, GpupoolError

    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)
