"""The pool as commands that show and change things use it: questions in, plain JSON out."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

from gpupool.cli.errors import no_answer
from gpupool.cli.fast.gate import find_gate, refusal
from gpupool.cli.fast.http import Answer
from gpupool.client.elsewhere import asked_elsewhere
from gpupool.domain.errors import ErrorCode, GpupoolError

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

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

    def text(self, path: str, query: Query | None = None, timeout_s: float = 30.0) -> bytes:
        """The body of ``GET /v1/path`` that is no JSON, as it came."""
        try:
            with self._opened(path, query, {}, timeout_s) as response:
                return response.read()
        except OSError as error:
            raise no_answer(error) from error

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
        from gpupool.cli.connections import STREAM_SILENCE_S, read_events

        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        with self._opened(path, query, headers, STREAM_SILENCE_S) as response:
            yield from read_events(response)

    def octets(self, path: str, query: Query | None = None) -> Iterator[bytes]:
        """An answer in bytes, piece by piece. Raises ``OSError`` when it breaks."""
        from gpupool.cli.connections import OCTETS, STREAM_SILENCE_S, read_octets

        with self._opened(path, query, {"Accept": OCTETS}, STREAM_SILENCE_S) as response:
            yield from read_octets(response)

    @contextmanager
    def _opened(
        self, path: str, query: Query | None, headers: Mapping[str, str], timeout_s: float
    ) -> Iterator[HTTPResponse]:
        """A successful answer to ``GET /v1/path``. Raises ``OSError`` when there is none, or it breaks."""
        import http.client

        connection, response = asked_elsewhere(lambda: self._answered(target(path, query), headers, timeout_s))
        try:
            if response.status != http.client.OK:
                raise refusal(_answer(response))
            yield response
        except http.client.HTTPException as error:
            raise ConnectionAbortedError(str(error)) from error
        finally:
            connection.close()

    def _answered(
        self, where: str, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[HTTPConnection, HTTPResponse]:
        from http.client import HTTPException

        connection = self.gate.connection(timeout_s)
        try:
            connection.request("GET", where, headers=self.gate.headers | dict(headers))
            return connection, connection.getresponse()
        except BaseException as error:
            connection.close()
            if isinstance(error, HTTPException) and not isinstance(error, OSError):
                raise ConnectionAbortedError(str(error)) from error
            raise

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


def meant(name: str) -> tuple[str, int | None]:
    """The same, and for ``job/pi`` and ``pod/pi-2``: the pool is asked for objects that were applied."""
    if "/" in name:
        from gpupool.cli.kubernetes import resolve

        name = resolve(open_pool(), name)
    return reference(name)


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
