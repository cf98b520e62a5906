"""The pool as commands that show and change things use it: questions in, plain JSON out."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

from gpupool.cli.errors import no_answer
from gpupool.cli.fast.gate import find_gate, refusal
from gpupool.cli.fast.http import Answer
from gpupool.domain.errors import ErrorCode, GpupoolError

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from gpupool.cli.connections import StreamEvent
    from gpupool.cli.fast.gate import Gate

Query = Mapping[str, Any]
PAGE = 1000
SUGGESTIONS = {
    ErrorCode.UNKNOWN_WORKLOAD: ("workloads", {"all": True, "limit": PAGE}),
    ErrorCode.UNKNOWN_PROJECT: ("projects", {}),
    ErrorCode.UNKNOWN_DEPARTMENT: ("departments", {}),
    ErrorCode.UNKNOWN_NODE: ("nodes", {}),
    ErrorCode.UNKNOWN_USER: ("users", {}),
}


class Pool:
    """One command's conversation with its pool. Methods raise ``GpupoolError``."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def get(self, path: str, query: Query | None = None, timeout_s: float = 30.0) -> Any:
        """The body of ``GET /v1/path``."""
        return self._ask("GET", path, query=query, timeout_s=timeout_s)

    def post(self, path: str, body: object = None) -> Any:
        """The body of the answer to ``POST /v1/path``."""
        return self._ask("POST", path, {} if body is None else body)

    def put(self, path: str, body: object) -> Any:
        """The body of the answer to ``PUT /v1/path``."""
        return self._ask("PUT", path, body)

    def patch(self, path: str, body: object) -> Any:
        """The body of the answer to ``PATCH /v1/path``."""
        return self._ask("PATCH", path, body)

    def delete(self, path: str) -> None:
        """``DELETE /v1/path``."""
        self._ask("DELETE", path)

    def workloads(self, query: Query, limit: int | None = None) -> list[dict[str, Any]]:
        """All workloads a query finds, page by page, newest first; at most ``limit``."""
        found: list[dict[str, Any]] = []
        cursor = None
        while limit is None or len(found) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            page = self.get("workloads", {**query, "limit": wanted, "cursor": cursor})
            found += page["workloads"]
            cursor = page["next_cursor"]
            if not cursor:
                break
        return found

    def stream(self, path: str, query: Query | None = None, last_id: str = "") -> Iterator[StreamEvent]:
        """The messages of a live stream until it ends. Raises ``OSError`` when it breaks."""
        import http.client

        from gpupool.cli.connections import STREAM_SILENCE_S, read_events

        connection = self.gate.connection(STREAM_SILENCE_S)
        try:
            headers = self.gate.headers | {"Accept": "text/event-stream"}
            connection.request(
                "GET", target(path, query), headers=headers | ({"Last-Event-ID": last_id} if last_id else {})
            )
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise refusal(_answer(response))
            yield from read_events(response)
        except http.client.HTTPException as error:
            raise ConnectionAbortedError(str(error)) from error
        finally:
            connection.close()

    def _ask(
        self, method: str, path: str, body: object = None, query: Query | None = None, timeout_s: float = 30.0
    ) -> Any:
        try:
            answer = self.gate.call(method, target(path, query), body, timeout_s)
        except OSError as error:
            raise no_answer(error) from error
        if answer.ok:
            return answer.body
        raise self._with_suggestion(refusal(answer), path)

    def _with_suggestion(self, error: Exception, path: str) -> Exception:
        """Add names that are near to one that is not known."""
        if not isinstance(error, GpupoolError) or error.code not in SUGGESTIONS or "/" not in path:
            return error
        collection, query = SUGGESTIONS[error.code]
        answer = self.gate.call("GET", target(collection, query))
        names = [item["name"] for item in answer.body[collection]] if answer.ok else []
        close = difflib.get_close_matches(unquote(path.split("/")[1]), names, n=3, cutoff=0.6)
        if not close:
            return error
        nearby = " or ".join(f"'{name}'" for name in dict.fromkeys(close))
        return GpupoolError(error.code, error.message, f"Did you mean {nearby}?")


def open_pool(*, start: bool = False) -> Pool:
    """This user's pool; started when there is none and ``start`` is true. Raises ``GpupoolError``."""
    return Pool(find_gate(start=start))


def target(path: str, query: Query | None = None) -> str:
    """``/v1/path?query``; values of None are left out, lists are repeated."""
    wanted = {name: _text(value) for name, value in (query or {}).items() if value not in (None, [], ())}
    return f"/v1/{path}" + (f"?{urlencode(wanted, doseq=True)}" if wanted else "")


def reference(text: str) -> tuple[str, int | None]:
    """The workload and the replica in ``NAME`` or ``NAME/3``."""
    name, slash, index = text.rpartition("/")
    return (name, int(index)) if slash and index.isdecimal() else (text, None)


def workload_path(ref: str, verb: str = "") -> str:
    """``workloads/REF/verb``."""
    return f"workloads/{segment(ref)}" + (f"/{verb}" if verb else "")


def segment(text: str) -> str:
    """Whatever was typed as one harmless part of a path."""
    return quote(text, safe="") or "%20"


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _answer(response: HTTPResponse) -> Answer:
    import json

    data = response.read()
    try:
        return Answer(response.status, json.loads(data))
    except ValueError:
        return Answer(response.status, None)
