"""A client of the API for commands: requests in, plain JSON out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gpupool.cli.errors import connection_error
from gpupool.cli.transport.local import find_transport
from gpupool.client.transport.http import RATE_LIMIT_DELAY_S, error_of_answer, with_query
from gpupool.client.transport.retries import RETRY_TIMEOUT_S, RetryTimer, retry_on_leader
from gpupool.domain.errors import ErrorCode, GpupoolError

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

    from gpupool.cli.transport.local import PoolTransport
    from gpupool.client.transport.requests import StreamEvent

Query = Mapping[str, Any]
PAGE = 1000
NEW_QUERIES = ("summary", "reasons")  # of lists of workloads; older pools refuse them
STREAM_SILENCE_TIMEOUT_S = 60.0  # the pool sends at least a comment every 15 s
SUGGESTIONS = {
    ErrorCode.UNKNOWN_WORKLOAD: ("workloads", {"all": True, "limit": PAGE}),
    ErrorCode.UNKNOWN_PROJECT: ("projects", {}),
    ErrorCode.UNKNOWN_DEPARTMENT: ("departments", {}),
    ErrorCode.UNKNOWN_NODE: ("nodes", {}),
    ErrorCode.UNKNOWN_USER: ("users", {}),
    ErrorCode.UNKNOWN_WORKSPACE: ("workspaces", {}),
}


class PoolClient:
    """Requests of one command to its pool. Methods raise ``GpupoolError``."""

    def __init__(self, transport: PoolTransport) -> None:
        self.transport = transport

    def get(self, path: str, query: Query | None = None, timeout_s: float = 30.0) -> Any:
        """Return the body of ``GET /v1/path``."""
        return self._call("GET", path, query=query, timeout_s=timeout_s)

    def post(self, path: str, body: object = None) -> Any:
        """Return the body of the answer to ``POST /v1/path``."""
        return self._call("POST", path, {} if body is None else body)

    def put(self, path: str, body: object) -> Any:
        """Return the body of the answer to ``PUT /v1/path``."""
        return self._call("PUT", path, body)

    def patch(self, path: str, body: object) -> Any:
        """Return the body of the answer to ``PATCH /v1/path``."""
        return self._call("PATCH", path, body)

    def delete(self, path: str) -> None:
        """Send ``DELETE /v1/path``."""
        self._call("DELETE", path)

    def get_bytes(self, path: str, query: Query | None = None, timeout_s: float = 30.0) -> bytes:
        """Return the body of ``GET /v1/path`` as bytes."""
        try:
            with self._open(path, query, {}, timeout_s) as response:
                return response.read()
        except OSError as error:
            raise connection_error(error) from error

    def workloads(self, query: Query, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the workloads that a query finds, newest first; at most ``limit``.

        Reasons of waiting are asked for with the first page only: each page with reasons takes the pool some time.
        """
        found: list[dict[str, Any]] = []
        cursor = None
        while limit is None or len(found) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            try:
                page = self.get("workloads", {**query, "limit": wanted, "cursor": cursor})
            except GpupoolError as error:
                unknown = next((name for name in NEW_QUERIES if query.get(name) and f"'{name}'" in error.message), None)
                if unknown is None:
                    raise
                query = {**query, unknown: None}  # the pool is older
                continue
            found += page["workloads"]
            cursor, query = page["next_cursor"], {**query, "reasons": None}
            if not cursor:
                break
        return found

    def stream(self, path: str, query: Query | None = None, last_id: str = "") -> Iterator[StreamEvent]:
        """Yield the events of a live stream until it ends. Raises ``OSError`` when it breaks."""
        from gpupool.client.transport.requests import read_events

        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        with self._open(path, query, headers, STREAM_SILENCE_TIMEOUT_S) as response:
            yield from read_events(response)

    def stream_bytes(self, path: str, query: Query | None = None) -> Iterator[bytes]:
        """Yield an answer in bytes, piece by piece. Raises ``OSError`` when it breaks."""
        from gpupool.client.transport.requests import OCTETS, read_octets

        with self._open(path, query, {"Accept": OCTETS}, STREAM_SILENCE_TIMEOUT_S) as response:
            yield from read_octets(response)

    @contextmanager
    def _open(
        self, path: str, query: Query | None, headers: Mapping[str, str], timeout_s: float
    ) -> Iterator[HTTPResponse]:
        """Open a successful answer to ``GET /v1/path``. Raises ``OSError`` when there is none, or it breaks."""
        from http.client import OK, HTTPException

        from gpupool.client.transport.requests import open_response, read_answer

        def ask() -> tuple[HTTPConnection, HTTPResponse]:
            connection = self.transport.connection(timeout_s)
            try:
                headers_sent = self.transport.headers | dict(headers)
                return connection, open_response(connection, "GET", api_path(path, query), headers=headers_sent)
            except BaseException:
                connection.close()
                raise

        connection, response = retry_on_leader(ask)
        try:
            if response.status != OK:
                raise error_of_answer(read_answer(response))
            yield response
        except HTTPException as error:
            raise ConnectionAbortedError(str(error)) from error
        finally:
            connection.close()

    def _call(
        self, method: str, path: str, body: object = None, query: Query | None = None, timeout_s: float = 30.0
    ) -> Any:
        timer = RetryTimer(RETRY_TIMEOUT_S)
        while True:
            try:
                answer = self.transport.call(method, api_path(path, query), body, timeout_s)
            except OSError as error:
                # A control plane that starts closes its socket before it leads; nothing was sent.
                closed = timer.waited and isinstance(error, ConnectionRefusedError | FileNotFoundError)
                if closed and timer.wait():
                    continue
                raise connection_error(error) from error
            if answer.ok:
                return answer.body
            if not _wait_to_retry(answer.error_code, timer):
                raise self._add_suggestion(error_of_answer(answer), path)

    def _add_suggestion(self, error: Exception, path: str) -> Exception:
        """Replace the hint of an error for an unknown name by similar names."""
        if not isinstance(error, GpupoolError) or error.code not in SUGGESTIONS or "/" not in path:
            return error
        collection, query = SUGGESTIONS[error.code]
        answer = self.transport.call("GET", api_path(collection, query))
        from urllib.parse import unquote

        names = [item["name"] for item in answer.body[collection]] if answer.ok else []
        import difflib

        close = difflib.get_close_matches(unquote(path.split("/")[1]), names, n=3, cutoff=0.6)
        if not close:
            return error
        nearby = " or ".join(f"'{name}'" for name in dict.fromkeys(close))
        return GpupoolError(error.code, error.message, f"Did you mean {nearby}?")


def _wait_to_retry(code: str, timer: RetryTimer) -> bool:
    """Wait after an answer with this error code if the pool has not executed the request; return whether it did."""
    if code == ErrorCode.RATE_LIMITED:
        return timer.wait(RATE_LIMIT_DELAY_S)
    if code == ErrorCode.POOL_STARTING:
        return timer.wait()
    return code == ErrorCode.NOT_LEADING and timer.wait_for_leader()


def open_pool(*, start: bool = False) -> PoolClient:
    """Return this user's pool; with ``start``, start one when there is none. Raises ``GpupoolError``."""
    return PoolClient(find_transport(start=start))


def api_path(path: str, query: Query | None = None) -> str:
    """Return ``/v1/path?query``; values of None are left out, lists are repeated."""
    return with_query(f"/v1/{path}", query)


def split_reference(text: str) -> tuple[str, int | None]:
    """Return the workload and the replica in ``NAME`` or ``NAME/3``."""
    name, slash, index = text.rpartition("/")
    return (name, int(index)) if slash and index.isdecimal() else (text, None)


def workload_path(ref: str, verb: str = "") -> str:
    """Return ``workloads/REF/verb``."""
    return f"workloads/{quote_segment(ref)}" + (f"/{verb}" if verb else "")


def quote_segment(text: str) -> str:
    """Quote text as one segment of a path."""
    return quote(text, safe="") or "%20"
