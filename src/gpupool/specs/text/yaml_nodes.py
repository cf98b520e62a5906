"""YAML as trees of values with positions: line, column, and text as written.

Only the plain core of YAML 1.2 is supported: mappings, lists, text, numbers, ``true``/``false``, ``null``, anchors and
aliases. So ``on``, ``no`` and ``022`` are text and ``1e-3`` is a number. The trees are built from the parser's events:
depth and size, including repeated aliases, are limited before memory grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.limits import MAX_DEPTH, MAX_DOCUMENTS, MAX_NODES
from gpupool.specs.text.error_messages import Path

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
}  # fmt: skip


@dataclass(slots=True)
class YamlNode:
    """A value and its position (lines and columns count from 1): text, a list of nodes, or a mapping of them."""

    line: int
    column: int
    value: str | list[YamlNode] | dict[str, YamlNode]
    plain_style: bool = True
    weight: int = 1
    tag: str = ""
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)

    def plain(self, text_at: TextFields | None = None) -> Any:
        """Return the value without positions; ``text_at`` names the places where scalars are text as written."""
        if isinstance(self.value, dict):
            return {key: node.plain(text_at and text_at.under(key)) for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain(text_at and text_at.under(None)) for node in self.value]
        return self._scalar(as_written=text_at is not None and text_at.here)

    def _scalar(self, *, as_written: bool) -> Any:
        text = str(self.value)
        if not self.plain_style or self.tag == "str":
            return text
        if text in _WORDS and (_WORDS[text] is None or not as_written):
            return _WORDS[text]
        return text if as_written else _number(text)

    def place(self, path: Path) -> tuple[int, int]:
        """Return line and column of a path's value, or of the last part of the path that exists."""
        node = self
        at = (self.line, self.column)
        for step in path:
            if isinstance(node.value, dict) and step in node.value:
                at = node.keys[str(step)]
                node = node.value[str(step)]
            elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                at = (node.line, node.column)
            else:
                break
        return at


@dataclass(frozen=True, slots=True)
class TextFields:
    """A set of paths at which scalars are text as written; ``*`` stands for any key or index."""

    paths: tuple[tuple[str, ...], ...]

    @property
    def here(self) -> bool:
        """Return whether this place is in the set."""
        return () in self.paths

    def under(self, key: str | None) -> TextFields | None:
        """Return the set relative to a child (None: an item of a list); None if it is empty."""
        left = tuple(path[1:] for path in self.paths if path and path[0] in {"*", key})
        return TextFields(left) if left else None


def _number(text: str) -> Any:
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", "").lower())
    return text


def at(name: str, line: int, column: int, sentence: str, hint: str = "") -> GpupoolError:
    """Return an INVALID_FILE error at a position: ``job.yml:12:3: ...``."""
    return GpupoolError(ErrorCode.INVALID_FILE, f"{name}:{line}:{column}: {sentence}", hint)


def read_yaml(text: str, name: str) -> list[YamlNode]:
    """Return the documents of a YAML text, without empty ones.

    Raises ``GpupoolError``: INVALID_FILE with the position for bad syntax, a repeated key, tags, and recursive aliases;
    TOO_LARGE for too many values or documents.
    """
    try:
        loader = _LOADER(text)
        try:
            return list(_Composer(loader, name).documents())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = (error.problem or "the text is not YAML").strip()
        if "nesting depth" in what:  # the limit of PyYAML 6.0.4, whose parser reads ahead of the composer
            what = f"nested deeper than {MAX_DEPTH} levels"
        if mark is None:
            raise at(name, 1, 1, f"{what}.") from error
        raise at(name, mark.line + 1, mark.column + 1, f"{what}.", "Check indentation and quotes there.") from error
    except yaml.YAMLError as error:
        raise GpupoolError(ErrorCode.INVALID_FILE, f"{name}: {_reader_problem(error)}.") from error


def _reader_problem(error: yaml.YAMLError) -> str:
    reason = getattr(error, "reason", "the text is not YAML")
    return f"{reason} at character {getattr(error, 'position', 0)}"


class _Composer:
    """Builds nodes from events and counts them."""

    def __init__(self, loader: Any, name: str) -> None:
        self._loader = loader
        self._name = name
        self._anchors: dict[str, YamlNode | None] = {}  # None while the anchored value is still read
        self._total = 0

    def documents(self) -> Iterator[YamlNode]:
        count = 0
        while not isinstance(event := self._loader.get_event(), yaml.StreamEndEvent):
            if isinstance(event, yaml.DocumentStartEvent):
                count += 1
                if count > MAX_DOCUMENTS:
                    raise GpupoolError(ErrorCode.TOO_LARGE, f"{self._name} has more than {MAX_DOCUMENTS} documents.")
                self._anchors.clear()
                node = self._node(self._loader.get_event(), 0)
                if node.value != "" or not node.plain_style:
                    yield node

    def _node(self, event: Any, depth: int) -> YamlNode:
        mark = event.start_mark
        if depth > MAX_DEPTH:
            raise self._at(mark, f"nested deeper than {MAX_DEPTH} levels.")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        node = YamlNode(mark.line + 1, mark.column + 1, "", tag=self._tag(event))
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node.value = event.value
            node.plain_style = not event.style or node.tag in {"int", "float", "bool", "null"}
            self._count(node, 1 + len(event.value) // 64)
        elif isinstance(event, yaml.SequenceStartEvent):
            node.value = self._items(node, depth)
        else:
            node.value = self._pairs(node, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _items(self, node: YamlNode, depth: int) -> list[YamlNode]:
        items: list[YamlNode] = []
        self._count(node, 1)
        while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
            node.weight += items[-1].weight
        return items

    def _pairs(self, node: YamlNode, depth: int) -> dict[str, YamlNode]:
        pairs: dict[str, YamlNode] = {}
        self._count(node, 1)
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            mark = event.start_mark
            key = self._node(event, depth + 1)
            if not isinstance(key.value, str):
                raise self._at(mark, "a name must be text.")
            if key.value in pairs:
                raise self._at(mark, f"'{key.value[:80]}' is given twice.", "Keep one of them.")
            pairs[key.value] = self._node(self._loader.get_event(), depth + 1)
            node.keys[key.value] = (mark.line + 1, mark.column + 1)
            node.weight += key.weight + pairs[key.value].weight
        return pairs

    def _alias(self, event: Any) -> YamlNode:
        if event.anchor not in self._anchors:
            raise self._at(event.start_mark, f"there is no anchor '&{event.anchor[:80]}' before this.")
        found = self._anchors[event.anchor]
        if found is None:
            raise self._at(event.start_mark, f"'*{event.anchor[:80]}' contains itself.")
        self._total += found.weight
        self._check_total()
        return found

    def _count(self, node: YamlNode, weight: int) -> None:
        node.weight = weight
        self._total += weight
        self._check_total()

    def _check_total(self) -> None:
        if self._total > MAX_NODES:
            raise GpupoolError(
                ErrorCode.TOO_LARGE,
                f"{self._name} holds more than {MAX_NODES} values, repeated aliases counted.",
                "Split it, or use a sweep.",
            )

    def _tag(self, event: Any) -> str:
        tag = event.tag
        if tag in {None, "!"}:
            return "str" if tag == "!" else ""
        known = {"str", "int", "float", "bool", "null", "seq", "map"}
        if not tag.startswith(_TAG) or tag.removeprefix(_TAG) not in known:
            raise self._at(event.start_mark, f"the tag '{tag[:80]}' is not allowed.", "Write plain values.")
        return str(tag.removeprefix(_TAG))

    def _at(self, mark: Any, sentence: str, hint: str = "") -> GpupoolError:
        return at(self._name, mark.line + 1, mark.column + 1, sentence, hint)
