"""Walking a manifest: values by name with their places, checked against a table of the fields that there are."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.errors import ErrorCode
from gpupool.specs.kubernetes.report import Notice, Place, Report
from gpupool.specs.yamlnodes import Node, TextFields

_AS_WRITTEN = TextFields(((),))
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class Treatment(StrEnum):
    """What becomes of a field."""

    HONOURED = "honoured"
    MET = "met"  # what it asks for holds here anyway, or it has nothing to act on: no word is said
    WARNED = "warned"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of a field, and why, in words that stand in the documentation and in messages."""

    treatment: Treatment
    why: str = ""
    hint: str = ""


Fields = Mapping[str, Rule]


@dataclass(frozen=True, slots=True)
class View:
    """A value of the manifest: where it is (``place`` is that of its key) and how it is called (``path``)."""

    report: Report
    node: Node
    path: str
    place: Place

    @property
    def absent(self) -> bool:
        """Whether it says nothing: null, an empty text, list or mapping, or false."""
        if not isinstance(self.node.value, str):
            return not self.node.value
        value = self.node.plain(_AS_WRITTEN)
        return not value or (self.node.plain_style and not _TRUTH.get(value, True))

    def refuse(self, sentence: str, hint: str = "", code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        """Note a fault here; the sentence is completed with the field's name in front."""
        self.report.refuse(self.place, f"'{self.path}' {sentence}", hint, code)

    def warn(self, code: Notice, sentence: str) -> None:
        """Note a warning here; the sentence is completed with the field's name in front."""
        self.report.warn(self.place, code, f"'{self.path}' {sentence}")

    # Mappings

    def keys(self) -> list[str]:
        """The names in a mapping; a fault, and none, where it is not one."""
        if isinstance(self.node.value, dict):
            return list(self.node.value)
        if not self.absent:
            self.refuse("must be a mapping of names to values.")
        return []

    def get(self, key: str) -> View | None:
        """What stands under a name; None where there is nothing, or null."""
        if not isinstance(self.node.value, dict) or key not in self.node.value:
            return None
        child = View(self.report, self.node.value[key], _joined(self.path, key), self.node.keys[key])
        null = isinstance(child.node.value, str) and child.node.plain(_AS_WRITTEN) is None
        return None if null else child

    def follow(self, *keys: str) -> View | None:
        """What stands under several names, one below the other."""
        found: View | None = self
        for key in keys:
            found = found.get(key) if found is not None else None
        return found

    def check(self, fields: Fields) -> None:
        """Note unknown fields, with the nearest known one, and what the table warns of or refuses."""
        for key in self.keys():
            rule = fields.get(key)
            if rule is None:
                self._unknown(key, list(fields))
                continue
            child = self.get(key)
            if child is None or child.absent:
                continue
            if rule.treatment is Treatment.WARNED:
                child.warn(Notice.FIELD_IGNORED, f"is not honoured: {rule.why}")
            elif rule.treatment is Treatment.REFUSED:
                child.refuse(f"is not possible here: {rule.why}", rule.hint, ErrorCode.UNSUPPORTED)

    def _unknown(self, key: str, known: list[str]) -> None:
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
        folded = [name for name in known if name.lower() == key.lower()] or close
        hint = f"Did you mean '{folded[0]}'?" if folded else f"Known here: {', '.join(known)}."
        place = self.node.keys[key]
        self.report.refuse(place, f"There is no field '{_joined(self.path, key)}'.", hint, ErrorCode.INVALID_REQUEST)

    # Lists

    def items(self) -> list[View]:
        """The parts of a list; a fault, and none, where it is not one."""
        if not isinstance(self.node.value, list):
            if not self.absent:
                self.refuse("must be a list.")
            return []
        return [
            View(self.report, item, f"{self.path}[{index}]", (item.line, item.column))
            for index, item in enumerate(self.node.value)
        ]

    def each(self, key: str) -> list[View]:
        """The parts of the list under a name; none where there is nothing."""
        found = self.get(key)
        return [] if found is None else found.items()

    # Plain values

    def scalar(self) -> str:
        """The text as written; a fault, and empty, for a list or mapping."""
        if not isinstance(self.node.value, str):
            self.refuse("must be text.")
            return ""
        return str(self.node.plain(_AS_WRITTEN) or "")

    def text(self, key: str, default: str = "") -> str:
        """The text under a name."""
        found = self.get(key)
        return default if found is None else found.scalar()

    def texts(self, key: str) -> list[str]:
        """The texts in the list under a name."""
        return [item.scalar() for item in self.each(key)]

    def pairs(self, key: str) -> dict[str, View]:
        """The values in the mapping under a name."""
        found = self.get(key)
        if found is None:
            return {}
        values = {name: found.get(name) for name in found.keys()}  # noqa: SIM118 - keys() notes what is no mapping
        return {name: value for name, value in values.items() if value is not None}

    def number(self, key: str, default: int | None = None, *, least: int = 0, most: int = 2**31 - 1) -> int | None:
        """The whole number under a name, quoted or not."""
        found = self.get(key)
        if found is None:
            return default
        text = found.scalar()
        if not text.lstrip("-").isdecimal() or len(text) > 12 or not least <= int(text) <= most:
            found.refuse(f"must be a whole number from {least} on.", code=ErrorCode.INVALID_COUNT)
            return default
        return int(text)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false under a name."""
        found = self.get(key)
        if found is None:
            return default
        text = found.scalar()
        if text not in _TRUTH:
            found.refuse("must be true or false.")
        return _TRUTH.get(text, default)

    def choice(self, key: str, allowed: Sequence[str], default: str) -> str:
        """One of some words under a name; empty counts as absent."""
        found = self.get(key)
        text = default if found is None else found.scalar() or default
        if found is not None and text not in allowed:
            found.refuse(f"must be one of {', '.join(allowed)}.")
            return default
        return text

    def place_of(self, key: str) -> Place:
        """Where a name stands; this value's own place where it does not."""
        return self.node.keys.get(key, self.place)


def _joined(path: str, key: str) -> str:
    shown = key if len(key) <= 80 else key[:77] + "..."
    if "." in shown or "/" in shown:
        return f"{path}['{shown}']"
    return f"{path}.{shown}" if path else shown
