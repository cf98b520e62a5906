"""Job files: requests as YAML (several documents) or JSON, with errors that point at line and column."""

from __future__ import annotations

from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.fields.request import WorkloadRequest
from gpupool.specs.request import parse_request
from gpupool.specs.text.error_messages import RequestError
from gpupool.specs.text.files import decode, read_bounded
from gpupool.specs.text.json_input import read_json
from gpupool.specs.text.yaml_nodes import TextFields, YamlNode, read_yaml

# Fields whose numbers and truth values are text as written: an environment's 1.10 must not become 1.1.
_TEXT_FIELDS = TextFields(
    tuple(
        tuple(path.split("."))
        for path in (
            "name", "project", "workdir", "on", "request_id", "command.*", "env.*", "labels.*",
            "gpus.models.*", "gpus.labels.*", "gang.within", "roles.*.name", "roles.*.command.*",
            "roles.*.env.*", "roles.*.gpus.models.*", "roles.*.gpus.labels.*", "after.*", "after.*.workload",
        )
    )
)  # fmt: skip


def load_job_file(
    source: bytes | str | Path, *, name: str | None = None, folder: str | None = None
) -> list[WorkloadRequest]:
    """Return the requests in a job file, given by its content (bytes) or its path; one per YAML document.

    ``name`` begins the messages (default: the path, or ``job file``). ``folder``, an absolute path, completes relative
    and absent working directories.

    Raises ``GpupoolError``: INVALID_FILE (unreadable, not UTF-8, bad syntax), TOO_LARGE before anything is read, and
    the errors of ``parse_request`` with ``job.yml:12:3:`` in front.
    """
    shown = name or (str(source) if isinstance(source, str | Path) else "job file")
    data = source if isinstance(source, bytes) else read_bounded(Path(source), shown)
    text = decode(data, shown)
    requests = [_request(values, root, shown) for values, root in _documents(text, shown)]
    if not requests:
        raise GpupoolError(ErrorCode.INVALID_FILE, f"{shown} is empty.", "Begin with 'command: [...]'.")
    if folder is None:
        return requests
    return [request if request.image is not None else _anchored(request, folder) for request in requests]


def _documents(text: str, name: str) -> list[tuple[object, YamlNode | None]]:
    """Return plain values with the nodes they came from, for positions in messages."""
    if text.lstrip()[:1] == "{":
        try:
            values = read_json(text.encode())
        except GpupoolError:
            pass  # a flow mapping of YAML, or invalid JSON whose error the YAML reader locates
        else:
            return [(values, _root_or_none(text, name))]
    return [(root.plain(_TEXT_FIELDS), root) for root in read_yaml(text, name)]


def _root_or_none(text: str, name: str) -> YamlNode | None:
    """Return JSON's positions, if it is also valid YAML."""
    try:
        return next(iter(read_yaml(text, name)), None)
    except GpupoolError:
        return None


def _request(values: object, root: YamlNode | None, name: str) -> WorkloadRequest:
    try:
        return parse_request(values)
    except RequestError as error:
        line, column = root.place(error.path) if root is not None else (1, 1)
        message = f"{name}:{line}:{column}: {error.message}"
        raise RequestError(error.code, message, error.hint, error.path) from error


def _anchored(request: WorkloadRequest, folder: str) -> WorkloadRequest:
    return request.model_copy(update={"workdir": str(Path(folder, request.workdir))})
