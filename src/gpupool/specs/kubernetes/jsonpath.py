"""The subset of kubectl's ``-o jsonpath=`` that scripts use: fields, indices and ``[*]`` between braces."""

from __future__ import annotations

import json
import re
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError

_PART = re.compile(r"\.([A-Za-z0-9_-]+(?:\\\.[A-Za-z0-9_/-]+)*)|\[(\d+|\*)\]|\['([^']+)'\]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_ESCAPES = {"\\n": "\n", "\\t": "\t"}


def evaluate(template: str, value: Any) -> str:
    """Return the text of a template: expressions between braces are replaced, other text stays.

    Raises ``GpupoolError(INVALID_REQUEST)`` for anything but paths.
    """
    return _BRACES.sub(lambda match: _looked_up(match.group(1).strip(), value), template)


def _looked_up(path: str, value: Any) -> str:
    if path.startswith('"') and path.endswith('"') and len(path) > 1:
        text = path[1:-1]
        return _ESCAPES.get(text, text)
    found = [value]
    place = 0
    path = path.removeprefix("$")
    while place < len(path):
        match = _PART.match(path, place)
        if match is None:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"'{path[:80]}' is not a supported path.",
                "Write {.status.phase} or {.items[*].metadata.name}; for more, use -o json with jq.",
            )
        place = match.end()
        key = match.group(1).replace("\\.", ".") if match.group(1) else match.group(3) or match.group(2)
        found = [child for one in found for child in _children(one, key)]
    return " ".join(_text(one) for one in found)


def _children(value: Any, key: str) -> list[Any]:
    if isinstance(value, dict):
        return [value[key]] if key in value else list(value.values()) if key == "*" else []
    if isinstance(value, list) and key == "*":
        return value
    return [value[int(key)]] if isinstance(value, list) and key.isdecimal() and int(key) < len(value) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
