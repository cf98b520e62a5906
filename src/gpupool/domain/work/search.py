"""Searches and sort orders for lists of workloads; the store applies them to all workloads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.errors import ErrorCode, GpupoolError

MAX_WORDS = 8
MAX_SEARCH_LENGTH = 200


class SearchField(StrEnum):
    """A field that a word of a search may name: ``state:running``."""

    NAME = "name"
    ID = "id"
    STATE = "state"
    KIND = "kind"
    PROJECT = "project"
    USER = "user"
    LABEL = "label"
    COMMAND = "command"


# Words without a field name search these. Commands are excluded: reading all of them takes too long.
DEFAULT_FIELDS = (
    SearchField.NAME,
    SearchField.ID,
    SearchField.STATE,
    SearchField.KIND,
    SearchField.PROJECT,
    SearchField.USER,
    SearchField.LABEL,
)


@dataclass(frozen=True, slots=True)
class SearchWord:
    """A text that one of the fields must contain; case does not matter."""

    text: str
    fields: tuple[SearchField, ...] = DEFAULT_FIELDS


def parse_search(text: str) -> tuple[SearchWord, ...]:
    """Return the words of a search: ``resnet user:ann``; all of them must match.

    Raises ``GpupoolError`` (INVALID_REQUEST) for a text that is too long.
    """
    words = text.split()
    if len(text) > MAX_SEARCH_LENGTH or len(words) > MAX_WORDS:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            f"The search has {len(words)} words in {len(text)} characters; "
            f"the limits are {MAX_WORDS} words and {MAX_SEARCH_LENGTH} characters.",
            "Search for fewer words.",
        )
    return tuple(_parse_word(word) for word in words)


def _parse_word(word: str) -> SearchWord:
    field, colon, rest = word.partition(":")
    if colon and rest and field.lower() in set(map(str, SearchField)):
        return SearchWord(rest, (SearchField(field.lower()),))
    return SearchWord(word)


class SortKey(StrEnum):
    """A sort key of workload lists."""

    CREATED = "created"
    NAME = "name"
    STATE = "state"
    PROJECT = "project"
    USER = "user"
    GPUS = "gpus"  # of all replicas that may run together
    RAN = "ran"  # from the first start to the end, or until now
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class SortOrder:
    """An order; rows without a value come last, equal rows newest first."""

    key: SortKey = SortKey.CREATED
    descending: bool = True


def parse_sort(text: str) -> SortOrder:
    """Return the order that ``name`` or ``-created`` asks for; raises ``GpupoolError`` (INVALID_REQUEST)."""
    key = text.removeprefix("-")
    if key not in set(map(str, SortKey)):
        known = ", ".join(SortKey)
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"sort: '{text[:80]}' is not known.", f"Sort by one of {known}.")
    return SortOrder(SortKey(key), text.startswith("-"))


NEWEST_FIRST = SortOrder()


@dataclass(frozen=True, slots=True)
class CommandScope:
    """The commands that a search may read: everybody's, or those of a user and of some projects."""

    everybody: bool = False
    user: str = ""
    projects: tuple[str, ...] = ()


NO_COMMANDS = CommandScope()
