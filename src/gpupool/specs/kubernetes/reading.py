"""Reading of a manifest: values by name with their positions, checked against a table of fields."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.errors import ErrorCode
from gpupool.specs.kubernetes.report import ManifestNotice, ManifestReport, Place
from gpupool.specs.text.yaml_nodes import TextFields, YamlNode

_AS_WRITTEN = TextFields(((),))
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class Treatment(StrEnum):
    """The treatment of a field."""

    SUPPORTED = "supported"
    NOT_NEEDED = "not needed"  # always true in a pool, or without effect: no message
    IGNORED = "ignored"  # with a warning
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Rule:
    """The treatment of a field and its reason, as the documentation and messages show it."""

    treatment: Treatment
    why: str = ""
    hint: str = ""


Fields = Mapping[str, Rule]


@dataclass(frozen=True, slots=True)
class ManifestView:
    """A value of the manifest: its position (``place`` is that of its key) and its name (``path``)."""

    report: ManifestReport
    node: YamlNode
    path: str
    place: Place

    @property
    def absent(self) -> bool:
        """Return whether it is empty: null, an empty text, list or mapping, or false."""
        if not isinstance(self.node.value, str):
            return not self.node.value
        value = self.node.plain(_AS_WRITTEN)
        return not value or (self.node.plain_style and not _TRUTH.get(value, True))

    def refuse(self, sentence: str, hint: str = "", code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        """Record a fault here; the sentence is completed with the field's name in front."""
        self.report.refuse(self.place, f"'{self.path}' {sentence}", hint, code)

    def warn(self, code: ManifestNotice, sentence: str) -> None:
        """Record a warning here; the sentence is completed with the field's name in front."""
        self.report.warn(self.place, code, f"'{self.path}' {sentence}")

    # Mappings

    def keys(self) -> list[str]:
        """Return the names in a mapping; record a fault and return none if it is not one."""
        if isinstance(self.node.value, dict):
            return list(self.node.value)
        if not self.absent:
            self.refuse("must be a mapping of names to values.")
        return []

    def get(self, key: str) -> ManifestView | None:
        """Return the value under a name; None if it is missing or null."""
        if not isinstance(self.node.value, dict) or key not in self.node.value:
            return None
        child = ManifestView(self.report, self.node.value[key], _joined(self.path, key), self.node.keys[key])
        null = isinstance(child.node.value, str) and child.node.plain(_AS_WRITTEN) is None
        return None if null else child

    def follow(self, *keys: str) -> ManifestView | None:
        """Return the value under several nested names."""
        found: ManifestView | None = self
        for key in keys:
            found = found.get(key) if found is not None else None
        return found

    def check(self, fields: Fields) -> None:
        """Record unknown fields, with the nearest known one, and the table's warnings and refusals."""
        for key in self.keys():
            rule = fields.get(key)
            if rule is None:
                self._unknown(key, list(fields))
                continue
            child = self.get(key)
            if child is None or child.absent:
                continue
            if rule.treatment is Treatment.IGNORED:
                child.warn(ManifestNotice.FIELD_IGNORED, f"is ignored: {rule.why}")
            elif rule.treatment is Treatment.REJECTED:
                child.refuse(f"is not supported: {rule.why}", rule.hint, ErrorCode.UNSUPPORTED)

    def _unknown(self, key: str, known: list[str]) -> None:
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
        folded = [name for name in known if name.lower() == key.lower()] or close
        hint = f"Did you mean '{folded[0]}'?" if folded else f"Known fields: {', '.join(known)}."
        place = self.node.keys[key]
        self.report.refuse(place, f"There is no field '{_joined(self.path, key)}'.", hint, ErrorCode.INVALID_REQUEST)

    # Lists

    def items(self) -> list[ManifestView]:
        """Return the items of a list; record a fault and return none if it is not one."""
        if not isinstance(self.node.value, list):
            if not self.absent:
                self.refuse("must be a list.")
            return []
        return [
            ManifestView(self.report, item, f"{self.path}[{index}]", (item.line, item.column))
            for index, item in enumerate(self.node.value)
        ]

    def each(self, key: str) -> list[ManifestView]:
        """Return the items of the list under a name; none if it is missing."""
        found = self.get(key)
        return [] if found is None else found.items()

    # Plain values

    def scalar(self) -> str:
        """Return the text as written; record a fault and return an empty text for a list or mapping."""
        if not isinstance(self.node.value, str):
            self.refuse("must be text.")
            return ""
        return str(self.node.plain(_AS_WRITTEN) or "")

    def text(self, key: str, default: str = "") -> str:
        """Return the text under a name."""
        found = self.get(key)
        return default if found is None else found.scalar()

    def texts(self, key: str) -> list[str]:
        """Return the texts in the list under a name."""
        return [item.scalar() for item in self.each(key)]

    def pairs(self, key: str) -> dict[str, ManifestView]:
        """Return the values in the mapping under a name."""
        found = self.get(key)
        if found is None:
            return {}
        values = {name: found.get(name) for name in found.keys()}  # noqa: SIM118 - keys() notes what is no mapping
        return {name: value for name, value in values.items() if value is not None}

    def number(self, key: str, default: int | None = None, *, least: int = 0, most: int = 2**31 - 1) -> int | None:
        """Return the whole number under a name, quoted or not."""
        found = self.get(key)
        if found is None:
            return default
        text = found.scalar()
        if not text.lstrip("-").isdecimal() or len(text) > 12 or not least <= int(text) <= most:
            found.refuse(f"must be a whole number from {least} on.", code=ErrorCode.INVALID_COUNT)
            return default
        return int(text)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return the truth value under a name."""
        found = self.get(key)
        if found is None:
            return default
        text = found.scalar()
        if text not in _TRUTH:
            found.refuse("must be true or false.")
        return _TRUTH.get(text, default)

    def choice(self, key: str, allowed: Sequence[str], default: str) -> str:
        """Return one of several words under a name; empty counts as absent."""
        found = self.get(key)
        text = default if found is None else found.scalar() or default
        if found is not None and text not in allowed:
            found.refuse(f"must be one of {', '.join(allowed)}.")
            return default
        return text

    def place_of(self, key: str) -> Place:
        """Return the position of a name; this value's own if it is missing."""
        return self.node.keys.get(key, self.place)


def _joined(path: str, key: str) -> str:
    shown = key if len(key) <= 80 else key[:77] + "..."
    if "." in shown or "/" in shown:
        return f"{path}['{shown}']"
    return f"{path}.{shown}" if path else shown
