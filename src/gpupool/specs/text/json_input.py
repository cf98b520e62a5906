"""Reading of JSON from outside, and checks that a value is plain before its meaning is read."""

from __future__ import annotations

import json
import math
from typing import Any

from gpupool.domain.errors import ErrorCode
from gpupool.specs.limits import MAX_DEPTH, MAX_FILE_BYTES, MAX_INTEGER, MAX_NODES
from gpupool.specs.text.error_messages import Path, RequestError, dotted


def read_json(data: bytes) -> Any:
    """Return the value of a JSON text.

    Raises ``GpupoolError``: TOO_LARGE above ``MAX_FILE_BYTES``, INVALID_REQUEST for text that is not JSON in UTF-8, has
    a name twice in one object, or contains ``NaN`` or infinity.
    """
    if len(data) > MAX_FILE_BYTES:
        raise RequestError(ErrorCode.TOO_LARGE, f"The request is larger than {MAX_FILE_BYTES // 2**20} MiB.")
    try:
        return json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"Byte {error.start} of the request is not UTF-8.") from error
    except RecursionError as error:
        raise _too_deep(()) from error
    except ValueError as error:  # JSONDecodeError, and whole numbers with thousands of digits
        raise RequestError(ErrorCode.INVALID_REQUEST, f"The request is not JSON: {error}.") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise RequestError(ErrorCode.INVALID_REQUEST, f"'{_shown(twice)}' is given twice in one object.")
    return found


def _no_constant(name: str) -> float:
    raise RequestError(ErrorCode.INVALID_REQUEST, f"{name} is not a valid number.")


def check_plain(value: object) -> None:
    """Refuse values that JSON cannot express or programs cannot receive.

    Raises ``GpupoolError(INVALID_REQUEST)`` naming the place: types other than JSON's, text with NUL or surrogates,
    numbers that are not finite or beyond 64 bits, nesting deeper than ``MAX_DEPTH``; TOO_LARGE above ``MAX_NODES``.
    """
    pending: list[tuple[Path, object]] = [((), value)]
    visited = 0
    while pending:
        path, item = pending.pop()
        visited += 1
        if visited + len(pending) > MAX_NODES:
            raise RequestError(ErrorCode.TOO_LARGE, f"The request has more than {MAX_NODES} values.")
        if len(path) > MAX_DEPTH:
            raise _too_deep(path)
        if isinstance(item, dict):
            for key in item:
                _check_key(path, key)
            pending.extend(((*path, key), inner) for key, inner in item.items())
        elif isinstance(item, list):
            pending.extend(((*path, index), inner) for index, inner in enumerate(item))
        else:
            _check_scalar(path, item)


def _too_deep(path: Path) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"The request is nested deeper than {MAX_DEPTH} levels.", path=path)


def _check_key(path: Path, key: object) -> None:
    if not isinstance(key, str):
        place = f" in '{dotted(path)}'" if path else ""
        raise RequestError(ErrorCode.INVALID_REQUEST, f"A name{place} is not text but {_shown(key)}.", path=path)
    _check_text(path, key)


def _check_scalar(path: Path, item: object) -> None:
    if isinstance(item, str):
        _check_text(path, item)
    elif isinstance(item, bool) or item is None:
        return
    elif isinstance(item, int):
        if abs(item) > MAX_INTEGER:
            raise _bad(path, "is a number beyond 64 bits")
    elif isinstance(item, float):
        if not math.isfinite(item):
            raise _bad(path, "is not a finite number")
    else:
        raise _bad(path, f"has a value of a kind ({type(item).__name__}) that a request cannot hold")


def _check_text(path: Path, text: str) -> None:
    if "\0" in text:
        raise _bad(path, "has a NUL byte, which programs cannot receive")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _bad(
            path,
            "has text that is not Unicode (a lone surrogate)",
        ) from error


def _bad(path: Path, what: str) -> RequestError:
    place = f"'{_shown(dotted(path))}'" if path else "The request"
    return RequestError(ErrorCode.INVALID_REQUEST, f"{place} {what}.", path=path)


def _shown(value: object) -> str:
    """Return a short printable form of any value."""
    return str(value)[:80].encode(errors="backslashreplace").decode().replace("\0", "\\0")
