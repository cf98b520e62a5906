"""JSON without the module ``json``, which imports ``re`` and ``enum``: these take longer than a whole launch.

The C part of the standard library's ``json`` does the work (CPython); other interpreters use ``json`` itself.
"""

from __future__ import annotations

try:
    from _json import encode_basestring_ascii as _quoted
    from _json import make_scanner as _make_scanner
except ImportError:  # not CPython
    _make_scanner = None  # type: ignore[assignment,misc]  # the name stays, for `loads`

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _ScannerOptions:
    """The options that the scanner reads from its decoder: the defaults of ``json.loads``."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, str] = {}  # noqa: RUF012 - the scanner's own, emptied by it


def loads(data: bytes) -> Any:
    """Return the value of a JSON text in UTF-8. Raises ``ValueError`` for anything else."""
    if _make_scanner is None:
        import json

        return json.loads(data)
    text = data.decode().strip(" \t\n\r")
    try:
        value, end = _make_scanner(_ScannerOptions)(text, 0)  # type: ignore[arg-type]  # it reads these attributes only
    except StopIteration:
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError("data follows the JSON value")
    return value


def dumps(value: object) -> bytes:
    """Return None, booleans, numbers, texts, lists, tuples and mappings with text keys as JSON in ASCII."""
    if _make_scanner is None:
        import json

        return json.dumps(value).encode()
    return _encode(value).encode("ascii")


def _encode(value: object) -> str:
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(key)}:{_encode(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_encode(item) for item in value) + "]"
    raise TypeError(f"{type(value).__name__} has no JSON form here")
